"""Journals of earlier versions are read, verified and recovered; damaged ones are refused, and run nothing."""

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from handrail.errors import JournalCorrupt, JournalError
from handrail.executor import ToolExecutor
from handrail.journal import audit
from handrail.journal.sqlite import SqliteJournal, SqliteReader
from handrail.registry import ToolRegistry
from handrail.restart import recover
from handrail.tool import RiskLevel, ToolDef

RECORDED = sorted((Path(__file__).resolve().parents[1] / "fixtures/journal").glob("v*.sqlite"))
OUTCOMES = {
    "paid": "ok",
    "secret": "ok",
    "refused": "error",
    "staged": "ok",
    "approved": "ok",
    "rejected": "error",
    "waiting": None,
    "settled-by-ann": "ok",
    "cut-off": None,
}


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copy(request.param, tmp_path / request.param.name)


def tools(ran: list[str]) -> ToolRegistry:
    """Tools of the recorded names, each of which says that it may run twice."""
    registry = ToolRegistry()
    for name in ("pay", "ask", "die", "stage"):
        definition = ToolDef(name, risk_level=RiskLevel.SAFE, replay="safe", replay_key=f"test:{name}:v1")
        registry.register_from_def(definition, lambda args, name=name: ran.append(name) or "ran")
    return registry


@pytest.mark.promise("journal:format:what-was-written-stays-readable")
def test_a_recorded_journal_is_verified_to_the_byte(recorded: Path) -> None:
    assert RECORDED, "there is no recorded journal"
    reader = SqliteReader(str(recorded))
    found = audit.verify(reader)
    exported = list(audit.exported(reader))
    reader.close()
    original = next(path for path in RECORDED if path.name == recorded.name)
    assert exported == original.with_suffix(".jsonl").read_text().splitlines()
    assert found.records == len(exported)
    assert "hunter2" not in original.with_suffix(".jsonl").read_text()


@pytest.mark.promise("journal:format:what-was-written-stays-readable")
def test_a_recorded_journal_is_recovered_and_goes_on(recorded: Path) -> None:
    ran: list[str] = []

    async def scenario():
        journal = SqliteJournal(str(recorded), clock=lambda: 4e9)
        outcomes = {call: await journal.recorded_outcome(call) for call in OUTCOMES}
        waiting = [parked.call_id for parked, _ in await journal.list_parked()]
        grants = {grant.grant_id: grant.revoked_at is None for grant in await journal.grants()}
        executor = ToolExecutor(tools(ran), journal=journal)
        late, done = await recover(executor, journal)
        new = await executor.execute("pay", {})
        audit.verify(journal.reader)
        journal.close()
        return outcomes, waiting, grants, late, done, new

    outcomes, waiting, grants, late, done, new = asyncio.run(scenario())
    assert {call: outcome and outcome.status for call, outcome in outcomes.items()} == OUTCOMES
    assert "ann settled it" in outcomes["settled-by-ann"].text
    assert waiting == []  # its time is over
    assert (late.step.call_id, late.outcome.reason) == ("waiting", "approval_expired")
    assert grants == {"kept": True, "ended": False}
    assert (done.step.call_id, done.step.block, done.outcome.status) == ("cut-off", "never", "unknown")
    assert new.status == "ok"
    assert ran == ["pay"]


@pytest.mark.promise("journal:reader:fuzzed-bytes-never-crash")
def test_a_damaged_journal_is_refused_or_read_and_recovering_it_runs_nothing(recorded: Path, tmp_path: Path) -> None:
    chance = random.Random(11)
    whole = recorded.read_bytes()
    path = tmp_path / "damaged.sqlite"
    ran: list[str] = []
    refused = 0

    async def use() -> None:
        journal = SqliteJournal(str(path))
        try:
            await journal.list_parked()
            await journal.grants()
            for call in OUTCOMES:
                await journal.recorded_outcome(call)
            await recover(ToolExecutor(tools(ran), journal=journal), journal)
        finally:
            journal.close()

    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 30)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        for rest in ("-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        try:
            asyncio.run(use())
        except JournalError:
            refused += 1
    assert refused > 10
    assert ran == []


@pytest.mark.promise("journal:reader:fuzzed-bytes-never-crash")
def test_a_call_whose_state_was_turned_back_does_not_run_again(tmp_path: Path) -> None:
    ran: list[str] = []

    async def scenario() -> None:
        path = str(tmp_path / "j.sqlite")
        journal = SqliteJournal(path)
        executor = ToolExecutor(tools(ran), journal=journal)
        await executor.execute("pay", {}, call_id="once")
        journal.reader._connection.execute("PRAGMA query_only=0").fetchall()
        journal.reader._connection.execute("UPDATE call SET ended = 0, state = 'open', executor = 'gone'")
        try:
            with pytest.raises(JournalCorrupt, match="one by record 3"):
                await recover(executor, journal)
        finally:
            journal.close()

    asyncio.run(scenario())
    assert ran == ["pay"]
