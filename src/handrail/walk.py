"""One walk through the corridor: what it carries besides its stage, and the sentences in which it can end. Pure."""

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from handrail.approval.decision import Decision, Escalate, Modify, Reject, Unavailable
from handrail.approval.policy import Verdict
from handrail.call import Checked, Recorded
from handrail.errors import JournalError
from handrail.outcome import Reason, ToolOutcome
from handrail.tool import Signal

MAX_EDITED_CHARACTERS = 2_000


@dataclass(frozen=True, slots=True)
class Listeners:
    """Who hears about one call while it runs. All optional; none can change it."""

    on_output: Callable[[bytes], None] | None = None
    on_progress: Callable[[float, float | None, str], None] | None = None
    on_stage: Callable[[str, "Checked | Recorded"], None] | None = None


class Walk(Struct):
    """What one walk through the corridor carries besides its stage."""

    call_id: str
    name: str
    started: float
    signal: Signal
    listeners: Listeners
    may_be_known: bool = False
    edits: int = 0
    edited_arguments: Mapping[str, Any] | None = None
    edited_by: str | None = None
    recorded: Recorded | None = None
    checked: Checked | None = None
    change_digest: str | None = None
    settled: bool = False
    may_be_real: bool = False  # its staged changes, or some of them


def no_such_tool(name: str, known: list[str]) -> str:
    """What a model reads that asked for a tool there is not, with the likeliest one."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else f" The tools are: {', '.join(known) or 'none'}."
    return f"There is no tool named {name!r}.{hint}"


def nobody_to_ask(checked: Checked) -> Unavailable:
    """Why a call that needs a yes gets none."""
    risk = checked.registered.tool.definition.risk_level
    return Unavailable(f"a {risk.value} call needs an approver, and this host has none")


def denied(verdict: Verdict) -> ToolOutcome:
    """Policy said no."""
    return ToolOutcome.error(f"Denied by {verdict.rule}: {verdict.why}.", Reason.DENIED)


def said_no(decision: Decision) -> ToolOutcome:
    """What any answer but a yes comes to."""
    if isinstance(decision, Reject):
        return ToolOutcome.error(f"Rejected: {decision.why}", Reason.REJECTED)
    if isinstance(decision, Escalate):
        decision = Unavailable(f"nobody is left to decide{f' ({decision.why})' if decision.why else ''}")
    why = decision.why if isinstance(decision, Unavailable) else "there is no answer"
    return ToolOutcome.error(f"Refused: {why}.", Reason.NO_APPROVER)


def for_changes(reason: Reason | None) -> Reason | None:
    """The reason of a no that was given to changes, not to a call."""
    return Reason.CHANGES_REJECTED if reason is Reason.REJECTED else reason


def dropped_for_edit(edit: Modify) -> ToolOutcome:
    """The end of the first attempt, where its changes led to other arguments."""
    return ToolOutcome.error(
        f"{edit.by} edited the call after seeing its changes; they were dropped, and the edited call ran instead.",
        Reason.CHANGES_REJECTED,
    )


def edited_to(arguments: Mapping[str, Any]) -> str:
    """What stands above the outcome of an edited call, so that the model knows what ran."""
    shown = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    if len(shown) > MAX_EDITED_CHARACTERS:
        shown = f"{shown[:MAX_EDITED_CHARACTERS]}… ({len(shown)} characters)"
    return f"[The approver edited this call. Its arguments were: {shown}]"


def cancelled(walk: Walk) -> ToolOutcome:
    """What can be said of a call that was cancelled, by how far it came."""
    if walk.recorded is None:
        return ToolOutcome.error("Cancelled before it ran; nothing happened.", Reason.CANCELLED)
    if walk.recorded.checked.registered.tool.body.staged and walk.change_digest is None:
        return ToolOutcome.error("Cancelled; its changes were dropped and nothing was changed.", Reason.CANCELLED)
    return ToolOutcome.unknown("Cancelled while it ran; it may or may not have had its effect.", Reason.CANCELLED)


def begun_before() -> ToolOutcome:
    """Somebody began this call, and how it ended is not ours to say."""
    return ToolOutcome.unknown(
        "This call was begun before, here or by another process, and has no outcome: it may or may not have happened. "
        "It was not run again.",
        Reason.INTERRUPTED,
    )


def without_journal(walk: Walk, error: JournalError) -> ToolOutcome:
    """What can be said of a call whose journal failed, by how far it came."""
    if walk.recorded is None:
        return ToolOutcome.error(f"The journal cannot be used, so nothing was run: {error}", Reason.JOURNAL_UNAVAILABLE)
    if stayed_staged(walk.recorded, walk):
        return ToolOutcome.error(
            f"The call ran staged, but the journal cannot be used, so nothing was changed: {error}",
            Reason.JOURNAL_UNAVAILABLE,
        )
    return ToolOutcome.unknown(
        f"The call ran, but its outcome could not be recorded: {error}", Reason.JOURNAL_UNAVAILABLE
    )


def stayed_staged(recorded: Recorded, walk: Walk) -> bool:
    """Whether nothing of the call can be real: a recovery would prove the same from the records."""
    return recorded.checked.registered.tool.body.staged and not walk.may_be_real


def broken(walk: Walk, error: Exception) -> ToolOutcome:
    """A fault of ours, which must not pass for the tool's."""
    if walk.recorded is None:
        return ToolOutcome.error(f"A fault in the executor; nothing was run: {short(error)}", Reason.INTERNAL)
    return ToolOutcome.unknown(f"A fault in the executor while the call ran: {short(error)}", Reason.INTERNAL)


def short(error: BaseException) -> str:
    """An exception in one line of at most 500 characters."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= 500 else text[:500] + "…"
