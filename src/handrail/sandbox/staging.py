"""From the layer that took a call's writes to a ChangeSet, and what to do where there can be no layer.

A cell that writes sees an overlay: the workspace below, never touched, and an empty, bounded upper directory above it
that takes every write. When the cell is dead this module reads the upper directory and compares it with the
workspace. The cost is in the files that were written, not in the size of the workspace.

What stands in an upper directory (Documentation/filesystems/overlayfs.rst, mounts with ``userxattr``):

- a character device 0/0, or an empty file with ``user.overlay.whiteout``: the name was deleted;
- a directory with ``user.overlay.opaque`` = ``y``: nothing below it shows through, it was replaced;
- ``user.overlay.origin``: this was copied up from below, it is not new;
- ``user.overlay.redirect`` and ``user.overlay.metacopy``: features that our mounts do not ask for; refused;
- everything else is what it is. Renamed directories are copies, because redirects are off.

What the call *saw* is not kept by the overlay, only what it wrote. So a file below that was changed while the call ran
would silently count as what the call saw. :class:`Moment` closes that: whatever changed after the moment the cell was
let loose (by the inode's change time, which no program can set) is a conflict, named before anybody is asked.
"""

import errno
import os
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from handrail import faults
from handrail.changes import beneath
from handrail.changes.beneath import LINK_MODE, Seen
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.commit import PRIVATE_PREFIX, conflict_at
from handrail.changes.keeper import Contents
from handrail.errors import ChangeConflict, ChangeError
from handrail.outcome import Reason, ToolOutcome
from handrail.tool import Effect

_OPAQUE = "user.overlay.opaque"
_WHITEOUT = "user.overlay.whiteout"
_ORIGIN = "user.overlay.origin"
_REFUSED = ("user.overlay.redirect", "user.overlay.metacopy")
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_CLOCK_SLACK_NS = 2_000_000
_REALTIME_COARSE = 5  # CLOCK_REALTIME_COARSE (clock_gettime(2)): the clock that stamps files
_ATTEMPTS = 4  # a tick may end, or another process take a finer stamp, between two looks
_GRAINS_NS = (2 * 10**9, 10**9, 10**7, 10**6, 10**3, 100, 1)  # what filesystems keep: FAT, ext3, exFAT … NTFS, all


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment that every later change of a file can be told from, by the file's change time.

    Filesystems stamp changes with a clock that moves in ticks (1 to 10 ms), so a stamp alone does not tell a change
    just before a call from one just after it. Since Linux 6.13 a stamp that somebody has looked at is followed by a
    finer one, and no later stamp on the whole machine lies before it ("multigrain timestamps"). So a file of our own,
    in memory, is changed, looked at and changed again: its last stamp parts before from after, and nobody waits.
    Where that does not hold (it is tried, not guessed), :meth:`now` waits for the tick to be over.

    ``realtime_ns`` is the last instant that counts as before, in nanoseconds since 1970.

    Not covered: a network filesystem that stamps with a server's clock, if that clock is behind this machine's.
    """

    realtime_ns: int
    monotonic_ns: int

    @classmethod
    def now(cls) -> "Moment":
        """This moment; where the kernel's stamps are coarse it returns at most one tick later."""
        return cls.at_once() or cls.after_the_tick()

    @classmethod
    def at_once(cls) -> "Moment | None":
        """This moment, without waiting; ``None`` where the kernel's stamps are too coarse to tell it."""
        try:
            witness = os.memfd_create("handrail-moment")
        except OSError:
            return None
        try:
            for _ in range(_ATTEMPTS):
                first, second = _touched(witness), _touched(witness)
                if second > first and second > time.clock_gettime_ns(_REALTIME_COARSE):  # finer than the tick
                    return cls(second - 1, time.monotonic_ns())
        finally:
            os.close(witness)
        return None

    @classmethod
    def after_the_tick(cls) -> "Moment":
        """A moment whose tick is over when this returns."""
        moment = cls(time.time_ns(), time.monotonic_ns())
        while time.clock_gettime_ns(_REALTIME_COARSE) <= moment.realtime_ns:
            time.sleep(0.0003)
        return moment

    def may_precede(self, changed_ns: int) -> bool:
        """Whether a change stamped ``changed_ns`` may have been made after this moment.

        A filesystem that keeps fewer digits cuts them off, so a round stamp stands for all the time up to the next.
        """
        grain = next(grain for grain in _GRAINS_NS if changed_ns % grain == 0)
        return changed_ns + grain - 1 > self.realtime_ns

    def require_steady_clock(self) -> None:
        """Raise :class:`~handrail.errors.ChangeError` if the clock was set back since, so that stamps say nothing."""
        passed = time.monotonic_ns() - self.monotonic_ns
        if time.time_ns() - self.realtime_ns < passed - _CLOCK_SLACK_NS:
            raise ChangeError("the machine's clock was set back while the call ran; run it again")


