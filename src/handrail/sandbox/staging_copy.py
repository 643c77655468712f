"""Where the kernel refuses an overlay: a call that writes works on a copy of the workspace, if that is small.

The copy lies on a bounded tmpfs that only the cell and the host hold, like the layer of an overlay, and is made by the
cell itself before a byte of the tool's code is looked at. The host reads the workspace beforehand; what it read is the
``before`` of every change. What somebody changes between that and the copying is told by its change time, or by the
commit's own comparison, and is a conflict.

The cost is in the size of the workspace, so there is a limit, and above it the call is refused with the reason.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from handrail import faults
from handrail.bounds import require_whole
from handrail.changes import beneath
from handrail.changes.beneath import Seen
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.commit import PRIVATE_PREFIX, conflict_at
from handrail.changes.keeper import Contents
from handrail.errors import ChangeError
from handrail.sandbox.staging_layer import Entry, parted, readable_directory, state_left
from handrail.sandbox.staging_moment import Moment

_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class CopyLimit:
    """How large a workspace may be to be copied for every call that writes: bytes of content, and names."""

    bytes: int = 32 << 20
    names: int = 2_000

    def __post_init__(self) -> None:
        require_whole("bytes", self.bytes, least=0)
        require_whole("names", self.names, least=0)

    @property
    def room(self) -> int:
        """Bytes that a copy within the limit takes at most, in whole blocks."""
        return self.bytes + (self.names + 1) * _BLOCK


def read_workspace(workspace: int, limit: CopyLimit) -> dict[bytes, Seen]:
    """Everything in the workspace as it is now, by path.

    Raises :class:`~handrail.errors.ChangeError` when that is more than ``limit``, or cannot be copied faithfully.
    """
    found: dict[bytes, Seen] = {}
    budget = _Budget(limit)
    try:
        with beneath.directory(workspace, b"") as root:
            _read(root, b"", budget, found)
    except OSError as error:
        raise ChangeError(f"the workspace cannot be copied: {error.strerror}") from error
    return found


@dataclass(slots=True)
class _Budget:
    limit: CopyLimit
    bytes: int = 0
    names: int = 0

    def one_more(self) -> None:
        self.names += 1
        if self.names > self.limit.names:
            raise ChangeError(f"the workspace holds more than {self.limit.names} names, too many to be copied")

    def measured(self, fd: int) -> tuple[str, int]:
        """:func:`~handrail.changes.beneath.hash_of`, as long as the bytes last."""
        self.bytes += os.fstat(fd).st_size
        if self.bytes > self.limit.bytes:
            raise ChangeError(f"the workspace holds more than {self.limit.bytes} bytes, too many to be copied")
        return beneath.hash_of(fd)


def _read(directory: int, path: bytes, budget: _Budget, found: dict[bytes, Seen]) -> None:
    for name in beneath.names_in(directory, b"."):
        at = os.path.join(path, name)
        if name.startswith(PRIVATE_PREFIX):
            continue  # a commit is under way beside the call
        budget.one_more()
        seen = beneath.read_state(directory, name, at, budget.measured)
        if seen is None:
            continue
        found[at] = seen
        if seen.state.kind == "directory":
            with beneath.directory(directory, name) as inner:
                _read(inner, at, budget, found)


def read_copy(copy: int, workspace: int, before: Mapping[bytes, Seen], contents: Contents, since: Moment) -> ChangeSet:
    """What the call changed in its copy, whose root is the directory descriptor ``copy``.

    Raises what :func:`~handrail.sandbox.staging_layer.read_layer` raises, for the same reasons.
    """
    since.require_steady_clock()
    try:
        after = dict(_walk(copy, b"", before, contents))
    except OSError as error:
        raise ChangeError(f"the staged copy cannot be read: {error.strerror}") from error
    changed = [
        Change(path, before[path].state if path in before else None, after.get(path))
        for path in sorted(before.keys() | after.keys())
    ]
    changes = ChangeSet(tuple(change for change in changed if change.before != change.after))
    late = [change.path for change in changes if _changed_beside(workspace, change, since)]
    if late:
        raise conflict_at(late)
    for path in changes.paths:
        item = before.get(path)
        if item is not None and item.state.kind == "file" and item.links > 1:
            raise ChangeError(parted(path, item.links))
    return changes


def _changed_beside(workspace: int, change: Change, since: Moment) -> bool:
    """Whether somebody else changed what the call changed, while it ran or before it was copied."""
    try:
        with beneath.parent_of(workspace, change.path) as (parent, name):
            found = beneath.look(parent, name)
    except OSError:
        found = None
    if change.before is None or found is None:
        return (change.before is None) != (found is None)
    return since.may_precede(found.st_ctime_ns)


def _walk(
    directory: int, path: bytes, before: Mapping[bytes, Seen], contents: Contents
) -> Iterator[tuple[bytes, FileState]]:
    for name in sorted(os.fsencode(entry) for entry in os.listdir(directory)):
        if name.startswith(PRIVATE_PREFIX):
            continue
        faults.point("stage:entry")
        entry = Entry.at(directory, name, os.path.join(path, name))
        if stat.S_ISDIR(entry.found.st_mode):
            yield entry.path, FileState("directory", stat.S_IMODE(entry.found.st_mode))
            with readable_directory(entry) as inner:
                yield from _walk(inner, entry.path, before, contents)
        else:
            old = before.get(entry.path)
            yield entry.path, state_left(entry, None if old is None else old.state, contents)
