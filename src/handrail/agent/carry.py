"""Carrying out the calls of one answer: which run together, what each came to, one result for each.

1. Calls of risk ``safe`` and ``read_only`` that stand side by side run in parallel; every other call runs alone, in
   the order the model gave. So a read after a write sees the write.
2. The calls of an answer that was cut off, or declined on the way, never run.
3. A failing call ends no other. Results are recorded in call order, what ran together in one write. Where a journal
   holds them, they are flushed with the next answer; else at once.
4. A call whose result is not recorded yet is asked for under its own id: what the journal settled is not run again.
"""

import asyncio
import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import anyio
from anyio import lowlevel

from handrail.agent.conversation import OpenCall
from handrail.agent.events import (
    AgentEvent,
    CallFinished,
    CallOutput,
    CallProgress,
    CallRunning,
    CallStarted,
    ModelWarned,
)
from handrail.agent.transcript import Record, Resulted, Transcript, Waiting, resulted
from handrail.agent.valves import Valves
from handrail.call import Checked, Origin, Recorded
from handrail.executor import Listeners, ToolExecutor
from handrail.journal.protocol import CallJournal, NoJournal
from handrail.models.client import ModelCall
from handrail.outcome import Reason, ToolOutcome
from handrail.tool import RiskLevel, Signal

Emit = Callable[[AgentEvent], None]


