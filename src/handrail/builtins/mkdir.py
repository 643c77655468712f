"""mkdir: a directory, with the missing ones above it."""

from typing import Any

from handrail.builtins._staging import plan_of, planning, staged
from handrail.builtins._text import shown
from handrail.tool import Capability, Effect, Job, RiskLevel, Tool, ToolDef

DEFINITION = ToolDef(
    name="mkdir",
    description="Make a directory in the workspace, with the missing ones above it. One that exists already is fine.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string", "description": "The directory, relative to the workspace."}},
        "required": ["path"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.MUTATION,
    path_args=("path",),
    capability=Capability(writes=True),
)


def execute(args: dict[str, Any], job: Job) -> Effect:
    """Stage the directories that are missing."""
    plan = plan_of(job)
    path = plan.workspace.locate(args["path"])
    with planning(shown(path)):
        if path != b".":
            plan.mkdir(path)
    missing = plan.changes()
    return staged(f"Made {shown(path)}." if missing else f"{shown(path)} exists already.", missing)


TOOL = Tool(DEFINITION, execute, staged=True)
