"""The table of commands against a "read-only git and listing" policy, and our reading of a line against bash's own."""

import json
import os
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.approval import shell
from handrail.approval.policy_file import parse_policy
from handrail.approval.rules import Subject
from handrail.tool import RiskLevel

TABLE = json.loads((Path(__file__).parents[2] / "fixtures" / "shell_commands.json").read_text())
POLICY = parse_policy(
    """
    version = 1
    [[rule]]
    tool = "builtin:bash"
    decision = "allow"
    justification = "reading git and listing"
    command.shapes = ["git-read", "list-read"]
    """
)
BASH = shutil.which("bash") or ""


def verdict(command: str) -> str:
    subject = Subject(("builtin:bash", "bash"), RiskLevel.DANGEROUS, {"command": command})
    finding = POLICY.find(subject)
    return "ask" if finding is None else finding.decision  # no rule: the risk table asks about dangerous calls


@pytest.mark.promise("policy:shell:table-of-commands")
@pytest.mark.parametrize("row", TABLE, ids=lambda row: ascii(row["command"])[:60])
def test_every_command_of_the_table_gets_its_verdict(row: dict[str, str]) -> None:
    assert verdict(row["command"]) == row["verdict"], row["about"]


def test_the_table_is_large_and_has_both_verdicts() -> None:
    assert len(TABLE) >= 150
    assert {row["verdict"] for row in TABLE} == {"allow", "ask"}


def argv_by_bash(line: str) -> list[str]:
    """The words that bash itself makes of ``line``."""
    script = f'show() {{ printf "%s\\0" "$@"; }}; show {line}'
    environment = {"PATH": "/nonexistent", "LC_ALL": "C.UTF-8"}
    done = subprocess.run([BASH, "--norc", "-c", script], capture_output=True, env=environment, cwd="/", timeout=20)
    assert done.returncode == 0, done.stderr
    return os.fsdecode(done.stdout).split("\0")[:-1]


@pytest.mark.parametrize("row", [row for row in TABLE if row["verdict"] == "allow"], ids=lambda row: row["command"])
def test_bash_reads_every_allowed_command_as_we_do(row: dict[str, str]) -> None:
    parsed = shell.parse(row["command"])
    assert isinstance(parsed, shell.Plain)
    assert argv_by_bash(row["command"].strip("\n")) == list(parsed.argv)


pieces = st.sampled_from(
    [
        *"abgz019-_./:=@%+,^~'\"\\ $`*?[]{}()<>|&;!#\n\t",
        "git",
        " -o",
        "~/",
        "=~",
        ":~",
        "{a,b}",
        "$(id)",
        "''",
        "é",
        "\\'",
        "HEAD~1",
    ]
)


@pytest.mark.promise("policy:shell:bash-agrees")
@settings(deadline=None, max_examples=250)
@given(line=st.lists(pieces, min_size=1, max_size=12).map("".join))
def test_whatever_we_read_bash_reads_the_same(line: str) -> None:
    parsed = shell.parse(line)
    if isinstance(parsed, shell.Plain):
        assert argv_by_bash(line.strip(" \n")) == list(parsed.argv)


@settings(deadline=None, max_examples=300)
@given(line=st.text(max_size=40))
def test_no_text_crashes_the_reader_and_nothing_hidden_is_ever_plain(line: str) -> None:
    parsed = shell.parse(line)
    if isinstance(parsed, shell.Plain):
        assert all(
            unicodedata.category(character)[0] not in "CZ" or character == " "
            for word in parsed.argv
            for character in word
        )
    shell.loose_words(line)


@pytest.mark.parametrize(
    "command",
    ["git push", "git -C sub push", "/tmp/git push", "true && git push", "$(git push)", "env git push", "g'i't pu\\sh",
     "GIT push", "ls; git --no-pager push --force", "xargs git push", "bash -c 'git push'", "git push " + "a" * 5_000,
     "ls " + "a" * 5_000],
)  # fmt: skip
def test_a_forbidden_program_is_found_however_it_is_written(command: str) -> None:
    """codex 37079: deny for `git` was evaded as /tmp/git; Adversa: too many parts turned deny into ask."""
    policy = parse_policy(
        """
        version = 1
        [[rule]]
        tool = "builtin:bash"
        decision = "deny"
        command.argv = ["git", "push"]
        [[rule]]
        tool = "builtin:bash"
        decision = "allow"
        command.shapes = ["git-read", "list-read"]
        """
    )
    finding = policy.find(Subject(("builtin:bash",), RiskLevel.DANGEROUS, {"command": command}))
    assert finding is not None
    assert finding.decision == "deny"


def test_an_allow_for_one_command_does_not_let_another_through() -> None:
    """claude-code 4956: a prefix allowed `a && b`; mini-swe-agent: "ls" matched "ls; rm -rf ~"."""
    policy = parse_policy(
        """
        version = 1
        [[rule]]
        tool = "bash"
        decision = "allow"
        command.argv = ["cargo", ["test", "check"]]
        """
    )

    def decided(command: str) -> str | None:
        finding = policy.find(Subject(("bash",), RiskLevel.READ_ONLY, {"command": command}))
        return None if finding is None else finding.decision

    assert decided("cargo test") == "allow"
    assert decided("cargo test && id") == "ask"
    assert decided("cargo test --target-dir /") is None
    assert decided("cargo run") is None
    assert decided("/tmp/cargo test") is None
    assert decided('echo "\\"; id; echo \\""') == "ask"
