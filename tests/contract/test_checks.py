"""The checks we ship pass on what we ship, and fail on what breaks the promise."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from handrail import (
    AlwaysApprove,
    ApprovalRequest,
    Approved,
    Checked,
    NeverApprove,
    Origin,
    Proposed,
    Reason,
    RiskLevel,
    Tool,
    ToolDef,
    ToolExecutor,
    ToolOutcome,
    ToolRegistry,
)
from handrail.approval.inbox import InboxApprover
from handrail.builtins import BUILTIN_TOOLS
from handrail.changes.store import ChangeStore
from handrail.journal.protocol import CallJournal
from handrail.journal.sqlite import SqliteJournal
from handrail.testing import (
    MemoryJournal,
    ScriptedModel,
    check_approver,
    check_journal_store,
    check_mechanism,
    check_model_client,
    check_tool,
)
from handrail.workspace import Workspace
from handrail_cell import contain

GOOD: dict[str, dict[str, Any]] = {
    "read": {"path": "a.txt"},
    "write": {"path": "b.txt", "content": "x"},
    "edit": {"path": "a.txt", "edits": [{"old_text": "one", "new_text": "1"}]},
    "list": {"path": "."},
    "find": {"pattern": "*.txt"},
    "grep": {"pattern": "one"},
    "move": {"source": "a.txt", "destination": "c.txt"},
    "delete": {"path": "a.txt"},
    "mkdir": {"path": "d"},
}

QUESTION = ApprovalRequest(
    approval_id="a", call_id="c", tool="host:probe", title="probe", risk=RiskLevel.MUTATION, source="host",
    arguments={"n": 1}, binding="sha256:0", why="mutation tools are asked about", asked_at=0.0, expires_at=4e9,
)  # fmt: skip


@pytest.mark.parametrize("tool", BUILTIN_TOOLS, ids=lambda tool: tool.name)
def test_every_built_in_tool_keeps_the_corridors_promises(tool: Tool, tmp_path: Path) -> None:
    place = tmp_path / "work"
    place.mkdir()
    (place / "a.txt").write_text("one\n")

    async def run() -> list[ToolOutcome]:
        with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as changes:
            return await check_tool(
                tool, str(place), good=[GOOD[tool.name]], bad=[{"surprise": 1}, {"path": 1}], changes=changes
            )

    assert [outcome.status for outcome in anyio.run(run)] == ["ok"]


def test_a_tool_that_writes_without_declaring_it_is_found(tmp_path: Path) -> None:
    liar = Tool(ToolDef("liar", "", {"type": "object"}), lambda args: str((tmp_path / "new").write_text("x")))

    async def run() -> None:
        await check_tool(liar, str(tmp_path), good=[{}])

    with pytest.raises(AssertionError, match="declares no writes"):
        anyio.run(run)


@pytest.mark.parametrize(
    "approver", [AlwaysApprove(), NeverApprove(), InboxApprover()], ids=lambda it: type(it).__name__
)
def test_our_approvers_keep_theirs(approver: Any) -> None:
    anyio.run(check_approver, approver, QUESTION)


def test_an_approver_that_changes_the_question_is_found() -> None:
    class Meddler:
        async def decide(self, request: ApprovalRequest) -> Any:
            request.arguments["n"] = 2  # type: ignore[index]
            return await AlwaysApprove().decide(request)

    with pytest.raises(AssertionError, match="must not change"):
        anyio.run(check_approver, Meddler(), QUESTION)


def test_the_sqlite_journal_keeps_its_promises_also_when_opened_again(tmp_path: Path) -> None:
    opened: list[SqliteJournal] = []

    async def make() -> CallJournal:
        opened.append(SqliteJournal(str(tmp_path / "private" / "journal.sqlite")))
        return opened[-1]

    anyio.run(check_journal_store, make)
    for journal in opened:
        journal.close()


def test_a_journal_that_forgets_is_found() -> None:
    async def make() -> CallJournal:
        return MemoryJournal()

    with pytest.raises(AssertionError, match="forgotten"):
        anyio.run(check_journal_store, make)


def test_the_scripted_model_keeps_a_clients_rules() -> None:
    reply = anyio.run(check_model_client, ScriptedModel(["hello"]))
    assert json.dumps(reply.text)


@pytest.mark.parametrize("tier", sorted(contain.ORDER))
def test_every_step_of_every_tier_says_what_it_enforces(tier: str) -> None:
    for name, _ in contain.ORDER[tier]:
        check_mechanism(name)


def test_a_call_id_that_was_begun_and_never_ended_is_unknown_and_never_runs_again(tmp_path: Path) -> None:
    ran: list[str] = []
    registry = ToolRegistry()
    registry.register_from_def(
        ToolDef("pay", "", {"type": "object"}, risk_level="read_only"), lambda _: ran.append("x")
    )
    journal = MemoryJournal()
    call = "01990000-0000-7000-8000-000000000001"

    async def run() -> ToolOutcome:
        proposed = Proposed(call, next(iter(registry)), {}, Origin())
        await journal.begin(Approved(Checked(proposed, {}), "before", "test"), deadline=4e9)
        return await ToolExecutor(registry, journal=journal).execute("pay", "{}", call_id=call)

    outcome = anyio.run(run)
    assert (outcome.status, outcome.reason, ran) == ("unknown", Reason.INTERRUPTED, [])
