"""The rules of the journal, over one page of it: pure decisions that every store shares.

A store loads into a :class:`Page` the few rows that an operation names, lets :class:`Ledger` decide, and writes what
the page then holds in one transaction. So SQLite, PostgreSQL and memory differ in storage only.

The life of a call::

    parked ─answered─▶ ┐
    (new) ─────────────┴─ begin ─▶ open ─ settle ─▶ settled ─ resolve ─▶ settled (an unknown one, by a person)
      └─ refuse ─▶ refused      │    ▲
                                │    └─ commit_begin ─ held (ran staged, its question waits) ◀─ park ─┐
                                └────────────────────────────────────────────────────────────────────┘

1. A decision first looks, then adds its record, then changes rows: one that raises, also because its record is not
   JSON, has written nothing. One that must keep evidence and fail
   all the same returns :class:`Failed`, whose exception is raised after the evidence is durable.
2. Only the owner of a call, in its present epoch, settles it or begins its commit. Anybody else's result is ``stale``.
3. An approval is used in the same step as the intent, commit or refusal that it leads to.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

from handrail.errors import ApprovalError, CallBegunBefore, JournalError, StaleEpoch
from handrail.journal.records import Head, Record, encode, extended
from handrail.parked import Answer, Grant, ParkedCall

CallState = Literal["parked", "open", "held", "claimed", "settled", "refused"]


class CallRow(NamedTuple):
    """Where one call stands. Sequences point into the chain; 0 means there is none. In the order of its columns."""

    call_id: str
    state: CallState
    executor: str = ""
    epoch: int = 0
    intent: int = 0
    end: int = 0
    status: str = ""
    approval_id: str = ""
    commit: Literal["", "begun", "ended"] = ""
    resolved: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it was settled or refused."""
        return self.end > 0


class ApprovalRow(NamedTuple):
    """Where one approval stands. ``verdict`` is "" until it is answered."""

    approval_id: str
    call_id: str
    parked: int = 0
    answered: int = 0
    verdict: str = ""
    used: bool = False
    expires_at: float = 0.0
    binding: str = ""


class GrantRow(NamedTuple):
    """Where one grant stands."""

    grant_id: str
    session: str
    granted: int
    revoked_at: float | None = None


@dataclass(slots=True)
class Page:
    """A piece of a journal in memory: the rows an operation named, and what it adds.

    ``calls``, ``approvals`` and ``grants`` hold what exists; a missing key means there is none. ``added`` are new
    records; the ``changed_*`` sets name the rows to write; ``cut``, if set, is the last record to drop.
    """

    head: Head
    cut: Head | None = None
    calls: dict[str, CallRow] = field(default_factory=dict[str, CallRow])
    approvals: dict[str, ApprovalRow] = field(default_factory=dict[str, ApprovalRow])
    grants: dict[str, GrantRow] = field(default_factory=dict[str, GrantRow])
    added: list[tuple[Record, str]] = field(default_factory=list[tuple[Record, str]])
    changed_calls: set[str] = field(default_factory=set[str])
    changed_approvals: set[str] = field(default_factory=set[str])
    changed_grants: set[str] = field(default_factory=set[str])

    def append(self, data: Mapping[str, Any]) -> int:
        """Add a record and return its sequence."""
        record = extended(self.head, encode(data))
        self.head = Head(record.sequence, record.hash)
        self.added.append((record, cast("str", data["call_id"])))
        return record.sequence

    def put_call(self, row: CallRow) -> None:
        """Write a call's row."""
        self.calls[row.call_id] = row
        self.changed_calls.add(row.call_id)

    def put_approval(self, row: ApprovalRow) -> None:
        """Write an approval's row."""
        self.approvals[row.approval_id] = row
        self.changed_approvals.add(row.approval_id)

    def put_grant(self, row: GrantRow) -> None:
        """Write a grant's row."""
        self.grants[row.grant_id] = row
        self.changed_grants.add(row.grant_id)


