"""One random history of calls, crashes, recoveries and answers gives the same answers in both stores and a model."""

import asyncio
import itertools
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from handrail.errors import ApprovalError, HandrailError, JournalError, StaleEpoch
from handrail.journal import audit, ledger
from handrail.journal.postgres import PostgresJournal
from handrail.journal.sqlite import SqliteJournal
from handrail.outcome import ToolOutcome
from handrail.parked import Answer
from journal_kit import question
from postgres_server import start_or_skip

CALLS = ("a", "b", "c")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("begin", "begin_approved", "settle", "refuse", "park", "approve", "reject", "crash")),
        st.sampled_from(CALLS),
    ),
    max_size=25,
)
numbers = itertools.count()


@dataclass
class Model:
    """The rules once more, written as plainly as they can be, over two dictionaries."""

    state: dict[str, str] = field(default_factory=dict)
    answer: dict[str, str] = field(default_factory=dict)

    def step(self, what: str, call: str) -> str:  # noqa: C901 - one plain table, not meant to be clever
        state, answer = self.state.get(call, ""), self.answer.get(call, "")
        if what == "crash":
            self.state |= {key: "settled" for key, value in self.state.items() if value == "open"}
            return "ok"
        if what in ("begin", "begin_approved"):
            if what == "begin_approved" and answer != "approve" and answer:
                return "ApprovalError"
            if state not in ("", "parked"):
                return "JournalError"
            self.state[call] = "open"
            if what == "begin_approved" or answer:
                self.answer[call] = "used"
        elif what == "settle":
            if state != "open":
                return "StaleEpoch"
            self.state[call] = "settled"
        elif what == "refuse":
            if state == "open":
                return "JournalError"
            if state in ("settled", "refused"):
                return "ApprovalError" if answer else "ok"
            self.state[call] = "refused"
            self.answer |= {call: "used"} if answer else {}
        elif what == "park":
            if answer or state not in ("", "parked"):
                return "ApprovalError"
            self.state[call], self.answer[call] = "parked", "waiting"
        else:
            if answer != "waiting":
                return "ApprovalError"
            self.answer[call] = what
        return "ok"


def outcome(status: str) -> dict:
    return {"kind": "settled", "at": 1.0, "outcome": ToolOutcome(status=status, text="").to_json()}


def operation(journal, what: str, call: str) -> ledger.Operation:
    if what in ("begin", "begin_approved"):
        approval = {"id": f"{call}-1", "by": "me", "binding": None} if what == "begin_approved" else None
        intent = {"kind": "intent", "call_id": call, "at": 1.0, "approval": approval, "executor": journal.executor}
        return ledger.begin(intent, journal.executor, [])
    if what == "settle":
        return ledger.settle(call, {**outcome("ok"), "call_id": call}, journal.executor, 1)
    if what == "refuse":
        return ledger.refuse(call, {**outcome("error"), "kind": "refused", "call_id": call}, journal.executor, [])
    if what == "park":
        return ledger.park(question(call, expires_at=1e12), journal.executor, None, 1.0)
    return ledger.answer(f"{call}-1", Answer(verdict=what, by="me", at=1.0), 1.0)


async def crashed(journal, reopen):
    """The process is gone; the next one takes over what it left and settles it as unknown."""
    journal.close()
    journal = reopen()
    left = [row.call_id for row in journal.reader.calls_not_over() if row.state == "open"]
    for row in await journal.claim(left):
        await journal.settle_claimed(row, ToolOutcome.unknown("?"), why="crash", evidence="none")
    return journal


async def answers(reopen, history) -> tuple[list[str], dict[str, str]]:
    journal, said = reopen(), []
    try:
        for what, call in history:
            try:
                if what == "crash":
                    journal = await crashed(journal, reopen)
                else:
                    await journal.writer.write(operation(journal, what, call))
                said.append("ok")
            except HandrailError as error:
                said.append(
                    next(kind.__name__ for kind in (ApprovalError, StaleEpoch, JournalError) if isinstance(error, kind))
                )
        audit.verify(journal.reader)
        rows = {call: journal.reader.call(call) for call in CALLS}
        return said, {call: row.state for call, row in rows.items() if row is not None}
    finally:
        journal.close()


def agree(reopen, history) -> None:
    model = Model()
    expected = [model.step(what, call) for what, call in history]
    said, states = asyncio.run(answers(reopen, history))
    assert said == expected
    assert states == model.state


@pytest.mark.promise("journal:stores:same-history-same-answers")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS)
@example([("park", "a"), ("begin", "a"), ("settle", "a"), ("refuse", "a")])  # the question it waited for is used
def test_sqlite_agrees_with_the_model(history):
    with tempfile.TemporaryDirectory() as directory:
        agree(lambda: SqliteJournal(str(Path(directory) / "j.sqlite")), history)


@pytest.fixture(scope="module")
def server():
    running = start_or_skip()
    yield running
    running.stop()


@pytest.mark.promise("journal:stores:same-history-same-answers")
def test_postgres_agrees_with_the_model(server):
    @settings(max_examples=12, deadline=None, database=None)
    @given(STEPS)
    def scenario(history):
        name = f"history-{next(numbers)}"
        agree(lambda: PostgresJournal(server.dsn, name=name), history)

    scenario()
