"""``handrail journal`` as a person meets it: after commands that were killed, in a state directory of their own."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from platformdirs import user_state_dir

from handrail import (
    ApprovalRequest,
    Change,
    ChangeSet,
    Effect,
    FileState,
    Park,
    RiskLevel,
    ToolDef,
    ToolExecutor,
    ToolOutcome,
    ToolRegistry,
    Workspace,
)
from handrail.call import Origin
from handrail.changes.store import ChangeStore
from handrail.cli.main import run
from handrail.journal.sqlite import SqliteJournal, default_path
from handrail.parked import Answer
from handrail.wiring import Settings, open_house


def pay(arguments: dict[str, Any]) -> str:
    if arguments["cents"] == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def paid(directory: str, *cents: int) -> None:
    """A host's own program, which keeps its journal where the command line looks for it. 13 is bad luck."""
    tools = ToolRegistry()
    tools.register_from_def(ToolDef("pay", risk_level=RiskLevel.SAFE, parameters={"type": "object"}), pay)
    workspace = Workspace(directory)
    journal = SqliteJournal(default_path(workspace.path))
    executor = ToolExecutor(tools, workspace=workspace, journal=journal)
    for amount in cents:
        origin = Origin(run_id=f"run-{amount}")
        executor.execute_sync("pay", {"cents": amount}, call_id=f"pay-{amount}", origin=origin)
    executor.close()
    journal.close()


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


