"""What the ``bash`` tool promises, through the corridor."""

import asyncio
import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import (
    AlwaysApprove,
    ApprovalRequest,
    CallbackApprover,
    Reason,
    Reject,
    RiskLevel,
    ToolExecutor,
    ToolOutcome,
    ToolRegistry,
    Workspace,
)
from handrail.builtins.bash import DEFINITION, bash_plugin
from handrail.changes.store import ChangeStore
from handrail.sandbox.bodies import Cells
from handrail.sandbox.supervisor import Supervisor

pytestmark = pytest.mark.walls


class Shell:
    """A workspace with bash, and everything that was asked about its calls."""

    def __init__(self, directory: Path, supervisor: Supervisor) -> None:
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        self.asked: list[ApprovalRequest] = []
        self.refuse = False
        self._directory = directory
        self._supervisor = supervisor

    def __call__(self, command: str, **options: Any) -> ToolOutcome:
        registry = ToolRegistry()
        cells = Cells(self._supervisor, spill_directory=str(self._directory / "outputs"))
        registry.register_plugin(bash_plugin(cells))
        with (
            Workspace(self.workspace) as workspace,
            ChangeStore(str(self._directory / "state"), workspace) as changes,
            ToolExecutor(
                registry, workspace=workspace, changes=changes, approver=CallbackApprover(self._answer)
            ) as executor,
        ):
            return asyncio.run(executor.execute("bash", {"command": command, **options}))

    async def _answer(self, request: ApprovalRequest) -> Any:
        self.asked.append(request)
        return Reject("no", "test") if self.refuse else await AlwaysApprove().decide(request)

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.workspace.iterdir())


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    with Supervisor() as one:
        yield one


@pytest.fixture
def shell(tmp_path: Path, supervisor: Supervisor) -> Shell:
    return Shell(tmp_path, supervisor)


def test_the_declaration() -> None:
    assert DEFINITION.risk_level is RiskLevel.MUTATION
    assert DEFINITION.capability.exec
    assert DEFINITION.capability.writes
    assert not DEFINITION.capability.network
    assert DEFINITION.guarded_args == ("cwd",)


@pytest.mark.promise("bash:exit:status-is-the-truth")
@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("exit 3", 3),
        ("false", 1),
        ("echo fine; exit 7", 7),
        ("no-such-program", 127),
        ("set -o pipefail; false | true", 1),
    ],
)
def test_a_status_other_than_0_is_an_error_that_says_so(command: str, status: int, shell: Shell) -> None:
    outcome = shell(command)
    assert outcome.status == "error"
    assert outcome.reason is Reason.EXIT_STATUS
    assert f"Exit status {status}." in outcome.text


@pytest.mark.parametrize("command", ["true", "echo error: it failed; exit 0", "false | true", "ls none; true"])
def test_status_0_succeeds_whatever_the_output_says(command: str, shell: Shell) -> None:
    assert shell(command).succeeded


def test_killed_by_a_signal_is_a_crash(shell: Shell) -> None:
    outcome = shell("kill -SEGV $$")
    assert outcome.reason is Reason.CRASHED
    assert "signal 11" in outcome.text


def test_output_and_errors_come_in_order(shell: Shell) -> None:
    assert shell("echo a; echo b >&2; echo c").text == "a\nb\nc\n"


@pytest.mark.promise("bash:changes:only-of-a-success")
def test_changes_become_real_after_they_were_seen_and_only_of_a_success(shell: Shell) -> None:
    (shell.workspace / "old").write_text("old\n")
    outcome = shell("echo new > new; rm old; mkdir sub; echo x > sub/x")
    assert outcome.succeeded, outcome.text
    assert shell.names == ["new", "sub"]
    assert outcome.changes is not None
    assert outcome.changes.committed
    assert set(outcome.changes.paths) == {"new", "old", "sub", "sub/x"}
    (asked,) = shell.asked
    assert "+new" in asked.diff
    assert "-old" in asked.diff

    failed = shell("echo other > other; rm new; exit 1")
    assert shell.names == ["new", "sub"]
    assert failed.text == "Exit status 1.\nNothing in the workspace was changed."
    assert len(shell.asked) == 1

    shell.refuse = True
    refused = shell("echo other > other")
    assert refused.reason is Reason.CHANGES_REJECTED
    assert shell.names == ["new", "sub"]


