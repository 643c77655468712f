"""What a cell can be asked to run, and what comes back."""

import os
from dataclasses import dataclass
from typing import Self

from handrail_cell.wire import EnforcementReport, LimitName


@dataclass(frozen=True, slots=True)
class InlineCode:
    """A tool's Python. It sees ``input_data`` (decoded from ``input_json``) and may bind ``result``."""

    source: str
    filename: str = "<tool>"
    input_json: bytes = b"null"


@dataclass(frozen=True, slots=True)
class Compilation:
    """A tool's Python to be compiled and not run. What comes of it is for later cells alone."""

    source: str
    filename: str


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
    kept of standard output and error in the order it came. ``value`` is what inline code bound to ``result``, as JSON
    bytes, and ``error`` its traceback: both untrusted. ``staged`` is to be closed.
    """

    exit_code: int | None
    signal: int | None
    limit: LimitName | None
    output: bytes
    truncated: bool
    value: bytes | None
    error: str | None
    duration_ms: float
    report: EnforcementReport
    staged: StagedLayer | None = None
    cancelled: bool = False
    cpu_s: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Ended by itself with status 0, within all limits."""
        return self.exit_code == 0 and self.limit is None and not self.cancelled
