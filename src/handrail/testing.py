"""Fakes that keep the real promises, and contract checks for what others build.

``check_tool``, ``check_approver``, ``check_journal_store``, ``check_model_client``, ``check_mechanism``: the promises
of each extension point.

``ScriptedModel``: a model that says what a script says (``call`` and ``calls`` write one).

``MemoryJournal``: a journal and approval store in memory. It keeps every promise of
:mod:`handrail.journal.protocol` and :mod:`handrail.parked` but the one about crashes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from handrail.approval.grants import MemoryGrants
from handrail.call import Approved, Checked, Recorded, Reviewed
from handrail.checks import check_approver as check_approver
from handrail.checks import check_journal_store as check_journal_store
from handrail.checks import check_mechanism as check_mechanism
from handrail.checks import check_model_client as check_model_client
from handrail.checks import check_tool as check_tool
from handrail.errors import ApprovalError, CallBegunBefore, StaleEpoch
from handrail.models.scripted import ScriptedModel as ScriptedModel
from handrail.models.scripted import call as call
from handrail.models.scripted import calls as calls
from handrail.outcome import ToolOutcome
from handrail.parked import Answer, HeldIntent, ParkedCall


@dataclass(slots=True)
class _Question:
    parked: ParkedCall
    answer: Answer | None = None
    used: bool = False


@dataclass(slots=True)
class _Call:
    recorded: Recorded | None = None
    outcome: ToolOutcome | None = None
    questions: list[_Question] = field(default_factory=list["_Question"])


class MemoryJournal(MemoryGrants):
    """A journal in memory: intents, outcomes, questions, answers and grants of one process.

    ``clock`` gives seconds since the epoch. ``events`` lists what became durable, in order, as (what, call id).
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        super().__init__()
        self._clock = clock
        self._calls: dict[str, _Call] = {}
        self._questions: dict[str, _Question] = {}
        self.events: list[tuple[str, str]] = []

    async def recorded_outcome(self, call_id: str) -> ToolOutcome | None:
        """The outcome this call id was settled with, if it was."""
        call = self._calls.get(call_id)
        return None if call is None else call.outcome

    async def begin(self, approved: Approved, *, deadline: float) -> Recorded:
        """Record an intent and consume the approval it names."""
        call_id = approved.checked.proposed.call_id
        call = self._calls.setdefault(call_id, _Call())
        if call.recorded is not None or call.outcome is not None:
            raise CallBegunBefore(f"the call {call_id} was begun before")
        if approved.approval_id is not None and approved.approval_id in self._questions:
            self._use(self._usable(approved.approval_id), approved.binding)
        call.recorded = Recorded(approved, call_id, len(self.events) + 1)
        self.events.append(("begin", call_id))
        return call.recorded

    async def settle(self, recorded: Recorded, outcome: ToolOutcome, *, change_digest: str | None) -> None:
        """Record the outcome of an intent, once."""
        call = self._calls[recorded.call_id]
        if call.outcome is not None:
            raise StaleEpoch(f"the call {recorded.call_id} was settled before")
        self._use_all(call)
        call.outcome = outcome
        self.events.append(("settle", recorded.call_id))

    async def refuse(self, call_id: str, tool: str, checked: Checked | None, outcome: ToolOutcome) -> None:
        """Record the outcome of a call that never got as far as an intent."""
        call = self._calls.setdefault(call_id, _Call())
        if call.recorded is not None or call.outcome is not None:
            raise ApprovalError(f"the call {call_id} went on elsewhere")
        self._use_all(call)
        call.outcome = outcome
        self.events.append(("refuse", call_id))

    async def park(self, parked: ParkedCall, checked: Checked, recorded: Recorded | None) -> None:
        """Keep a question; an earlier one about the same call is over."""
        call = self._calls.setdefault(parked.call_id, _Call())
        if call.outcome is not None or (call.recorded is not None) is not (recorded is not None):
            raise ApprovalError(f"the call {parked.call_id} went on elsewhere")
        self._use_all(call)
        question = _Question(parked)
        call.questions.append(question)
        self._questions[parked.approval_id] = question
        self.events.append(("park", parked.call_id))

    async def parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, HeldIntent | None]:
        """A waiting call, its answer if there is one, and its intent where it ran staged already."""
        question = self._usable(approval_id)
        recorded = self._calls[question.parked.call_id].recorded
        held = None
        if recorded is not None:
            held = HeldIntent(
                idempotency_key=recorded.idempotency_key, sequence=recorded.sequence, epoch=recorded.epoch + 1
            )
        return question.parked, question.answer, held

    async def commit_begin(self, reviewed: Reviewed, change_digest: str) -> None:
        """Record that changes are being made, and consume the approval that says so."""
        if reviewed.approval_id is not None and reviewed.approval_id in self._questions:
            self._use(self._usable(reviewed.approval_id), None)
        self.events.append(("commit_begin", reviewed.recorded.call_id))

    async def commit_end(self, reviewed: Reviewed, change_digest: str) -> None:
        """Record that they were made."""
        self.events.append(("commit_end", reviewed.recorded.call_id))

    async def list_parked(self) -> list[tuple[ParkedCall, Answer | None]]:
        """Every call that waits, oldest first, with its answer if it has one that was not used yet."""
        now = self._clock()
        return [
            (question.parked, question.answer)
            for question in self._questions.values()
            if not question.used and question.parked.expires_at > now
        ]

    async def answer(self, approval_id: str, answer: Answer) -> None:
        """Record the one answer of a waiting call."""
        question = self._usable(approval_id)
        if question.answer is not None:
            raise ApprovalError(
                f"approval {approval_id} was answered before: {question.answer.verdict}, by {question.answer.by}"
            )
        question.answer = replace(answer)
        self.events.append(("answer", question.parked.call_id))

    def _usable(self, approval_id: str) -> _Question:
        question = self._questions.get(approval_id)
        if question is None:
            raise ApprovalError(f"there is no approval {approval_id!r}")
        if question.used:
            raise ApprovalError(f"approval {approval_id} was already used")
        if question.parked.expires_at <= self._clock():
            raise ApprovalError(f"approval {approval_id} has expired")
        return question

    def _use(self, question: _Question, binding: str | None) -> None:
        if question.answer is None or question.answer.verdict != "approve":
            raise ApprovalError(f"approval {question.parked.approval_id} was not given")
        if binding is not None and binding != question.parked.binding:
            raise ApprovalError(f"approval {question.parked.approval_id} was given to something else")
        question.used = True

    def _use_all(self, call: _Call) -> None:
        for question in call.questions:
            question.used = True
