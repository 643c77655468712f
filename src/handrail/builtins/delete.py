"""delete: remove a file, link or directory of the workspace; it can be taken back while the store holds it."""

from typing import Any

from handrail.builtins._staging import plan_of, planning, staged
from handrail.builtins._text import shown
from handrail.errors import ToolError
from handrail.tool import Capability, Effect, Job, RiskLevel, Tool, ToolDef

DEFINITION = ToolDef(
    name="delete",
    description=(
        "Delete a file, link or empty directory of the workspace; with recursive, a directory and everything in it. "
        "A link itself is deleted, never what it points to."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "What to delete, relative to the workspace."},
            "recursive": {"type": "boolean", "description": "Whether a directory goes with everything in it."},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.DESTRUCTIVE,
    path_args=("path",),
    capability=Capability(writes=True),
)


def execute(args: dict[str, Any], job: Job) -> Effect:
    """Stage the removal."""
    plan = plan_of(job)
    path = plan.workspace.locate_entry(args["path"])
    with planning(shown(path)):
        inside = len(plan.tree(path)) - 1
        if inside < 0:
            raise FileNotFoundError
        plan.delete(path)
    if inside and not args.get("recursive"):
        raise ToolError(f"{shown(path)} is a directory with {inside} entries in it; say recursive to delete them too.")
    what = f" and the {inside} entries in it" if inside else ""
    return staged(f"Deleted {shown(path)}{what}.", plan.changes())


TOOL = Tool(DEFINITION, execute, staged=True)