@dataclass(slots=True)
class Carrier:
    """Takes an answer's calls through the corridor and records what they came to."""

    executor: ToolExecutor
    journal: CallJournal
    run_id: str
    transcript: Transcript
    valves: Valves
    emit: Emit
    signal: Signal
    interrupted: set[str] = field(default_factory=set[str])
    """Ids that an earlier run may have begun. The others were made by this one: the journal cannot know them."""

    async def carry_out(self, calls: Sequence[OpenCall]) -> list[str]:
        """Run calls that have no result yet. Returns the approval ids that the run now waits for."""
        waiting: list[str] = []
        groups = list(_groups(calls, self._may_run_together))
        outcomes: dict[str, ToolOutcome] = {}
        try:
            while groups:
                await self._run_group(groups[0], outcomes)
                waiting += self._record(groups.pop(0), outcomes)
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._record_cancelled([item for group in groups for item in group], outcomes)
            raise
        return waiting

    async def settle_interrupted(self, calls: Sequence[OpenCall]) -> list[str]:
        """Go on with the calls that a crash, or a question, left without a result. Returns what is still waited for."""
        self.interrupted.update(item.call.call_id for item in calls)
        if not isinstance(self.journal, NoJournal):
            return await self.carry_out(calls)
        lost = {item.call.call_id: _lost() for item in calls if not item.not_whole}
        lost.update((item.call.call_id, _not_run()) for item in calls if item.not_whole)
        for item in calls:
            self._tell(item, lost[item.call.call_id])
        return self._record(calls, lost)

    # ── running ──────────────────────────────────────────────────────────────────────────────────────────────

    def _may_run_together(self, item: OpenCall) -> bool:
        registered = self.executor.registry.find(item.call.name)
        return registered is None or registered.tool.definition.risk_level <= RiskLevel.READ_ONLY

    async def _run_group(self, group: Sequence[OpenCall], outcomes: dict[str, ToolOutcome]) -> None:
        if len(group) == 1:
            outcomes[group[0].call.call_id] = await self._run_one(group[0])
            return

        async def one(item: OpenCall) -> None:
            outcomes[item.call.call_id] = await self._run_one(item)

        try:
            async with anyio.create_task_group() as tasks:
                for item in group:
                    tasks.start_soon(one, item)
        except BaseExceptionGroup as failed:  # the record or a listener failed: said as it is for a call alone
            raise failed.exceptions[0] from failed

    async def _run_one(self, item: OpenCall) -> ToolOutcome:
        self.emit(self._started(item.call))
        outcome = _not_run() if item.not_whole else await self._outcome_of(item)
        self._tell(item, outcome)
        return outcome

    def _tell(self, item: OpenCall, outcome: ToolOutcome) -> None:
        self.emit(CallFinished(item.call.call_id, item.call.name, outcome))

    async def _outcome_of(self, item: OpenCall) -> ToolOutcome:
        if item.approval_id is not None:
            return await self._go_on_with_parked(item.call, item.approval_id)
        origin = Origin(self.run_id, item.step, item.index, item.call.provider_id, "agent")
        outcome = await self.executor.execute(
            item.call.name,
            item.call.arguments,
            call_id=item.call.call_id,
            id_is_new=item.call.call_id not in self.interrupted,
            origin=origin,
            signal=Signal(),
            listeners=self._listeners(item.call),
        )
        await lowlevel.checkpoint()  # what the call said from other threads is delivered before its end
        return outcome

    async def _go_on_with_parked(self, call: ModelCall, approval_id: str) -> ToolOutcome:
        """The answer may have been used before a crash: then the recorded outcome is the result."""
        known = await self.journal.recorded_outcome(call.call_id)
        return known if known is not None else await self.executor.resume(approval_id, signal=Signal())

    def _started(self, call: ModelCall) -> CallStarted:
        registered = self.executor.registry.find(call.name)
        if registered is None:
            return CallStarted(call.call_id, call.name, "", "", call.arguments)
        risk = registered.tool.definition.risk_level.value
        return CallStarted(call.call_id, call.name, registered.canonical_id, risk, call.arguments)

    def _listeners(self, call: ModelCall) -> Listeners:
        """Callbacks may come from other threads; events are given out in the loop's."""
        loop = asyncio.get_running_loop()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")

        def on_output(data: bytes) -> None:
            loop.call_soon_threadsafe(give_output, data)

        def give_output(data: bytes) -> None:
            if text := decoder.decode(data):
                self.emit(CallOutput(call.call_id, text))

        def on_progress(done: float, total: float | None, message: str) -> None:
            loop.call_soon_threadsafe(self.emit, CallProgress(call.call_id, done, total, message))

        def on_stage(_: str, at: Checked | Recorded) -> None:
            if isinstance(at, Recorded):
                self.emit(CallRunning(call.call_id, at.checked.arguments))

        return Listeners(on_output, on_progress, on_stage)

    # ── recording ────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, calls: Sequence[OpenCall], outcomes: dict[str, ToolOutcome]) -> list[str]:
        """One write for the results of calls that ran together; a question, and what no journal holds, is flushed."""
        records: list[Record] = []
        noted: list[ModelWarned] = []
        waiting: list[str] = []
        for item in calls:
            outcome = outcomes[item.call.call_id]
            if outcome.status == "pending" and outcome.approval_id is not None:
                waiting.append(outcome.approval_id)
                if outcome.approval_id != item.approval_id:
                    records.append(Waiting(item.call.call_id, outcome.approval_id))
            else:
                record = self._result(item.call, outcome)
                records.append(record)
                if record.note:
                    noted.append(ModelWarned(item.call.call_id, record.note))
        self.transcript.append(*records, durable=bool(waiting) or isinstance(self.journal, NoJournal))
        for event in noted:
            self.emit(event)
        return waiting

    def _result(self, call: ModelCall, outcome: ToolOutcome) -> Resulted:
        registered = self.executor.registry.find(call.name)
        harmless = registered is None or registered.tool.definition.risk_level <= RiskLevel.READ_ONLY
        plain = resulted(call.call_id, outcome, changed=outcome.status == "ok" and not harmless)
        note = self.valves.note_for(plain)
        record = replace(plain, note=note) if note else plain
        self.valves.see([record])
        return record

    async def _record_cancelled(self, calls: Sequence[OpenCall], outcomes: dict[str, ToolOutcome]) -> None:
        """Every call gets its one result: what it came to, what the journal knows, or that it did not start."""
        for item in calls:
            call_id = item.call.call_id
            if call_id in outcomes:
                continue
            if item.approval_id is None:
                known = await self.journal.recorded_outcome(call_id)
                outcomes[call_id] = known if known is not None else self._cancelled(item)
            else:
                outcomes[call_id] = ToolOutcome.pending("Cancelled while it waited.", item.approval_id)
            self._tell(item, outcomes[call_id])
        self._record(calls, outcomes)

    def _cancelled(self, item: OpenCall) -> ToolOutcome:
        """For hosts that keep no journal, and for calls that never got to it."""
        if isinstance(self.journal, NoJournal) and not self._may_run_together(item):
            return ToolOutcome.unknown("Cancelled; it may or may not have had its effect.", Reason.CANCELLED)
        return ToolOutcome.error("Cancelled before it ran; nothing happened.", Reason.CANCELLED)


def _groups(calls: Sequence[OpenCall], together: Callable[[OpenCall], bool]) -> Iterator[list[OpenCall]]:
    """Neighbours that may run together, as one group; every other call alone (rule 1)."""
    group: list[OpenCall] = []
    for item in calls:
        if together(item):
            group.append(item)
            continue
        if group:
            yield group
        yield [item]
        group = []
    if group:
        yield group


def _not_run() -> ToolOutcome:
    return ToolOutcome.error(
        "Your answer was cut off before its end, so this call was not run. Send it again, whole; "
        "split it if it is long.",
        Reason.NOT_RUN,
    )


def _lost() -> ToolOutcome:
    return ToolOutcome.unknown(
        "The program stopped while this call was under way, and this host keeps no journal: it may or may not have "
        "happened. It was not run again.",
        Reason.INTERRUPTED,
    )
