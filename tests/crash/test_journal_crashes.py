"""Killed at every fault point there is, in both stores: at most once, settled exactly once, and nothing made up."""

import asyncio
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
from handrail.outcome import Reason
from postgres_server import start_or_skip

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture
def root() -> Iterator[Path]:
    """In memory where there is such a place: a killed process loses nothing that it wrote, on any file system."""
    place = tempfile.mkdtemp(prefix="handrail-crash-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    yield Path(place)
    shutil.rmtree(place)


def runs(store: str, root: Path, watching: str = "calls") -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-m", "crash.journal_program", store, str(root), watching],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(run: dict) -> None:
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


@pytest.mark.promise("journal:crash:never-runs-at-most-once")
def test_postgres_client_killed_at_every_point(root: Path) -> None:
    server = start_or_skip()
    try:
        seen = runs(server.dsn, root)
    finally:
        server.stop()
    check_all(seen)


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