def _touched(fd: int) -> int:
    """The change time of ``fd`` after a change made now; looking at it makes the kernel stamp the next one finer."""
    os.fchmod(fd, 0o600)
    return os.fstat(fd).st_ctime_ns


def staged_effect(outcome: ToolOutcome, upper: int, workspace: int, contents: Contents | None, since: Moment) -> Effect:
    """The effect of a call that ran on a layer: its outcome with the changes, or the reason why there can be none.

    ``upper`` and ``workspace`` are directory descriptors. A call that did not succeed changes nothing.
    """
    if outcome.status != "ok":
        return Effect(outcome)
    if contents is None:
        return Effect(_refused(outcome, "This executor keeps no store for changes.", Reason.CANNOT_STAGE))
    try:
        return Effect(outcome, read_layer(upper, workspace, contents, since))
    except ChangeConflict as error:
        return Effect(_refused(outcome, f"Conflict: {error}.", Reason.CONFLICT))
    except ChangeError as error:
        return Effect(_refused(outcome, f"The changes cannot be staged: {error}.", Reason.CANNOT_STAGE))


def _refused(outcome: ToolOutcome, text: str, reason: Reason) -> ToolOutcome:
    """The call ran, and its output may say more, but nothing of it becomes real."""
    return outcome.with_(status="error", text=f"{outcome.text}\n{text} Nothing was changed.".lstrip(), reason=reason)


def read_layer(upper: int, workspace: int, contents: Contents, since: Moment) -> ChangeSet:
    """What the layer ``upper`` would change in the workspace; new contents go to ``contents``.

    Copies that came out as they were are left out. Raises :class:`~handrail.errors.ChangeConflict` for files that
    somebody else changed while the call ran, and :class:`~handrail.errors.ChangeError` for what cannot be committed
    faithfully: hard links, special files, set-user-id files.
    """
    since.require_steady_clock()
    reader = _Reader(contents, since)
    try:
        with beneath.directory(workspace, b"") as below:
            reader.directory(upper, below, b"", hidden=False)
    except OSError as error:
        raise ChangeError(f"the staged layer cannot be read: {error.strerror}") from error
    if reader.conflicts:
        raise conflict_at(reader.conflicts)
    return ChangeSet(tuple(sorted(reader.changes, key=lambda change: change.path)))


