"""Questions that wait: shown as what will run, answered once, by whoever may enter the state directory."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from handrail import ParkedCall, RiskLevel, ToolDef, ToolExecutor, ToolRegistry, faults
from handrail.approval.inbox import SECRET_BYTES, Inbox, InboxApprover, Tokens, request_of
from handrail.errors import ApprovalError
from handrail.journal.sqlite import SqliteJournal
from handrail.testing import MemoryJournal

PARAMETERS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


class Office:
    """A tool that counts, a store, and an inbox that may be another process's."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.ran: list[int] = []
        registry = ToolRegistry()
        registry.register_from_def(ToolDef("go", parameters=PARAMETERS, risk_level=RiskLevel.DANGEROUS), self.go)
        self.executor = ToolExecutor(registry, approver=InboxApprover(), journal=store, grants=store)
        self.inbox = Inbox(store, by="ann")

    def go(self, args: dict[str, Any]) -> str:
        self.ran.append(args["n"])
        return "went"

    async def ask(self, n: int = 1) -> ParkedCall:
        outcome = await self.executor.execute("go", {"n": n})
        assert outcome.status == "pending"
        return (await self.store.parked(outcome.approval_id))[0]


@pytest.fixture(params=["memory", "sqlite"])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield Office(MemoryJournal())
        return
    store = SqliteJournal(str(tmp_path / "state" / "journal.sqlite"))
    yield Office(store)
    store.close()


def run(steps: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return asyncio.run(steps())


def test_a_question_is_listed_shown_approved_and_runs_once(office: Office) -> None:
    async def steps() -> None:
        parked = await office.ask(7)
        assert [one.approval_id for one, _ in await office.inbox.waiting()] == [parked.approval_id]
        question, answer = await office.inbox.question(parked.approval_id)
        assert (dict(question.arguments), question.risk, answer) == ({"n": 7}, RiskLevel.DANGEROUS, None)
        await office.inbox.approve(parked.approval_id)
        assert (await office.executor.resume(parked.approval_id)).status == "ok"
        assert (await office.executor.resume(parked.approval_id)).status == "error"
        assert office.ran == [7]
        assert await office.inbox.waiting() == []

    run(steps)


@pytest.mark.parametrize("first", ["approve", "reject", "edit"])
@pytest.mark.parametrize("second", ["approve", "reject", "edit"])
def test_the_second_answer_is_refused_whatever_both_are(office: Office, first: str, second: str) -> None:
    async def steps() -> None:
        parked = await office.ask()
        answers: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "approve": lambda: office.inbox.approve(parked.approval_id),
            "reject": lambda: office.inbox.reject(parked.approval_id, "no"),
            "edit": lambda: office.inbox.edit(parked.approval_id, {"n": 2}),
        }
        await answers[first]()
        with pytest.raises(ApprovalError):
            await answers[second]()
        outcome = await office.executor.resume(parked.approval_id)
        assert outcome.status == {"approve": "ok", "reject": "error", "edit": "pending"}[first]
        assert office.ran == ([1] if first == "approve" else [])

    run(steps)


def test_of_many_answers_at_once_one_counts(office: Office) -> None:
    async def steps() -> None:
        parked = await office.ask()
        inboxes = [Inbox(office.store, by=f"person {n}") for n in range(6)]
        answers = [
            inbox.approve(parked.approval_id) if n % 2 else inbox.reject(parked.approval_id, str(n))
            for n, inbox in enumerate(inboxes)
        ]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(result) for result in results].count(ApprovalError) == 5
        outcome = await office.executor.resume(parked.approval_id)
        accepted = results.index(None)
        assert (outcome.status == "ok") is bool(accepted % 2)
        assert len(office.ran) == accepted % 2

    run(steps)


def test_an_unknown_id_is_refused_by_every_verb(office: Office) -> None:
    async def steps() -> None:
        for answer in (office.inbox.approve("0199"), office.inbox.reject("0199"), office.inbox.edit("0199", {})):
            with pytest.raises(ApprovalError):
                await answer

    run(steps)


@pytest.mark.parametrize("arguments", [{"n": float("nan")}, {"n": object()}, {1: 2}])
def test_an_edit_that_is_no_json_is_refused_and_decides_nothing(office: Office, arguments: Any) -> None:
    async def steps() -> None:
        parked = await office.ask()
        with pytest.raises(ApprovalError, match="cannot be used"):
            await office.inbox.edit(parked.approval_id, arguments)
        await office.inbox.approve(parked.approval_id)
        assert (await office.executor.resume(parked.approval_id)).status == "ok"

    run(steps)


