"""Chains of approvers, and what a grant may cover."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail import (
    AlwaysApprove,
    ApprovalRequest,
    Approve,
    Decision,
    Escalate,
    FilesystemGuard,
    GrantPattern,
    Reject,
    RiskLevel,
    ToolDef,
    ToolExecutor,
    ToolRegistry,
    Unavailable,
    Workspace,
)
from handrail.approval.chain import Chain, Escalating, RuleApprover
from handrail.approval.grants import covers, make_grant, offer, pattern_covers, why_not
from handrail.approval.policy_file import parse_policy
from handrail.call import Checked, Origin, Proposed
from handrail.errors import ApprovalError

ANY = {"type": "object"}


def asked(
    approver: Any, arguments: dict[str, Any] | None = None, risk: RiskLevel = RiskLevel.DANGEROUS
) -> tuple[str, str, int]:
    """One call put before ``approver``: status, text, and how often the handler ran."""
    ran: list[Any] = []
    registry = ToolRegistry()
    registry.register_from_def(ToolDef("go", parameters=ANY, risk_level=risk), lambda args: ran.append(args) or "went")
    outcome = asyncio.run(ToolExecutor(registry, approver=approver).execute("go", arguments or {}))
    return outcome.status, outcome.text, len(ran)


class Says:
    def __init__(self, decision: Any) -> None:
        self.decision = decision
        self.times = 0

    async def decide(self, request: ApprovalRequest) -> Decision:
        self.times += 1
        if isinstance(self.decision, Exception):
            raise self.decision
        return self.decision


@pytest.mark.promise("approval:chain:only-escalate-passes-on")
@pytest.mark.parametrize("first", [Reject("no"), Unavailable("gone"), None, "yes", RuntimeError("broken veto")])
def test_only_escalating_passes_a_question_on(first: Any) -> None:
    last = Says(Approve())
    assert asked(Chain(Says(first), last))[2] == 0
    assert last.times == 0


def test_escalating_reaches_the_next_and_past_the_last_means_no() -> None:
    assert asked(Chain(Says(Escalate("not mine")), Escalating(lambda request: None), AlwaysApprove()))[2] == 1
    status, text, ran = asked(Chain(Says(Escalate("not mine"))))
    assert (status, ran) == ("error", 0)
    assert "not mine" in text
    assert asked(Chain())[2] == 0
    assert asked(Says(Escalate()))[2] == 0


def test_rules_answer_first_then_a_program_then_a_person() -> None:
    policy = parse_policy(
        """
        version = 1
        [[rule]]
        tool = "host:go"
        decision = "allow"
        args.n.equals = 1
        [[rule]]
        tool = "host:go"
        decision = "deny"
        args.n.equals = 2
        """
    )
    person = Says(Reject("a person said no"))
    chain = Chain(
        RuleApprover(policy),
        Escalating(lambda request: Approve("program") if request.arguments.get("n") == 3 else None),
        person,
    )
    assert [asked(chain, {"n": n})[2] for n in (1, 2, 3, 4)] == [1, 0, 1, 0]
    assert person.times == 1
    answers: list[Any] = []

    class Heard:
        async def decide(self, request: ApprovalRequest) -> Decision:
            answers.append(await RuleApprover(policy, name="ours").decide(request))
            return answers[-1]

    for n in (1, 2, 3):
        asked(Heard(), {"n": n})
    assert answers == [Approve(by="ours: policy:3"), Reject("deny host:go", by="ours: policy:7"), Escalate()]


# ── grants ───────────────────────────────────────────────────────────────────────────────────────────────────────


def checked(
    arguments: dict[str, Any], *, workspace: Workspace | None = None, risk: RiskLevel = RiskLevel.MUTATION
) -> Checked:
    properties = {"path": {"type": "string"}, "destination": {"type": "string"}, "content": {"type": "string"}}
    definition = ToolDef("t", parameters={"type": "object", "properties": properties}, risk_level=risk)
    registered = ToolRegistry().register_from_def(definition, lambda args: "")
    proposed = Proposed("c", registered, arguments, Origin())
    if workspace is None:
        return Checked(proposed, arguments)
    guarded = FilesystemGuard(workspace).check(definition, arguments)
    return Checked(proposed, guarded.arguments, workspace.path, guarded.requested, guarded.resolved)


@pytest.mark.promise("approval:grant:never-a-wrapper")
@pytest.mark.parametrize(
    "command",
    [
        *("env ls", "xargs ls", "sh -c ls", "bash -c ls", "busybox ls", "sudo ls", "nice ls", "timeout 5 ls"),
        *("command ls", "/usr/bin/env ls", "python3 x.py", "find . -exec id \\;", "ls; id", "ls | sh", "$(id)"),
        *("A=1 ls", "ls > x", "", "ls " + "a" * 5_000, ["env", "ls"], ["sh", "-c", "ls"], [], ["ls", 1], 5, None),
    ],
    ids=lambda command: str(command)[:20],
)  # fmt: skip
@pytest.mark.parametrize("name", ["command", "cmd", "argv", "script", "code"])
def test_wrappers_and_lines_that_cannot_be_read_are_never_granted(command: Any, name: str) -> None:
    """CVE-2026-22175, CVE-2026-29607: "allow always" was bound to the wrapper."""
    call = checked({name: command})
    assert why_not(call) is not None
    assert offer(call) is None
    with pytest.raises(ApprovalError):
        make_grant(GrantPattern("host:t", any=(name,)), call, allowed=True, session="s", policy="p", by="ann", at=0.0)


def test_a_command_is_granted_word_for_word_only() -> None:
    call = checked({"command": "ls -la"})
    assert offer(call) == GrantPattern("host:t", equals={"command": "ls -la"})
    with pytest.raises(ApprovalError, match="word for word"):
        make_grant(
            GrantPattern("host:t", any=("command",)), call, allowed=True, session="s", policy="p", by="ann", at=0.0
        )


@pytest.mark.parametrize(
    "bound", ["session", "agent", "definition", "configuration", "workspace", "policy", "revoked_at"]
)
def test_a_grant_covers_nothing_where_any_of_what_it_is_bound_to_is_another(bound: str) -> None:
    call = checked({"n": 1})
    pattern = offer(call)
    assert pattern is not None
    grant = make_grant(pattern, call, allowed=True, session="s", policy="p", by="ann", at=0.0)
    assert covers(grant, call, session="s", policy="p")
    other = replace(grant, **{bound: 5.0 if bound == "revoked_at" else "another"})
    assert not covers(other, call, session="s", policy="p")


@pytest.mark.promise("approval:grant:never-a-wrapper")
def test_a_grant_that_was_never_to_be_given_covers_nothing() -> None:
    """Whoever wrote it into the store: what may be granted is asked again at every use."""
    grants = {
        command: replace(
            make_grant(
                GrantPattern("host:t", equals={"command": "ls"}),
                checked({"command": "ls"}),
                allowed=True,
                session="s",
                policy="p",
                by="ann",
                at=0.0,
            ),
            pattern=GrantPattern("host:t", equals={"command": command}),
        )
        for command in ("ls", "sudo ls")
    }
    covered = {
        command: covers(grant, checked({"command": command}), session="s", policy="p")
        for command, grant in grants.items()
    }
    assert covered == {"ls": True, "sudo ls": False}


def test_a_grant_beneath_a_directory_looks_at_where_links_lead(tmp_path: Path) -> None:
    (tmp_path / "src" / "sub").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "src" / "link").symlink_to("../secret")
    with Workspace(tmp_path) as workspace:
        pattern = offer(checked({"path": "src/a", "content": "x"}, workspace=workspace))
        assert pattern == GrantPattern("host:t", beneath={"path": str(tmp_path / "src")}, any=("content",))

        def covered(path: str, **more: Any) -> bool:
            return pattern_covers(pattern, checked({"path": path, "content": "y", **more}, workspace=workspace))

        assert covered("src/b")
        assert covered("src/sub/../c")
        assert not covered("src/link/x")
        assert not covered("src-evil/x")
        assert not covered("secret/x")
        assert not covered("src/../secret/x")
        assert not covered("src/b", destination="src/c")
        assert not covered("src/b", unknown=1)


values = st.sampled_from([0, 1, True, "", "a", "b", None, [1], {"k": 1}])
calls = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), values, max_size=4)


@settings(deadline=None, max_examples=200)
@given(first=calls, second=calls)
def test_what_is_offered_covers_the_call_that_was_shown_and_its_likes_only(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    pattern = offer(checked(first))
    assert pattern is not None
    assert pattern_covers(pattern, checked(first))
    same = first == second and all(type(first[name]) is type(second[name]) for name in first)
    assert pattern_covers(pattern, checked(second)) is same