@dataclass(slots=True)
class _Reader:
    contents: Contents
    since: Moment
    changes: list[Change] = field(default_factory=list[Change])
    conflicts: set[bytes] = field(default_factory=set[bytes])

    def directory(self, upper: int, below: int | None, path: bytes, *, hidden: bool) -> None:
        """One directory of the layer over the directory ``below`` of the workspace (``None``: there is none).

        ``hidden``: nothing of ``below`` shows through.
        """
        names = sorted(os.fsencode(name) for name in os.listdir(upper))
        for name in names:
            faults.point("stage:entry")
            self._entry(upper, below, name, os.path.join(path, name), hidden=hidden)
        if hidden and below is not None:
            for name in beneath.names_in(below, b"."):
                if name not in names:
                    self._deleted(below, name, os.path.join(path, name))

    def _entry(self, upper: int, below: int | None, name: bytes, path: bytes, *, hidden: bool) -> None:
        if name.startswith(PRIVATE_PREFIX):
            return  # a commit was under way beside the call, and its private names were seen
        entry = _Entry.at(upper, name, path)
        if any(key in entry.attributes for key in _REFUSED):
            raise ChangeError(f"{os.fsdecode(path)!r} uses an overlay feature that was not asked for")
        if entry.is_whiteout:
            self._deleted(below, name, path)
        elif stat.S_ISDIR(entry.found.st_mode):
            self._kept_directory(entry, below, hidden=hidden or entry.attributes.get(_OPAQUE) == b"y")
        else:
            self._written(entry, below)

    def _deleted(self, below: int | None, name: bytes, path: bytes) -> None:
        for at, seen in self._tree_below(below, name, path).items():
            self._add(at, seen, None)

    def _kept_directory(self, entry: "_Entry", below: int | None, *, hidden: bool) -> None:
        after = FileState("directory", stat.S_IMODE(entry.found.st_mode))
        before = None if below is None else beneath.read_state(below, entry.name, entry.path)
        if before is None:
            self._note_vanished(entry, below)
        if before is None or before.state != after:
            self._add(entry.path, before, after)
        with _readable_directory(entry) as inner:
            if below is not None and before is not None and before.state.kind == "directory":
                with beneath.directory(below, entry.name) as inner_below:
                    self.directory(inner, inner_below, entry.path, hidden=hidden)
            else:
                self.directory(inner, None, entry.path, hidden=hidden)

    def _written(self, entry: "_Entry", below: int | None) -> None:
        before = self._tree_below(below, entry.name, entry.path)
        if not before:
            self._note_vanished(entry, below)
        top = before.pop(entry.path, None)
        after = _state_left(entry, None if top is None else top.state, self.contents)
        if top is None or top.state != after:
            self._add(entry.path, top, after)
        for at, seen in before.items():
            self._add(at, seen, None)

    # The workspace below, with an eye on whoever else changes it.

    def _tree_below(self, below: int | None, name: bytes, path: bytes) -> dict[bytes, Seen]:
        return {} if below is None else beneath.read_tree(below, name, path)

    def _add(self, path: bytes, before: Seen | None, after: FileState | None) -> None:
        if before is not None and self.since.may_precede(before.changed_ns):
            self.conflicts.add(path)
        self.changes.append(Change(path, None if before is None else before.state, after))

    def _note_vanished(self, entry: "_Entry", below: int | None) -> None:
        """A copy of something that is not there: moved by the call, or deleted by somebody else while it ran.

        Where names changed in that directory meanwhile nobody can tell, so it counts as a conflict.
        """
        if below is None or _ORIGIN not in entry.attributes:
            return
        if self.since.may_precede(os.fstat(below).st_ctime_ns):
            self.conflicts.add(entry.path)


@dataclass(frozen=True, slots=True)
class _Entry:
    """One name in a directory that a call wrote to. ``attributes`` are the overlay's own."""

    parent: int
    name: bytes
    path: bytes
    found: os.stat_result
    attributes: dict[str, bytes]

    @classmethod
    def at(cls, parent: int, name: bytes, path: bytes) -> "_Entry":
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        return cls(parent, name, path, found, _attributes(parent, name, found))

    @property
    def is_whiteout(self) -> bool:
        if stat.S_ISCHR(self.found.st_mode):
            return self.found.st_rdev == 0
        return stat.S_ISREG(self.found.st_mode) and self.found.st_size == 0 and _WHITEOUT in self.attributes


def _attributes(parent: int, name: bytes, found: os.stat_result) -> dict[str, bytes]:
    """Links and devices carry none: user attributes are refused there (xattr(7))."""
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return {}
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        path = f"/proc/self/fd/{fd}"  # works for files that may not be opened for reading
        names = [key for key in os.listxattr(path) if key.startswith("user.overlay.")]
        return {key: os.getxattr(path, key) for key in names}
    finally:
        os.close(fd)


def _state_left(entry: _Entry, before: FileState | None, contents: Contents) -> FileState:
    """What the call left, other than a directory; its content goes to the store, unless it is what was there."""
    found, shown = entry.found, repr(os.fsdecode(entry.path))
    if stat.S_ISLNK(found.st_mode):
        return FileState("link", LINK_MODE, target=os.readlink(entry.name, dir_fd=entry.parent))
    if not stat.S_ISREG(found.st_mode):
        raise ChangeError(f"{shown} is a FIFO, socket or device, which no ChangeSet can hold")
    if found.st_nlink > 1:
        raise ChangeError(f"{shown} has several hard links; a commit would part them")
    if found.st_mode & (stat.S_ISUID | stat.S_ISGID):
        raise ChangeError(f"{shown} has a set-user-id or set-group-id bit; such files are not committed")
    with _readable_file(entry) as fd:
        mode = stat.S_IMODE(found.st_mode)
        if before is not None and before.size == found.st_size:
            sha256, size = beneath.hash_of(fd)
            if sha256 == before.sha256:
                return FileState("file", mode, size, sha256)
        sha256, size = contents.put_fd(fd)
    return FileState("file", mode, size, sha256)


