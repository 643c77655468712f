"""Carrying out a recovery plan. The decisions are next door, in ``recovery``.

Opening a journal runs nothing; only :func:`recover` does. Doing it twice changes nothing: what the first settled has an
end, what it left waiting is left waiting. Calls of processes that live are not touched. :func:`forget`
is for retention, which alone may end what was answered.
"""

import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from anyio import to_thread

from handrail import faults
from handrail.errors import ChangeError, JournalCorrupt, StaleEpoch
from handrail.journal.intent import Declaration, Intent
from handrail.journal.ledger import CallRow
from handrail.journal.outcomes import unanswered
from handrail.journal.records import checked
from handrail.journal.recovery import (
    Interrupted,
    Step,
    Unanswered,
    committed,
    did_not_happen,
    happened,
    nobody_knows,
    plan,
    understand,
)
from handrail.journal.stored import Reader, StoredJournal
from handrail.outcome import ToolOutcome

log = logging.getLogger("handrail")

Happened = Literal["happened", "did_not", "unknown"]
Reconcile = Callable[[Intent], Happened | Awaitable[Happened]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the host lends to a recovery.

    ``present``: the declaration of a recorded tool as it is registered now; ``None`` for a host without tools, which
    leaves safe calls to one that has them. ``replay``: run a safe call again, through
    the corridor, under its own call id. ``roll_forward``: complete the changes of a call; false where they are not
    kept. ``drop``: forget them. ``reconcile``: by canonical tool id, look whether an intent's effect happened.
    """

    present: Callable[[Intent], Declaration | None] | None = None
    replay: Callable[[Intent], Awaitable[ToolOutcome]] | None = None
    roll_forward: Callable[[str], Awaitable[bool]] | None = None
    drop: Callable[[str], Awaitable[None]] | None = None
    reconcile: Mapping[str, Reconcile] = field(default_factory=dict[str, Reconcile])


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a step came to. ``outcome`` is ``None`` where nothing was done (a dry run, a call that waits)."""

    step: Step
    outcome: ToolOutcome | None = None


def left_behind(journal: StoredJournal) -> list[CallRow]:
    """The calls that a dead process left without an end, oldest first: a quick look that changes nothing. Blocking.

    Calls that wait for an answer are not among them.
    """
    reader = journal.reader
    rows = [row for row in reader.calls_not_over() if row.state in ("open", "claimed")]
    owners = {row.executor for row in rows} - {journal.executor}
    dead = {owner for owner in owners if not reader.is_alive(owner)}
    return sorted((row for row in rows if row.executor in dead), key=lambda row: row.intent)


async def interrupted(journal: StoredJournal, *, check_chain: bool = True) -> list[tuple[CallRow, Interrupted]]:
    """The calls whose owner is dead, oldest first. Changes nothing.

    ``check_chain``: first go through the whole chain, one record at a time, and refuse a damaged one
    (:class:`~handrail.errors.JournalCorrupt`).
    """

    def look() -> list[tuple[CallRow, Interrupted]]:
        reader = journal.reader
        if check_chain:
            base = reader.base()
            for _ in checked(reader.records(base.sequence), base):
                pass
        alive: dict[str, bool] = {}
        found: list[tuple[CallRow, Interrupted]] = []
        for row in sorted(reader.calls_not_over(), key=lambda row: row.intent):
            if row.state == "parked":
                continue
            if row.executor and row.executor not in alive:
                alive[row.executor] = row.executor == journal.executor or reader.is_alive(row.executor)
            if row.state == "held" or not alive.get(row.executor, False):
                call = _understood(reader, row.call_id)
                if call is not None:
                    found.append((row, call))
        return found

    return await to_thread.run_sync(look)


def _understood(reader: Reader, call_id: str) -> Interrupted | None:
    """What a call's records say, or ``None`` where another recovery has settled it meanwhile."""
    try:
        return understand(reader.records_of(call_id))
    except JournalCorrupt:
        now = reader.call(call_id)
        if now is not None and now.is_over:
            return None
        raise


async def recover(
    journal: StoredJournal,
    host: Host,
    *,
    dry_run: bool = False,
    check_chain: bool = True,
    clock: Callable[[], float] = time.time,
) -> list[Recovered]:
    """Settle every interrupted call by the plan. Of several who recover at once, each call is one's alone."""
    results = await _unanswered(journal, dry_run=dry_run)
    for row, call in await interrupted(journal, check_chain=check_chain):
        step = _planned(host, call, clock())
        if dry_run or step.action == "wait":
            results.append(Recovered(step))
        elif step.action == "expire":
            results.append(await _expired(journal, host, step, call))
        else:
            faults.point("recovery.claim.before")
            claimed = await journal.claim([row.call_id])
            faults.point("recovery.claim.after")
            for owned in claimed:
                try:
                    results.append(Recovered(step, await _carried_out(journal, host, step, call, owned)))
                except StaleEpoch:
                    log.info("call %s was taken over by another recovery", step.call_id)
    return results


async def forget(
    journal: StoredJournal,
    before: float,
    drop: Callable[[str], Awaitable[None]],
    *,
    clock: Callable[[], float] = time.time,
) -> list[Recovered]:
    """End the calls that ran staged, whose question was open until before ``before``, and with which nobody went on.

    Also those that were answered: they would wait for ever and hold retention back. ``drop`` forgets their changes.
    """
    host = Host(drop=drop)
    results: list[Recovered] = []
    for row, call in await interrupted(journal, check_chain=False):
        if row.state == "held" and call.expires_at < before:
            step = plan(call, None, reconcilable=(), now=clock(), forgotten=before)
            if step.action == "expire":
                results.append(await _expired(journal, host, step, call, before))
    return results


def _planned(host: Host, call: Interrupted, now: float) -> Step:
    present = None if host.present is None else host.present(call.intent)
    step = plan(call, present, reconcilable=host.reconcile, now=now, has_tools=host.present is not None)
    if step.action == "roll_forward" and host.roll_forward is None:
        return Step(call, "wait", "its commit was begun; a host that keeps its changes completes it")
    return step


async def _carried_out(journal: StoredJournal, host: Host, step: Step, call: Interrupted, row: CallRow) -> ToolOutcome:
    tool = step.tool
    if step.action == "replay":
        if host.replay is not None:
            return await host.replay(call.intent)
        outcome, evidence = nobody_knows(tool, "this host does not run calls again"), "none"
    elif step.action == "roll_forward":
        outcome, evidence = await _rolled_forward(host, step)
    elif step.action == "reconcile":
        outcome, evidence = await _reconciled(host, call)
    else:
        outcome, evidence = step.outcome or nobody_knows(tool, step.why), step.why
    final = outcome.with_(call_id=step.call_id, tool=tool)
    faults.point("recovery.settle.before")
    await journal.settle_claimed(row, final, why=step.why, evidence=evidence)
    faults.point("recovery.settle.after")
    return final


async def _rolled_forward(host: Host, step: Step) -> tuple[ToolOutcome, str]:
    tool = step.tool
    try:
        done = host.roll_forward is not None and await host.roll_forward(step.call_id)
        faults.point("recovery.rolled_forward")
    except ChangeError as error:
        return nobody_knows(tool, f"its commit could not be completed: {error}"), "commit begun"
    if done:
        return committed(tool), "commit rolled forward"
    return nobody_knows(tool, "its commit was begun, and the changes are no longer kept"), "commit begun"


async def _reconciled(host: Host, call: Interrupted) -> tuple[ToolOutcome, str]:
    """What the host saw. A hook that fails, or answers anything else, knows nothing."""
    tool = call.tool
    try:
        answer = host.reconcile[tool](call.intent)
        verdict = await answer if inspect.isawaitable(answer) else answer
    except Exception:
        log.exception("the reconcile hook of %s failed on call %s", tool, call.call_id)
        verdict = "unknown"
    if verdict == "happened":
        return happened(tool), "reconciled: happened"
    if verdict == "did_not":
        return did_not_happen(tool), "reconciled: did not happen"
    return nobody_knows(tool, "the host could not tell either"), "reconciled: unknown"


async def _unanswered(journal: StoredJournal, *, dry_run: bool) -> list[Recovered]:
    """End the calls that waited before they ran and were not answered in time."""
    results: list[Recovered] = []
    for parked in await journal.lapsed():
        outcome = unanswered(parked.tool).with_(call_id=parked.call_id)
        step = Step(Unanswered(parked.call_id, parked.tool), "expire", "nobody answered in time; it never ran", outcome)
        ended = not dry_run and await journal.expire(parked.call_id, parked.approval_id, outcome)
        results.append(Recovered(step, outcome if ended else None))
    return results


async def _expired(
    journal: StoredJournal, host: Host, step: Step, call: Interrupted, forgotten: float = 0.0
) -> Recovered:
    outcome = (step.outcome or did_not_happen(step.tool)).with_(call_id=step.call_id, tool=step.tool)
    ended = await journal.expire(step.call_id, call.held_by or "", outcome, forgotten)
    if ended and host.drop is not None:
        await host.drop(step.call_id)
    return Recovered(step, outcome if ended else None)
