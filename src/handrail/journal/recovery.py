"""What the next start can prove about interrupted calls: from records and present declarations to a plan. Pure.

The evidence decides in this order:

1. It ran staged and its question still waits: nothing is to be done. Nobody answered in time: it did not happen.
   So it is with a call that waits before it runs. One that was answered waits on, until retention calls it forgotten.
2. Its commit was begun: it is rolled forward. Its commit was ended: it happened.
3. The persisted and the present declaration both say ``safe``, of the same source, replay key, definition,
   configuration and environment: it runs again. Each difference blocks that with a reason of its own.
4. It was staged and never began its commit: it did not happen.
5. The host can look (``reconcile``): the host says.
6. Nobody can know. It is not run again.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from handrail.errors import JournalCorrupt
from handrail.journal.intent import Declaration, Intent
from handrail.journal.records import Record
from handrail.outcome import Reason, ToolOutcome

MAX_ATTEMPTS = 3

Action = Literal["replay", "roll_forward", "reconcile", "settle", "expire", "wait"]


class Block(StrEnum):
    """Why an interrupted call is not run again."""

    NEVER = "never"
    TOOL_GONE = "tool_gone"
    STRANGER = "stranger"
    NO_LONGER_SAFE = "no_longer_safe"
    REPLAY_KEY = "replay_key"
    DEFINITION = "definition"
    CONFIGURATION = "configuration"
    ENVIRONMENT = "environment"
    SECRETS = "secrets"
    ATTEMPTS = "attempts"


WHY_BLOCKED = {
    Block.NEVER: "its declaration said that it must never run twice",
    Block.TOOL_GONE: "no tool of this name is registered now",
    Block.STRANGER: "the tool of this name comes from another source now",
    Block.NO_LONGER_SAFE: "the tool no longer says that it may run twice",
    Block.REPLAY_KEY: "the tool's replay key is another one now",
    Block.DEFINITION: "the tool's definition has changed",
    Block.CONFIGURATION: "the tool's configuration has changed",
    Block.ENVIRONMENT: "the environment has changed",
    Block.SECRETS: "its arguments held a secret, which was not stored",
    Block.ATTEMPTS: f"it was interrupted {MAX_ATTEMPTS} times",
}


@dataclass(frozen=True, slots=True)
class Interrupted:
    """One call without an end, as its records tell it. ``attempts`` counts how often it was begun."""

    intent: Intent
    attempts: int = 1
    commit: Literal["", "begun", "ended"] = ""
    held_by: str | None = None
    answered: bool = False
    expires_at: float = 0.0

    @property
    def call_id(self) -> str:
        """The call's id."""
        return self.intent.call_id

    @property
    def tool(self) -> str:
        """The canonical id of its tool."""
        return self.intent.declaration.tool


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A call that waited before it ran, and that nobody answered in time."""

    call_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one call. ``outcome`` is what it is settled with, where that is known already.

    ``why`` says it in words; ``block`` names what forbids a replay.
    """

    call: Interrupted | Unanswered
    action: Action
    why: str
    outcome: ToolOutcome | None = None
    block: Block | None = None

    @property
    def call_id(self) -> str:
        """The call's id."""
        return self.call.call_id

    @property
    def tool(self) -> str:
        """The canonical id of its tool."""
        return self.call.tool


def understand(records: Iterable[Record]) -> Interrupted:
    """One call's records, in order, as the facts that count. Raises :class:`JournalCorrupt` where they make none."""
    call: Interrupted | None = None
    for record in records:
        data = record.data
        kind = data["kind"]
        if kind == "intent":
            call = Interrupted(Intent.from_data(data, record.sequence))
        elif kind in ("settled", "refused"):  # its row says otherwise, and what is over must never run again
            raise JournalCorrupt(
                f"the call {data['call_id']} has no end by its state, and one by record {record.sequence}",
                sequence=record.sequence,
            )
        elif call is not None:
            call = _with(call, record, data)
    if call is None:
        raise JournalCorrupt("a call that is under way has no intent")
    return call


def _with(call: Interrupted, record: Record, data: Mapping[str, Any]) -> Interrupted:
    """What is known once one more of the call's records is read."""
    kind = data["kind"]
    if kind == "attempt":
        return replace(call, attempts=call.attempts + 1)
    if kind == "parked":
        held_by, expires_at = data.get("approval_id"), data.get("expires_at")
        if not isinstance(held_by, str) or not isinstance(expires_at, (int, float)):
            raise JournalCorrupt(f"record {record.sequence} is not a question", sequence=record.sequence)
        return replace(call, held_by=held_by, answered=False, expires_at=expires_at)
    if kind == "answered":
        return replace(call, answered=True)
    if kind == "commit_begin":
        return replace(call, commit="begun", held_by=None)
    return replace(call, commit="ended") if kind == "commit_end" else call


