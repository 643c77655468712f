"""Kill an agent at each event, write and effect of a ten-call run; resume it; count what happened."""

import json
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_kit import assert_valid
from handrail.agent.transcript import Answered, FileTranscripts, Resulted

VICTIM = Path(__file__).with_name("agent_victim.py")
EXPECTED = {*"abcde", *"12345"}
PATIENCE = 240


class Victims:
    """Starts victims, one after the other."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, str(VICTIM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, directory: Path, kill_at: int, how: str, run_id: str | None = None) -> tuple[int, str]:
        """Its exit status (negative: the signal that killed it), and what it said."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps([str(directory), kill_at, how, run_id]), file=self._server.stdin, flush=True)
        ready, _, _ = select.select([self._server.stdout], [], [], PATIENCE)
        assert ready, f"the victim of {directory} neither died nor came to its end"
        return int(self._server.stdout.readline()), (directory / "said").read_text()

    def close(self) -> None:
        self._server.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    server = Victims()
    yield server
    server.close()


def moments(victims: Victims, directory: Path) -> int:
    """How many moments an undisturbed run has: measured, not counted by hand."""
    directory.mkdir()
    status, said = victims.run(directory, 0, "killed")
    stop, seen = said.splitlines()[-1].split()
    assert (status, stop) == (0, "done"), said
    return int(seen)


@pytest.mark.slow
@pytest.mark.promise("agent:crash:resumed-to-the-end-with-no-effect-twice")
@pytest.mark.parametrize("how", ["killed", "power-cut"])
def test_killed_at_any_moment_a_run_is_resumed_to_its_end_and_no_effect_happens_twice(
    victims: Victims, tmp_path: Path, how: str
) -> None:
    count = moments(victims, tmp_path / "whole")
    assert count > 60
    for kill_at in range(1, count + 1):
        directory = tmp_path / str(kill_at)
        directory.mkdir()
        status, said = victims.run(directory, kill_at, how)
        assert status == -signal.SIGKILL, (kill_at, said)
        check_resumed(victims, directory, kill_at)


def check_resumed(victims: Victims, directory: Path, kill_at: int) -> None:
    runs = FileTranscripts(str(directory / "runs"))
    found = [name for name, _ in runs.latest()]
    if not found or not (directory / "runs" / f"{found[0]}.jsonl").read_bytes():
        assert not (directory / "effects").exists()  # it died before its first record; nothing can have happened
        return
    status, said = victims.run(directory, 0, "killed", found[0])
    assert status == 0, (kill_at, said)
    assert said.splitlines()[-1].startswith("done"), (kill_at, said)
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
