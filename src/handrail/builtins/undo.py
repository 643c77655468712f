"""undo: take back what earlier calls changed. A call like any other: staged, reviewed, committed, and undoable itself.

It needs the store that knows the calls, so a door that offers it makes it with :func:`undo_tool`. It is not among the
tools that a model is given unless the host registers it.
"""

from typing import Any, Protocol

from handrail.changes.changeset import ChangeSet
from handrail.errors import ChangeConflict, UndoUnavailable
from handrail.outcome import Reason, ToolOutcome
from handrail.tool import Capability, Effect, Plugin, RiskLevel, Tool, ToolDef

DEFINITION = ToolDef(
    name="undo",
    description=(
        "Take back what earlier calls changed in the workspace: all of it, or nothing where a file changed since."
    ),
    parameters={
        "type": "object",
        "properties": {
            "calls": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
                "uniqueItems": True,
                "description": "The ids of the calls.",
            }
        },
        "required": ["calls"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.MUTATION,
    path_args=(),
    capability=Capability(writes=True),
)


class History(Protocol):
    """What was committed, as an undo needs it: a :class:`~handrail.changes.store.ChangeStore`."""

    def inverse_of(self, *call_ids: str) -> ChangeSet: ...


def undo_tool(history: History) -> Tool:
    """The tool, for one store."""

    def execute(args: dict[str, Any]) -> Effect:
        calls = args["calls"]
        try:
            inverse = history.inverse_of(*calls)
        except ChangeConflict as error:
            return Effect(ToolOutcome.error(f"Conflict: {error}. Nothing was changed.", Reason.CONFLICT))
        except UndoUnavailable as error:
            return Effect(ToolOutcome.error(f"Cannot undo: {error}."))
        paths = len(inverse)
        text = f"Took back {len(calls)} call{'s' * (len(calls) > 1)}: {paths} path{'s' * (paths != 1)}."
        return Effect(ToolOutcome.ok(text), inverse)

    return Tool(DEFINITION, execute, staged=True)


def undo_plugin(history: History) -> Plugin:
    """``builtin:undo``."""
    return Plugin("builtin", (undo_tool(history),), "built in")
