"""move: rename a file, link or directory within the workspace."""

from typing import Any

from handrail.builtins._staging import plan_of, planning, staged
from handrail.builtins._text import shown
from handrail.errors import ToolError
from handrail.tool import Capability, Effect, Job, RiskLevel, Tool, ToolDef

DEFINITION = ToolDef(
    name="move",
    description=(
        "Move or rename a file, link or directory within the workspace. Missing directories above the destination are "
        "made. Nothing is overwritten: the destination must not exist."
    ),
    parameters={
        "type": "object",
        "properties": {
            "source": {"type": "string", "description": "What to move, relative to the workspace."},
            "destination": {"type": "string", "description": "Its new path, relative to the workspace."},
        },
        "required": ["source", "destination"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.MUTATION,
    path_args=("source", "destination"),
    capability=Capability(writes=True),
)


def execute(args: dict[str, Any], job: Job) -> Effect:
    """Stage the move: the old entries go, the same come under the new name."""
    plan = plan_of(job)
    source = plan.workspace.locate_entry(args["source"])
    target = plan.workspace.locate_entry(args["destination"])
    if target == source or target.startswith(source + b"/"):
        raise ToolError(f"{shown(source)} cannot be moved to {shown(target)}, into or onto itself.")
    with planning(shown(target)):
        if plan.state(target) is not None:
            raise ToolError(f"{shown(target)} exists already; nothing is overwritten.")
    with planning(shown(source)):
        inside = len(plan.tree(source)) - 1
        if inside < 0:
            raise FileNotFoundError
        plan.move(source, target)
    count = "" if inside == 0 else f" with everything in it ({inside})"
    return staged(f"Moved {shown(source)} to {shown(target)}{count}.", plan.changes())


TOOL = Tool(DEFINITION, execute, staged=True)
