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
from handrail.parked import Answer, HeldIntent, ParkedCall


class CallJournal(Protocol):
    """The journal, as the executor sees it."""

    async def recorded_outcome(self, call_id: str) -> ToolOutcome | None:
        """The outcome this call id was settled with, if it was."""
        ...

    async def begin(self, approved: Approved, *, deadline: float) -> Recorded:
        """Make the intent durable; consume the approval it names, in the same transaction.

        Raises :class:`~handrail.errors.ApprovalError` if that approval was used before or does not fit.
        """
        ...

    async def settle(self, recorded: Recorded, outcome: ToolOutcome, *, change_digest: str | None) -> None:
        """Make the outcome durable.

        Raises :class:`~handrail.errors.StaleEpoch` if the call has another owner by now, or is settled; the outcome
        is then kept as evidence.
        """
        ...

    async def refuse(self, call_id: str, tool: str, checked: Checked | None, outcome: ToolOutcome) -> None:
        """Keep the outcome of a call that never got as far as an intent.

        Raises :class:`~handrail.errors.ApprovalError` where the call waited for an approval that was used before.
        """
        ...

    async def park(self, parked: ParkedCall, checked: Checked, recorded: Recorded | None) -> None:
        """Make a question durable. Raises :class:`~handrail.errors.ApprovalError` for arguments with a secret."""
        ...

    async def parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, HeldIntent | None]:
        """A waiting call, its answer if there is one, and its intent where it ran staged already.

        Raises :class:`~handrail.errors.ApprovalError` for an unknown, expired or consumed id.
        """
        ...

    async def commit_begin(self, reviewed: Reviewed, change_digest: str) -> None:
        """Durable before the first change: from here on the changes will be made, by this process or the next start.

        Consumes the approval it names; raises :class:`~handrail.errors.ApprovalError` on its second use, and
        :class:`~handrail.errors.StaleEpoch` if the call has another owner by now.
        """
        ...

    async def commit_end(self, reviewed: Reviewed, change_digest: str) -> None:
        """The changes are durable in the workspace."""
        ...


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

    async def park(self, parked: ParkedCall, checked: Checked, recorded: Recorded | None) -> None:
        """A question cannot wait where nothing is kept."""
        raise ApprovalError("this host keeps no journal, so a question cannot wait for an answer")

    async def parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, HeldIntent | None]:
        """There is none."""
        raise ApprovalError(f"no approval {approval_id!r}: this host keeps no journal")

    async def commit_begin(self, reviewed: Reviewed, change_digest: str) -> None:
        """Go on at once."""

    async def commit_end(self, reviewed: Reviewed, change_digest: str) -> None:
        """Forget it."""
