"""What both stores promise: nothing of another version is read as if it were ours."""

import functools
import os

import pytest

from handrail.errors import JournalError
from handrail.journal.postgres import PostgresJournal
from handrail.journal.sqlite import SqliteJournal
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
