"""Kill an agent at each event, write and effect of a ten-call run; resume it; count what happened."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from agent_kit import assert_valid
from handrail.agent.transcript import Answered, FileTranscripts, Resulted

VICTIM = Path(__file__).with_name("agent_victim.py")
EXPECTED = {*"abcde", *"12345"}


def victim(directory: Path, kill_at: int, run_id: str = "") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(VICTIM), str(directory), str(kill_at), *([run_id] if run_id else [])]
    return subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)


def moments(directory: Path) -> int:
    """How many moments an undisturbed run has: measured, not counted by hand."""
    done = victim(directory, 0)
    stop, seen = done.stdout.split()
    assert stop == "done", done.stderr
    return int(seen)


@pytest.mark.slow
@pytest.mark.promise("agent:crash:resumed-to-the-end-with-no-effect-twice")
def test_killed_at_any_moment_a_run_is_resumed_to_its_end_and_no_effect_happens_twice(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    count = moments(whole)
    assert count > 60
    for kill_at in range(1, count + 1, int(os.environ.get("HANDRAIL_CRASH_STRIDE", "5"))):
        directory = tmp_path / str(kill_at)
        directory.mkdir()
        killed = victim(directory, kill_at)
        assert killed.returncode == -signal.SIGKILL, (kill_at, killed.stderr)
        check_resumed(directory, kill_at)


def check_resumed(directory: Path, kill_at: int) -> None:
    runs = FileTranscripts(str(directory / "runs"))
    found = [name for name, _ in runs.latest()]
    if not found or not (directory / "runs" / f"{found[0]}.jsonl").read_bytes():
        assert not (directory / "effects").exists()  # it died before its first record; nothing can have happened
        return
    resumed = victim(directory, 0, found[0])
    assert resumed.stdout.startswith("done"), (kill_at, resumed.stdout, resumed.stderr)
    effects = Counter((directory / "effects").read_text().split())
    assert max(effects.values()) == 1, (kill_at, effects)
    transcript = runs.open(found[0])
    transcript.close()
    assert_valid(transcript)
    results = {record.call_id: record for record in transcript.records if isinstance(record, Resulted)}
    calls = [call for record in transcript.records if isinstance(record, Answered) for call in record.calls]
    assert len(calls) == len(results) == 10
    told = {call.arguments[8]: results[call.call_id].status for call in calls}
    for name in EXPECTED:
        if effects[name] == 0:
            assert told[name] == "unknown", (kill_at, name, told)  # it did not happen; nobody could know
