"""list: the entries of one directory."""

import os
import stat
from typing import Any

from handrail.builtins._text import explained, shown, shown_argument, workspace_of
from handrail.tool import Job, Replay, RiskLevel, Tool, ToolDef

MAX_ENTRIES = 1000

DEFINITION = ToolDef(
    name="list",
    description=(
        "List a directory of the workspace: one name a line, directories end in '/', links show where they point. "
        f"At most {MAX_ENTRIES} entries."
    ),
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The directory; the workspace itself if left out."}},
        "additionalProperties": False,
    },
    risk_level=RiskLevel.READ_ONLY,
    path_args=("path",),
    replay=Replay.SAFE,
    replay_key="builtin:list:v1",
)


def execute(args: dict[str, Any], job: Job) -> str:
    """The entries, sorted by name."""
    workspace = workspace_of(job)
    path = args.get("path", ".")
    name = shown_argument(workspace, path)
    with explained(name):
        fd = workspace.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = sorted(os.fsencode(entry) for entry in os.listdir(fd))
        lines = [_line(fd, entry) for entry in names[:MAX_ENTRIES]]
    finally:
        os.close(fd)
    if not lines:
        return f"({name} is an empty directory)"
    left = len(names) - len(lines)
    return "\n".join(lines) + (f"\n[{left} more not shown]" if left else "")


def _line(directory: int, name: bytes) -> str:
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        target = os.readlink(name, dir_fd=directory) if stat.S_ISLNK(mode) else b""
    except OSError:  # gone, or changed, since it was listed
        return shown(name)
    if stat.S_ISDIR(mode):
        return shown(name) + "/"
    if stat.S_ISLNK(mode):
        return f"{shown(name)} -> {shown(target)}"
    return shown(name) if stat.S_ISREG(mode) else f"{shown(name)} (special file)"


TOOL = Tool(DEFINITION, execute)
