"""How a call ended: from the kernel's facts to a status and the limit that was met. Pure."""

import errno
import json
import signal
from dataclasses import dataclass
from typing import Any, cast

from handrail_cell import frames
from handrail_cell.wire import LimitName, Limits

CPU_SLACK = 0.5
"""The kernel counts ticks for the limit and finer for the report: on a crowded machine the two differ by a lot."""

HINT_BY_ERRNO: dict[int, LimitName] = {
    errno.ENOSPC: "disk",
    errno.EDQUOT: "disk",
    errno.EFBIG: "file_size",
    errno.EMFILE: "open_files",
    errno.ENFILE: "open_files",
    errno.ENOMEM: "memory",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the kernel said of the cell's end: a wait status, and seconds of processor time."""

    wait_status: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Leavings:
    """What the cell left in its result memory. Untrusted: any code in the cell could have written it."""

    value: bytes | None = None
    error: str | None = None
    kind: str = ""
    number: int | None = None
    program_status: int | None = None
    code: bytes | None = None


@dataclass(frozen=True, slots=True)
class Watched:
    """What the host saw from outside while the cell ran: full file systems, as many processes as allowed, and that
    its control group wanted more memory than it may have.
    """

    disk_full: bool = False
    processes_full: bool = False
    memory_met: bool = False


def read_leavings(memory: bytes) -> Leavings:
    """Decode the result memory. Anything malformed is as if nothing had been left."""
    kind, length = frames.RESULT.unpack_from(memory)
    body = memory[frames.RESULT.size : frames.RESULT.size + length]
    if len(body) != length:
        return Leavings()
    if kind == frames.VALUE:
        return Leavings(value=body) if _is_json(body) else Leavings()
    if kind == frames.STATUS and length == 4:
        return Leavings(program_status=int.from_bytes(body, "little"))
    if kind == frames.CODE:
        return Leavings(code=body)
    if kind == frames.ERROR:
        return _error_leavings(body)
    return Leavings()


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except (ValueError, RecursionError):
        return False
    return True


def _error_leavings(body: bytes) -> Leavings:
    try:
        fields: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Leavings()
    if not isinstance(fields, dict):
        return Leavings()
    fields = cast("dict[str, Any]", fields)
    text, kind, number = fields.get("traceback"), fields.get("type"), fields.get("errno")
    return Leavings(
        error=text if isinstance(text, str) else "",
        kind=kind if isinstance(kind, str) else "",
        number=number if isinstance(number, int) else None,
    )


def exit_of(verdict: Verdict, leavings: Leavings) -> tuple[int | None, int | None]:
    """``(exit code, signal)``, one of them ``None``.

    For a program the status is its own, left by the init that waited for it; where init itself was killed, that counts.
    """
    status = verdict.wait_status
    if not _signal(status) and leavings.program_status is not None:
        status = leavings.program_status
    killed_by = _signal(status)
    return (None, killed_by) if killed_by else ((status >> 8) & 0xFF, None)


def _signal(wait_status: int) -> int:
    return wait_status & 0x7F


def limit_met(limits: Limits, verdict: Verdict, leavings: Leavings, watched: Watched) -> LimitName | None:
    """The limit that ended the call, as far as the kernel and the cell's own last words tell.

    Signals and used time are the kernel's word. An exception's type is the code's word, believed only for naming which
    limit a failure is about: the failure itself is certain either way.
    """
    code, killed_by = exit_of(verdict, leavings)
    if code == 0:
        return None
    by_signal: dict[int, LimitName] = {signal.SIGXFSZ: "file_size", signal.SIGXCPU: "cpu"}
    if killed_by in by_signal:
        return by_signal[killed_by]
    if killed_by == signal.SIGKILL and verdict.cpu_s >= limits.cpu_s * CPU_SLACK:
        return "cpu"
    if watched.memory_met:
        return "memory"
    hinted = _hint(leavings)
    if hinted is not None:
        return hinted
    if watched.disk_full:
        return "disk"
    return "processes" if watched.processes_full else None


def _hint(leavings: Leavings) -> LimitName | None:
    if leavings.kind == "MemoryError":
        return "memory"
    if leavings.number is not None and leavings.number in HINT_BY_ERRNO:
        return HINT_BY_ERRNO[leavings.number]
    if leavings.number == errno.EAGAIN or (
        leavings.kind == "RuntimeError" and "can't start new thread" in (leavings.error or "")
    ):
        return "processes"
    return None
