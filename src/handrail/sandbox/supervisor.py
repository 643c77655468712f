"""The host's side of the cells: takes a parked one, sends it a job, watches it end, and says truthfully how.

Nothing of a tool runs in this process, and this process is never forked. A call is driven by one thread with one
``poll``; the host's clock, not the cell's, bounds it.
"""

import array
import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import anyio
from anyio import from_thread, to_thread

from handrail.errors import SandboxError, SandboxUnavailable
from handrail.sandbox.ending import Leavings, Verdict, Watched, exit_of, limit_met, read_leavings
from handrail.sandbox.output import KeptOutput
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.report import report_of
from handrail.sandbox.zygotes import (
    ParkedCell,
    Zygote,
    ZygoteKey,
    default_path,
    finish_park,
    hear_ready,
    hear_zygote,
    needed_top,
    read_frame,
)
from handrail.tool import Signal
from handrail_cell import frames
from handrail_cell.wire import EnforcementReport, LimitName

CHUNK = 1 << 16
THREADS = 256
PACKAGE_ZYGOTES = 4
SCRATCH = "/tmp"  # noqa: S108 - the cell's own, an empty tmpfs
HOST_KILLED: tuple[LimitName, ...] = ("wall", "output", "memory", "cpu", "disk")


@dataclass(frozen=True, slots=True)
class InlineCode:
    """A tool's Python. It sees ``input_data`` (decoded from ``input_json``) and may bind ``result``."""

    source: str
    filename: str = "<tool>"
    input_json: bytes = b"null"


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A program, run under a small init that reaps and, when the program ends, takes everything along.

    ``cwd`` is absolute; ``None`` means the workspace, or ``/tmp`` without one.
    """

    argv: tuple[str, ...]
    cwd: str | None = None


Program = InlineCode | ShellCommand


class StagedLayer:
    """The layer that took a call's changes: the upper directory of an overlay, readable although the cell is dead.

    ``upper_fd`` is a directory descriptor on a tmpfs that no mount table holds: when it is closed, the layer is gone.
    Whiteouts are character devices 0/0, opaque directories carry ``user.overlay.opaque``. ``owner`` is ``(uid,
    gid)`` of the files the cell made in it, which stand for the workspace owner's.
    """

    __slots__ = ("owner", "upper_fd")

    def __init__(self, upper_fd: int, owner: tuple[int, int]) -> None:
        self.upper_fd = upper_fd
        self.owner = owner

    def close(self) -> None:
        """Let the layer go."""
        if self.upper_fd >= 0:
            os.close(self.upper_fd)
            self.upper_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class CellResult:
    """What a call came to.

    ``exit_code`` or ``signal`` is set, from the kernel. ``limit`` names the limit that ended it. ``output`` is what was
    kept of standard output and error in the order it came, ``output_total`` counts all of it. ``value`` is what inline
    code bound to ``result``, as JSON bytes, and ``error`` its traceback: both untrusted. ``staged`` is to be closed.
    """

    exit_code: int | None
    signal: int | None
    limit: LimitName | None
    output: bytes
    output_total: int
    truncated: bool
    value: bytes | None
    error: str | None
    duration_ms: float
    report: EnforcementReport
    staged: StagedLayer | None = None
    cancelled: bool = False
    cpu_s: float = 0.0
    peak_bytes: int = 0

    @property
    def succeeded(self) -> bool:
        """Ended by itself with status 0, within all limits."""
        return self.exit_code == 0 and self.limit is None and not self.cancelled


@dataclass(slots=True)
class _Run:
    """The state of one call while it is driven."""

    cell: ParkedCell
    profile: SandboxProfile
    output: KeptOutput
    on_output: Callable[[bytes], None] | None
    started: float
    deadline: float
    killed_for: LimitName | Literal["cancel"] | None = None
    confined: bytes | None = None
    upper: int = -1
    verdict: Verdict | None = None
    pending: bytes = b""

    def kill(self, reason: LimitName | Literal["cancel"]) -> None:
        """Kill the cell; the first reason stays."""
        if self.killed_for is None:
            self.killed_for = reason
        self.cell.kill()


class Supervisor:
    """Owns the warm parents and the pool of parked cells. One per host process; thread-safe; close it when done.

    ``pool_size`` is how many cells wait ready when nothing has happened for a while; under load more are kept, up to
    four times as many. ``allow_reduced`` lets a profile with ``minimum_tier="reduced"`` run behind the weaker walls
    where the full ones cannot be had. Raises :class:`~handrail.errors.SandboxUnavailable` from a call, never from the
    constructor: nothing is started before it is needed.
    """

    def __init__(self, *, pool_size: int = 2, allow_reduced: bool = False) -> None:
        self._pool_size = pool_size
        self._allow_reduced = allow_reduced
        self._lock = threading.Lock()
        self._zygotes: dict[ZygoteKey, Zygote] = {}
        self._full_refused = ""
        self._closed = False
        self._pid = os.getpid()
        self._limiter: anyio.CapacityLimiter | None = None
        self._refill = threading.Condition()
        self._refiller: threading.Thread | None = None
        self._hungry: list[Zygote] = []
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
                outcome.append(
                    await to_thread.run_sync(
                        functools.partial(self._run, program, profile, forward, stop), limiter=self._threads()
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
        return self._run(program, profile, on_output, cancel)

    def _threads(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(1)

    def _run(
        self,
        program: Program,
        profile: SandboxProfile,
        on_output: Callable[[bytes], None] | None,
        cancel: Signal | None,
    ) -> CellResult:
        started = time.monotonic()
        zygote = self._zygote_for(profile)
        cell = zygote.take()
        upper = -1
        try:
            run = _Run(
                cell,
                profile,
                KeptOutput(profile.limits.output_bytes),
                on_output,
                started,
                started + profile.limits.wall_s,
            )
            self._send_job(zygote, run, program, [])
            if cancel is not None:
                _kill_on(cancel, run)
            _drive(run)
            upper, run.upper = run.upper, -1
            result = _result_of(run, zygote, upper)
            upper = -1
            return result
        finally:
            if upper >= 0:
                os.close(upper)
            cell.kill()
            cell.close()
            self._want_refill(zygote)

    def _send_job(self, zygote: Zygote, run: _Run, program: Program, stdio: list[int]) -> None:
        profile = run.profile
        mounted = profile.workspace is not None and profile.access != "none" and zygote.key.tier == "full"
        tree = zygote.mount(profile.workspace or "") if mounted else -1
        try:
            head, body = _encode_job(program, profile)
            given = ([tree] if tree >= 0 else []) + stdio
            _send_all(run, head + body, given)
        finally:
            if tree >= 0:
                os.close(tree)

    # -- warm parents and parked cells

    def _zygote_for(self, profile: SandboxProfile) -> Zygote:
        if self._closed:
            raise SandboxError("the supervisor is closed")
        if self._pid != os.getpid():
            self._forget_after_fork()
        top = needed_top(profile.workspace if profile.access != "none" else None)
        key = ZygoteKey("full", profile.network, profile.preload, profile.read_only_dirs, top)
        weaker_will_do = self._allow_reduced and profile.minimum_tier == "reduced"
        if self._full_refused and weaker_will_do:
            return self._zygote(replace(key, tier="reduced"))
        try:
            return self._zygote(key)
        except SandboxUnavailable as refusal:
            self._full_refused = str(refusal)
            if not weaker_will_do:
                raise
            return self._zygote(replace(key, tier="reduced"))

    def _zygote(self, key: ZygoteKey) -> Zygote:
        zygote = self._zygotes.get(key)
        if zygote is not None and not zygote.dead:
            return zygote
        with self._lock:
            zygote = self._zygotes.get(key)
            if zygote is None or zygote.dead:
                if zygote is not None:
                    zygote.close()
                zygote = self._zygotes[key] = Zygote(key)
            return zygote

    def _forget_after_fork(self) -> None:
        """In a forked child of the host: the cells are the parent's. Start over with none."""
        self._zygotes = {}
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._refill = threading.Condition()
        self._refiller = None

    def warm(self, profile: SandboxProfile) -> None:
        """Start what a profile needs and park cells for it, before the first call."""
        zygote = self._zygote_for(profile)
        while len(zygote.ready) < self._pool_size:
            cell = zygote.begin_park()
            finish_park(cell, 30.0)
            zygote.ready.append(cell)

    def _want_refill(self, zygote: Zygote) -> None:
        if len(zygote.ready) >= self._pool_size or zygote.dead or self._closed:
            return
        with self._refill:
            if zygote not in self._hungry:
                self._hungry.append(zygote)
            if self._refiller is None:
                self._refiller = threading.Thread(target=self._keep_parked, name="handrail-cells", daemon=True)
                self._refiller.start()
            self._refill.notify()

    def _keep_parked(self) -> None:
        while True:
            with self._refill:
                while not self._hungry:
                    if self._closed:
                        return
                    self._refill.wait()
                zygote = self._hungry.pop()
            with contextlib.suppress(SandboxError, OSError):
                while len(zygote.ready) < self._pool_size and not zygote.dead and not self._closed:
                    cell = zygote.begin_park()
                    try:
                        finish_park(cell, 30.0)
                    except BaseException:
                        cell.close()
                        raise
                    zygote.ready.append(cell)

    def close(self) -> None:
        """End every cell and every warm parent, and wait for them. Safe to call again."""
        with self._lock:
            self._closed = True
            zygotes = list(self._zygotes.values())
            self._zygotes.clear()
        with self._refill:
            self._hungry.clear()
            self._refill.notify_all()
        if self._refiller is not None and self._refiller is not threading.current_thread():
            self._refiller.join(timeout=10)
        if self._pid == os.getpid():
            for zygote in zygotes:
                zygote.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_EVERY: "weakref.WeakSet[Supervisor]" = weakref.WeakSet()


