"""write: the whole text of a file, new or in place of the old; parents are made, the mode is kept."""

from typing import Any

from handrail.builtins._staging import plan_of, planning, same_bytes, staged
from handrail.builtins._text import shown
from handrail.errors import ToolError
from handrail.tool import Capability, Effect, Job, RiskLevel, Tool, ToolDef

DEFINITION = ToolDef(
    name="write",
    description=(
        "Write a whole text file in the workspace, new or in place of the old one. Missing directories are made. "
        "To change a part of a file, use edit."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the workspace."},
            "content": {"type": "string", "description": "The whole new text."},
        },
        "required": ["path", "content"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.MUTATION,
    path_args=("path",),
    capability=Capability(writes=True),
)


def execute(args: dict[str, Any], job: Job) -> Effect:
    """Stage the file."""
    plan = plan_of(job)
    data = args["content"].encode()
    path = plan.workspace.locate(args["path"])
    name = shown(path)
    with planning(name):
        before = plan.state(path)
        if before is not None and before.kind != "file":
            raise ToolError(f"{name} is a {before.kind}; write works on files.")
        if same_bytes(before, data):
            return staged(f"{name} holds exactly this already; nothing to change.")
        plan.write(path, data)
    verb = "Created" if before is None else "Wrote"
    return staged(f"{verb} {name} ({len(data)} bytes).", plan.changes())


TOOL = Tool(DEFINITION, execute, staged=True)
