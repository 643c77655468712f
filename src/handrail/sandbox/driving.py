"""One call from its first byte to its end: one thread, one ``poll``, the host's clock."""

import array
import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from handrail.errors import OverlayRefused, SandboxError, SandboxUnavailable
from handrail.sandbox.cgroups import Cage, Delegation
from handrail.sandbox.ending import Leavings, Verdict, Watched, exit_of, limit_met, read_leavings
from handrail.sandbox.enforced import report_of
from handrail.sandbox.farewell import is_single_thread, read_farewell
from handrail.sandbox.lookout import INTERVAL_S, Lookout, is_full
from handrail.sandbox.output import KeptOutput
from handrail.sandbox.profile import SandboxProfile, remembered
from handrail.sandbox.programs import CellResult, Compilation, InlineCode, Program, ShellCommand, StagedLayer
from handrail.sandbox.zygotes import (
    SCRATCH,
    START_SECONDS,
    ParkedCell,
    Zygote,
    finish_park,
    hear_ready,
    hear_zygote,
    read_frame,
)
from handrail_cell import frames
from handrail_cell.namespaces import OVERLAY_REFUSED
from handrail_cell.wire import EnforcementReport, LimitName

CHUNK = 1 << 16
LAST_FRAME = 4096
SMALL_RESULT = 1024
AFTER_KILL_S = 5.0
LONGEST_WAIT_S = 3600.0
"""One wait of the kernel's is counted in 31 bits of milliseconds, and a call may take longer than that."""
UNHEARD_S = 0.02
"""So long a call's output may wait in its pipe: most calls have ended by then, and each wake costs a call two turns."""


class NothingRan(SandboxError):
    """A cell died before its walls stood, and so before a byte of the call was run: another may try."""


KilledFor = LimitName | Literal["cancel"]


@dataclass(slots=True)
class Run:
    """The state of one call while it is driven. ``started`` and ``deadline`` are seconds of the monotonic clock.

    The call's own time begins when its cell is ready; before that, the deadline is the cell's.
    """

    cell: ParkedCell
    zygote: Zygote
    profile: SandboxProfile
    output: KeptOutput
    on_output: Callable[[bytes], None] | None
    started: float
    deadline: float
    killed_for: KilledFor | None = None
    killed_at: float = 0.0
    confined: bytes | None = None
    upper: int = -1
    verdict: Verdict | None = None
    farewell: Verdict | None = None
    pending: bytes = b""
    lookout: Lookout | None = None
    cage: Cage | None = None

    @classmethod
    def begin(
        cls, zygote: Zygote, profile: SandboxProfile, on_output: Callable[[bytes], None] | None, *, watched: bool
    ) -> "Run":
        """Take a cell for a call. ``watched``: it may start processes, so the host looks in while it runs."""
        now = time.monotonic()
        cell = zygote.take()
        patience = profile.limits.wall_s if cell.parked else START_SECONDS
        run = cls(cell, zygote, profile, KeptOutput(profile.limits.output_bytes), on_output, now, now + patience)
        if watched:
            run.lookout = Lookout(cell, profile.limits, writes_directly=profile.access == "write")
        return run

    def enclose(self, delegation: Delegation) -> None:
        """Put the cell into a control group of its own, before it has its job. Without one it goes on as it is."""
        if not self.cell.parked:
            finish_park(self.cell, START_SECONDS)
            self.deadline = time.monotonic() + self.profile.limits.wall_s
        cage = None
        try:
            cage = delegation.cage(self.profile.limits)
            cage.admit(self.cell.pid)
        except OSError:
            if cage is not None:
                cage.close()
            return
        self.cage = cage
        if self.lookout is not None:
            self.lookout.cage = cage

    def kill(self, reason: KilledFor) -> None:
        """Kill the cell; the first reason stays."""
        if self.killed_for is None:
            self.killed_for = reason
            self.killed_at = time.monotonic()
        self.cell.kill()
        if self.cage is not None:
            self.cage.kill()

    def close(self) -> None:
        """Kill whatever is left and let go of every descriptor that was not handed on."""
        self.cell.kill()
        if self.cage is not None:
            self.cage.close()
        self.cell.close()
        if self.upper >= 0:
            os.close(self.upper)
            self.upper = -1


