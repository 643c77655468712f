"""From wishes to a ChangeSet: for tools that know what they want to write, and need no cell to find out.

A :class:`Plan` reads the present state beneath the workspace, keeps new contents in the private store, and touches
nothing. What it returns is compared again when it is committed.
"""

import errno
import os
from dataclasses import dataclass, field

from handrail.changes import beneath
from handrail.changes.beneath import LINK_MODE
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.keeper import Contents
from handrail.errors import PathUnusable
from handrail.workspace import AnyPath, Workspace

NEW_FILE_MODE = 0o644
NEW_DIRECTORY_MODE = 0o755
MAX_ENTRIES = 10_000  # how large a tree one move or delete may be


@dataclass(slots=True)
class Plan:
    """What a tool wants done to files. Steps build on each other: a file may be written and then moved.

    Paths are absolute in the workspace or relative to it. Directories on the way are followed through links as the
    workspace allows; the last name is taken as it is: a link is replaced, moved or deleted itself. To write where a
    link points, pass the resolved path.

    Raises :class:`~handrail.errors.PathEscape` and :class:`~handrail.errors.PathUnusable`, whose texts a model can use.
    """

    workspace: Workspace
    contents: Contents
    _before: dict[bytes, FileState | None] = field(default_factory=dict[bytes, FileState | None])
    _after: dict[bytes, FileState | None] = field(default_factory=dict[bytes, FileState | None])

    def state(self, path: AnyPath) -> FileState | None:
        """What ``path`` is, counting the steps planned so far; ``None`` when it is not there."""
        return self._state(self._place(path))

    def tree(self, path: AnyPath) -> dict[bytes, FileState]:
        """``path`` and everything beneath it, parents first, counting the steps planned so far; empty: it is not there.

        Raises :class:`PathUnusable` when that is more than 10,000 entries.
        """
        return self._tree(self._place(path))

    def read(self, path: AnyPath, limit: int = 64 << 20) -> bytes:
        """The content of the file ``path``, counting the steps planned so far: what an edit starts from.

        Raises :class:`PathUnusable` when it is missing, no file, or larger than ``limit`` bytes.
        """
        at = self._place(path)
        state = self._state(at)
        if state is None or state.kind != "file":
            raise PathUnusable(f"{os.fsdecode(at)!r} {'does not exist' if state is None else f'is a {state.kind}'}")
        if state.size > limit:
            raise PathUnusable(f"{os.fsdecode(at)!r} has {state.size} bytes; at most {limit} are read")
        fd = self.contents.open(state.sha256 or "")
        try:
            return b"".join(iter(lambda: os.read(fd, beneath.CHUNK), b""))
        finally:
            os.close(fd)

    def write(self, path: AnyPath, data: bytes, *, mode: int | None = None) -> None:
        """Make ``path`` a file with this content; missing directories are made. ``mode``: as it is, or 0644."""
        at = self._place(path)
        old = self._state(at)
        if old is not None and old.kind == "directory":
            raise PathUnusable(f"{os.fsdecode(at)!r} is a directory")
        self._make_directories(at.rpartition(b"/")[0])
        kept = old.mode if old is not None and old.kind == "file" else NEW_FILE_MODE
        self._after[at] = FileState("file", kept if mode is None else mode, len(data), self.contents.put(data))

    def link(self, path: AnyPath, target: bytes) -> None:
        """Make ``path`` a symbolic link to ``target``."""
        at = self._place(path)
        self._require_free(at)
        self._make_directories(at.rpartition(b"/")[0])
        self._after[at] = FileState("link", LINK_MODE, target=target)

    def mkdir(self, path: AnyPath, *, mode: int = NEW_DIRECTORY_MODE) -> None:
        """Make ``path`` a directory, and the missing ones above it. One that is there already is no error."""
        at = self._place(path)
        old = self._state(at)
        if old is not None and old.kind != "directory":
            raise PathUnusable(f"{os.fsdecode(at)!r} exists and is a {old.kind}")
        self._make_directories(at, mode)

    def delete(self, path: AnyPath) -> None:
        """Delete ``path``; a directory goes with everything in it."""
        at = self._place(path)
        if self._state(at) is None:
            raise PathUnusable(f"{os.fsdecode(at)!r} does not exist")
        for inner in self._tree(at):
            self._after[inner] = None

    def move(self, source: AnyPath, destination: AnyPath, *, replace: bool = False) -> None:
        """Give ``source`` the name ``destination``. Nothing is replaced, or with ``replace`` no directory."""
        start, end = self._place(source), self._place(destination)
        tree = self._tree(start)
        if not tree:
            raise PathUnusable(f"{os.fsdecode(start)!r} does not exist")
        if end == start or end.startswith(start + b"/"):
            raise PathUnusable(f"{os.fsdecode(start)!r} cannot be moved into itself")
        there = self._state(end)
        if there is not None and not (replace and there.kind != "directory" and tree[start].kind != "directory"):
            raise PathUnusable(f"{os.fsdecode(end)!r} exists")
        self._make_directories(end.rpartition(b"/")[0])
        for inner, state in tree.items():
            self._after[inner] = None
            target = end + inner[len(start) :]
            self._remember(target)
            self._after[target] = state

    def changes(self) -> ChangeSet:
        """Everything planned, as a ChangeSet; what comes out as it was is left out."""
        planned = (Change(path, self._remember(path), self._after[path]) for path in sorted(self._after))
        return ChangeSet(tuple(change for change in planned if change.before != change.after))

    # ── reading the present ──────────────────────────────────────────────────────────────────────────────────

    def _place(self, path: AnyPath) -> bytes:
        """``path`` relative to the workspace, with the directories on the way resolved and the last name as it is."""
        relative = self.workspace.relative(path).rstrip(b"/")
        above, _, name = relative.rpartition(b"/")
        if name in (b"", b".", b".."):
            raise PathUnusable(f"{os.fsdecode(path)!r} does not name anything inside the workspace")
        if relative.count(b"/") > beneath.MAX_DEPTH:
            raise PathUnusable(f"{os.fsdecode(path)!r} lies more than {beneath.MAX_DEPTH} directories deep")
        lexical = os.path.normpath(relative)
        if b".." not in relative.split(b"/") and self._planned_above(lexical):
            return lexical  # what stands there on disk now is not what will be there
        base = self.workspace.resolve(above or b".")
        return os.path.normpath(os.path.join(self.workspace.relative(base), name))

    def _planned_above(self, path: bytes) -> bool:
        above = path
        while above := above.rpartition(b"/")[0]:
            if above in self._after:
                return True
        return False

    def _state(self, path: bytes) -> FileState | None:
        if path in self._after:
            return self._after[path]
        if self._gone_above(path):
            return None
        return self._remember(path)

    def _gone_above(self, path: bytes) -> bool:
        above = path
        while above := above.rpartition(b"/")[0]:
            if above in self._after:
                state = self._after[above]
                return state is None or state.kind != "directory" or self._before[above] is None
        return False

    def _remember(self, path: bytes) -> FileState | None:
        """Read ``path`` from the workspace, once; a content goes to the private store with it."""
        if path not in self._before:
            self._before[path] = self._present(path)
        return self._before[path]

    def _present(self, path: bytes) -> FileState | None:
        try:
            with beneath.parent_of(self.workspace.fd, path) as (parent, name):
                seen = beneath.read_state(parent, name, path, self.contents.put_fd)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise PathUnusable(f"{os.fsdecode(path)!r}: {error.strerror}") from None
        return None if seen is None else seen.state

    def _tree(self, top: bytes) -> dict[bytes, FileState]:
        tree: dict[bytes, FileState] = {}
        pending = [top]
        while pending:
            path = pending.pop()
            state = self._state(path)
            if state is None:
                continue
            tree[path] = state
            if state.kind == "directory":
                pending.extend(reversed(self._children(path)))
            if len(tree) + len(pending) > MAX_ENTRIES:
                raise PathUnusable(f"{os.fsdecode(top)!r} holds more than {MAX_ENTRIES} entries; do it in parts")
        return tree

    def _children(self, path: bytes) -> list[bytes]:
        planned = {other for other in self._after if other.rpartition(b"/")[0] == path}
        found: set[bytes] = set()
        if self._before.get(path) is not None and not self._gone_above(path):
            with beneath.parent_of(self.workspace.fd, path) as (parent, name):
                found = {path + b"/" + child for child in beneath.names_in(parent, name)}
        return sorted(found | planned)

    def _require_free(self, path: bytes) -> None:
        if self._state(path) is not None:
            raise PathUnusable(f"{os.fsdecode(path)!r} exists")

    def _make_directories(self, path: bytes, mode: int = NEW_DIRECTORY_MODE) -> None:
        if not path:
            return
        state = self._state(path)
        if state is None:
            self._make_directories(path.rpartition(b"/")[0])
            self._remember(path)
            self._after[path] = FileState("directory", mode)
        elif state.kind != "directory":
            raise PathUnusable(f"{os.fsdecode(path)!r} is a {state.kind}, not a directory")
