"""The host's look into a cell from outside, while programs run in it.

The kernel limits each process; the sum over processes is nobody's but a control group's. So the host looks in, every 25
ms, through the cell's own ``/proc``, whose descriptor the cell handed over before any tool's code ran. A cell whose
profile allows no new processes needs none of this: there the kernel's own limits are exact.
"""

import contextlib
import os
from typing import NamedTuple, Protocol

from handrail_cell.wire import LimitName, Limits

INTERVAL_S = 0.025
PAGE = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Windows(Protocol):
    """What the lookout looks through: descriptors, -1 while there are none."""

    view: int
    scratch: int


class Counted(Protocol):
    """A control group, where there is one: it counts what looking in can only add up."""

    def cpu_s(self) -> float | None: ...


class Sight(NamedTuple):
    """One look: processes, processor seconds of them and of all they waited for, resident bytes, written bytes."""

    processes: int
    cpu_s: float
    resident: int
    written: int


class Lookout:
    """Watches one cell through the descriptors of its ``/proc`` and ``/tmp``, when it has handed them over."""

    __slots__ = ("_cell", "_direct", "_due", "_limits", "cage", "disk_full", "processes_full")

    def __init__(self, cell: Windows, limits: Limits, *, writes_directly: bool) -> None:
        self._cell = cell
        self._limits = limits
        self._due = 0.0
        self._direct = writes_directly
        self.cage: Counted | None = None
        self.disk_full = False
        self.processes_full = False

    @property
    def _view(self) -> int:
        return self._cell.view

    @property
    def _scratch(self) -> int:
        return self._cell.scratch

    def look_if_due(self, now: float) -> LimitName | None:
        """:meth:`look`, at most once in an interval however often output wakes the host."""
        if now < self._due:
            return None
        self._due = now + INTERVAL_S
        return self.look()

    def look(self) -> LimitName | None:
        """The limit that the cell as a whole is over now, if any. Remembers what was full on the way."""
        if self._view < 0:
            return None
        pids = self._pids()
        sight = self._sight(pids)
        self.processes_full |= sight.processes >= self._limits.processes
        self.disk_full |= is_full(self._scratch)
        counted = None if self.cage is None else self.cage.cpu_s()
        if (sight.cpu_s if counted is None else counted) > self._limits.cpu_s:
            return "cpu"
        if self._direct and sight.written > self._limits.disk_bytes:
            return "disk"
        shared = used_bytes(self._scratch)
        if sight.resident + shared <= self._limits.memory_bytes:
            return None
        return "memory" if self._fair_share(pids) + shared > self._limits.memory_bytes else None

    def _pids(self) -> list[str]:
        with contextlib.suppress(OSError):
            here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._view)
            try:
                return [name for name in os.listdir(here) if name.isdigit()]
            finally:
                os.close(here)
        return []

    def _sight(self, pids: list[str]) -> Sight:
        cpu = resident = written = 0
        for pid in pids:
            fields = self._read(f"{pid}/stat").rpartition(b")")[2].split()
            if len(fields) < 22:
                continue
            cpu += sum(int(word) for word in fields[11:15])
            resident += int(fields[21]) * PAGE
            written += self._number(f"{pid}/io", b"write_bytes:") if self._direct else 0
        return Sight(len(pids), cpu / TICKS, resident, written)

    def _fair_share(self, pids: list[str]) -> int:
        """Resident memory with shared pages counted once; where that is hidden from us, private pages alone."""
        total = 0
        for pid in pids:
            share = self._number(f"{pid}/smaps_rollup", b"Pss:")
            total += (share or self._number(f"{pid}/status", b"RssAnon:")) * 1024
        return total

    def _number(self, path: str, label: bytes) -> int:
        for line in self._read(path).splitlines():
            if line.startswith(label):
                return int(line.split()[1])
        return 0

    def _read(self, path: str) -> bytes:
        with contextlib.suppress(OSError):  # the process ended meanwhile, or this file of it is not ours to read
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._view)
            try:
                return os.read(fd, 8192)
            finally:
                os.close(fd)
        return b""


def is_full(directory: int) -> bool:
    """Whether a bounded file system has no room left, in bytes or in inodes."""
    if directory < 0:
        return False
    with contextlib.suppress(OSError):
        space = os.fstatvfs(directory)
        return space.f_bavail == 0 or space.f_favail == 0
    return False


def used_bytes(directory: int) -> int:
    """Bytes in use on a bounded file system (a tmpfs: they are memory)."""
    if directory < 0:
        return 0
    with contextlib.suppress(OSError):
        space = os.fstatvfs(directory)
        return (space.f_blocks - space.f_bfree) * space.f_frsize
    return 0
