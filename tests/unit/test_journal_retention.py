"""Nothing that people forgot holds retention back for ever: questions nobody answered, answers nobody used, grants."""

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from handrail.approval.decision import Park
from handrail.executor import ToolExecutor
from handrail.journal import audit
from handrail.journal.postgres import PostgresJournal
from handrail.journal.recovering import Host, recover
from handrail.journal.sqlite import SqliteJournal
from handrail.parked import Answer
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef
from journal_kit import grant
from postgres_server import start_or_skip

numbers = itertools.count()
MONTH = 30 * 86_400.0


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


class Parks:
    async def decide(self, request):
        return Park()


def payer(journal, clock, ran=None):
    tools = ToolRegistry()
    handler = (ran if ran is not None else []).append
    tools.register_from_def(ToolDef("pay", risk_level=RiskLevel.DANGEROUS), lambda args: handler("paid"))
    return ToolExecutor(tools, journal=journal, approver=Parks(), clock=clock)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def server():
    running = start_or_skip()
    yield running
    running.stop()


@pytest.fixture(params=["sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock):
    if request.param == "sqlite":
        journal = SqliteJournal(str(tmp_path / "j.sqlite"), clock=clock)
    else:
        dsn = request.getfixturevalue("server").dsn
        journal = PostgresJournal(dsn, name=f"retention-{next(numbers)}", clock=clock)
    yield journal
    journal.close()


def test_recovery_ends_a_call_that_nobody_answered_in_time_and_does_so_once(journal, clock):
    async def scenario():
        ran = []
        executor = payer(journal, clock, ran)
        waiting = await executor.execute("pay", {})
        early = await recover(journal, Host(), clock=clock)
        clock.now += MONTH
        planned = await recover(journal, Host(), dry_run=True, clock=clock)
        still = await journal.recorded_outcome(waiting.call_id)
        done = await recover(journal, Host(), clock=clock)
        again = await recover(journal, Host(), clock=clock)
        outcome = await journal.recorded_outcome(waiting.call_id)
        repeated = await executor.execute("pay", {}, call_id=waiting.call_id)
        audit.verify(journal.reader)
        return ran, early, planned, still, done, again, outcome, repeated

    ran, early, planned, still, done, again, outcome, repeated = asyncio.run(scenario())
    assert (early, still, again, ran) == ([], None, [], [])
    assert [(item.step.action, item.step.tool, item.outcome) for item in planned] == [("expire", "host:pay", None)]
    assert [item.outcome.reason for item in done] == ["approval_expired"]
    assert outcome == done[0].outcome == repeated


@pytest.mark.parametrize("verdict", [None, "approve", "reject"])
def test_a_question_nobody_answered_or_used_is_ended_by_retention_and_goes_with_the_next(journal, clock, verdict):
    async def scenario():
        executor = payer(journal, clock)
        waiting = await executor.execute("pay", {})
        if verdict:
            await journal.answer(waiting.approval_id, Answer(verdict=verdict, by="ann", at=clock.now))
        clock.now += MONTH
        await journal.prune(clock.now - MONTH / 2)
        ended = await journal.recorded_outcome(waiting.call_id)
        first = journal.reader.base().sequence
        clock.now += MONTH
        await journal.prune(clock.now - MONTH / 2)
        audit.verify(journal.reader)
        return ended, first, journal.reader.records_of(waiting.call_id), list(journal.reader.rows_of_approvals())

    ended, first, records, approvals = asyncio.run(scenario())
    assert (ended.status, ended.reason, first) == ("error", "approval_expired", 1)
    assert (records, approvals) == ([], [])


def test_retention_ends_no_question_that_is_open_or_was_answered_a_short_time_ago(journal, clock):
    async def scenario():
        executor = payer(journal, clock)
        waiting = [await executor.execute("pay", {}) for _ in range(2)]
        await journal.answer(waiting[0].approval_id, Answer(verdict="approve", by="ann", at=clock.now))
        await journal.prune(clock.now + 1)
        return [parked.call_id for parked, _ in await journal.list_parked()] == [item.call_id for item in waiting]

    assert asyncio.run(scenario())


def test_a_grant_that_stands_outlives_the_record_it_was_given_by(journal, clock):
    async def scenario():
        given = grant("kept", clock.now)
        await journal.add_grant(given)
        await journal.add_grant(grant("ended", clock.now))
        await journal.revoke_grant("ended", clock.now)
        for _ in range(3):
            clock.now += MONTH
            cut = await journal.prune(clock.now - 1)
            assert audit.verify(journal.reader).base == cut
        kept = await journal.grants()
        base = journal.reader.base().sequence
        await journal.revoke_grant("kept", clock.now)
        audit.verify(journal.reader)
        clock.now += MONTH
        await journal.prune(clock.now - 1)
        audit.verify(journal.reader)
        return given, kept, base, await journal.grants()

    given, kept, base, after = asyncio.run(scenario())
    assert kept == [given]
    assert base > 4
    assert after == []
