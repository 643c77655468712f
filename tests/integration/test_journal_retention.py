"""Retention in both stores: what is old goes, what still counts stays, and the rest can be verified."""

import asyncio
import time

import pytest

from handrail.journal import audit, ledger
from handrail.journal.postgres import PostgresJournal
from handrail.journal.sqlite import SqliteJournal
from handrail.outcome import Reason
from journal_kit import grant, question
from postgres_server import start_or_skip


@pytest.fixture
def server():
    running = start_or_skip()
    yield running
    running.stop()


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_retention_is_held_back_neither_by_a_lasting_yes_nor_by_a_question_that_is_too_late(store, request, tmp_path):
    start = time.time() + 1  # the first record has the machine's own time
    now = [start]

    async def scenario():
        clock = lambda: now[0]  # noqa: E731
        if store == "sqlite":
            journal = SqliteJournal(str(tmp_path / "j.sqlite"), clock=clock)
        else:
            journal = PostgresJournal(request.getfixturevalue("server").dsn, clock=clock)
        await journal.writer.write(ledger.park(question("late", 1), journal.executor, None, start))
        await journal.writer.write(ledger.add_grant(grant("lasting"), start))
        await journal.writer.write(ledger.add_grant(grant("ended"), start))
        await journal.revoke_grant("ended", start)
        now[0] = start + 20
        await journal.prune(before=start + 15)
        assert journal.outcome_of("late").reason is Reason.APPROVAL_EXPIRED
        now[0] = start + 40
        cut = await journal.prune(before=start + 30)
        found = audit.verify(journal.reader)
        assert (found.base, journal.reader.call("late")) == (cut, None)
        assert [kept.grant_id for kept in await journal.grants()] == ["lasting"]
        await journal.revoke_grant("lasting", 41.0)
        audit.verify(journal.reader)
        journal.close()

    asyncio.run(scenario())