def encode_job(program: Program | Compilation, profile: SandboxProfile, compiled: bytes = b"") -> bytes:
    """The job as the cell reads it: metadata of the profile, a name, the tool's own bytes, and what an earlier cell
    compiled of them.
    """
    if isinstance(program, ShellCommand):
        meta = _shell_meta(profile)
        name, source, input_json = json.dumps({"argv": program.argv, "cwd": program.cwd}).encode(), b"", b""
    else:
        inline = isinstance(program, InlineCode)
        meta = _inline_meta(profile) if inline else _meta_of(profile, "compile")
        name, source = program.filename.encode("utf-8", "replace"), program.source.encode("utf-8", "surrogatepass")
        input_json = program.input_json if inline else b""
    head = frames.JOB.pack(frames.JOB_MAGIC, len(meta), len(name), len(source), len(compiled), len(input_json))
    return b"".join((head, meta, name, source, compiled, input_json))


@remembered
def _inline_meta(profile: SandboxProfile) -> bytes:
    return _meta_of(profile, "inline")


@remembered
def _shell_meta(profile: SandboxProfile) -> bytes:
    return _meta_of(profile, "shell")


def _meta_of(profile: SandboxProfile, kind: str) -> bytes:
    """The profile as the cell reads it."""
    limits = profile.limits
    shown = profile.workspace if profile.access != "none" else None
    meta: dict[str, Any] = {
        "kind": kind,
        "workspace": shown,
        "access": profile.access,
        "exec": profile.exec or kind == "shell",
        "environment": dict(profile.environment),
        "cwd": shown or SCRATCH,
        "copy_bytes": profile.copy_bytes,
    }
    numbers = frames.LIMITS.pack(
        math.ceil(limits.cpu_s),
        limits.memory_bytes,
        limits.processes,
        limits.disk_bytes,
        limits.file_bytes,
        limits.open_files,
    )
    return numbers if meta == frames.PLAIN else numbers + json.dumps(meta).encode()


def send_job(run: Run, program: Program | Compilation, stdio: tuple[int, ...] = (), *, compiled: bytes = b"") -> None:
    """Send the job with the descriptors it needs. What the socket does not take at once goes along while driving."""
    profile = run.profile
    mounted = profile.workspace is not None and profile.access != "none" and run.zygote.key.tier == "full"
    given = [*([run.zygote.mount(profile.workspace or "")] if mounted else []), *stdio]
    data = encode_job(program, profile, compiled)
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", given))] if given else []
    try:
        sent = run.cell.job.sendmsg([memoryview(data)[:CHUNK]], ancillary)
        run.pending = data[sent:]
    except (BrokenPipeError, ConnectionResetError):
        return  # the cell or its parent is dead; driving it will say so
    finally:
        if mounted:
            os.close(given[0])


def drive(run: Run) -> None:
    """Until the kernel says the cell has ended: collect frames and output, mind the clock and what the cell uses."""
    ears = _Ears(run)
    while run.verdict is None:
        for fd, events in ears.listen(run):
            if fd == run.cell.output:
                _drain(run)
                if events == select.POLLHUP:
                    ears.poll.unregister(fd)
            else:
                _hear(run, fd, events, ears.poll)
        ears.adjust(run)
        _mind(run)
    while _drain(run) == CHUNK:
        pass
    while _hear_job(run):
        pass


class _Ears:
    """What wakes the host while a call is driven: as little as will do, for each wake costs the call two turns.

    Output that nobody streams may wait in its pipe for a while, and the walls' frame until all is over.
    """

    __slots__ = ("_cell_comes", "_output_from", "poll")

    def __init__(self, run: Run) -> None:
        self.poll = _poll_of(run)
        self._cell_comes = not run.cell.parked
        self._output_from: float | None = time.monotonic() + UNHEARD_S
        if run.on_output is not None:
            self._hear_output(run)

    def listen(self, run: Run) -> list[tuple[int, int]]:
        """Wait for something to happen, or for the time to look at something."""
        patience = _patience_ms(run)
        return self.poll.poll(patience if self._output_from is None else min(patience, UNHEARD_S * 1000))

    def adjust(self, run: Run) -> None:
        """Hear less of a cell that has become ready, and the output of a call that takes its time."""
        if self._cell_comes and run.cell.parked:
            self._cell_comes = False
            if run.lookout is None and not run.pending:
                self.poll.unregister(run.cell.job.fileno())
        if self._output_from is None:
            return
        now = time.monotonic()
        if self._cell_comes:
            self._output_from = now + UNHEARD_S
        elif now >= self._output_from:
            self._hear_output(run)

    def _hear_output(self, run: Run) -> None:
        self._output_from = None
        self.poll.register(run.cell.output, select.POLLIN)