def test_a_command_that_changes_nothing_is_not_asked_about(shell: Shell) -> None:
    shell.refuse = True
    assert shell("echo only looking; touch /tmp/elsewhere").text == "only looking\n"
    assert shell.asked == []


@pytest.mark.promise("bash:output:tail-and-whole")
@pytest.mark.parametrize(
    ("command", "whole"),
    [
        ("seq 1 5000", "".join(f"{n}\n" for n in range(1, 5001))),
        ("head -c 300000 /dev/zero | tr '\\0' x; echo; echo end", "x" * 300_000 + "\nend\n"),
    ],
)
def test_long_output_is_cut_to_its_end_and_kept_whole(command: str, whole: str, shell: Shell) -> None:
    outcome = shell(command)
    assert outcome.truncated
    assert outcome.full_output is not None
    kept = Path(outcome.full_output.path)
    assert kept.read_text() == whole
    assert outcome.full_output.bytes == len(whole)
    assert outcome.full_output.sha256 == hashlib.sha256(whole.encode()).hexdigest()
    assert kept.stat().st_mode & 0o777 == 0o600
    note, _, tail = outcome.text.partition("\n")
    assert str(kept) in note
    assert whole.endswith(tail)
    assert len(tail.splitlines()) <= 2000
    assert len(outcome.text.encode()) <= 50_000


def test_the_end_of_a_failures_output_and_its_status_are_both_read(shell: Shell) -> None:
    outcome = shell("seq 1 5000; exit 2")
    assert outcome.text.endswith("4999\n5000\nExit status 2.\nNothing in the workspace was changed.")


def test_short_output_is_whole(shell: Shell) -> None:
    outcome = shell("seq 1 2000")
    assert not outcome.truncated
    assert outcome.full_output is None
    assert outcome.text == "".join(f"{n}\n" for n in range(1, 2001))


def test_a_timeout_says_so(shell: Shell) -> None:
    outcome = shell("echo begun; sleep 100", timeout=1.5)
    assert (outcome.reason, outcome.limit) == (Reason.TIMED_OUT, "wall")
    assert outcome.text == "begun\nExecution timed out after 1.5s\nNothing in the workspace was changed."


@pytest.mark.promise("bash:end:nothing-is-left")
def test_background_jobs_do_not_outlive_the_command(shell: Shell) -> None:
    """What they would write into the shared directory never comes: they are gone, not detached."""
    assert shell("(trap '' TERM HUP; setsid sleep 0.5; echo late > late) & disown; echo started").text == "started\n"
    assert shell("sleep 1").succeeded
    assert shell.names == []


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "PIPE"])
def test_a_program_hears_signals_as_it_would_outside(name: str, shell: Shell) -> None:
    outcome = shell(f"sh -c 'kill -{name} $$; echo deaf'")
    assert "deaf" not in outcome.text
    assert not outcome.succeeded


def test_it_starts_in_the_workspace_or_where_it_was_told_to(shell: Shell) -> None:
    (shell.workspace / "sub").mkdir()
    assert shell("pwd").text == f"{shell.workspace}\n"
    assert shell("pwd", cwd="sub").text == f"{shell.workspace}/sub\n"
    assert shell("pwd", cwd="..").reason is Reason.PATH_REFUSED
    assert shell("pwd", cwd="missing").status == "error"


def test_there_is_no_network(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for address in (f"127.0.0.1/{port}", "192.0.2.1/80"):
            outcome = shell(f"exec 3<>/dev/tcp/{address}")
            assert outcome.reason is Reason.EXIT_STATUS
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()  # the command has a loopback of its own, and the machine's is another


@pytest.mark.parametrize("bad", [{"timeout": 0}, {"timeout": 601}, {"timeout": "5"}, {"shell": "sh"}])
def test_arguments_are_strict(bad: dict[str, Any], shell: Shell) -> None:
    assert shell("true", **bad).reason is Reason.INVALID_ARGUMENTS