@dataclass(frozen=True, slots=True)
class Failed:
    """The evidence is kept; ``error`` is for the caller."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Operation:
    """One change of the journal: the rows it needs to see, and the decision about them.

    A call's row brings the row of the approval it names with it. ``skip_locked``: rows that another writer is busy with
    are left out instead of waited for, where the store can tell.
    """

    name: str
    decide: Callable[[Page], Any]
    calls: tuple[str, ...] = ()
    approvals: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    skip_locked: bool = False


@dataclass(frozen=True, slots=True)
class Begun:
    """What a new owner needs to know of its intent."""

    sequence: int
    epoch: int


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────


def begin(intent: Mapping[str, Any], executor: str, won: list[int]) -> Operation:
    """Record an intent, or another attempt of an interrupted call that ``executor`` has claimed.

    ``won`` then holds the intent's sequence, for a caller that did not wait.
    """
    call_id = cast("str", intent["call_id"])
    approval: Mapping[str, Any] | None = intent["approval"]
    approval_id = "" if approval is None else cast("str", approval["id"])

    def decide(page: Page) -> Begun:
        row = page.calls.get(call_id)
        if row is not None and row.state == "claimed" and row.executor == executor:
            sequence = page.append(
                {**_brief("attempt", call_id, intent["at"]), "executor": executor, "epoch": row.epoch, "of": row.intent}
            )
            page.put_call(row._replace(state="open"))
            won.append(row.intent)
            return Begun(sequence, row.epoch)
        used = _usable(page, approval_id, call_id, approval["binding"] if approval is not None else None)
        if row is not None and row.state != "parked":
            raise CallBegunBefore(f"the call {call_id} was begun before; it is {row.state}")
        sequence = page.append(intent)
        _use(page, used)
        if row is not None and row.approval_id != approval_id:
            _use(page, page.approvals.get(row.approval_id))
        waited_for = row.approval_id if row is not None else ""
        page.put_call(CallRow(call_id, "open", executor, 1, sequence, approval_id=approval_id or waited_for))
        won.append(sequence)
        return Begun(sequence, 1)

    return Operation("intent", decide, (call_id,), (approval_id,) if approval_id else ())


def settle(call_id: str, settlement: Mapping[str, Any], executor: str, epoch: int) -> Operation:
    """Record the outcome of an intent, once, by its owner."""

    def decide(page: Page) -> int | Failed:
        row = page.calls.get(call_id)
        owned = None if row is None else _owned(row, executor, epoch)
        if owned is None:
            return _stale(page, call_id, settlement, executor, epoch, row=row)
        sequence = _ended(page, owned, settlement, "settled")
        _use(page, page.approvals.get(owned.approval_id))
        return sequence

    return Operation("settle", decide, (call_id,))


def refuse(call_id: str, refusal: Mapping[str, Any], executor: str, abandoned: list[int]) -> Operation:
    """Record the end of a call whose body was not entered.

    ``abandoned``: what :func:`begin` won for a caller that did not wait for it. That intent never ran.
    """

    def decide(page: Page) -> int | Failed | None:
        row = page.calls.get(call_id)
        if row is None:
            sequence = page.append(refusal)
            page.put_call(CallRow(call_id, "refused", end=sequence, status=_status(refusal)))
            return sequence
        if row.state == "parked":
            sequence = _ended(page, row, refusal, "refused")
            _use(page, page.approvals.get(row.approval_id))
            return sequence
        never_ran = row.state == "claimed" or (row.state == "open" and row.intent in abandoned)
        mine = row.executor == executor and never_ran
        if mine:
            return _ended(page, row, {**refusal, "kind": "settled"}, "settled")
        if row.is_over and row.approval_id:
            raise ApprovalError(f"the approval {row.approval_id} was used already")
        return None if row.is_over else _stale(page, call_id, refusal, executor, 0, row=row, quiet=True)

    return Operation("refuse", decide, (call_id,))


def commit_begin(
    call_id: str, approval_id: str | None, change_digest: str, *, executor: str, epoch: int, at: float
) -> Operation:
    """Record that staged changes are about to become real; use the approval that allowed it."""

    def decide(page: Page) -> int | Failed:
        row = page.calls.get(call_id)
        owned = None if row is None else _owned(row, executor, epoch)
        record = {**_brief("commit_begin", call_id, at), "change_digest": change_digest}
        if owned is None or owned.commit:
            return _stale(page, call_id, record, executor, epoch, row=row)
        approval = _usable(page, approval_id or "", call_id, None)
        sequence = page.append({**record, "approval": approval_id, "executor": executor, "epoch": epoch})
        _use(page, approval)
        page.put_call(owned._replace(commit="begun"))
        return sequence

    return Operation("commit_begin", decide, (call_id,), (approval_id,) if approval_id else ())


def commit_end(call_id: str, change_digest: str, executor: str, epoch: int, at: float) -> Operation:
    """Record that they are real."""

    def decide(page: Page) -> int | Failed:
        row = page.calls.get(call_id)
        owned = None if row is None else _owned(row, executor, epoch)
        record = {**_brief("commit_end", call_id, at), "change_digest": change_digest}
        if owned is None or owned.commit != "begun":
            return _stale(page, call_id, record, executor, epoch, row=row)
        sequence = page.append(record)
        page.put_call(owned._replace(commit="ended"))
        return sequence

    return Operation("commit_end", decide, (call_id,))


def claim(call_ids: Iterable[str], is_dead: Callable[[str], bool], executor: str, at: float) -> Operation:
    """Make ``executor`` the owner of each call whose owner is dead; returns the claimed rows."""
    wanted = tuple(call_ids)

    def decide(page: Page) -> list[CallRow]:
        claimed: list[CallRow] = []
        for call_id in wanted:
            row = page.calls.get(call_id)
            if row is None or row.state not in ("open", "claimed") or not is_dead(row.executor):
                continue
            taken = row._replace(state="claimed", executor=executor, epoch=row.epoch + 1)
            page.append(
                {**_brief("claimed", call_id, at), "executor": executor, "epoch": taken.epoch, "from": row.executor}
            )
            page.put_call(taken)
            claimed.append(taken)
        return claimed

    return Operation("claim", decide, wanted, skip_locked=True)


def resolve(call_id: str, verdict: Literal["happened", "did_not"], by: str, at: float) -> Operation:
    """Record what became of a call whose outcome is unknown."""

    def decide(page: Page) -> int:
        row = page.calls.get(call_id)
        if row is None or not row.is_over:
            raise JournalError(f"the call {call_id} has no outcome yet" if row else f"there is no call {call_id}")
        if row.status != "unknown":
            raise JournalError(f"the outcome of call {call_id} is known ({row.status}); only an unknown one is settled")
        if row.resolved:
            raise JournalError(f"the call {call_id} was settled by a person before (record {row.resolved})")
        sequence = page.append({**_brief("resolved", call_id, at), "verdict": verdict, "by": by})
        page.put_call(row._replace(resolved=sequence))
        return sequence

    return Operation("resolve", decide, (call_id,))


# ── approvals ────────────────────────────────────────────────────────────────────────────────────────────────────


def park(parked: ParkedCall, executor: str, epoch: int | None, at: float) -> Operation:
    """Record a question. ``epoch`` is the call's where it ran staged already, else ``None``."""

    def decide(page: Page) -> int | Failed:
        row = page.calls.get(parked.call_id)
        record = {**_brief("parked", parked.call_id, at), **parked_data(parked)}
        if parked.approval_id in page.approvals:
            raise ApprovalError(f"the approval {parked.approval_id} exists already")
        if epoch is not None:
            owned = None if row is None else _owned(row, executor, epoch)
            if owned is None:
                return _stale(page, parked.call_id, record, executor, epoch, row=row)
            after = owned._replace(state="held", executor="", approval_id=parked.approval_id)
        elif row is None or row.state == "parked":
            after = CallRow(parked.call_id, "parked", approval_id=parked.approval_id)
        else:
            raise ApprovalError(f"the call {parked.call_id} is {row.state}, so it cannot wait for an answer")
        sequence = page.append(record)
        if row is not None:  # asked again: the question before this one is over
            _use(page, page.approvals.get(row.approval_id))
        page.put_call(after)
        page.put_approval(
            ApprovalRow(
                parked.approval_id,
                parked.call_id,
                parked=sequence,
                expires_at=parked.expires_at,
                binding=parked.binding,
            )
        )
        return sequence

    return Operation("park", decide, (parked.call_id,), (parked.approval_id,))


