"""From the layer that took a call's writes to a ChangeSet.

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
would silently count as what the call saw. A :class:`~handrail.sandbox.staging_moment.Moment` closes that: whatever
changed after the cell was let loose (by the inode's change time, which no program can set) is a conflict, named before
anybody is asked.

A file with several hard links becomes a copy in the layer when the call writes to it: the other names would keep the
old content. That is not what the call saw happen, so it is refused, by name, before anybody is asked.
"""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from handrail import faults
from handrail.changes import beneath
from handrail.changes.beneath import LINK_MODE, Seen
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.commit import PRIVATE_PREFIX, conflict_at
from handrail.changes.keeper import Contents
from handrail.errors import ChangeError
from handrail.sandbox.staging_moment import Moment

_OPAQUE = "user.overlay.opaque"
_WHITEOUT = "user.overlay.whiteout"
_ORIGIN = "user.overlay.origin"
_REFUSED = ("user.overlay.redirect", "user.overlay.metacopy")


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
        entry = Entry.at(upper, name, path)
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

    def _kept_directory(self, entry: "Entry", below: int | None, *, hidden: bool) -> None:
        after = FileState("directory", stat.S_IMODE(entry.found.st_mode))
        before = None if below is None else beneath.read_state(below, entry.name, entry.path)
        if before is None:
            self._note_vanished(entry, below)
        if before is None or before.state != after:
            self._add(entry.path, before, after)
        with readable_directory(entry) as inner:
            if below is not None and before is not None and before.state.kind == "directory":
                with beneath.directory(below, entry.name) as inner_below:
                    self.directory(inner, inner_below, entry.path, hidden=hidden)
            else:
                self.directory(inner, None, entry.path, hidden=hidden)

    def _written(self, entry: "Entry", below: int | None) -> None:
        before = self._tree_below(below, entry.name, entry.path)
        if not before:
            self._note_vanished(entry, below)
        top = before.pop(entry.path, None)
        after = state_left(entry, None if top is None else top.state, self.contents)
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
        if before is not None and before.state.kind == "file" and before.links > 1:
            raise ChangeError(parted(path, before.links))
        self.changes.append(Change(path, None if before is None else before.state, after))

    def _note_vanished(self, entry: "Entry", below: int | None) -> None:
        """A copy of something that is not there: moved by the call, or deleted by somebody else while it ran.

        Where names changed in that directory meanwhile nobody can tell, so it counts as a conflict.
        """
        if below is None or _ORIGIN not in entry.attributes:
            return
        if self.since.may_precede(os.fstat(below).st_ctime_ns):
            self.conflicts.add(entry.path)


def parted(path: bytes, links: int) -> str:
    """Why a file with several names is not changed under one of them."""
    return f"{os.fsdecode(path)!r} has {links} hard links; the call's change would part it from its other names"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory that a call wrote to. ``attributes`` are the overlay's own."""

    parent: int
    name: bytes
    path: bytes
    found: os.stat_result
    attributes: dict[str, bytes]

    @classmethod
    def at(cls, parent: int, name: bytes, path: bytes) -> "Entry":
        """What ``name`` in the directory ``parent`` is now; ``path`` is what it is called in the workspace."""
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
        return cls(parent, name, path, found, _attributes(parent, name, found))

    @property
    def is_whiteout(self) -> bool:
        """Whether it stands for a deleted name."""
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


def state_left(entry: Entry, before: FileState | None, contents: Contents) -> FileState:
    """What the call left, other than a directory; its content goes to the store, unless it is what was there."""
    found, shown = entry.found, repr(os.fsdecode(entry.path))
    if stat.S_ISLNK(found.st_mode):
        return FileState("link", LINK_MODE, target=os.readlink(entry.name, dir_fd=entry.parent))
    if not stat.S_ISREG(found.st_mode):
        raise ChangeError(f"{shown} is a FIFO, socket or device, which no ChangeSet can hold")
    if found.st_nlink > 1:
        raise ChangeError(f"the call gave {shown} several hard links, which no ChangeSet can hold")
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
def readable_directory(entry: Entry) -> Generator[int, None, None]:
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
def _readable_file(entry: Entry) -> Generator[int, None, None]:
    mode = stat.S_IMODE(entry.found.st_mode)
    if not mode & 0o400:
        beneath.change_mode(entry.parent, entry.name, mode | 0o400)
    fd = beneath.open_file(entry.parent, entry.name)
    try:
        yield fd
    finally:
        os.close(fd)
