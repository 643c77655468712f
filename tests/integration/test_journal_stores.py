"""What both stores promise: retention that can be verified, and nothing of another version read as if it were ours."""

import asyncio
import functools
import os
import time

import pytest

from handrail.errors import JournalError
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


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request, tmp_path):
    """Opens one and the same journal again and again."""
    if request.param == "sqlite":
        return functools.partial(SqliteJournal, str(tmp_path / "j.sqlite"))
    return functools.partial(PostgresJournal, request.getfixturevalue("server").dsn)


def test_retention_is_held_back_neither_by_a_lasting_yes_nor_by_a_question_that_is_too_late(opened):
    start = time.time() + 1  # the first record has the machine's own time
    now = [start]

    async def scenario():
        journal = opened(clock=lambda: now[0])
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


def test_a_journal_of_another_version_is_refused_by_its_version(opened):
    journal = opened()
    write = journal.writer._store._connection.execute
    if isinstance(journal, SqliteJournal):
        write("PRAGMA user_version = 2").fetchall()
    else:
        write("UPDATE handrail_head SET format = 2")
        write("COMMIT")
    journal.close()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(JournalError, match=r"another version of Handrail \(format 2; this one reads 1\)"):
        opened()
    assert os.listdir("/proc/self/fd") == before  # what cannot be opened leaves nothing open