def answer(approval_id: str, given: Answer, now: float) -> Operation:
    """Record the one answer of a waiting call."""

    def decide(page: Page) -> int:
        row = waiting(page.approvals.get(approval_id), approval_id, now)
        if row.answered:
            raise ApprovalError(f"the approval {approval_id} was answered before ({row.verdict})")
        sequence = page.append(
            {
                **_brief("answered", row.call_id, now),
                "approval_id": approval_id,
                "verdict": given.verdict,
                "by": given.by,
                "answered_at": given.at,
                "arguments": None if given.arguments is None else dict(given.arguments),
                "why": given.why,
            }
        )
        page.put_approval(row._replace(answered=sequence, verdict=given.verdict))
        return sequence

    return Operation("answer", decide, approvals=(approval_id,))


def waiting(row: ApprovalRow | None, approval_id: str, now: float) -> ApprovalRow:
    """The row, if it still waits. Raises :class:`ApprovalError` for an unknown, used or late one.

    An answer that came in time may be used later.
    """
    if row is None or not row.parked:
        raise ApprovalError(f"there is no approval {approval_id}")
    if row.used:
        raise ApprovalError(f"the approval {approval_id} was used already")
    if not row.answered and now >= row.expires_at:
        raise ApprovalError(f"the approval {approval_id} is too late: it was open until {row.expires_at:.0f}")
    return row


