"""find: names in the workspace that match a glob, leaving out what .gitignore names."""

import os
from typing import Any

from handrail.builtins._glob import Glob
from handrail.builtins._text import explained, shown, shown_argument, workspace_of
from handrail.builtins._tree import about_unread, entries_beneath
from handrail.tool import Job, Replay, RiskLevel, Tool, ToolDef

MAX_RESULTS = 1000

DEFINITION = ToolDef(
    name="find",
    description=(
        "Find files and directories by a glob such as '*.py' or 'src/**/test_*.py'. What .gitignore names, and .git, "
        f"is left out. At most {MAX_RESULTS} results."
    ),
    parameters={
        "type": "object",
        "properties": {
            "pattern": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1000,
                "description": "A glob: * and ? within a name, ** across directories. Without '/', any depth.",
            },
            "path": {"type": "string", "description": "Where to look; the whole workspace if left out."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.READ_ONLY,
    path_args=("path",),
    replay=Replay.SAFE,
    replay_key="builtin:find:v1",
)


def execute(args: dict[str, Any], job: Job) -> str:
    """The matching paths relative to the workspace, one a line."""
    workspace = workspace_of(job)
    path = args.get("path", ".")
    with explained(shown_argument(workspace, path)):
        start = workspace.locate(path)
        os.close(workspace.open(start, os.O_RDONLY | os.O_DIRECTORY))
    glob = Glob(args["pattern"])
    skip = 0 if start == b"." else len(start) + 1
    found: list[str] = []
    unread: list[bytes] = []
    for entry in entries_beneath(workspace, start, job.signal, unread):
        if not glob.matches(shown(entry.path[skip:])):
            continue
        if len(found) == MAX_RESULTS:
            return "\n".join(found) + f"\n[only the first {MAX_RESULTS} results are shown; narrow the pattern]"
        found.append(shown(entry.path) + ("/" if entry.is_directory else ""))
    return ("\n".join(found) or f"(nothing matches {args['pattern']!r})") + about_unread(unread)


TOOL = Tool(DEFINITION, execute)
