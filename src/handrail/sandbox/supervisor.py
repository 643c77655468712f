"""The host's side of the cells: takes a parked one, sends it a job, watches it end, and says truthfully how.

Nothing of a tool runs in this process, and this process is never forked. A call is driven by one thread with one
``poll``; the host's clock, not the cell's, bounds it.
"""

import atexit
import contextlib
import functools
import os
import select
import threading
import time
import weakref
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Self

import anyio
from anyio import from_thread, to_thread

from handrail.bounds import require_whole
from handrail.errors import SandboxError, SandboxUnavailable
from handrail.sandbox.cgroups import Absence, Delegation, find_delegation
from handrail.sandbox.compiled import CompiledCodes
from handrail.sandbox.driving import (
    NothingRan,
    Run,
    await_walls,
    code_of,
    drive,
    enforced_in,
    read_memory,
    result_of,
    send_job,
)
from handrail.sandbox.ending import Verdict, exit_of
from handrail.sandbox.parking import Parking
from handrail.sandbox.profile import SandboxProfile, remembered
from handrail.sandbox.programs import CellResult, Compilation, InlineCode, Program, ShellCommand, StagedLayer
from handrail.sandbox.zygotes import ParkedCell, Zygote, ZygoteKey, hear_zygote, needed_top
from handrail.tool import Signal
from handrail_cell import frames
from handrail_cell.namespaces import SCRATCH_BYTES
from handrail_cell.wire import EnforcementReport, Limits

__all__ = ["CellProcess", "CellResult", "InlineCode", "Program", "ShellCommand", "StagedLayer", "Supervisor"]


COMPILING = SandboxProfile(limits=Limits(wall_s=5.0, cpu_s=5.0))
"""What a cell may use that compiles a tool's code, and runs nothing of it."""

TRIES = 3
"""How often a call is tried whose cell dies before its walls stand: then nothing of it has run."""

MOST_POOL = 1_000
"""Each cell that waits is a process with descriptors of its own."""


