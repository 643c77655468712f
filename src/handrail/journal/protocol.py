"""What the corridor asks of a journal. A store that keeps these promises can stand behind it.

1. ``begin`` returns after the intent is durable, or raises: nothing runs without one. The approval it names is
   consumed in the same transaction; a second use raises.
2. ``settle`` returns after the outcome is durable. Each intent is settled exactly once.
3. A call id that was settled before answers with its recorded outcome, and never runs again.
4. ``park`` returns after the question is durable, so that it can be answered by another process, tomorrow.

Everything raises :class:`~handrail.errors.JournalError` when the store cannot be trusted. What whoever answers asks of
it besides is :class:`~handrail.parked.ApprovalStore`.
"""

from typing import Protocol

from handrail.call import Approved, Checked, Recorded, Reviewed
from handrail.errors import ApprovalError
from handrail.outcome import ToolOutcome
from handrail.parked import Answer, ParkedCall


class CallJournal(Protocol):
    """The journal, as the executor sees it."""

    async def recorded_outcome(self, call_id: str) -> ToolOutcome | None: ...

    async def begin(self, approved: Approved, *, deadline: float) -> Recorded: ...

    async def settle(self, recorded: Recorded, outcome: ToolOutcome, *, change_digest: str | None) -> None: ...

    async def refuse(self, call_id: str, tool: str, checked: Checked | None, outcome: ToolOutcome) -> None:
        """Keep the outcome of a call that never got as far as an intent."""
        ...

    async def park(self, parked: ParkedCall, recorded: Recorded | None) -> None: ...

    async def parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, Recorded | None]:
        """A waiting call, its answer if there is one, and its intent where it ran staged already.

        Raises :class:`~handrail.errors.ApprovalError` for an unknown, expired or consumed id.
        """
        ...

    async def commit_begin(self, reviewed: Reviewed, change_digest: str) -> None:
        """Durable before the first change: these changes are being made real. Consumes the approval it names."""
        ...

    async def commit_end(self, reviewed: Reviewed, change_digest: str) -> None: ...


class NoJournal:
    """Keeps nothing. For hosts that asked for no journal; after a crash nobody can say what happened."""

    async def recorded_outcome(self, call_id: str) -> ToolOutcome | None:
        """Nothing is remembered."""
        return None

    async def begin(self, approved: Approved, *, deadline: float) -> Recorded:
        """Go on at once."""
        return Recorded(approved, approved.checked.proposed.call_id)

    async def settle(self, recorded: Recorded, outcome: ToolOutcome, *, change_digest: str | None) -> None:
        """Forget it."""

    async def refuse(self, call_id: str, tool: str, checked: Checked | None, outcome: ToolOutcome) -> None:
        """Forget it."""

    async def park(self, parked: ParkedCall, recorded: Recorded | None) -> None:
        """A question cannot wait where nothing is kept."""
        raise ApprovalError("this host keeps no journal, so a question cannot wait for an answer")

    async def parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, Recorded | None]:
        """There is none."""
        raise ApprovalError(f"no approval {approval_id!r}: this host keeps no journal")

    async def commit_begin(self, reviewed: Reviewed, change_digest: str) -> None:
        """Go on at once."""

    async def commit_end(self, reviewed: Reviewed, change_digest: str) -> None:
        """Forget it."""