def blocked(call: Interrupted, present: Declaration | None) -> Block | None:
    """What forbids to run the call again, or ``None`` (rule 3)."""
    then = call.intent.declaration
    if then.replay != "safe":
        return Block.NEVER
    if present is None:
        return Block.TOOL_GONE
    differences = (
        (present.tool != then.tool or present.source != then.source, Block.STRANGER),
        (present.replay != "safe", Block.NO_LONGER_SAFE),
        (not then.replay_key or present.replay_key != then.replay_key, Block.REPLAY_KEY),
        (present.definition != then.definition, Block.DEFINITION),
        (present.configuration != then.configuration, Block.CONFIGURATION),
        (present.environment != then.environment, Block.ENVIRONMENT),
        (call.intent.has_secrets, Block.SECRETS),
        (call.attempts >= MAX_ATTEMPTS, Block.ATTEMPTS),
    )
    return next((block for differs, block in differences if differs), None)


def why_blocked(then: Declaration, present: Declaration | None, block: Block) -> str:
    """The reason in words; for a changed environment or configuration, with the parts that differ."""
    said = WHY_BLOCKED[block]
    if present is None:
        return said
    differing: list[str] = []
    if block is Block.ENVIRONMENT:
        was, now = then.surroundings, present.surroundings
        differing = [f"{name} was {was.get(name)} and is {now.get(name)}" for name in _differing(was, now)]
    elif block is Block.CONFIGURATION:
        differing = _differing(then.configuration_parts, present.configuration_parts)
    return f"{said}: {', '.join(differing)}" if differing else said


def _differing(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in {*was, *now} if was.get(name) != now.get(name))


def plan(
    call: Interrupted,
    present: Declaration | None,
    *,
    reconcilable: Container[str],
    now: float,
    has_tools: bool = True,
    forgotten: float = 0.0,
) -> Step:
    """What to do about one interrupted call (the rules above).

    ``has_tools``: whether this host registers tools at all; one that does not leaves safe calls to one that does.
    ``forgotten``: a question that was open until before this time is over even if it was answered and nobody went on.
    """
    tool = call.intent.declaration.tool
    if call.held_by is not None:
        if now < call.expires_at or (call.answered and call.expires_at >= forgotten):
            return Step(call, "wait", f"it ran staged, and the approval {call.held_by} is not used yet")
        if call.answered:
            return Step(call, "expire", "it was answered and then forgotten; its changes are dropped", _forgotten(tool))
        return Step(call, "expire", "nobody answered in time; its changes are dropped", _not_approved(tool))
    if call.commit == "begun":
        return Step(call, "roll_forward", "its commit was begun, so it is completed")
    if call.commit == "ended":
        return Step(call, "settle", "its commit was completed", committed(tool))
    if not has_tools and call.intent.declaration.replay == "safe":
        return Step(call, "wait", "it is declared safe; a host that has its tool can run it again")
    block = blocked(call, present)
    if block is None:
        return Step(call, "replay", "it is declared safe, and nothing that it depends on has changed")
    why = why_blocked(call.intent.declaration, present, block)
    if call.intent.declaration.staged:
        return Step(call, "settle", "it was staged and never began its commit", did_not_happen(tool), block)
    if tool in reconcilable:
        return Step(call, "reconcile", f"the host can look; it is not run again: {why}", None, block)
    return Step(call, "settle", f"nobody can know; it was not run again: {why}", nobody_knows(tool, why), block)


# ── the outcomes ─────────────────────────────────────────────────────────────────────────────────────────────────


def committed(tool: str) -> ToolOutcome:
    """Its changes are real; what it said is lost."""
    return ToolOutcome.ok(
        f"{tool} was interrupted after its changes were made: they are in the workspace. Its output was not kept."
    )


def did_not_happen(tool: str) -> ToolOutcome:
    """It was staged, or somebody looked."""
    return ToolOutcome.error(
        f"{tool} was interrupted and did not happen: nothing was changed. It was not run again.", Reason.INTERRUPTED
    )


def happened(tool: str) -> ToolOutcome:
    """Somebody looked."""
    return ToolOutcome.ok(f"{tool} was interrupted, but it did happen. Its output was not kept; it was not run again.")


def nobody_knows(tool: str, why: str) -> ToolOutcome:
    """The honest answer."""
    return ToolOutcome.unknown(
        f"{tool} was interrupted. It may or may not have happened; it was not run again, because {why}."
    )


def _not_approved(tool: str) -> ToolOutcome:
    return ToolOutcome.error(
        f"Nobody approved the changes of {tool} in time; they were dropped and nothing was changed.",
        Reason.APPROVAL_EXPIRED,
    )


def _forgotten(tool: str) -> ToolOutcome:
    return ToolOutcome.error(
        f"The changes of {tool} were answered, and nobody went on with the call; they were dropped and nothing "
        "was changed.",
        Reason.APPROVAL_EXPIRED,
    )