class Supervisor:
    """Owns the warm parents and the pool of parked cells. One per host process; thread-safe; close it when done.

    ``pool_size`` is how many cells wait ready for each warm parent; what is taken is replaced in the background. Where
    calls find none waiting there will be more, up to ``pool_most``, and fewer again when it is quiet. With 0, none.
    ``allow_reduced`` lets a profile with ``minimum_tier="reduced"`` run behind the weaker walls
    where the full ones cannot be had. ``cgroup`` is the directory of a version 2 control group to put cells with
    programs beneath; without it, one that is delegated to this process, if any. Raises
    :class:`~handrail.errors.ConfigurationError` for a number that cannot work, and
    :class:`~handrail.errors.SandboxUnavailable` from a call, never from the constructor: nothing is started before it
    is needed.
    """

    def __init__(
        self, *, pool_size: int = 2, pool_most: int = 8, allow_reduced: bool = False, cgroup: str | None = None
    ) -> None:
        require_whole("pool_size", pool_size, least=0, most=MOST_POOL)
        require_whole("pool_most", pool_most, least=0, most=MOST_POOL)
        self._allow_reduced = allow_reduced
        self._full_refused = ""
        self._cgroup = cgroup
        self._delegation: Delegation | Absence | None = None
        self._finding = threading.Lock()
        self._parking = Parking(pool_size, pool_most if pool_size else 0)
        self._codes = CompiledCodes()
        self._compiling: threading.Thread | None = None
        self._processes: weakref.WeakSet[CellProcess] = weakref.WeakSet()
        _EVERY.add(self)

    # -- calls

    async def run(
        self,
        program: Program,
        profile: SandboxProfile,
        *,
        on_output: Callable[[bytes], None] | None = None,
        cancel: Signal | None = None,
    ) -> CellResult:
        """Run a program in a cell of its own. Cancelling the awaiting task kills the cell before it returns.

        ``on_output`` is called in the event loop's thread with bytes as they come.
        """
        stop = cancel or Signal()
        forward = None if on_output is None else functools.partial(from_thread.run_sync, on_output)
        outcome: list[CellResult | Exception] = []

        async def watch() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                if not outcome:
                    stop.set("cancelled")

        async def work() -> None:
            try:
                # A limiter of its own: calls wait for cells, never for a thread.
                outcome.append(
                    await to_thread.run_sync(
                        functools.partial(self.run_sync, program, profile, on_output=forward, cancel=stop),
                        limiter=anyio.CapacityLimiter(1),
                    )
                )
            except Exception as error:  # noqa: BLE001 - raised again outside the task group, which would wrap it
                outcome.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await work()
            group.cancel_scope.cancel()
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0]

    def run_sync(
        self,
        program: Program,
        profile: SandboxProfile,
        *,
        on_output: Callable[[bytes], None] | None = None,
        cancel: Signal | None = None,
    ) -> CellResult:
        """The same, in the calling thread."""
        for _ in range(TRIES - 1):
            with contextlib.suppress(NothingRan):
                return self._try(program, profile, on_output, cancel)
        return self._try(program, profile, on_output, cancel)

    def _try(
        self,
        program: Program,
        profile: SandboxProfile,
        on_output: Callable[[bytes], None] | None,
        cancel: Signal | None,
    ) -> CellResult:
        zygote = self._borrow(profile, program)
        compiled = self._codes.find(program) if isinstance(program, InlineCode) else b""
        with self._cell(zygote, profile, on_output, watched=profile.exec or isinstance(program, ShellCommand)) as run:
            if run.lookout is not None:
                self._enclose(run)
            send_job(run, program, compiled=compiled)
            if cancel is not None:
                cancel.on_set(functools.partial(run.kill, "cancel"))
            drive(run)
            result = result_of(run)
        if isinstance(program, InlineCode) and not compiled:
            self._compile_if_due(program, profile)
        return result

    @contextlib.contextmanager
    def _cell(
        self, zygote: Zygote, profile: SandboxProfile, on_output: Callable[[bytes], None] | None, *, watched: bool
    ) -> Generator[Run]:
        """A cell for one call, and then away with both, however it went."""
        run = None
        try:
            run = Run.begin(zygote, profile, on_output, watched=watched)
            yield run
        finally:
            if run is not None and run.verdict is None:
                run.cell.kill()
            self._parking.give_back(zygote, run)

    # -- compiling

    def _compile_if_due(self, program: InlineCode, profile: SandboxProfile) -> None:
        """Have code compiled while nobody waits for it. One at a time: what is passed over comes again."""
        if self._is_compiling() or not self._codes.called(program):
            return
        thread = threading.Thread(target=self._compile, args=(program, profile), name="handrail-compile", daemon=True)
        with contextlib.suppress(RuntimeError):  # no further thread can be had: the call is done all the same
            thread.start()
            self._compiling = thread

    def _is_compiling(self) -> bool:
        return self._compiling is not None and self._compiling.is_alive()

    def _compile(self, program: InlineCode, profile: SandboxProfile) -> None:
        with contextlib.suppress(SandboxError, OSError):  # then each call compiles it, as the first ones did
            with self._cell(self._borrow(profile), COMPILING, None, watched=False) as run:
                send_job(run, Compilation(program.source, program.filename))
                drive(run)
                code = code_of(run)
            if code is not None:
                self._codes.keep(program, code)

    def spawn(self, program: ShellCommand, profile: SandboxProfile) -> "CellProcess":
        """Start a long-lived program with pipes of its own. The wall clock is off; every other limit holds.

        Returns when its walls stand. It lives until it ends, is killed, or this supervisor or its process ends.
        """
        zygote = self._borrow(profile, program)
        try:
            run = Run.begin(zygote, profile, None, watched=False)
        except BaseException:
            self._parking.give_back(zygote)
            raise
        pipes = [os.pipe() for _ in range(3)]
        (stdin, our_in), (our_out, stdout), (our_err, stderr) = pipes
        try:
            self._enclose(run)
            send_job(run, program, (stdin, stdout, stderr))
            await_walls(run)
        except BaseException:
            for fd in (our_in, our_out, our_err):
                os.close(fd)
            self._parking.give_back(zygote, run)
            raise
        finally:
            for fd in (stdin, stdout, stderr):
                os.close(fd)
        run.cell.stop_listening()
        process = CellProcess(run, our_in, our_out, our_err, functools.partial(self._parking.give_back, zygote))
        self._processes.add(process)
        return process

    def _enclose(self, run: Run) -> None:
        if self._delegation is None:
            with self._finding:
                self._delegation = self._delegation or find_delegation(self._cgroup)
        if isinstance(self._delegation, Delegation):
            run.enclose(self._delegation)

    # -- warm parents and parked cells

    def _borrow(self, profile: SandboxProfile, program: Program | None = None) -> Zygote:
        key = _key_of(profile)
        if key.sealed and isinstance(program, ShellCommand):
            key = replace(key, sealed=False)
        weaker_will_do = self._allow_reduced and profile.minimum_tier == "reduced"
        if self._full_refused and weaker_will_do:
            return self._parking.borrow(replace(key, tier="reduced", sealed=False))
        try:
            return self._parking.borrow(key)
        except SandboxUnavailable as refusal:
            self._full_refused = str(refusal)
            if not weaker_will_do:
                raise
            return self._parking.borrow(replace(key, tier="reduced", sealed=False))

    @contextlib.contextmanager
    def _parent(self, profile: SandboxProfile) -> Generator[Zygote]:
        zygote = self._borrow(profile)
        try:
            yield zygote
        finally:
            self._parking.give_back(zygote)

    def warm(self, profile: SandboxProfile) -> None:
        """Start what a profile needs and park cells for it, before the first call."""
        with self._parent(profile) as zygote:
            self._parking.warm(zygote)

    def idle(self, profile: SandboxProfile) -> bool:
        """Whether everything used is closed and as many cells as wished for are parked: nothing is being done."""
        return not self._is_compiling() and self._parking.idle(self._known(profile))

    def parked(self, profile: SandboxProfile) -> tuple[ParkedCell, ...]:
        """The cells that wait for this profile now: for measuring and for tests."""
        return tuple(self._known(profile).ready)

    def _known(self, profile: SandboxProfile) -> Zygote:
        with self._parent(profile) as zygote:
            return zygote

    def close(self) -> None:
        """End every cell and every warm parent, and wait for them. Safe to call again."""
        self._parking.close()
        if self._compiling is not None and self._compiling is not threading.current_thread():
            self._compiling.join()
        if isinstance(self._delegation, Delegation):
            self._delegation.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@remembered
