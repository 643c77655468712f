"""Makes ChangeSets from what a tool wants, touching nothing: the corridor makes them real.

Contents go to the job's private store, before and after, so that the change can be shown, committed and undone.
"""

import hashlib
import os
import stat

from handrail.builtins._text import explained, shown
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.keeper import Contents
from handrail.errors import ToolError
from handrail.outcome import ToolOutcome
from handrail.tool import Effect, Job
from handrail.workspace import Workspace

FILE_MODE = 0o644
DIRECTORY_MODE = 0o755
LINK_MODE = 0o777  # Linux gives every link this mode and lets nobody change it
MAX_ENTRIES = 10_000  # how large a tree one move or delete may be


def contents_of(job: Job) -> Contents:
    """The job's private store. Raises :class:`ToolError` where the executor keeps none."""
    if job.contents is None:
        raise ToolError("This executor keeps no store for changes, so no file can be changed.")
    return job.contents


def state_of(workspace: Workspace, path: bytes, contents: Contents) -> FileState | None:
    """What ``path`` (relative, no link on the way) is now, its content put in the store; ``None``: it is not there."""
    status = workspace.status(path)
    if status is None:
        return None
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return FileState("directory", mode)
    if stat.S_ISLNK(status.st_mode):
        return FileState("link", LINK_MODE, target=workspace.link_target(path))
    if not stat.S_ISREG(status.st_mode):
        raise ToolError(f"{shown(path)} is a FIFO, socket or device; it is left alone.")
    fd = workspace.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        sha256, size = contents.put_fd(fd)
        return FileState("file", stat.S_IMODE(os.fstat(fd).st_mode), size, sha256)
    finally:
        os.close(fd)


def file_state(data: bytes, mode: int, contents: Contents) -> FileState:
    """The state of a file that holds ``data``, which is put in the store."""
    sha256 = contents.put(data)
    return FileState("file", mode, len(data), sha256)


def same_bytes(state: FileState | None, data: bytes) -> bool:
    """Whether ``state`` is a file that holds exactly ``data``."""
    return state is not None and state.sha256 == hashlib.sha256(data).hexdigest()


def new_parents(workspace: Workspace, path: bytes) -> list[Change]:
    """A creation for each directory above ``path`` that is missing. Raises :class:`ToolError` when one is a file."""
    changes: list[Change] = []
    parts = path.split(b"/")[:-1]
    for count in range(1, len(parts) + 1):
        above = b"/".join(parts[:count])
        status = workspace.status(above) if not changes else None
        if status is None:
            changes.append(Change(above, None, FileState("directory", DIRECTORY_MODE)))
        elif not stat.S_ISDIR(status.st_mode):
            raise ToolError(f"{shown(above)} is a file, not a directory.")
    return changes


def tree_of(workspace: Workspace, top: bytes, contents: Contents) -> list[tuple[bytes, FileState]]:
    """``top`` and everything beneath it with its state, parents first. Raises :class:`ToolError` when it is missing,
    too large, or holds what no ChangeSet can.
    """
    found: list[tuple[bytes, FileState]] = []
    pending = [top]
    while pending:
        path = pending.pop()
        with explained(shown(path)):
            state = state_of(workspace, path, contents)
            if state is None:
                raise FileNotFoundError
            found.append((path, state))
            if state.kind == "directory":
                pending.extend(path + b"/" + name for name in reversed(workspace.names_in(path)))
        if len(found) + len(pending) > MAX_ENTRIES:
            raise ToolError(f"{shown(top)} holds more than {MAX_ENTRIES} entries; do it in parts.")
    return found


def staged(text: str, changes: list[Change]) -> Effect:
    """A success that is not real yet."""
    return Effect(ToolOutcome.ok(text), ChangeSet(tuple(sorted(changes, key=lambda change: change.path))))