def expire(
    call_id: str, approval_id: str, refusal: Mapping[str, Any], now: float, *, forgotten: float = 0.0
) -> Operation:
    """Record the end of a call whose question was not answered in time. Decides whether it did that.

    ``forgotten``: a question that was open until before this time is over even if it was answered and nobody went on.
    """

    def decide(page: Page) -> bool:
        row, question = page.calls.get(call_id), page.approvals.get(approval_id)
        if row is None or question is None or row.state not in ("parked", "held") or row.approval_id != approval_id:
            return False
        if question.used or not is_lapsed(question, now, forgotten):
            return False
        state = "refused" if row.state == "parked" else "settled"
        _ended(page, row, {**refusal, "kind": state, "of": row.intent}, state)
        _use(page, question)
        return True

    return Operation("expire", decide, (call_id,), (approval_id,))


def is_lapsed(question: ApprovalRow, now: float, forgotten: float = 0.0) -> bool:
    """Whether a question is over without having been used (see :func:`expire`)."""
    return now >= question.expires_at and (not question.answered or question.expires_at < forgotten)


def prune(cut: Head, grants: Iterable[Grant], at: float) -> Operation:
    """Drop every record up to ``cut``, and say so in the chain. The caller has made sure that none is needed.

    ``grants`` are those that stand and whose records are dropped: each is recorded anew first.
    """
    standing = {grant.grant_id: grant for grant in grants}

    def decide(page: Page) -> int:
        for grant_id, grant in standing.items():
            row = page.grants.get(grant_id)
            if row is not None and row.revoked_at is None and row.granted <= cut.sequence:
                sequence = page.append({**_brief("grant", "", at), "grant": grant.to_json()})
                page.put_grant(row._replace(granted=sequence))
        page.cut = cut
        return page.append({**_brief("pruned", "", at), "sequence": cut.sequence, "hash": cut.hash.hex()})

    return Operation("prune", decide, grants=tuple(standing))


def add_grant(grant: Grant, now: float) -> Operation:
    """Record a lasting yes."""

    def decide(page: Page) -> int:
        if grant.grant_id in page.grants:
            raise ApprovalError(f"the grant {grant.grant_id} exists already")
        sequence = page.append({**_brief("grant", "", now), "grant": grant.to_json()})
        page.put_grant(GrantRow(grant.grant_id, grant.session, sequence))
        return sequence

    return Operation("grant", decide, grants=(grant.grant_id,))