class Place:
    """A workspace, and a state directory beside it. Commands run in this process, but for those that are to die."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.workspace = root / "work"
        self.workspace.mkdir()
        self._monkeypatch, self._capsys = monkeypatch, capsys
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            monkeypatch.setenv(name, str(root / "state"))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.chdir(self.workspace)

    def handrail(self, *words: str) -> Done:
        self._monkeypatch.setattr(sys, "argv", ["handrail", *words])
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run()
        said = self._capsys.readouterr()
        return Done(int(ended.value.code or 0), said.out, said.err)

    def journal(self, *words: str) -> list[dict[str, Any]]:
        """The lines of a command that prints JSON."""
        done = self.handrail("journal", *words)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def pay(self, *cents: int) -> None:
        paid(str(self.workspace), *cents)

    def killed(self, *command: str, **more: str) -> None:
        died = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, env={**os.environ, **more}, timeout=500,
            check=False,
        )  # fmt: skip
        assert died.returncode == -signal.SIGKILL, died.stderr

    def killed_while_paying(self) -> None:
        where, module = str(Path(__file__).parent), __name__
        self.killed("-c", f"import sys; sys.path.insert(0, {where!r}); import {module}; {module}.paid('.', 5, 13)")

    def killed_while_writing(self, at: str) -> None:
        words = ("call", "write", "path=new.txt", "content=hello", "--approve", "always")
        self.killed("-m", "handrail", *words, HANDRAIL_FAULT_KILL_AT=at)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, monkeypatch, capsys)


@pytest.mark.promise("journal:start:tells-what-was-cut-off")
def test_the_next_command_tells_of_a_call_that_was_killed_and_settles_nothing(place: Place) -> None:
    place.killed_while_writing("call.body.enter")
    for words in (("call", "list"), ("call", "list")):  # telling it changes nothing
        shown = place.handrail(*words)
        assert shown.returncode == 0, shown.stderr
        assert "1 earlier call was cut off and has no outcome yet; `handrail journal recover -w" in shown.stderr
    (step,) = place.journal("recover", "--dry-run", "--json")
    assert (step["action"], step["outcome"]) == ("settle", None)
    (done,) = place.journal("recover", "--json")
    assert done["outcome"]["status"] == "error"
    assert "did not happen" in done["outcome"]["text"]
    assert place.journal("recover", "--json") == []
    assert "cut off" not in place.handrail("call", "list").stderr
    assert not (place.workspace / "new.txt").exists()


@pytest.mark.promise("journal:start:tells-what-was-cut-off")
def test_a_commit_that_was_begun_is_completed_and_said_to_have_happened(place: Place) -> None:
    place.killed_while_writing("commit:recorded")
    assert not (place.workspace / "new.txt").exists()
    (step,) = place.journal("recover", "--dry-run", "--json")
    assert step["action"] == "roll_forward"
    assert not (place.workspace / "new.txt").exists()
    (done,) = place.journal("recover", "--json")
    assert done["outcome"]["status"] == "ok"
    assert (place.workspace / "new.txt").read_text() == "hello"
    assert place.handrail("journal", "recover").stdout == "Nothing is left to settle.\n"


def test_a_person_settles_what_nobody_can_know_once(place: Place) -> None:
    place.killed_while_paying()
    assert place.handrail("journal", "settle", "pay-13", "happened").returncode == 1  # it has no outcome to settle yet
    (done,) = place.journal("recover", "--json")
    assert (done["tool"], done["outcome"]["status"]) == ("host:pay", "unknown")
    assert "may or may not have happened; it was not run again" in done["outcome"]["text"]
    assert place.handrail("journal", "settle", "pay-13", "perhaps").returncode == 2
    assert place.handrail("journal", "settle", "pay-5", "happened").returncode == 1  # its outcome is known
    assert place.handrail("journal", "settle", "pay-13", "did-not").returncode == 0
    assert "settled by a person before" in place.handrail("journal", "settle", "pay-13", "happened").stderr
    kinds = [record["kind"] for record in place.journal("show", "--call", "pay-13", "--json")]
    assert kinds == ["intent", "claimed", "settled", "resolved"]


def test_show_selects_a_run_or_a_call_and_export_can_be_checked_elsewhere(place: Place) -> None:
    place.pay(5, 7)
    assert [record["kind"] for record in place.journal("show", "--json")] == ["journal", *["intent", "settled"] * 2]
    of_run = place.journal("show", "--run", "run-7", "--json")
    assert {record["call_id"] for record in of_run} == {"pay-7"}
    lines = place.handrail("journal", "show", "--call", "pay-5").stdout.splitlines()
    assert [line.split()[3] for line in lines] == ["intent", "settled"]
    assert 'host:pay  {"cents": 5}' in lines[0]
    exported = place.journal("export")
    assert [item["sequence"] for item in exported] == [1, 2, 3, 4, 5]
    assert json.loads(exported[1]["body"])["arguments"] == {"cents": 5}


def test_follow_shows_records_as_they_come(place: Place) -> None:
    place.pay(5)
    heard = ["env", "--default-signal=INT"]  # whoever started the tests in the background had them ignore it
    following = subprocess.Popen(
        [*heard, sys.executable, "-m", "handrail", "journal", "show", "--follow", "--json"],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert following.stdout is not None
        before = [json.loads(following.stdout.readline())["kind"] for _ in range(3)]
        place.pay(7)
        after = [json.loads(following.stdout.readline())["call_id"] for _ in range(2)]
    finally:
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=240)
    assert before == ["journal", "intent", "settled"]
    assert after == ["pay-7", "pay-7"]


def test_verify_compares_with_a_head_that_was_signed_and_kept_elsewhere(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.pay(5)
    key = tmp_path / "key"
    key.write_bytes(b"0123456789abcdef0123456789abcdef")
    signed = place.handrail("journal", "sign", "--key", str(key))
    (tmp_path / "head").write_text(signed.stdout)
    place.pay(7)
    words = ("journal", "verify", "--head", str(tmp_path / "head"))
    (found,) = place.journal(*words[1:], "--key", str(key), "--json")
    assert (found["ok"], found["signed"], found["records"]) == (True, True, 5)
    monkeypatch.setenv("AUDIT_KEY", key.read_text())
    by_variable = place.handrail(*words, "--key-env", "AUDIT_KEY")
    assert "as it was signed" in by_variable.stdout
    assert place.handrail(*words).returncode == 2  # a signature without a key says nothing
    key.write_bytes(b"another key of enough bytes")
    assert "does not fit the key" in place.handrail(*words, "--key", str(key)).stderr


def test_a_command_without_a_journal_says_so_and_makes_none(place: Place) -> None:
    for word in ("show", "verify", "recover", "export"):
        done = place.handrail("journal", word)
        assert (done.returncode, "there is no journal at" in done.stderr) == (1, True)
    assert not list((place.workspace.parent / "state").rglob("*.sqlite"))


def test_prune_keeps_what_is_left_verifiable(place: Place) -> None:
    place.pay(5)
    assert place.handrail("journal", "prune", "--older-than", "0").stdout.startswith("Dropped the records up to 3")
    place.pay(7)
    (found,) = place.journal("verify", "--json")
    assert (found["records"], found["sequence"]) == (3, 6)


def test_a_safe_call_that_was_killed_runs_again_in_a_workspace_whose_name_is_not_utf_8(place: Place) -> None:
    workspace = os.fsdecode(os.fsencode(place.workspace) + b"-caf\xe9")
    os.mkdir(workspace)
    Path(workspace, "a.txt").write_text("hello")
    words = ("call", "read", "path=a.txt", "-w", workspace)
    place.killed("-m", "handrail", *words, HANDRAIL_FAULT_KILL_AT="call.body.enter")
    with open_house(Settings(workspace=workspace, plugins=("read",), approve="never", door="cli")) as house:
        (done,) = asyncio.run(house.recover())
    assert done.step.action == "replay"
    assert done.outcome is not None
    assert (done.outcome.status, done.outcome.text) == ("ok", "hello")


class Later:
    async def decide(self, request: ApprovalRequest) -> Park:
        return Park()


async def staged_and_answered(directory: str, at: float) -> str:
    """A host's own program, a long time ago: a call that ran staged, its answer, and then nothing any more."""

    def put(arguments: dict[str, Any], job: Any) -> Effect:
        state = FileState("file", 0o644, 5, job.contents.put(b"hello"))
        return Effect(ToolOutcome.ok("put"), ChangeSet((Change(b"new.txt", None, state),)))

    tools = ToolRegistry()
    tools.register_from_def(ToolDef("put", parameters={"type": "object"}), put, staged=True)
    with Workspace(directory) as workspace, ChangeStore(user_state_dir("handrail"), workspace) as changes:
        journal = SqliteJournal(default_path(workspace.path), clock=lambda: at)
        executor = ToolExecutor(
            tools, workspace=workspace, journal=journal, changes=changes, approver=Later(), clock=lambda: at
        )
        waiting = await executor.execute("put", {})
        assert waiting.approval_id, waiting
        await journal.answer(waiting.approval_id, Answer(verdict="approve", by="ann", at=at))
        assert await changes.held(waiting.call_id)
        executor.close()
        journal.close()
    return waiting.call_id


