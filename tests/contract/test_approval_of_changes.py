"""A person decides about real changes: what was shown is what is made, once, and a no changes nothing."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail import (
    ApprovalRequest,
    Approve,
    Change,
    ChangeSet,
    Checked,
    Decision,
    Effect,
    FileState,
    Modify,
    Park,
    Reason,
    Reject,
    RiskTable,
    ToolDef,
    ToolExecutor,
    ToolOutcome,
    ToolRegistry,
    Verdict,
    Workspace,
)
from handrail.approval.inbox import Inbox
from handrail.errors import JournalError
from handrail.testing import MemoryJournal
from small_keeper import SmallKeeper

pytestmark = pytest.mark.anyio
PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Desk:
    """A staged writing tool, a keeper of changes, a journal, and an approver with a script."""

    def __init__(self, directory: Path, *answers: Decision, output_schema: dict[str, Any] | None = None) -> None:
        self.output_schema = output_schema
        (directory / "w").mkdir()
        self.workspace = Workspace(directory / "w")
        self.root = directory / "w"
        self.keeper = SmallKeeper(self.workspace, directory / "contents")
        self.journal = MemoryJournal()
        self.answers = list(answers)
        self.questions: list[ApprovalRequest] = []
        self.policy: Any = None
        self.ran = 0

    async def decide(self, request: ApprovalRequest) -> Decision:
        self.questions.append(request)
        return self.answers.pop(0)

    def executor(self) -> ToolExecutor:
        registry = ToolRegistry()
        registry.register_from_def(
            ToolDef("put", parameters=PARAMETERS, output_schema=self.output_schema), self.put, staged=True
        )
        return ToolExecutor(
            registry,
            workspace=self.workspace,
            approver=self,
            policy=self.policy,
            journal=self.journal,
            changes=self.keeper,
        )

    def put(self, args: dict[str, Any], job: Any) -> Effect:
        self.ran += 1
        data = args["text"].encode()
        name = Path(args["path"]).name
        state = FileState("file", 0o644, len(data), job.contents.put(data))
        return Effect(ToolOutcome.ok("put"), ChangeSet((Change(name.encode(), None, state),)))

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.root.iterdir())}


async def test_the_question_shows_the_real_diff_and_a_yes_makes_exactly_that(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Approve())
    outcome = await desk.executor().execute("put", {"path": "a", "text": "hello\n"})
    (question,) = desk.questions
    assert (outcome.status, desk.files()) == ("ok", {"a": "hello\n"})
    assert "+hello" in question.diff
    assert outcome.changes is not None
    assert question.changes is not None
    assert outcome.changes.digest == question.changes.digest


@pytest.mark.promise("approval:changes:a-no-changes-nothing")
@pytest.mark.parametrize("answer", [Reject("no"), None, "yes"])
async def test_a_no_drops_the_changes(tmp_path: Path, answer: Any) -> None:
    desk = Desk(tmp_path, answer)
    outcome = await desk.executor().execute("put", {"path": "a", "text": "x"})
    assert (outcome.status, desk.files(), desk.ran) == ("error", {}, 1)


async def test_an_edit_after_seeing_the_changes_drops_them_and_asks_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Modify({"path": "b", "text": "y"}), Approve())
    outcome = await desk.executor().execute("put", {"path": "a", "text": "x"})
    assert (outcome.status, desk.files()) == ("ok", {"b": "y"})
    assert [Path(question.arguments["path"]).name for question in desk.questions] == ["a", "b"]


async def test_a_parked_change_is_made_once_and_the_tool_is_not_run_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Park())
    waiting = await desk.executor().execute("put", {"path": "a", "text": "x"})
    assert (waiting.status, desk.files()) == ("pending", {})
    assert waiting.approval_id
    await Inbox(desk.journal, by="ann").approve(waiting.approval_id)
    outcomes = await asyncio.gather(*(desk.executor().resume(waiting.approval_id) for _ in range(4)))
    assert [outcome.status for outcome in outcomes].count("ok") == 1
    assert (desk.files(), desk.ran) == ({"a": "x"}, 1)


@pytest.mark.parametrize("park", [True, False])
async def test_a_result_that_breaks_its_schema_is_still_marked_when_its_changes_waited(
    tmp_path: Path, park: bool
) -> None:
    desk = Desk(tmp_path, Park() if park else Approve(), output_schema={"type": "object", "required": ["never"]})
    outcome = await desk.executor().execute("put", {"path": "a", "text": "x"})
    if park:
        assert outcome.approval_id
        await Inbox(desk.journal, by="ann").approve(outcome.approval_id)
        outcome = await desk.executor().resume(outcome.approval_id)
    assert (outcome.status, outcome.reason, outcome.invalid_output) == ("ok", Reason.INVALID_OUTPUT, True)
    assert "breaks the tool's own output schema" in outcome.text
    assert desk.files() == {"a": "x"}


class DyingJournal(MemoryJournal):
    """Its server is gone from the step ``dies_at`` on."""

    def __init__(self, dies_at: str) -> None:
        super().__init__()
        self.dies_at, self.dead = dies_at, False

    def _live(self, step: str) -> None:
        self.dead = self.dead or step == self.dies_at
        if self.dead:
            raise JournalError("the server is gone")

    async def commit_begin(self, *args: Any, **given: Any) -> None:
        self._live("commit_begin")
        await super().commit_begin(*args, **given)

    async def commit_end(self, *args: Any, **given: Any) -> None:
        self._live("commit_end")
        await super().commit_end(*args, **given)

    async def settle(self, *args: Any, **given: Any) -> None:
        self._live("settle")
        await super().settle(*args, **given)


@pytest.mark.parametrize(
    ("dies_at", "answer", "status", "files"),
    [
        ("commit_begin", Approve(), "error", {}),
        ("settle", Reject("no"), "error", {}),
        ("commit_end", Approve(), "unknown", {"a": "x"}),
        ("settle", Approve(), "unknown", {"a": "x"}),
    ],
)
async def test_a_journal_that_dies_leaves_a_call_unknown_only_once_its_changes_may_be_real(
    tmp_path: Path, dies_at: str, answer: Decision, status: str, files: dict[str, str]
) -> None:
    desk = Desk(tmp_path, answer)
    desk.journal = DyingJournal(dies_at)
    outcome = await desk.executor().execute("put", {"path": "a", "text": "x"})
    assert (outcome.status, outcome.reason, desk.files()) == (status, Reason.JOURNAL_UNAVAILABLE, files)
    assert ("nothing was changed" in outcome.text) == (status == "error")


class Denies(RiskTable):
    def decide(self, checked: Checked) -> Verdict:
        return Verdict("deny", "before", "closed", "closed")


class Newer(RiskTable):
    version = "newer"


@pytest.mark.parametrize(("policy", "reason"), [(Denies, Reason.DENIED), (Newer, Reason.APPROVAL_EXPIRED)])
async def test_a_policy_that_changed_since_the_yes_makes_nothing_real(
    tmp_path: Path, policy: Callable[[], Any], reason: Reason
) -> None:
    """claude-code 2.1.77: an allow that was given beat a deny that stood."""
    desk = Desk(tmp_path, Park())
    waiting = await desk.executor().execute("put", {"path": "a", "text": "x"})
    assert waiting.approval_id
    await Inbox(desk.journal, by="ann").approve(waiting.approval_id)
    desk.policy = policy()
    outcome = await desk.executor().resume(waiting.approval_id)
    assert (outcome.reason, desk.files()) == (reason, {})
    assert (await desk.executor().resume(waiting.approval_id)).status == "error"
    assert desk.files() == {}


async def test_a_policy_that_denies_while_the_call_runs_makes_nothing_real(tmp_path: Path) -> None:
    desk = Desk(tmp_path, Approve())

    class Flips(RiskTable):
        asked = 0

        def decide(self, checked: Checked) -> Verdict:
            self.asked += 1
            return super().decide(checked) if self.asked == 1 else Verdict("deny", "before", "closed", "closed")

    desk.policy = Flips()
    outcome = await desk.executor().execute("put", {"path": "a", "text": "x"})
    assert (outcome.reason, desk.files(), desk.questions) == (Reason.DENIED, {}, [])


# ── what the model may read ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("approval:output:reviewed-before-the-model-reads-it")
async def test_an_output_is_reviewed_before_the_model_reads_it() -> None:
    """agent-framework 2168: nobody could approve a tool's output."""
    registry = ToolRegistry()
    registry.register_from_def(ToolDef("leak", risk_level="safe"), lambda args: {"token": "s3cret"})  # type: ignore[arg-type]

    def hide(checked: Checked, outcome: ToolOutcome) -> ToolOutcome:
        return ToolOutcome.error("(hidden)")

    async def broken(checked: Checked, outcome: ToolOutcome) -> ToolOutcome:
        raise RuntimeError("s3cret")

    hidden = await ToolExecutor(registry, review_output=hide).execute("leak", {})
    assert (hidden.status, hidden.text, hidden.value) == ("ok", "(hidden)", None)
    withheld = await ToolExecutor(registry, review_output=broken).execute("leak", {})
    assert (withheld.status, withheld.value) == ("ok", None)
    assert "s3cret" not in withheld.text
    plain = await ToolExecutor(registry).execute("leak", {})
    assert "s3cret" in plain.text