def revoke_grant(grant_id: str, at: float) -> Operation:
    """Record the end of a grant; returns its row."""

    def decide(page: Page) -> GrantRow:
        row = page.grants.get(grant_id)
        if row is None:
            raise ApprovalError(f"there is no grant {grant_id}")
        if row.revoked_at is not None:
            raise ApprovalError(f"the grant {grant_id} was ended before")
        page.append({**_brief("revoked", "", at), "grant_id": grant_id})
        page.put_grant(row._replace(revoked_at=at))
        return page.grants[grant_id]

    return Operation("revoke", decide, grants=(grant_id,))


def parked_data(parked: ParkedCall) -> dict[str, Any]:
    """A waiting question as the fields of a record."""
    return {
        "approval_id": parked.approval_id,
        "tool": parked.tool,
        "arguments": dict(parked.arguments),
        "binding": parked.binding,
        "question": dict(parked.question),
        "asked_at": parked.asked_at,
        "expires_at": parked.expires_at,
        "run_id": parked.run_id,
        "change_digest": parked.change_digest,
    }


# ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────


def _brief(kind: str, call_id: str, at: float) -> dict[str, Any]:
    return {"kind": kind, "call_id": call_id, "at": at}


def _status(settlement: Mapping[str, Any]) -> str:
    return cast("str", settlement["outcome"]["status"])


def _owned(row: CallRow, executor: str, epoch: int) -> CallRow | None:
    """The row as its owner sees it, or ``None`` for anybody else (rule 2).

    A held call belongs to nobody: the first who comes with the next epoch takes it, together with its approval.
    """
    if row.state in ("open", "claimed") and row.executor == executor and row.epoch == epoch:
        return row if row.state == "open" else row._replace(state="open")
    if row.state == "held" and row.epoch + 1 == epoch:
        return row._replace(state="open", executor=executor, epoch=epoch)
    return None


def _usable(page: Page, approval_id: str, call_id: str, binding: str | None) -> ApprovalRow | None:
    """The approval as a row that may be used now, or :class:`ApprovalError`; ``None`` where none is named."""
    if not approval_id:
        return None
    row = page.approvals.get(approval_id)
    if row is None:  # given on the spot: it never waited
        return ApprovalRow(approval_id, call_id, verdict="approve", binding=binding or "")
    if row.used:
        raise ApprovalError(f"the approval {approval_id} was used already")
    if row.call_id != call_id:
        raise ApprovalError(f"the approval {approval_id} is for the call {row.call_id}")
    if row.verdict != "approve":
        raise ApprovalError(f"the approval {approval_id} was not given ({row.verdict or 'no answer yet'})")
    if binding is not None and binding != row.binding:
        raise ApprovalError(f"the approval {approval_id} was given to something else (another digest)")
    return row


def _use(page: Page, row: ApprovalRow | None) -> None:
    if row is not None and not row.used:
        page.put_approval(row._replace(used=True))


def _ended(page: Page, row: CallRow, settlement: Mapping[str, Any], state: Literal["settled", "refused"]) -> int:
    sequence = page.append(settlement)
    status = _status(settlement)
    page.put_call(row._replace(state=state, end=sequence, status=status))
    return sequence


def _stale(
    page: Page,
    call_id: str,
    result: Mapping[str, Any],
    executor: str,
    epoch: int,
    *,
    row: CallRow | None,
    quiet: bool = False,
) -> Failed:
    page.append(
        {**_brief("stale", call_id, result["at"]), "executor": executor, "epoch": epoch, "result": dict(result)}
    )
    where = "is unknown" if row is None else f"is {row.state}, in epoch {row.epoch}"
    if quiet:
        return Failed(JournalError(f"the call {call_id} {where}; what came of this try was kept as evidence"))
    return Failed(
        StaleEpoch(f"the call {call_id} {where}; the result of epoch {epoch} was kept as evidence and not applied")
    )
