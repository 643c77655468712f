"""The SQLite journal behind a real executor."""

import asyncio
import os
import stat

import pytest

from handrail.approval.decision import Approve, Modify, Park
from handrail.call import Origin
from handrail.errors import ApprovalError
from handrail.executor import ToolExecutor
from handrail.journal.sqlite import SqliteJournal
from handrail.outcome import ToolOutcome
from handrail.parked import Answer
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef


def registry(handler, **extra):
    tools = ToolRegistry()
    tools.register_from_def(ToolDef("pay", risk_level=RiskLevel.SAFE, parameters={"type": "object"}, **extra), handler)
    return tools


def test_a_call_leaves_one_intent_and_one_settlement(tmp_path):
    async def scenario():
        journal = SqliteJournal(str(tmp_path / "j.sqlite"))
        executor = ToolExecutor(registry(lambda args: "paid"), journal=journal)
        outcome = await executor.execute("pay", {"amount": 3}, origin=Origin(run_id="r", step=2))
        kinds = [record.data["kind"] for record in journal.reader.records()]
        again = await executor.execute("pay", {"amount": 3}, call_id=outcome.call_id)
        journal.close()
        return outcome, kinds, again

    outcome, kinds, again = asyncio.run(scenario())
    assert outcome.status == "ok"
    assert kinds == ["journal", "intent", "settled"]
    assert again == outcome


class Edits:
    """Ann halves what is above one."""

    async def decide(self, request):
        amount = request.arguments["amount"]
        return Modify({"amount": amount // 2}, by="ann") if amount > 1 else Approve(by="ben")


def test_an_intent_says_who_edited_the_call_and_who_approved_it(tmp_path):
    async def scenario():
        journal = SqliteJournal(str(tmp_path / "j.sqlite"))
        tools = ToolRegistry()
        tools.register_from_def(ToolDef("pay", risk_level=RiskLevel.DANGEROUS), lambda args: "paid")
        executor = ToolExecutor(tools, journal=journal, approver=Edits())
        await executor.execute("pay", {"amount": 2})
        await executor.execute("pay", {"amount": 1})
        intents = [record.data for record in journal.reader.records() if record.data["kind"] == "intent"]
        journal.close()
        return intents

    edited, plain = asyncio.run(scenario())
    assert (edited["arguments"], edited["edited_by"], edited["approval"]["by"]) == ({"amount": 1}, "ann", "ben")
    assert (plain["arguments"], plain["edited_by"], plain["approval"]["by"]) == ({"amount": 1}, None, "ben")


class Parking:
    async def decide(self, request):
        return Park()


def test_a_parked_call_runs_once_after_its_answer(tmp_path):
    ran = []

    async def scenario():
        journal = SqliteJournal(str(tmp_path / "j.sqlite"))
        tools = ToolRegistry()
        tools.register_from_def(ToolDef("pay", risk_level=RiskLevel.DANGEROUS), lambda args: ran.append(1) or "paid")
        executor = ToolExecutor(tools, journal=journal, approver=Parking())
        pending = await executor.execute("pay", {})
        assert pending.status == "pending"
        ((waiting, answer),) = await journal.list_parked()
        assert answer is None
        await journal.answer(waiting.approval_id, Answer(verdict="approve", by="me", at=1.0))
        with pytest.raises(ApprovalError, match="before"):
            await journal.answer(waiting.approval_id, Answer(verdict="reject", by="you", at=1.0))
        both = await asyncio.gather(*(executor.resume(waiting.approval_id) for _ in range(2)))
        late = await executor.resume(waiting.approval_id)
        journal.close()
        return both, late

    both, late = asyncio.run(scenario())
    assert sorted(outcome.status for outcome in both) == ["error", "ok"]
    assert late.status == "error"
    assert ran == [1]


def test_many_calls_share_commits(tmp_path):
    async def scenario():
        journal = SqliteJournal(str(tmp_path / "j.sqlite"))
        executor = ToolExecutor(registry(lambda args: ToolOutcome.ok("x")), journal=journal, max_parallel=64)
        await asyncio.gather(*(executor.execute("pay", {}) for _ in range(256)))
        journal.close()
        return journal.writer.commits

    assert asyncio.run(scenario()) <= 256 / 5


def test_only_the_owner_can_read_the_files(tmp_path):
    path = tmp_path / "state" / "journal" / "j.sqlite"
    SqliteJournal(str(path)).close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(path.parent).st_mode) == 0o700
