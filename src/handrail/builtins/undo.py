"""``undo``: take back what an earlier call changed, through the corridor like any other change.

It is not among the tools a model is offered: a host, or the person at the command line, gives it.
"""

from typing import Any, Protocol

from handrail.changes.changeset import ChangeSet
from handrail.errors import ToolError, UndoUnavailable
from handrail.outcome import ToolOutcome
from handrail.tool import Capability, Effect, RiskLevel, Tool, ToolDef


class Undoable(Protocol):
    """Remembers what calls changed."""

    def inverse_of(self, call_id: str) -> ChangeSet: ...


DEFINITION = ToolDef(
    name="undo",
    description="Take back the changes of an earlier call.",
    parameters={
        "type": "object",
        "properties": {"call_id": {"type": "string", "minLength": 1}},
        "required": ["call_id"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.MUTATION,
    path_args=(),
    capability=Capability(writes=True),
)


def undo_tool(store: Undoable) -> Tool:
    """The tool over ``store``. It stages the inverse; files that changed since then are a conflict at the commit."""

    def undo(arguments: dict[str, Any]) -> Effect:
        try:
            changes = store.inverse_of(arguments["call_id"])
        except UndoUnavailable as error:
            raise ToolError(str(error)) from None
        return Effect(ToolOutcome.ok(f"Took back {len(changes)} changes of call {arguments['call_id']}."), changes)

    return Tool(DEFINITION, undo, staged=True)