def _close_every() -> None:
    for supervisor in list(_EVERY):
        supervisor.close()


atexit.register(_close_every)


# ------------------------------------------------------------------------------------------- one call


def _encode_job(program: Program, profile: SandboxProfile) -> tuple[bytes, bytes]:
    limits = profile.limits
    home = {"HOME": SCRATCH, "TMPDIR": SCRATCH, "LANG": "C.UTF-8", "PATH": default_path(), "MALLOC_ARENA_MAX": "2"}
    meta: dict[str, Any] = {
        "workspace": profile.workspace if profile.access != "none" else None,
        "access": profile.access,
        "exec": profile.exec or isinstance(program, ShellCommand),
        "environment": {**home, **profile.environment},
        "cwd": (profile.workspace if profile.access != "none" else None) or SCRATCH,
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
        "processes": limits.processes,
        "disk_bytes": limits.disk_bytes,
        "file_bytes": limits.file_bytes,
        "open_files": limits.open_files,
    }
    source = input_json = b""
    if isinstance(program, InlineCode):
        source, input_json = program.source.encode("utf-8", "surrogatepass"), program.input_json
        meta |= {"kind": "inline", "filename": program.filename}
    else:
        meta |= {"kind": "shell", "argv": program.argv, "cwd": program.cwd or meta["cwd"]}
    head = json.dumps(meta).encode()
    return frames.JOB.pack(frames.JOB_MAGIC, len(head), len(source), len(input_json)) + head, source + input_json


