"""Killed at every fault point there is, in both stores: at most once, settled exactly once, and nothing made up."""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.faulty_vfs import FaultyVFS
from crash.journal_program import CALLS, Parking, tools
from handrail.errors import JournalPoisoned
from handrail.executor import ToolExecutor
from handrail.journal import audit
from handrail.journal.sqlite import SqliteJournal
from handrail.outcome import Reason, ToolOutcome
from postgres_server import start_or_skip

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory where there is such a place: a killed process loses nothing that it wrote, on any file system."""
    place = tempfile.mkdtemp(prefix="handrail-crash-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    os.chmod(place, 0o755)  # the database server runs as another user
    yield Path(place)
    shutil.rmtree(place)


def runs(store: str, root: Path, what: str = "calls") -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-m", "crash.journal_program", store, str(root), what],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=1800,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(run: dict, *, may_not_know: bool = False) -> None:
    """``may_not_know``: the process lived on without its journal, and said of its staged call that it cannot know."""
    where = f"killed at point {run['number']} ({run['died_at']})"
    assert run["status"] in (0, -signal.SIGKILL), where
    assert run["looked"] == 0, f"{where}: the journal could not be recovered"
    effects, outcomes = run["effects"], run["outcomes"]
    for name in ("never", "asked"):
        assert effects.get(name, 0) <= 1, f"{where}: {name} happened twice"
        if outcomes[name] == "ok":
            assert effects.get(name) == 1, f"{where}: {name} is said to have happened"
        if outcomes[name] == "error":
            assert not effects.get(name), f"{where}: {name} is said not to have happened"
    assert effects.get("safe", 0) <= 2, where
    assert (outcomes["safe"] == "ok") == (effects.get("safe", 0) > 0), f"{where}: safe is not settled"
    if not (may_not_know and outcomes["staged"] == "unknown"):
        assert (outcomes["staged"] == "ok") == run["real"], f"{where}: the changes and what is said of them differ"
    for call, intents in run["intents"].items():
        assert intents <= 1, f"{where}: two intents of {call}"
        waits = call == CALLS["asked"] and not intents
        assert run["settlements"][call] == intents or waits, f"{where}: {call} is not settled once"
    assert run["recovered_again"] == 0, f"{where}: a second recovery changed something"


ALL_OK = {"never": "ok", "safe": "ok", "asked": "ok", "staged": "ok"}


def check_all(seen: list[dict]) -> None:
    for run in seen:
        check(run)
    assert seen[-1]["status"] == 0, "no run survived"
    assert seen[-1]["outcomes"] == ALL_OK
    # The check can fail: some run did lose an outcome, and some run did replay.
    assert any(run["outcomes"]["never"] == "unknown" for run in seen)
    assert any(run["effects"].get("safe") == 2 for run in seen)


@pytest.mark.promise("journal:crash:never-runs-at-most-once")
def test_sqlite_killed_at_every_point(root: Path) -> None:
    seen = runs("sqlite", root)
    reached = {run["died_at"] for run in seen[:-1]}
    assert {"call.body.enter", "call.body.left", "journal.commit.before", "journal.commit.after"} <= reached
    check_all(seen)


@pytest.mark.promise("journal:crash:never-runs-at-most-once")
def test_sqlite_killed_at_every_write_and_flush_of_its_files(root: Path) -> None:
    seen = runs("sqlite", root, "every-write")
    assert {"sqlite.write", "sqlite.flush", "sqlite.flushed"} <= {run["died_at"] for run in seen[:-1]}
    for run in seen:
        assert run["looked"] == 0, f"killed at point {run['number']} ({run['died_at']})"
        assert run["effects"].get("never", 0) <= 1
        assert run["settlements"].get(CALLS["never"], 0) == run["intents"].get(CALLS["never"], 0)
    assert seen[-1]["status"] == 0


@pytest.fixture
def dsn(root: Path) -> Iterator[str]:
    server = start_or_skip(root)
    yield server.dsn
    server.stop()


@pytest.mark.promise("journal:crash:never-runs-at-most-once")
def test_postgres_client_killed_at_every_point(root: Path, dsn: str) -> None:
    check_all(runs(dsn, root))


@pytest.mark.promise("journal:crash:never-runs-at-most-once")
def test_postgres_server_killed_at_every_point_while_the_client_goes_on(root: Path) -> None:
    (root / "tried").mkdir()
    start_or_skip(root / "tried").stop()
    seen = runs("the server that is killed", root, "server")
    reached = {run["died_at"] for run in seen[:-1]}
    assert {"journal.loaded", "journal.flush.before", "call.body.enter", "keeper.change.before"} <= reached
    for run in seen:
        check(run, may_not_know=True)
        assert run["effects"].get("safe", 0) <= 1 + run["recovered"], f"killed at point {run['number']}"
    assert seen[-1]["outcomes"] == ALL_OK
    # The check can fail: a call whose intent could not be made durable did not run, and the one after it did.
    assert any(run["outcomes"]["never"] == "error" and run["outcomes"]["safe"] == "ok" for run in seen)
    assert any(run["outcomes"]["never"] == "unknown" for run in seen)


def check_recovery(seen: list[dict]) -> None:
    """Whatever happened to the recovery, the next one knows: one effect and no lie about it."""
    reached = {run["died_at"] for run in seen[:-1]}
    assert {
        f"recovery.{step}" for step in ("claim.before", "claim.after", "rolled_forward", "settle.before")
    } <= reached
    assert {"call.body.enter", "call.body.left", "journal.flush.before", "journal.commit.after"} <= reached
    for run in seen:
        where = f"recovery killed at point {run['number']} ({run['died_at']})"
        assert run["looked"] == 0, where
        assert run["outcomes"] == {"never": "unknown", "safe": "ok", "staged": "ok", "asked": None}, where
        assert run["effects"]["never"] == 1, where
        assert run["effects"]["safe"] in (2, 3), where
        assert run["real"], where
        assert set(run["settlements"].values()) == set(run["intents"].values()) == {1}, where
        assert run["recovered_again"] == 0, where
    assert seen[-1]["status"] == 0
    assert seen[-1]["recovered"] == 0  # the one before it settled everything
    assert any(run["effects"]["safe"] == 3 for run in seen)  # it did die in the middle of a replay


@pytest.mark.promise("journal:crash:recovery-is-recovered")
def test_sqlite_recovery_killed_at_every_point(root: Path) -> None:
    check_recovery(runs("sqlite", root, "recovery"))


@pytest.mark.promise("journal:crash:recovery-is-recovered")
def test_postgres_recovery_killed_at_every_point(root: Path, dsn: str) -> None:
    check_recovery(runs(dsn, root, "recovery"))


@pytest.mark.promise("journal:poison:no-write-after-a-failed-flush")
def test_after_a_failed_flush_nothing_runs_and_nothing_is_written(tmp_path: Path) -> None:
    vfs = FaultyVFS("failing")
    path = str(tmp_path / "j.sqlite")

    async def scenario():
        journal = SqliteJournal(path, vfs="failing")
        executor = ToolExecutor(tools(tmp_path), journal=journal, approver=Parking(), spill_directory=str(tmp_path))
        before = await executor.execute("never", {})
        vfs.fail_flush = True
        during = await executor.execute("never", {})
        vfs.fail_flush = False
        after = await executor.execute("never", {})
        with pytest.raises(JournalPoisoned):
            await journal.resolve("x", "happened", "me")
        journal.close()
        return before, during, after

    before, during, after = asyncio.run(scenario())
    assert before.status == "ok"
    assert (during.reason, after.reason) == (Reason.JOURNAL_UNAVAILABLE, Reason.JOURNAL_UNAVAILABLE)
    assert (tmp_path / "effects").read_text() == "never\n"
    reopened = SqliteJournal(path)
    audit.verify(reopened.reader)
    reopened.close()


def test_a_writer_whose_flush_failed_gives_its_turn_to_others(tmp_path: Path) -> None:
    vfs = FaultyVFS("failing-once")
    path = str(tmp_path / "j.sqlite")

    async def run(journal: SqliteJournal) -> ToolOutcome:
        executor = ToolExecutor(tools(tmp_path), journal=journal, approver=Parking(), spill_directory=str(tmp_path))
        return await executor.execute("never", {})

    poisoned = SqliteJournal(path, vfs="failing-once")
    vfs.fail_flush = True
    assert asyncio.run(run(poisoned)).reason is Reason.JOURNAL_UNAVAILABLE
    vfs.fail_flush = False
    turn = os.open(path + ".lock", os.O_RDWR)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises where the poisoned one still has it
    finally:
        os.close(turn)
    other = SqliteJournal(path)
    assert asyncio.run(run(other)).status == "ok"
    other.close()
    poisoned.close()
