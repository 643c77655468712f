"""``handrail approvals``, ``grants`` and ``policy`` as a person meets them: one state directory, many commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from handrail.approval.policy import RiskTable
from handrail.cli import main
from handrail.errors import ConfigurationError, HandrailError
from handrail.tool import RiskLevel

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one command in a home of its own and a workspace; returns its exit status and what it printed."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(workspace)

    def command(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(main.app, [*words])
        if isinstance(result.exception, HandrailError):
            return 2 if isinstance(result.exception, ConfigurationError) else 1, str(result.exception)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return command


def parked(run: Run, path: str = "a.txt", content: str = "hello") -> str:
    status, output = run("call", "write", f"path={path}", f"content={content}", "--approve", "park", "--json")
    assert status == 3, output
    return json.loads(output)["approval_id"]


def listed(run: Run) -> list[dict[str, Any]]:
    status, output = run("approvals", "list", "--json")
    assert status == 0
    return json.loads(output)


@pytest.mark.promise("approval:inbox:answered-from-another-process")
def test_a_call_waits_is_shown_approved_and_happens(run: Run, tmp_path: Path) -> None:
    approval_id = parked(run)
    target = tmp_path / "workspace" / "a.txt"
    assert not target.exists()
    assert [row["approval_id"] for row in listed(run)] == [approval_id]
    assert run("approvals", "show", approval_id[-5:]) == (1, f"there is no approval {approval_id[-5:]}")
    status, shown = run("approvals", "show", approval_id[-8:])
    assert status == 0
    for text in ('"builtin:write"', "risk      mutation", 'content: "hello"', "│ +hello", "sha256:"):
        assert text in shown
    status, output = run("approvals", "approve", approval_id, "--run", "--json")
    assert (status, target.read_text()) == (0, "hello"), output
    assert listed(run) == []
    status, output = run("approvals", "approve", approval_id)
    assert status == 1
    assert "used" in output


def test_a_rejected_call_does_not_happen_and_an_edited_one_happens_as_edited(run: Run, tmp_path: Path) -> None:
    rejected, edited = parked(run, "no.txt"), parked(run, "old.txt")
    assert run("approvals", "reject", rejected, "--why", "not here", "--run")[0] == 1
    assert run("approvals", "approve", rejected)[0] == 1
    new = json.dumps({"path": "new.txt", "content": "edited"})
    status, output = run("approvals", "edit", edited, new, "--run", "--json")
    assert status == 3, output  # the edited call is asked about again
    again = json.loads(output)["approval_id"]
    assert again not in (rejected, edited)
    status, output = run("approvals", "approve", again, "--run", "--json")
    assert status == 0, output
    assert [path.name for path in sorted((tmp_path / "workspace").iterdir())] == ["new.txt"]


def test_a_question_that_cannot_be_shown_whole_takes_its_digest(run: Run, tmp_path: Path) -> None:
    approval_id = parked(run, content="x" * 9_000)
    status, output = run("approvals", "approve", approval_id)
    assert status == 1
    assert "cannot be shown whole" in output
    digest = listed(run)[0]["binding"]
    assert run("approvals", "approve", approval_id, "--digest", "sha256:" + "0" * 64)[0] == 1
    assert "x" * 9_000 in run("approvals", "show", approval_id, "--whole")[1].replace("\n│ ", "")
    assert run("approvals", "approve", approval_id, "--digest", digest, "--run")[0] == 0
    assert (tmp_path / "workspace" / "a.txt").stat().st_size == 9_000


def test_unknown_ids_and_empty_places_are_said_plainly(run: Run) -> None:
    status, output = run("approvals", "list")
    assert status == 1
    assert "no call was ever recorded" in output
    parked(run)
    for verb in (["show"], ["approve"], ["reject"]):
        status, output = run("approvals", *verb, "0199-forged")
        assert status == 1
        assert "0199-forged" in output
    assert run("grants", "revoke", "0199-forged")[0] == 1
    assert run("grants", "list")[1] == "There are no lasting approvals.\n"


def test_policy_check_explain_and_replay(run: Run, tmp_path: Path) -> None:
    policy = tmp_path / "p.toml"
    policy.write_text(
        """
        version = 1
        [[rule]]
        tool = "builtin:write"
        decision = "allow"
        args.path.beneath = "drafts"
        justification = "drafts are mine to lose"
        [[rule]]
        tool = "builtin:delete"
        decision = "allow"
        [[rule]]
        tool = "builtin:wriet"
        decision = "deny"
        """
    )
    status, output = run("policy", "check", str(policy), "--json")
    found = {(one["rule"], one["kind"]) for one in json.loads(output)["mistakes"]}
    assert (status, found) == (1, {("p.toml:8", "broad"), ("p.toml:11", "never")})

    status, output = run("policy", "explain", "write", "path=drafts/a", "content=x", "--policy", str(policy), "--json")
    said = json.loads(output)
    assert (status, said["decision"], said["rule"], said["why"]) == (0, "allow", "p.toml:3", "drafts are mine to lose")
    assert (
        json.loads(run("policy", "explain", "write", "path=b", "content=x", "--policy", str(policy), "--json")[1])[
            "rule"
        ]
        == "risk-table"
    )
    assert run("policy", "explain", "write", "path=../b", "content=x")[0] == 2
    assert run("policy", "explain", "nothing")[0] == 2

    run("call", "write", "path=drafts/a", "content=x", "--approve", "always")
    run("call", "delete", "path=drafts/a", "--approve", "always")
    status, output = run("policy", "replay", str(policy), "--json")
    assert [(one["tool"], one["decision"]) for one in json.loads(output)] == [
        ("builtin:write", "allow"),
        ("builtin:delete", "allow"),
    ]
    assert "2 would run without asking (1 of them destructive or dangerous)" in run("policy", "replay", str(policy))[1]

    policy.write_text('version = 1\n[[rule]]\ntool = "builtin:write"\ndecision = "deny"\n')
    status, output = run("policy", "replay", str(policy), "--json")
    table = RiskTable().of(RiskLevel.DESTRUCTIVE, staged=True)
    assert [(one["decision"], one["rule"], one["why"]) for one in json.loads(output)] == [
        ("deny", "p.toml:2", "deny builtin:write"),
        ("ask", table.rule, table.why),  # where no rule speaks
    ]
    said = run("policy", "replay", str(policy))[1]
    assert "2 calls: 0 would run without asking (0 of them destructive or dangerous), 1 would be asked about, 1" in said
    assert "!" not in said


def test_a_policy_of_the_workspace_is_never_used(run: Run, tmp_path: Path) -> None:
    inside = tmp_path / "workspace" / "policy.toml"
    inside.write_text('version = 1\n[[rule]]\nglob = "*"\ndecision = "allow"')
    for hidden in (".handrail", ".config/handrail"):
        (tmp_path / "workspace" / hidden).mkdir(parents=True)
        (tmp_path / "workspace" / hidden / "policy.toml").write_text(inside.read_text())
    (tmp_path / "workspace" / ".env").write_text(f"XDG_CONFIG_HOME={tmp_path}/workspace/.config\n")
    assert json.loads(run("policy", "explain", "write", "path=a", "content=x", "--json")[1])["decision"] == "ask"
    status, output = run("call", "write", "path=a", "content=x", "--policy", str(inside), "--approve", "never")
    assert status == 2
    assert "lies in the workspace" in output