@pytest.mark.promise("approval:inbox:shown-is-what-runs")
@pytest.mark.parametrize(
    "forge",
    [
        lambda parked: replace(parked, arguments={"n": 666}),
        lambda parked: replace(parked, question={**parked.question, "arguments": {"n": 666}}),
        lambda parked: replace(parked, binding="sha256:" + "0" * 64),
        lambda parked: replace(parked, tool="host:other"),
        lambda parked: replace(parked, approval_id="0199"),
        lambda parked: replace(parked, question={**parked.question, "call_id": "0199"}),
        lambda parked: replace(parked, question={**parked.question, "changes": []}, change_digest="sha256:1"),
        lambda parked: replace(parked, question={**parked.question, "changes": "none"}),
        lambda parked: replace(parked, change_digest="sha256:1"),  # the changes are not shown
        lambda parked: replace(parked, question={**parked.question, "risk": "harmless"}),
        lambda parked: replace(parked, question={**parked.question, "offer": 5}),
        lambda parked: replace(parked, question={k: v for k, v in parked.question.items() if k != "risk"}),
    ],
)
def test_a_record_that_shows_one_thing_and_would_run_another_is_not_answered(
    forge: Callable[[ParkedCall], ParkedCall],
) -> None:
    office = Office(MemoryJournal())
    parked = run(office.ask)
    request_of(parked)
    with pytest.raises(ApprovalError, match="does not agree"):
        request_of(forge(parked))


# ── tokens and the private directory ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("approval:token:fits-one-question")
def test_a_token_fits_its_question_alone_and_cannot_be_made_without_the_secret(tmp_path: Path) -> None:
    office = Office(MemoryJournal())
    one, other = run(lambda: office.ask(1)), run(lambda: office.ask(2))
    now = [one.asked_at]
    tokens = Tokens(str(tmp_path / "state"), clock=lambda: now[0])
    token = tokens.of(one)
    tokens.check(token, one)
    Tokens(str(tmp_path / "state"), clock=lambda: now[0]).check(token, one)  # another process, the same secret
    elsewhere = Tokens(str(tmp_path / "other"), clock=lambda: now[0])
    for forged in (
        elsewhere.of(one),
        tokens.of(other),
        "",
        "x",
        token[:-1],
        token + "A",
        "é" * 43,
        one.approval_id,
        one.binding,
    ):
        with pytest.raises(ApprovalError, match="does not belong"):
            tokens.check(forged, one)
    with pytest.raises(ApprovalError, match="does not belong"):
        tokens.check(token, replace(one, binding=other.binding))
    for changed in ({"change_digest": "sha256:1"}, {"expires_at": one.expires_at + 3_600}, {"call_id": "other"}):
        with pytest.raises(ApprovalError, match="does not belong"):
            tokens.check(token, replace(one, **changed))
    now[0] = one.expires_at
    with pytest.raises(ApprovalError, match="expired"):
        tokens.check(token, one)


def test_a_secret_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Tokens(str(tmp_path))
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(ApprovalError, match="not a private file"):
        Tokens(str(tmp_path))


def test_the_secret_is_private_and_a_planted_one_is_refused(tmp_path: Path) -> None:
    """CVE-2026-46406: a fixed path that everybody could read."""
    directory = tmp_path / "state"
    Tokens(str(directory))
    secret = directory / "approval-secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    secret.chmod(0o644)
    with pytest.raises(ApprovalError, match="not a private file"):
        Tokens(str(directory))
    planted = tmp_path / "planted"
    planted.write_bytes(b"x" * 32)
    planted.chmod(0o600)
    secret.unlink()
    secret.symlink_to(planted)
    with pytest.raises(ApprovalError):
        Tokens(str(directory))
    secret.unlink()
    os.mkfifo(secret, 0o600)
    with pytest.raises(ApprovalError):
        Tokens(str(directory))


def test_the_journal_that_holds_answers_may_be_entered_by_its_user_alone(tmp_path: Path) -> None:
    store = SqliteJournal(str(tmp_path / "state" / "journal.sqlite"))
    store.close()
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) & 0o077 == 0
    assert stat.S_IMODE((tmp_path / "state" / "journal.sqlite").stat().st_mode) & 0o077 == 0


def test_of_two_who_make_the_secret_at_once_both_have_the_same(tmp_path: Path) -> None:
    directory = str(tmp_path / "state")
    others: list[Tokens] = []
    entered: list[str] = []

    def meanwhile(name: str) -> None:
        if name == "secret:written" and not entered:
            entered.append(name)
            others.append(Tokens(directory))

    with faults.armed(meanwhile):
        mine = Tokens(directory)
    office = Office(MemoryJournal())
    one = run(lambda: office.ask(1))
    one = replace(one, expires_at=time.time() + 600)
    others[0].check(mine.of(one), one)
    assert os.listdir(directory) == ["approval-secret"]


def test_one_who_is_killed_while_making_the_secret_leaves_none_that_is_half(tmp_path: Path) -> None:
    program = f"from handrail.approval.inbox import Tokens; Tokens({str(tmp_path)!r})"
    environment = os.environ | {"HANDRAIL_FAULT_KILL_AT": "secret:written"}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    Tokens(str(tmp_path))
    assert len((tmp_path / "approval-secret").read_bytes()) == SECRET_BYTES