def await_walls(run: Run) -> None:
    """Until the walls of a long-lived program stand, or it is certain that they never will."""
    poll = _poll_of(run, hear_walls=True)
    while run.confined is None and run.verdict is None:
        for fd, events in poll.poll(_patience_ms(run)):
            _hear(run, fd, events, poll)
        _mind(run)
    if run.confined is None and not _hear_job(run):
        raise NothingRan("a cell ended before its walls stood; nothing of the call was run")


def _poll_of(run: Run, *, hear_walls: bool = False) -> select.poll:
    """The walls' frames are read in the end, when nobody waits for them: every wake costs a turn."""
    poll = select.poll()
    if run.pending or run.lookout is not None or hear_walls or not run.cell.parked:
        poll.register(run.cell.job.fileno(), select.POLLIN | (select.POLLOUT if run.pending else 0))
    poll.register(run.cell.status, select.POLLIN)
    _await_farewell(run, poll)
    return poll


def _await_farewell(run: Run, poll: select.poll) -> None:
    """Where processes may have been started, all of them are to be gone: then the warm parent's word is waited for."""
    if run.lookout is not None:
        run.cell.stop_listening()
    elif run.cell.farewell >= 0:
        poll.register(run.cell.farewell, select.POLLIN)


def _patience_ms(run: Run) -> float:
    """How long nothing needs to be looked at."""
    if run.killed_for is not None:
        return AFTER_KILL_S * 1000
    left = min(max(run.deadline - time.monotonic(), 0), LONGEST_WAIT_S)
    return min(left, INTERVAL_S if run.lookout is not None else left) * 1000


def _mind(run: Run) -> None:
    if run.verdict is not None:
        return
    now = time.monotonic()
    if run.killed_for is not None and run.cell.pidfd >= 0:
        if now - run.killed_at > AFTER_KILL_S:
            raise SandboxError("a cell was killed, and the kernel has not ended it: it hangs in a device")
        return
    if now >= run.deadline and not run.cell.parked:
        raise SandboxError("a cell did not get ready in time; nothing of the call was run")
    if now >= run.deadline:
        run.kill("wall")
    elif run.lookout is not None and run.confined is not None:
        over = run.lookout.look_if_due(now)
        if over is not None:
            run.kill(over)


def _hear(run: Run, fd: int, events: int, poll: select.poll) -> None:
    if fd == run.cell.status:
        _hear_status(run)
    elif fd == run.cell.farewell:
        _hear_farewell(run, events, poll)
    elif run.pending and events & select.POLLOUT:
        _send_more(run)
        if not run.pending:
            poll.modify(fd, select.POLLIN)
    elif not _hear_job(run):
        poll.unregister(fd)
    else:
        _await_farewell(run, poll)


def _hear_farewell(run: Run, events: int, poll: select.poll) -> None:
    """The cell's init is about to end, held by the kernel. Killed there, it never comes back to its program.

    If it is its cell's only thread, nothing of the cell can run from then on. Otherwise the listener's hanging up is
    waited for: the kernel lets go of a task's filters when the task will never return to its program (Linux 6.11;
    before that, when it has been reaped). What is left to do then, its memory and its mounts, need not be waited for.
    """
    if events & select.POLLHUP:
        poll.unregister(run.cell.farewell)
        run.verdict = run.verdict or run.farewell
    elif run.farewell is None:
        run.farewell = read_farewell(run.cell.farewell, run.cell.pid)
        if run.farewell is not None:
            alone = is_single_thread(run.cell.view)
            run.cell.kill()
            if alone:
                run.verdict = run.farewell


def _send_more(run: Run) -> None:
    try:
        sent = run.cell.job.send(memoryview(run.pending)[:CHUNK], socket.MSG_DONTWAIT)
        run.pending = run.pending[sent:]
    except (BrokenPipeError, ConnectionResetError):
        run.pending = b""


def _drain(run: Run) -> int:
    """Take one chunk of output, if there is one. Returns its length; less than asked for means that no more waits."""
    try:
        chunk = os.read(run.cell.output, CHUNK)
    except BlockingIOError:
        return 0
    if not chunk:
        return 0
    run.output.add(chunk)
    if run.output.flooded and run.killed_for is None:
        run.kill("output")
    if run.on_output is not None:
        run.on_output(chunk)
    return len(chunk)