def _send_all(run: _Run, data: bytes, descriptors: list[int]) -> None:
    """Send the job. What the socket does not take at once goes along while the call is driven."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    try:
        sent = run.cell.job.sendmsg([data[:CHUNK]], ancillary)
    except (BrokenPipeError, ConnectionResetError):
        return  # the cell or its parent is dead; driving it will say so
    if sent < len(data):
        run.pending = data[sent:]


def _kill_on(cancel: Signal, run: _Run) -> None:
    def kill() -> None:
        run.kill("cancel")

    cancel.on_set(kill)


def _drive(run: _Run) -> None:
    """Until the kernel says the cell has ended: collect frames and output, mind the clock."""
    cell = run.cell
    poll = select.poll()
    job, status, output = cell.job.fileno(), cell.status.fileno(), cell.output
    poll.register(job, select.POLLIN | (select.POLLOUT if run.pending else 0))
    poll.register(status, select.POLLIN)
    poll.register(output, select.POLLIN)
    while run.verdict is None:
        left = run.deadline - time.monotonic()
        if left <= 0 and run.killed_for is None:
            run.kill("wall")
        for fd, events in poll.poll(max(left, 0) * 1000 if run.killed_for is None else 5000):
            if fd == output:
                _drain(run)
                if events == select.POLLHUP:
                    poll.unregister(output)
            elif fd == status:
                _hear_status(run)
            elif not _hear_job(run, events, poll):
                poll.unregister(job)
    while _drain(run):
        pass
    while _hear_job(run, select.POLLIN, poll):
        pass


def _drain(run: _Run) -> bool:
    """Take one chunk of output, if there is one."""
    try:
        chunk = os.read(run.cell.output, CHUNK)
    except BlockingIOError:
        return False
    if not chunk:
        return False
    run.output.add(chunk)
    if run.output.flooded and run.killed_for is None:
        run.kill("output")
    if run.on_output is not None:
        run.on_output(chunk)
    return True


def _hear_status(run: _Run) -> None:
    data = hear_zygote(run.cell)
    if data[:4] == frames.PARKED_MAGIC:
        if run.killed_for is not None:
            run.cell.kill()
        return
    if data[:4] == frames.ENDED_MAGIC:
        _, status, user, system, peak = frames.ENDED.unpack(data)
        run.verdict = Verdict(status, user, system, peak)
        return
    raise SandboxError("the cells' warm parent ended while a call ran; nothing of the call is left running")


def _hear_job(run: _Run, events: int, poll: select.poll) -> bool:
    """Trusted frames from the cell, and the rest of the job to it. False when the stream has ended."""
    if run.pending and events & select.POLLOUT:
        try:
            run.pending = run.pending[run.cell.job.send(memoryview(run.pending)[:CHUNK], socket.MSG_DONTWAIT) :]
        except (BrokenPipeError, ConnectionResetError):
            run.pending = b""
        if not run.pending:
            poll.modify(run.cell.job.fileno(), select.POLLIN)
        return True
    if run.confined is not None:
        return False
    if not run.cell.parked:
        try:
            hear_ready(run.cell)
        except ConnectionResetError:
            return False
        return True
    try:
        kind, body, fds = read_frame(run.cell.job, 1)
    except ConnectionResetError:
        return False
    if kind == frames.CONFINED:
        run.confined = body
        run.upper = fds[0] if fds else -1
        return True
    if kind == frames.FAILED:
        raise SandboxUnavailable(f"a cell could not be confined and ran nothing: {body.decode('utf-8', 'replace')}")
    return False


def _result_of(run: _Run, zygote: Zygote, upper: int) -> CellResult:
    verdict = run.verdict
    assert verdict is not None
    if run.confined is None and run.killed_for is None:
        raise SandboxError("a cell ended before its walls stood; nothing of the call was run")
    leavings = _read_memory(run.cell.memory)
    watched = Watched(disk_full=_full(run.cell.scratch) or _full(upper))
    code, killed_by = exit_of(verdict, leavings)
    if run.killed_for is not None:
        code, killed_by = None, signal.SIGKILL.value
    limit = limit_met(run.profile.limits, verdict, leavings, watched) if run.killed_for is None else None
    if run.killed_for is not None and run.killed_for != "cancel":
        limit = run.killed_for
    good = code == 0
    return CellResult(
        exit_code=code,
        signal=killed_by,
        limit=limit,
        output=run.output.kept(),
        output_total=run.output.total,
        truncated=run.output.truncated,
        value=leavings.value if good else None,
        error=None if good else leavings.error,
        duration_ms=(time.monotonic() - run.started) * 1000,
        report=report_of(zygote.key.tier, run.cell.parked, run.confined or b"", network=zygote.key.network),
        staged=StagedLayer(upper, (0, 0)) if upper >= 0 else None,
        cancelled=run.killed_for == "cancel",
        cpu_s=verdict.user_s + verdict.system_s,
        peak_bytes=verdict.peak_kb * 1024,
    )


def _read_memory(memory: int) -> Leavings:
    head = os.pread(memory, frames.RESULT.size, 0)
    _, length = frames.RESULT.unpack(head)
    if length == 0:
        return Leavings()
    return read_leavings(os.pread(memory, frames.RESULT.size + min(length, frames.RESULT_BYTES), 0))


def _full(directory: int) -> bool:
    if directory < 0:
        return False
    with contextlib.suppress(OSError):
        space = os.fstatvfs(directory)
        return space.f_bavail == 0 or space.f_favail == 0
    return False
