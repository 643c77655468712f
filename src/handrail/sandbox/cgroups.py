"""A control group around each cell that may start processes, where a part of the version 2 tree is delegated to us.

There the kernel itself bounds what the processes of a cell use together, and ends all of them at once. Nothing depends
on it: where no group is delegated, the host looks in from outside (:mod:`handrail.sandbox.lookout`).

A group is taken for delegated when it was named in trusted configuration, when an ordinary user may write to it, or,
started by root, when the service manager has marked it so: root may write everywhere, and is asked not to.

Source of the rules: ``Documentation/admin-guide/cgroup-v2.rst`` ("Delegation", "No Internal Process Constraint") and
systemd's ``CGROUP_DELEGATION.md``.
"""

import contextlib
import itertools
import os
import select
import time
from dataclasses import dataclass
from typing import Self

from handrail_cell.wire import Limits

CONTROLLERS = ("memory", "pids")
MARKS = ("user.delegate", "trusted.delegate")
NAME = "handrail-"
GONE_S = 5.0


@dataclass(frozen=True, slots=True)
class Absence:
    """Why there is no group to divide."""

    reason: str


class Cage:
    """One group around one cell. Everything that is born in it stays in it."""

    __slots__ = ("_group", "_name", "_parent", "evidence")

    def __init__(self, parent: int, name: str, limits: Limits) -> None:
        """Make the group ``name`` beneath the directory ``parent`` and set its bounds. Raises ``OSError``."""
        os.mkdir(name, dir_fd=parent)
        self._parent = os.dup(parent)
        self._name = name
        self._group = -1
        try:
            self._group = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
            bounds = {
                "memory.max": limits.memory_bytes,
                "memory.swap.max": 0,
                "memory.oom.group": 1,
                "pids.max": limits.processes,
            }
            kept = [file for file, value in bounds.items() if self._set(file, value)]
        except OSError:
            self.close()
            raise
        self.evidence = ", ".join([*(file for file in kept if file.endswith(".max")), "cgroup.kill at the end"])

    def _set(self, file: str, value: int) -> bool:
        """Write a bound. False when the controller is not there; anything else that fails is an error."""
        try:
            _write(self._group, file, b"%d" % value)
        except FileNotFoundError:
            return False
        return True

    def admit(self, process: int) -> None:
        """Move a process in. It must not have started any other yet."""
        _write(self._group, "cgroup.procs", b"%d" % process)

    def kill(self) -> None:
        """Kill everything in it, and what is being born meanwhile."""
        with contextlib.suppress(OSError):
            _write(self._group, "cgroup.kill", b"1")

    def cpu_s(self) -> float | None:
        """Processor time of all that ever ran in it, in seconds."""
        used = self._number("cpu.stat", "usage_usec")
        return None if used is None else used / 1e6

    def memory_met(self) -> bool:
        """Whether the kernel ended it because together its processes wanted too much memory."""
        return bool(self._number("memory.events", "oom_kill"))

    def processes_met(self) -> bool:
        """Whether a new process was refused."""
        return bool(self._number("pids.events", "max"))

    def _number(self, file: str, label: str) -> int | None:
        for line in _read(self._group, file).splitlines():
            name, _, value = line.partition(" ")
            if name == label and value.isdigit():
                return int(value)
        return None

    def close(self) -> None:
        """Kill what is left, wait until it is gone, and remove the group. Safe to call again."""
        if not self._name:
            return
        if self._group >= 0:
            self.kill()
            self._await_empty()
            os.close(self._group)
            self._group = -1
        with contextlib.suppress(OSError):
            os.rmdir(self._name, dir_fd=self._parent)
        os.close(self._parent)
        self._name = ""

    def _await_empty(self) -> None:
        try:
            events = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._group)
        except OSError:
            return
        poll = select.poll()
        poll.register(events, select.POLLPRI)
        deadline = time.monotonic() + GONE_S
        try:
            while "populated 1" in os.pread(events, 4096, 0).decode() and time.monotonic() < deadline:
                poll.poll(100)
        finally:
            os.close(events)