def _hear_status(run: Run) -> None:
    data = hear_zygote(run.cell)
    if data[:4] == frames.ENDED_MAGIC:
        _, status, cpu_s = frames.ENDED.unpack(data)
        run.verdict = run.farewell or Verdict(status, cpu_s)
    elif data:
        code = frames.UNBORN.unpack(data)[1]
        raise SandboxError(f"no further cell can be made: {os.strerror(code)}")
    else:
        run.zygote.dead = True
        while _hear_job(run):
            pass
        if run.confined is None:
            raise NothingRan("the cells' warm parent ended; nothing of the call was run")
        raise SandboxError("the cells' warm parent ended while a call ran; the kernel ended the call with it")


def _hear_job(run: Run) -> bool:
    """One trusted frame from the cell. False when there is none to come."""
    if run.confined is not None:
        return False
    try:
        if not run.cell.parked:
            hear_ready(run.cell)
            if run.killed_for is not None:
                run.cell.kill()
            run.deadline = time.monotonic() + run.profile.limits.wall_s
            return True
        kind, body, fds = read_frame(run.cell.job, 1, LAST_FRAME)
    except ConnectionResetError:
        return False
    if kind == frames.CONFINED:
        run.confined = body
        run.upper = fds[0] if fds else -1
    elif kind == frames.FAILED:
        raise _refusal(body.decode("utf-8", "replace"))
    return kind != b""


def _refusal(text: str) -> SandboxUnavailable:
    """What a cell said that could not be confined."""
    _, marked, reason = text.partition(OVERLAY_REFUSED)
    if marked:
        return OverlayRefused(reason)
    return SandboxUnavailable(f"a cell could not be confined and ran nothing: {text}")


def result_of(run: Run) -> CellResult:
    """What the call came to. Takes the layer of changes out of ``run``."""
    verdict = run.verdict
    assert verdict is not None
    if run.confined is None and run.killed_for is None:
        raise NothingRan("a cell ended before its walls stood; nothing of the call was run")
    leavings = read_memory(run.cell.memory)
    code, killed_by = exit_of(verdict, leavings)
    limit: LimitName | None = None
    if code != 0 and run.killed_for is None:
        limit = limit_met(run.profile.limits, verdict, leavings, _watched(run))
    elif run.killed_for is not None:
        code, killed_by = None, signal.SIGKILL.value
        limit = None if run.killed_for == "cancel" else run.killed_for
    upper, run.upper = run.upper, -1
    return CellResult(
        exit_code=code,
        signal=killed_by,
        limit=limit,
        output=run.output.kept(),
        truncated=run.output.truncated,
        value=leavings.value if code == 0 else None,
        error=None if code == 0 else leavings.error,
        duration_ms=(time.monotonic() - run.started) * 1000,
        report=enforced_in(run),
        staged=StagedLayer(upper, run.zygote.ids) if upper >= 0 else None,
        cancelled=run.killed_for == "cancel",
        cpu_s=verdict.cpu_s,
    )


def code_of(run: Run) -> bytes | None:
    """What a cell that compiles came to; ``None`` where it came to nothing."""
    assert run.verdict is not None
    leavings = read_memory(run.cell.memory)
    return leavings.code if exit_of(run.verdict, leavings) == (0, None) else None


def enforced_in(run: Run) -> EnforcementReport:
    """What stood around a call."""
    cage = "" if run.cage is None else run.cage.evidence
    key = run.zygote.key
    return report_of(key.tier, run.cell.parked, run.confined or b"", network=key.network, cage=cage)


def _watched(run: Run) -> Watched:
    many = run.cage is not None and run.cage.processes_met()
    memory = run.cage is not None and run.cage.memory_met()
    if run.zygote.key.tier != "full":
        return Watched(memory_met=memory, processes_full=many)
    full = is_full(run.cell.scratch) or is_full(run.upper)
    if run.lookout is not None:
        full |= run.lookout.disk_full
        many |= run.lookout.processes_full
    return Watched(disk_full=full, processes_full=many, memory_met=memory)


def read_memory(memory: int) -> Leavings:
    """What the cell left in its result memory."""
    start = os.pread(memory, SMALL_RESULT, 0)
    _, length = frames.RESULT.unpack_from(start)
    if length == 0:
        return Leavings()
    if frames.RESULT.size + length > SMALL_RESULT:
        start = os.pread(memory, frames.RESULT.size + min(length, frames.RESULT_BYTES), 0)
    return read_leavings(start)