@contextmanager
def _readable_directory(entry: _Entry) -> Generator[int, None, None]:
    """Open a directory that a call wrote to, also one that it closed to its owner."""
    mode = stat.S_IMODE(entry.found.st_mode)
    if mode & 0o500 != 0o500:
        beneath.change_mode(entry.parent, entry.name, mode | 0o500)
    fd = beneath.open_file(entry.parent, entry.name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _readable_file(entry: _Entry) -> Generator[int, None, None]:
    mode = stat.S_IMODE(entry.found.st_mode)
    if not mode & 0o400:
        beneath.change_mode(entry.parent, entry.name, mode | 0o400)
    fd = beneath.open_file(entry.parent, entry.name)
    try:
        yield fd
    finally:
        os.close(fd)


# ── where the kernel refuses an overlay ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class CopyLimit:
    """How large a workspace may be to be copied for every call that writes: bytes of content, and names."""

    bytes: int = 32 << 20
    names: int = 2_000


class CopiedWorkspace:
    """A copy of a small workspace, for a cell to write to where there can be no overlay.

    What was copied is what the call sees, so its states are the ``before`` of every change; no clock is needed.
    Raises :class:`~handrail.errors.ChangeError` when the workspace is larger than ``limit`` or holds special files.
    """

    def __init__(self, workspace: int, path: str, limit: CopyLimit | None = None) -> None:
        self.path = path
        self._limit = limit or CopyLimit()
        self._before: dict[bytes, FileState] = {}
        self._bytes = 0
        os.mkdir(path, 0o700)
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with beneath.directory(workspace, b"") as source:
                self._copy(source, self.fd, b"")
        except (ChangeError, OSError) as error:
            self.close()
            if isinstance(error, OSError):
                raise ChangeError(f"the workspace cannot be copied: {error.strerror}") from error
            raise

    def close(self) -> None:
        """Remove the copy. Closing twice is harmless."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        above, name = os.path.split(os.fsencode(self.path))
        parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            beneath.remove_tree(parent, name)
        finally:
            os.close(parent)

    def changes(self, contents: Contents) -> ChangeSet:
        """What the call changed in the copy; new contents go to ``contents``."""
        after = dict(self._walk(self.fd, b"", contents))
        paths = sorted(self._before.keys() | after.keys())
        changed = (Change(path, self._before.get(path), after.get(path)) for path in paths)
        return ChangeSet(tuple(change for change in changed if change.before != change.after))

    def _copy(self, source: int, target: int, path: bytes) -> None:
        for name in beneath.names_in(source, b"."):
            at = os.path.join(path, name)
            if name.startswith(PRIVATE_PREFIX):
                continue
            seen = beneath.read_state(source, name, at, lambda fd, to=(target, name): self._copy_file(fd, *to))
            if seen is None:
                continue
            self._before[at] = seen.state
            if len(self._before) > self._limit.names:
                raise ChangeError(f"the workspace holds more than {self._limit.names} names; it is not copied")
            self._finish_copy(source, target, name, at, seen.state)

    def _finish_copy(self, source: int, target: int, name: bytes, path: bytes, state: FileState) -> None:
        if state.kind == "link":
            os.symlink(state.target or b"", name, dir_fd=target)
            return
        if state.kind == "directory":
            os.mkdir(name, 0o700, dir_fd=target)
            with beneath.directory(source, name) as inner, beneath.directory(target, name) as copy:
                self._copy(inner, copy, path)
        beneath.change_mode(target, name, state.mode)

    def _copy_file(self, fd: int, target: int, name: bytes) -> tuple[str, int]:
        self._bytes += os.fstat(fd).st_size
        if self._bytes > self._limit.bytes:
            raise ChangeError(f"the workspace holds more than {self._limit.bytes} bytes; it is not copied")
        copy = beneath.open_file(target, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            return beneath.copy_content(fd, copy)
        finally:
            os.close(copy)

    def _walk(self, directory: int, path: bytes, contents: Contents) -> Iterator[tuple[bytes, FileState]]:
        for name in sorted(os.fsencode(entry) for entry in os.listdir(directory)):
            entry = _Entry.at(directory, name, os.path.join(path, name))
            if stat.S_ISDIR(entry.found.st_mode):
                yield entry.path, FileState("directory", stat.S_IMODE(entry.found.st_mode))
                with _readable_directory(entry) as inner:
                    yield from self._walk(inner, entry.path, contents)
            else:
                yield entry.path, _state_left(entry, self._before.get(entry.path), contents)
