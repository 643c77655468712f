"""Taking a change back at a person's word: the ``undo`` tool, in an executor of its own over the same house."""

from handrail.approval.decision import AlwaysApprove
from handrail.builtins.undo import undo_tool
from handrail.call import Origin
from handrail.executor import ToolExecutor
from handrail.outcome import ToolOutcome
from handrail.registry import ToolRegistry
from handrail.wiring import House


async def undo(house: House, call_id: str) -> ToolOutcome:
    """Take back what ``call_id`` changed. The person who asks for it is the approval; the journal keeps it."""
    registry = ToolRegistry()
    registry.register(undo_tool(house.changes), plugin="builtin", source="built in")
    executor = ToolExecutor(
        registry,
        workspace=house.workspace,
        approver=AlwaysApprove(),
        journal=house.journal,
        changes=house.changes,
    )
    return await executor.execute("undo", {"calls": [call_id]}, origin=Origin(door="cli"))
