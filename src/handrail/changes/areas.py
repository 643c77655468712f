"""Which area of the private store belongs to which directory, also after somebody moved it.

An area belongs to one directory at one path: another directory that is put at the path later has another inode, and
gets an area of its own. A directory that was moved is the same one at another path. What it did there stays in the area
of the old path, because an undo there is about files at that path; :func:`left_behind` finds such areas, so that they
can be named, and so that a commit that was cut off before the move can be carried to its end.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from handrail.workspace import Workspace

MARK = "workspace.json"


@dataclass(frozen=True, slots=True)
class Area:
    """An area of a directory that is no longer at ``was_at``. ``name`` is the area's own, in the store."""

    name: str
    was_at: str
    changes: int


def area_name(workspace: Workspace) -> str:
    """One area for one directory at one path."""
    identity = workspace.root + b"\0" + str(os.fstat(workspace.fd).st_ino).encode()
    return hashlib.sha256(identity).hexdigest()[:32]


def mark_of(workspace: Workspace) -> dict[str, Any]:
    """What an area says about its directory: for people, and to know it again."""
    found = os.fstat(workspace.fd)
    return {"path": workspace.path, "device": found.st_dev, "inode": found.st_ino}


def left_behind(areas: str, workspace: Workspace) -> list[Area]:
    """The other areas in the directory ``areas`` that belong to this very directory, at paths where it no longer is."""
    here = mark_of(workspace)
    found: list[Area] = []
    for name in sorted(os.listdir(areas)):
        mark = _read(os.path.join(areas, name, MARK))
        if name == area_name(workspace) or mark is None:
            continue
        if (mark.get("device"), mark.get("inode")) == (here["device"], here["inode"]) and _is_gone(mark):
            found.append(Area(name, mark["path"], _remembered(os.path.join(areas, name, "history"))))
    return found


def _remembered(history: str) -> int:
    try:
        return sum(entry.endswith(".json") for entry in os.listdir(history))
    except FileNotFoundError:  # killed before it was made
        return 0


def elsewhere(moved: list[Area]) -> str:
    """What to tell a person about areas that were left behind."""
    places = " and ".join(f"{area.was_at!r} ({area.changes} remembered)" for area in moved)
    return (
        f"this directory was at {places} before; what was changed there is kept, and can be shown and taken back "
        "when it is at that path again"
    )


def _is_gone(mark: dict[str, Any]) -> bool:
    try:
        found = os.stat(mark["path"])
    except OSError:
        return True
    return (found.st_dev, found.st_ino) != (mark["device"], mark["inode"])


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None
