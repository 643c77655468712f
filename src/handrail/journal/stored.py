"""The journal over a store: what the corridor, the inbox and the command line all use.

The rules are in ``ledger``, the storage beneath in ``sqlite`` or ``postgres``; this file turns stages into records,
hands them to the writer, and turns records back into what callers ask for.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeVar

from anyio import to_thread

from handrail.call import Approved, Checked, Recorded, RegisteredTool, Reviewed
from handrail.errors import ApprovalError, JournalCorrupt, JournalError
from handrail.journal import ledger
from handrail.journal.intent import Declaration, Intent, configuration_parts, environment_of, intent_data
from handrail.journal.ledger import ApprovalRow, CallRow, GrantRow
from handrail.journal.outcomes import outcome_from_json, outcome_to_json, resolved_outcome, unanswered
from handrail.journal.records import Head, Record
from handrail.journal.records import checked as checked_chain
from handrail.journal.secrets import Redactor, declares_secrets
from handrail.journal.writer import CommitInDoubt, Store, Writer
from handrail.outcome import ToolOutcome
from handrail.parked import Answer, Grant, HeldIntent, ParkedCall
from handrail.schema import digest_of
from handrail.tool import ToolDef

T = TypeVar("T")


class NamedStore(Store, Protocol):
    """A store that knows who it is."""

    @property
    def executor(self) -> str: ...

    @property
    def salt(self) -> str: ...


class Reader(Protocol):
    """The reading side of a store. Blocking; safe to call from any thread."""

    def meta(self) -> dict[str, str]: ...

    def head(self) -> Head: ...

    def base(self) -> Head: ...

    def call(self, call_id: str) -> CallRow | None: ...

    def calls_not_over(self) -> list[CallRow]: ...

    def rows_of_calls(self) -> Iterator[CallRow]: ...

    def rows_of_approvals(self) -> Iterator[ApprovalRow]: ...

    def approval(self, approval_id: str) -> ApprovalRow | None: ...

    def approvals_unused(self) -> list[ApprovalRow]: ...

    def grants(self) -> list[GrantRow]: ...

    def record(self, sequence: int) -> Record | None: ...

    def records_of(self, call_id: str) -> list[Record]: ...

    def records(self, after: int = 0) -> Iterator[Record]: ...

    def needed_before(self, cut: int) -> int | None: ...

    def is_alive(self, executor: str) -> bool: ...

    def close(self) -> None: ...


class StoredJournal:
    """A :class:`~handrail.journal.protocol.CallJournal` and an :class:`~handrail.parked.ApprovalStore` over a store.

    ``secret_names`` are argument names that are never stored, at any depth, besides those that a schema declares
    ``writeOnly``. ``clock`` gives seconds since the epoch. Opening one runs nothing. Used from any number of event
    loops of the process that opened it.
    """

    def __init__(
        self,
        store: NamedStore,
        reader: Reader,
        *,
        secret_names: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.executor = store.executor
        self.reader = reader
        self.writer = Writer(store)
        self._salt = store.salt
        self._secret_names = frozenset(secret_names)
        self._clock = clock
        self._environments: dict[str, tuple[str, dict[str, str]]] = {}
        self._parts: dict[str, dict[str, str]] = {}
        self._declaring: dict[str, bool] = {}
        self._abandoned: dict[str, list[int]] = {}

    # ── the corridor ─────────────────────────────────────────────────────────────────────────────────────────

    async def recorded_outcome(self, call_id: str) -> ToolOutcome | None:
        """The outcome a call was settled or refused with; a person's later word about an unknown one counts."""
        return await self._read(lambda: self.outcome_of(call_id))

    async def begin(self, approved: Approved, *, deadline: float) -> Recorded:
        """Make the intent durable and use up its approval (see the protocol)."""
        checked = approved.checked
        call_id = checked.proposed.call_id
        redactor = self._redactor(checked)
        intent = intent_data(
            approved,
            self.declaration(checked.registered, checked.workspace_id),
            arguments=checked.arguments if redactor is None else redactor.redacted(checked.arguments),
            has_secrets=redactor is not None and bool(redactor.found),
            deadline=deadline,
            executor=self.executor,
            at=self._clock(),
        )
        won: list[int] = []
        try:
            begun: ledger.Begun = await self.writer.write(ledger.begin(intent, self.executor, won))
        except (asyncio.CancelledError, CommitInDoubt):
            # Durable or not, nobody enters the body now: the refusal that follows settles it.
            self._abandoned[call_id] = won
            raise
        return Recorded(approved, call_id, begun.sequence, begun.epoch)

    async def settle(self, recorded: Recorded, outcome: ToolOutcome, *, change_digest: str | None) -> None:
        """Make the outcome durable (see the protocol)."""
        settlement = self._end("settled", recorded.call_id, recorded.checked, outcome)
        settlement |= {"change_digest": change_digest, "epoch": recorded.epoch, "of": recorded.sequence}
        await self.writer.write(ledger.settle(recorded.call_id, settlement, self.executor, recorded.epoch))

    async def refuse(self, call_id: str, tool: str, checked: Checked | None, outcome: ToolOutcome) -> None:
        """Keep the outcome of a call that never got as far as an intent (see the protocol)."""
        refusal = self._end("refused", call_id, checked, outcome)
        refusal["tool"] = tool
        if checked is not None:
            redactor = self._redactor(checked)
            arguments = checked.arguments if redactor is None else redactor.redacted(checked.arguments)
            refusal |= {"tool": checked.registered.canonical_id, "arguments": arguments}
        abandoned = self._abandoned.pop(call_id, [])
        await self.writer.write(ledger.refuse(call_id, refusal, self.executor, abandoned))

    async def park(self, parked: ParkedCall, checked: Checked, recorded: Recorded | None) -> None:
        """Make a question durable (see the protocol).

        A call that waits must be runnable after its answer, so its arguments are kept whole; one with secrets in them
        therefore cannot wait.
        """
        if self._hides(checked):
            raise ApprovalError("its arguments hold a secret, which is not stored, so the question cannot wait")
        epoch = None if recorded is None else recorded.epoch
        await self.writer.write(ledger.park(parked, self.executor, epoch, self._clock()))

    async def parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, HeldIntent | None]:
        """A waiting call, its answer, and its intent where it ran staged (see the protocol)."""
        return await self._read(lambda: self._parked(approval_id))

    async def commit_begin(self, reviewed: Reviewed, change_digest: str) -> None:
        """From here on the changes will be made (see the protocol)."""
        recorded = reviewed.recorded
        await self.writer.write(
            ledger.commit_begin(
                recorded.call_id,
                reviewed.approval_id,
                change_digest,
                executor=self.executor,
                epoch=recorded.epoch,
                at=self._clock(),
            )
        )

    async def commit_end(self, reviewed: Reviewed, change_digest: str) -> None:
        """The changes are durable (see the protocol)."""
        recorded = reviewed.recorded
        await self.writer.write(
            ledger.commit_end(recorded.call_id, change_digest, self.executor, recorded.epoch, self._clock())
        )

    # ── whoever answers ──────────────────────────────────────────────────────────────────────────────────────

    async def list_parked(self) -> list[tuple[ParkedCall, Answer | None]]:
        """Every call that waits, oldest first, with its answer if it has one that was not used yet."""
        return await self._read(self._list_parked)

    async def answer(self, approval_id: str, answer: Answer) -> None:
        """Record the one answer of a waiting call."""
        await self.writer.write(ledger.answer(approval_id, answer, self._clock()))

    async def add_grant(self, grant: Grant) -> None:
        """Record a lasting yes."""
        await self.writer.write(ledger.add_grant(grant, self._clock()))

    async def grants(self, session: str | None = None) -> list[Grant]:
        """The grants of one session, or all; revoked ones too, oldest first."""
        return await self._read(
            lambda: [self._grant(row) for row in self.reader.grants() if session is None or row.session == session]
        )

    async def revoke_grant(self, grant_id: str, at: float) -> Grant:
        """End a grant and return it."""
        row: GrantRow = await self.writer.write(ledger.revoke_grant(grant_id, at))
        return await self._read(lambda: self._grant(row))

    async def resolve(self, call_id: str, verdict: Literal["happened", "did_not"], by: str) -> None:
        """Record what became of a call whose outcome is unknown. Raises :class:`JournalError` for any other."""
        await self.writer.write(ledger.resolve(call_id, verdict, by, self._clock()))

    # ── whoever recovers ─────────────────────────────────────────────────────────────────────────────────────

    def declaration(self, registered: RegisteredTool, workspace: str) -> Declaration:
        """What a replay of this tool in this workspace depends on, as it is now."""
        environment = self._environments.get(workspace)
        if environment is None:
            data = environment_of(workspace)
            environment = self._environments[workspace] = (digest_of(data), data)
        parts = self._parts.get(registered.configuration_digest)
        if parts is None:
            parts = self._parts[registered.configuration_digest] = configuration_parts(registered)
        return Declaration.of(registered, *environment, parts)

    async def claim(self, call_ids: Collection[str]) -> list[CallRow]:
        """Become the owner of those of the calls whose owner is dead; returns their rows."""
        dead = await self._read(lambda: self._dead_owners(call_ids))
        return await self.writer.write(ledger.claim(call_ids, dead.__contains__, self.executor, self._clock()))

    async def settle_claimed(self, row: CallRow, outcome: ToolOutcome, *, why: str, evidence: str) -> None:
        """Settle a claimed call without running it; ``why`` is for the record and ``evidence`` what decided."""
        settlement = self._end("settled", row.call_id, None, outcome)
        settlement |= {"epoch": row.epoch, "of": row.intent, "recovery": {"why": why, "evidence": evidence}}
        await self.writer.write(ledger.settle(row.call_id, settlement, self.executor, row.epoch))

    async def expire(self, call_id: str, approval_id: str, outcome: ToolOutcome, forgotten: float = 0.0) -> bool:
        """End a call whose question was not answered in time; ``False`` where somebody was quicker.

        ``forgotten``: a question that was open until before this time is over even if it was answered.
        """
        refusal = self._end("refused", call_id, None, outcome)
        return await self.writer.write(ledger.expire(call_id, approval_id, refusal, self._clock(), forgotten=forgotten))

    async def lapsed(self, forgotten: float = 0.0) -> list[ParkedCall]:
        """The calls that waited before they ran and that nobody answered in time, oldest first.

        ``forgotten``: also those that were answered, were open until before this time, and that nobody went on with.
        """
        return await self._read(lambda: self._lapsed(forgotten))

    async def prune(self, before: float) -> Head | None:
        """Drop the records older than ``before`` (seconds since the epoch), as far as none of them is still needed.

        Returns the last that was dropped, or ``None`` where there was nothing to drop. The chain stays verifiable.

        Nothing holds it back for ever: a call whose question was open until before then, and which nobody went on
        with, is ended now (its records go at a later turn, when its end is old enough); a grant that stands is
        recorded anew. A call that ran staged and waits for its commit is left to whoever has its changes
        (:func:`~handrail.journal.recovering.forget`).
        """
        for parked in await self.lapsed(before):
            outcome = unanswered(parked.tool).with_(call_id=parked.call_id)
            await self.expire(parked.call_id, parked.approval_id, outcome, before)
        cut = await self._read(lambda: self._cut(before))
        if cut is not None:
            kept = await self._read(lambda: self._standing_grants(cut.sequence))
            await self.writer.write(ledger.prune(cut, kept, self._clock()))
        return cut

    def outcome_of(self, call_id: str) -> ToolOutcome | None:
        """:meth:`recorded_outcome`, blocking."""
        row = self.reader.call(call_id)
        if row is None or not row.is_over:
            return None
        outcome = outcome_from_json(self._record(row.end).data.get("outcome"), row.end)
        if row.resolved:
            outcome = resolved_outcome(outcome, self._record(row.resolved).data)
        return outcome

    def close(self) -> None:
        """Write what was handed over, and close. Closing twice is harmless."""
        self.writer.close()
        self.reader.close()

    async def _read(self, reading: Callable[[], T]) -> T:
        return await to_thread.run_sync(reading)

    # ── from records ─────────────────────────────────────────────────────────────────────────────────────────

    def intent_of(self, row: CallRow) -> Intent:
        """The recorded intent of a call. Raises :class:`JournalCorrupt` where it is not to be found."""
        return Intent.from_data(self._record(row.intent).data, row.intent)

    def _record(self, sequence: int) -> Record:
        record = self.reader.record(sequence)
        if record is None:
            if sequence <= self.reader.base().sequence:
                raise JournalError(f"record {sequence} is older than what retention keeps")
            raise JournalCorrupt(f"record {sequence} is missing", sequence=sequence)
        return record

    def _lapsed(self, forgotten: float) -> list[ParkedCall]:
        now = self._clock()
        rows = [row for row in self.reader.approvals_unused() if row.parked and ledger.is_lapsed(row, now, forgotten)]
        calls = {row.call_id: self.reader.call(row.call_id) for row in rows}
        return [
            self._question(row)[0]
            for row in rows
            if (call := calls[row.call_id]) is not None
            and (call.state, call.approval_id) == ("parked", row.approval_id)
        ]

    def _standing_grants(self, place: int) -> list[Grant]:
        return [self._grant(row) for row in self.reader.grants() if row.revoked_at is None and row.granted <= place]

    def _cut(self, before: float) -> Head | None:
        base = self.reader.base()
        last = base
        for record in checked_chain(self.reader.records(base.sequence), base):
            if record.data["at"] >= before:
                break
            last = Head(record.sequence, record.hash)
        return self._cut_at(last.sequence, base)

    def _cut_at(self, place: int, base: Head) -> Head | None:
        """The last place at or before ``place`` behind which nothing is needed that stands before it."""
        while place > base.sequence:
            needed = self.reader.needed_before(place)
            if needed is None:
                record = self._record(place)
                return Head(record.sequence, record.hash)
            place = needed - 1
        return None

    def _parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, HeldIntent | None]:
        row = ledger.waiting(self.reader.approval(approval_id), approval_id, self._clock())
        parked, answer = self._question(row)
        call = self.reader.call(row.call_id)
        if call is None or call.state != "held":
            return parked, answer, None
        intent = self.intent_of(call)
        return (
            parked,
            answer,
            HeldIntent(idempotency_key=intent.idempotency_key, sequence=call.intent, epoch=call.epoch + 1),
        )

    def _list_parked(self) -> list[tuple[ParkedCall, Answer | None]]:
        now = self._clock()
        rows = self.reader.approvals_unused()
        return [self._question(row) for row in rows if row.parked and (row.answered or now < row.expires_at)]

    def _question(self, row: ApprovalRow) -> tuple[ParkedCall, Answer | None]:
        record = self._record(row.parked)
        answered = self._record(row.answered) if row.answered else None
        try:
            return parked_from_data(record.data), None if answered is None else _answer_from_data(answered.data)
        except (KeyError, TypeError) as error:
            raise JournalCorrupt(f"record {row.parked} is not a question: {error!r}", sequence=row.parked) from None

    def _grant(self, row: GrantRow) -> Grant:
        try:
            return Grant.from_json({**self._record(row.granted).data["grant"], "revoked_at": row.revoked_at})
        except (KeyError, TypeError) as error:
            raise JournalCorrupt(f"record {row.granted} is not a grant: {error!r}", sequence=row.granted) from None

    def _dead_owners(self, call_ids: Collection[str]) -> set[str]:
        rows = [self.reader.call(call_id) for call_id in call_ids]
        owners = {row.executor for row in rows if row is not None}
        return {owner for owner in owners if owner != self.executor and not self.reader.is_alive(owner)}

    # ── to records ───────────────────────────────────────────────────────────────────────────────────────────

    def _end(self, kind: str, call_id: str, checked: Checked | None, outcome: ToolOutcome) -> dict[str, Any]:
        data = outcome_to_json(outcome)
        redactor = None if checked is None else self._redactor(checked)
        if redactor is not None and checked is not None:
            redactor.redacted(checked.arguments)
            if outcome.edited_arguments is not None:
                data["edited_arguments"] = redactor.redacted(outcome.edited_arguments)
            data = redactor.scrubbed(data)
        return {"kind": kind, "call_id": call_id, "at": self._clock(), "outcome": data}

    def _redactor(self, checked: Checked) -> Redactor | None:
        """What takes the secrets out of this call's arguments, or ``None`` where there can be none."""
        definition = checked.registered.tool.definition
        if not self._secret_names and not self._declares(definition):
            return None
        return Redactor(definition.schema.document, self._secret_names, self._salt)

    def _declares(self, definition: ToolDef) -> bool:
        known = self._declaring.get(definition.digest)
        if known is None:
            known = self._declaring[definition.digest] = declares_secrets(definition.schema.document)
        return known

    def _hides(self, checked: Checked) -> bool:
        redactor = self._redactor(checked)
        if redactor is None:
            return False
        redactor.redacted(checked.arguments)
        return bool(redactor.found)


def parked_from_data(data: Mapping[str, Any]) -> ParkedCall:
    """A waiting question from its record's body. Raises :class:`KeyError` for any other."""
    return ParkedCall(
        approval_id=data["approval_id"],
        call_id=data["call_id"],
        tool=data["tool"],
        arguments=data["arguments"],
        binding=data["binding"],
        question=data["question"],
        asked_at=data["asked_at"],
        expires_at=data["expires_at"],
        run_id=data["run_id"],
        change_digest=data["change_digest"],
    )


def _answer_from_data(data: Mapping[str, Any]) -> Answer:
    return Answer(
        verdict=data["verdict"],
        by=data["by"],
        at=data["answered_at"],
        arguments=data["arguments"],
        why=data["why"],
    )