class Delegation:
    """A group that is ours to divide: cages are made beneath it."""

    __slots__ = ("_directory", "_numbers", "controllers", "path")

    def __init__(self, path: str, directory: int, controllers: tuple[str, ...]) -> None:
        self.path = path
        self.controllers = controllers
        self._directory = directory
        self._numbers = itertools.count()
        self._sweep()

    @classmethod
    def take(cls, path: str) -> Self:
        """Take the group at ``path`` and hand its controllers on to its children. Raises ``OSError``."""
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in _words(directory, "cgroup.controllers"):
                if name in CONTROLLERS and name not in _words(directory, "cgroup.subtree_control"):
                    with contextlib.suppress(OSError):  # processes of its own: the kernel wants them in a leaf
                        _write(directory, "cgroup.subtree_control", b"+" + name.encode())
            given = tuple(name for name in CONTROLLERS if name in _words(directory, "cgroup.subtree_control"))
            return cls(path, directory, given)
        except BaseException:
            os.close(directory)
            raise

    def cage(self, limits: Limits) -> Cage:
        """A new group with these bounds. Raises ``OSError``."""
        return Cage(self._directory, f"{NAME}{os.getpid()}-{next(self._numbers)}", limits)

    def _sweep(self) -> None:
        """Remove what hosts left behind that died before they could. A group with anything in it stays: it is used."""
        for name in os.listdir(self._directory):
            if name.startswith(NAME) and not os.path.exists(f"/proc/{name[len(NAME) :].partition('-')[0]}"):
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=self._directory)

    def close(self) -> None:
        """Let go of the directory. Safe to call again; the cages stay until they are closed."""
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1


def find_delegation(named: str | None = None) -> Delegation | Absence:
    """The group that cells are put beneath: ``named``, from trusted configuration, or one that is delegated to us."""
    if named is not None:
        try:
            return Delegation.take(named)
        except OSError as error:
            return Absence(f"{named}: {error.strerror}")
    own = own_group()
    if own is None:
        return Absence("no control groups of version 2 here, or none of ours is visible")
    reason = f"{own} is not delegated"
    # Our own group has processes, so only its parent can hand controllers on; but the kernel exempts the root group.
    for path in (own, os.path.dirname(own)):
        if not is_delegated(path, root=os.geteuid() == 0):
            continue
        try:
            taken = Delegation.take(path)
        except OSError as error:
            reason = f"{path}: {error.strerror}"
            continue
        if taken.controllers:
            return taken
        taken.close()
        reason = f"{path} is delegated, but hands on neither memory nor pids"
    return Absence(reason)


def is_delegated(path: str, *, root: bool) -> bool:
    """Whether a group is ours to divide: marked so, or, for an ordinary user, writable."""
    for mark in MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(path, mark) == b"1":
                return True
    return not root and os.access(path, os.W_OK) and os.access(f"{path}/cgroup.procs", os.W_OK)


def own_group() -> str | None:
    """Where this process's group of the version 2 tree is mounted."""
    try:
        with open("/proc/self/cgroup", encoding="ascii") as membership, open("/proc/self/mountinfo", "rb") as mounts:
            return path_of_group(membership.read(), mounts.read().decode("utf-8", "surrogateescape"))
    except OSError:
        return None


def path_of_group(membership: str, mounts: str) -> str | None:
    """From ``/proc/self/cgroup`` and ``/proc/self/mountinfo`` to a directory; ``None`` where the group is not shown."""
    group = next((line[3:] for line in membership.splitlines() if line.startswith("0::/")), None)
    if group is None:
        return None
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if rest.partition(" ")[0] != "cgroup2":
            continue
        shown, at = fields.split(" ")[3:5]
        if shown in {group, "/"} or group.startswith(f"{shown}/"):
            below = group if shown == "/" else group[len(shown) :]
            return os.path.normpath(at + below)
    return None


def _words(directory: int, file: str) -> list[str]:
    return _read(directory, file).split()


def _read(directory: int, file: str) -> str:
    with contextlib.suppress(OSError):
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        try:
            return os.read(fd, 1 << 16).decode("ascii", "replace")
        finally:
            os.close(fd)
    return ""


def _write(directory: int, file: str, data: bytes) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
