"""A real keeper of changes, small: contents in a directory, commits one entry after the other. For tests of tools.

It compares before it applies, as the contract says, and it takes nothing back: crashes and undo are the store's matter.
"""

import difflib
import hashlib
import os
import stat
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

from handrail import Change, ChangeSet, FileState, Workspace
from handrail.changes.keeper import Contents
from handrail.errors import ChangeConflict


class SmallContents:
    """Contents by SHA-256 in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)

    def put(self, data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        temporary = self._directory / f"{name}.{threading.get_ident()}"
        temporary.write_bytes(data)
        temporary.rename(self._directory / name)
        return name

    def put_fd(self, fd: int) -> tuple[str, int]:
        data = b""
        while chunk := os.pread(fd, 1 << 20, len(data)):
            data += chunk
        return self.put(data), len(data)

    def open(self, sha256: str) -> int:
        return os.open(self._directory / sha256, os.O_RDONLY)


class SmallKeeper:
    """Keeps and commits changes in one workspace."""

    def __init__(self, workspace: Workspace, directory: Path) -> None:
        self._workspace = workspace
        self._contents = SmallContents(directory)
        self._held: dict[str, ChangeSet] = {}

    @property
    def contents(self) -> Contents:
        return self._contents

    def diff(self, changes: ChangeSet) -> str:
        return "".join(self._diff_of(change) for change in changes)

    def _diff_of(self, change: Change) -> str:
        name = change.path.decode()
        lines = [self._text(state).splitlines(keepends=True) for state in (change.before, change.after)]
        return "".join(difflib.unified_diff(*lines, f"a/{name}", f"b/{name}")) or f"{change.verb} {name}\n"

    def _text(self, state: FileState | None) -> str:
        return self._bytes(state).decode("utf-8", "replace") if state is not None and state.sha256 else ""

    def _bytes(self, state: FileState) -> bytes:
        assert state.sha256 is not None
        with os.fdopen(self._contents.open(state.sha256), "rb") as file:
            return file.read()

    async def hold(self, call_id: str, changes: ChangeSet) -> None:
        self._held[call_id] = changes

    async def held(self, call_id: str) -> ChangeSet | None:
        return self._held.get(call_id)

    async def drop(self, call_id: str) -> None:
        self._held.pop(call_id, None)

    async def commit(
        self,
        call_id: str,
        changes: ChangeSet,
        *,
        begun: Callable[[], Awaitable[None]],
        ended: Callable[[], Awaitable[None]],
    ) -> None:
        changed = tuple(change.path for change in changes if self._now(change.path) != change.before)
        if changed:
            raise ChangeConflict("files changed: " + ", ".join(map(os.fsdecode, changed)), changed)
        await begun()
        for change in sorted(changes, key=lambda change: (change.after is not None, _order(change))):
            self._apply(change)
        await ended()

    def _now(self, path: bytes) -> FileState | None:
        status = self._workspace.status(path)
        if status is None:
            return None
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            return FileState("directory", mode)
        if stat.S_ISLNK(status.st_mode):
            return FileState("link", mode, target=self._workspace.link_target(path))
        fd = self._workspace.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            sha256, size = self._contents.put_fd(fd)
            return FileState("file", mode, size, sha256)
        finally:
            os.close(fd)

    def _apply(self, change: Change) -> None:
        above, _, name = change.path.rpartition(b"/")
        parent = self._workspace.open(above or b".", os.O_PATH | os.O_DIRECTORY)
        try:
            if change.after is None:
                (os.rmdir if change.before and change.before.kind == "directory" else os.unlink)(name, dir_fd=parent)
            elif change.after.kind == "directory":
                os.mkdir(name, change.after.mode, dir_fd=parent)
            elif change.after.kind == "link":
                os.symlink(change.after.target or b"", name, dir_fd=parent)
            else:
                self._put_file(parent, name, change.after)
        finally:
            os.close(parent)

    def _put_file(self, parent: int, name: bytes, state: FileState) -> None:
        temporary = b".small-keeper-" + os.urandom(8).hex().encode()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=parent)
        with os.fdopen(fd, "wb") as file:
            file.write(self._bytes(state))
            os.fchmod(fd, state.mode)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)


def _order(change: Change) -> tuple[int, bytes]:
    """Deeper first where something goes, shallower first where something comes."""
    depth = change.path.count(b"/")
    return (-depth if change.after is None else depth, change.path)
