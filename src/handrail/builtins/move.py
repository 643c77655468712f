"""move: rename a file, link or directory within the workspace."""

from typing import Any

from handrail.builtins._staging import contents_of, new_parents, staged, tree_of
from handrail.builtins._text import explained, shown, workspace_of
from handrail.changes.changeset import Change
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
    workspace, contents = workspace_of(job), contents_of(job)
    source = workspace.locate_entry(args["source"])
    target = workspace.locate_entry(args["destination"])
    if target == source or target.startswith(source + b"/"):
        raise ToolError(f"{shown(source)} cannot be moved to {shown(target)}, into or onto itself.")
    with explained(shown(target)):
        if workspace.status(target) is not None:
            raise ToolError(f"{shown(target)} exists already; nothing is overwritten.")
        parents = new_parents(workspace, target)
    moved = tree_of(workspace, source, contents)
    gone = [Change(path, state, None) for path, state in moved]
    here = [Change(target + path[len(source) :], None, state) for path, state in moved]
    count = "" if len(moved) == 1 else f" with everything in it ({len(moved) - 1})"
    return staged(f"Moved {shown(source)} to {shown(target)}{count}.", [*parents, *gone, *here])


TOOL = Tool(DEFINITION, execute, staged=True)