def test_prune_ends_a_staged_call_that_was_answered_and_forgotten_and_drops_its_changes(place: Place) -> None:
    call = asyncio.run(staged_and_answered(str(place.workspace), time.time() - 90 * 86_400))
    (waits,) = place.journal("recover", "--json")
    assert (waits["action"], waits["outcome"]) == ("wait", None)
    assert place.handrail("journal", "prune", "--older-than", "365").stdout == "Nothing was dropped.\n"
    assert [step["action"] for step in place.journal("recover", "--json")] == ["wait"]
    place.handrail("journal", "prune", "--older-than", "30")
    *_, last = place.journal("show", "--call", call, "--json")
    assert (last["kind"], last["outcome"]["reason"]) == ("settled", "approval_expired")
    assert "they were dropped and nothing was changed" in last["outcome"]["text"]
    assert place.journal("recover", "--json") == []
    with Workspace(place.workspace) as workspace, ChangeStore(user_state_dir("handrail"), workspace) as changes:
        assert asyncio.run(changes.held(call)) is None
        assert not (place.workspace / "new.txt").exists()
    assert place.handrail("journal", "prune", "--older-than", "0").stdout.startswith("Dropped the records up to ")
    (found,) = place.journal("verify", "--json")
    assert found["ok"]
    assert place.journal("show", "--call", call, "--json") == []


@pytest.mark.parametrize("days", ["nan", "inf", "-1", "1e12"])
def test_prune_takes_no_age_that_is_none(place: Place, days: str) -> None:
    place.pay(5)
    done = place.handrail("journal", "prune", "--older-than", days)
    assert done.returncode == 2
    assert "--older-than must be a number of days from 0 on, at most 1000000000, not " in done.stderr
    (found,) = place.journal("verify", "--json")
    assert found["records"] == 3