def _key_of(profile: SandboxProfile) -> ZygoteKey:
    """The warm parent that a profile's cells come from, where the full walls can be had."""
    top = needed_top(profile.workspace if profile.access != "none" else None)
    limits = profile.limits
    usual = min(limits.disk_bytes, limits.memory_bytes) == SCRATCH_BYTES
    sealed = usual and profile.access == "none" and not profile.exec and not profile.network
    return ZygoteKey("full", profile.network, profile.preload, profile.read_only_dirs, top, sealed)


class CellProcess:
    """A long-lived program in a cell. ``stdin``, ``stdout`` and ``stderr`` are the host's pipe ends; close them
    yourself or with :meth:`close`.
    """

    def __init__(self, run: Run, stdin: int, stdout: int, stderr: int, on_close: Callable[[], None]) -> None:
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.report: EnforcementReport = enforced_in(run)
        self._run = run
        self._on_close = on_close
        self._lock = threading.Lock()
        self._ended: tuple[int | None, int | None] | None = None

    def kill(self) -> None:
        """Kill it and everything it started. Safe to call again, and after its end."""
        self._run.cell.kill()

    def wait(self, timeout: float | None = None) -> tuple[int | None, int | None]:
        """``(exit code, signal)``, one of them ``None``. Raises ``TimeoutError`` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            while self._ended is None:
                left = None if deadline is None else max(deadline - time.monotonic(), 0) * 1000
                poll = select.poll()
                poll.register(self._run.cell.status, select.POLLIN)
                if not poll.poll(left):
                    raise TimeoutError("the program is still running")
                self._ended = self._hear_end()
            return self._ended

    def _hear_end(self) -> tuple[int | None, int | None]:
        data = hear_zygote(self._run.cell)
        if data[:4] != frames.ENDED_MAGIC:
            return None, 9  # the warm parent is gone, and by the kernel the program with it
        _, status, cpu_s = frames.ENDED.unpack(data)
        return exit_of(Verdict(status, cpu_s), read_memory(self._run.cell.memory))

    def close(self) -> None:
        """Kill it, wait for its end, and close every descriptor. Safe to call again."""
        if self._run.cell.memory < 0:
            return
        self.kill()
        with contextlib.suppress(TimeoutError):
            self.wait(10)
        for name in ("stdin", "stdout", "stderr"):
            fd: int = getattr(self, name)
            if fd >= 0:
                with contextlib.suppress(OSError):
                    os.close(fd)
                setattr(self, name, -1)
        self._run.close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_EVERY: "weakref.WeakSet[Supervisor]" = weakref.WeakSet()


def _close_every() -> None:
    for supervisor in list(_EVERY):
        supervisor.close()


atexit.register(_close_every)
