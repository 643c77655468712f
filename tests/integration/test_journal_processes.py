"""Several processes on one journal: writers, a reader, somebody who answers, and a worker that was thought dead."""

import asyncio
import fcntl
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from handrail.approval.decision import Park
from handrail.executor import ToolExecutor
from handrail.journal import audit
from handrail.journal.postgres import PostgresJournal
from handrail.journal.recovering import Host, left_behind, recover
from handrail.journal.sqlite import SqliteJournal, SqliteReader, _Turn
from handrail.journal.stored import StoredJournal
from handrail.outcome import ToolOutcome
from handrail.parked import Answer
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef
from postgres_server import start_or_skip

TESTS = Path(__file__).resolve().parents[1]
CALLS = 12


class Parking:
    async def decide(self, request):
        return Park()


def work(path: str, name: str) -> None:
    """A writer: calls that run at once, and one that waits until another process has answered."""

    async def go() -> None:
        tools = ToolRegistry()
        tools.register_from_def(ToolDef("note", risk_level=RiskLevel.SAFE, parameters={"type": "object"}), str)
        tools.register_from_def(ToolDef("ask", risk_level=RiskLevel.DANGEROUS), lambda args: "asked")
        journal = SqliteJournal(path)
        executor = ToolExecutor(tools, journal=journal, approver=Parking())
        waiting = await executor.execute("ask", {}, call_id=f"{name}-ask")
        for number in range(CALLS):
            outcome = await executor.execute("note", {"n": number}, call_id=f"{name}-{number}")
            assert outcome.status == "ok", outcome.text
        while (resumed := await executor.resume(waiting.approval_id)).status == "pending":
            await asyncio.sleep(0.02)
        assert (resumed.status, resumed.text) == ("ok", "asked"), resumed
        journal.close()

    asyncio.run(go())


@pytest.mark.promise("journal:processes:each-call-journaled-none-taken")
def test_two_writers_a_reader_and_an_answerer_share_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "j.sqlite")
    code = "import sys; from integration.test_journal_processes import work; work(*sys.argv[1:])"
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-c", code, path]
    writers = {
        name: subprocess.Popen([*command, name], env=environment, cwd=TESTS, stderr=subprocess.PIPE, text=True)
        for name in ("first", "second")
    }
    journal = SqliteJournal(path)
    reader = SqliteReader(path)
    seen: list[str] = []
    taken: list[object] = []

    async def while_they_work() -> None:
        deadline = time.monotonic() + 300
        while any(writer.poll() is None for writer in writers.values()):
            assert time.monotonic() < deadline, "a writer does not come to its end"
            for parked, answer in await journal.list_parked():
                if answer is None:
                    await journal.answer(parked.approval_id, Answer(verdict="approve", by="me", at=1.0))
            seen.extend(record.data["kind"] for record in reader.records(len(seen)))
            taken.extend(left_behind(journal))
            taken.extend(item for item in await recover(journal, Host(), check_chain=False) if item.outcome)
            await asyncio.sleep(0.02)

    asyncio.run(while_they_work())
    said = {name: writer.communicate()[1] for name, writer in writers.items()}
    assert [writer.returncode for writer in writers.values()] == [0, 0], said
    assert taken == []  # no call of a process that lives was ever taken for a crashed one
    seen.extend(record.data["kind"] for record in reader.records(len(seen)))
    audit.verify(reader)
    kinds: dict[str, Counter[str]] = {}
    for record in reader.records():
        kinds.setdefault(record.data["call_id"], Counter())[record.data["kind"]] += 1
    for name in writers:
        for number in range(CALLS):
            assert kinds[f"{name}-{number}"] == {"intent": 1, "settled": 1}
        assert kinds[f"{name}-ask"] == {"parked": 1, "answered": 1, "intent": 1, "settled": 1}
    assert len(seen) == reader.head().sequence
    reader.close()
    journal.close()


@pytest.mark.promise("journal:processes:nobody-is-overtaken")
def test_who_has_just_written_does_not_overtake_who_waits(tmp_path: Path) -> None:
    path = str(tmp_path / "j.sqlite")
    mine, theirs = _Turn(path), _Turn(path)
    order: list[str] = []

    def other() -> None:
        theirs.take()
        order.append("theirs")
        theirs.leave()

    mine.take()
    thread = threading.Thread(target=other)
    thread.start()
    looking = os.open(path + ".next", os.O_RDWR)
    deadline = time.monotonic() + 120
    while _free(looking):  # until the other stands at the door
        assert time.monotonic() < deadline, "the other never came to wait"
    mine.leave()
    mine.take()
    order.append("mine")
    mine.leave()
    thread.join()
    assert order == ["theirs", "mine"]
    os.close(looking)
    mine.close()
    theirs.close()


def _free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(fd, fcntl.LOCK_UN)
    return True


@pytest.fixture
def sqlite_pair(tmp_path: Path) -> Iterator[tuple[StoredJournal, StoredJournal]]:
    """Two journals on one file; the first one's sign of life is gone, though it goes on."""
    slow, other = SqliteJournal(str(tmp_path / "j.sqlite")), SqliteJournal(str(tmp_path / "j.sqlite"))
    slow.writer._store._lease.release()
    yield slow, other
    slow.close()
    other.close()


@pytest.fixture
def postgres_pair() -> Iterator[tuple[StoredJournal, StoredJournal]]:
    """Two journals in one database; the first one is too slow to renew its lease."""
    server = start_or_skip()
    slow = PostgresJournal(server.dsn, lease_seconds=0.05)
    slow.writer._store.beat = lambda: None
    other = PostgresJournal(server.dsn)
    yield slow, other
    slow.close()
    other.close()
    server.stop()


@pytest.mark.promise("journal:stale:kept-as-evidence-never-applied")
@pytest.mark.parametrize("pair", ["sqlite_pair", "postgres_pair"])
def test_a_late_result_of_who_was_thought_dead_is_kept_and_not_applied(
    pair: str, request: pytest.FixtureRequest
) -> None:
    slow, other = request.getfixturevalue(pair)

    async def scenario() -> ToolOutcome:
        entered, go_on = asyncio.Event(), asyncio.Event()

        async def pay(arguments):
            entered.set()
            await go_on.wait()
            return "paid, at last"

        tools = ToolRegistry()
        tools.register_from_def(ToolDef("pay", risk_level=RiskLevel.SAFE), pay)
        running = asyncio.create_task(ToolExecutor(tools, journal=slow).execute("pay", {}, call_id="late"))
        await entered.wait()
        deadline = time.monotonic() + 120
        while other.reader.is_alive(slow.executor):
            assert time.monotonic() < deadline, "the lease does not run out"
            await asyncio.sleep(0.02)
        (done,) = await recover(other, Host())
        assert done.outcome is not None
        assert done.outcome.status == "unknown"
        go_on.set()
        return await running

    late = asyncio.run(scenario())
    assert late.status != "ok"  # the model is not told what is not in the journal
    recorded = asyncio.run(other.recorded_outcome("late"))
    assert recorded is not None
    assert recorded.status == "unknown"
    (stale,) = [record.data for record in other.reader.records() if record.data["kind"] == "stale"]
    assert (stale["epoch"], stale["result"]["outcome"]["text"]) == (1, "paid, at last")
    assert other.reader.call("late").epoch == 2
    audit.verify(other.reader)
