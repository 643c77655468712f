"""FilesystemGuard: declared path arguments become absolute paths beneath the workspace, all of them or none.

Paths are resolved against the workspace, never against the process's current directory. The kernel walks them
(``openat2`` beneath the workspace's descriptor), so a link that leads outside is refused wherever it stands; for a
path that does not exist yet, its deepest existing directory is walked and the rest must be plain names.

The result is text for the handler. It says where the path leads now; a handler that must not be raced opens it
through :class:`~handrail.workspace.Workspace`.
"""

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from handrail.errors import PathEscape, PathUnusable
from handrail.sentences import kind_of
from handrail.tool import ToolDef
from handrail.workspace import Workspace


class Guarded(Struct, frozen=True):
    """Arguments with every declared path made absolute, and each path as requested and as it resolves."""

    arguments: dict[str, Any]
    requested: Mapping[str, str]
    resolved: Mapping[str, str]


class FilesystemGuard:
    """Holds declared path arguments beneath one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def check(self, definition: ToolDef, arguments: dict[str, Any]) -> Guarded:
        """Resolve every guarded argument that is present and a string. A path within a list or object is refused.

        Raises :class:`PathEscape` or :class:`PathUnusable`; then no argument was changed and nothing may run.
        """
        named = definition.paths_in(arguments)
        for name in named:
            if isinstance(arguments[name], (list, Mapping)):
                raise PathUnusable(f"{name}: {kind_of(arguments[name])}, where only a single path can be guarded")
        requested = {name: arguments[name] for name in named if isinstance(arguments[name], str)}
        if not requested:
            return Guarded(arguments, {}, {})
        placed = {name: self.place(name, path) for name, path in requested.items()}
        absolute = {name: place[0] for name, place in placed.items()}
        return Guarded({**arguments, **absolute}, requested, {name: place[1] for name, place in placed.items()})

    def place(self, name: str, path: str) -> tuple[str, str]:
        """Where ``path`` stands (lexically normal, absolute) and where it leads through links."""
        try:
            relative = self.workspace.relative(path)
            resolved = self.workspace.resolve(relative)
        except (PathEscape, PathUnusable) as error:
            raise type(error)(f"{name}: {error}") from None
        except OSError as error:
            raise PathUnusable(f"{name}: {path!r}: {error.strerror}") from None
        absolute = os.path.join(self.workspace.root, relative)
        return os.fsdecode(os.path.normpath(absolute) if b".." not in absolute.split(b"/") else resolved), os.fsdecode(
            resolved
        )
