"""A workspace that was moved: what was done at its old path is named, kept, and there when it is back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from changes_kit.committing import commit
from changes_kit.places import quick_directory
from changes_kit.trees import grow, tree_of
from handrail.changes.plan import Plan
from handrail.changes.store import ChangeStore
from handrail.cli.changes import changes_app, undo_app
from handrail.errors import UndoUnavailable
from handrail.workspace import Workspace


@pytest.fixture
def base():
    with quick_directory() as path:
        grow(path / "old", {"a": "before", "b": "b"})
        yield path


def opened(base: Path, name: str) -> ChangeStore:
    return ChangeStore(str(base / "state" / "handrail"), Workspace(base / name))


def changed(base: Path) -> str:
    with opened(base, "old") as store:
        plan = Plan(store.workspace, store.contents)
        plan.write("a", b"after")
        return commit(store, plan.changes(), "call-1")


@pytest.mark.promise("changes:moved:named-and-kept")
def test_an_undo_in_a_moved_workspace_says_where_it_was_and_works_again_there(base):
    call = changed(base)
    (base / "old").rename(base / "new")
    with opened(base, "new") as store:
        with pytest.raises(UndoUnavailable, match=r"was at '.*/old' \(1 remembered\) before; .* at that path again"):
            store.inverse_of(call)
        with pytest.raises(UndoUnavailable, match="no change of a call 'never'"):
            store.inverse_of("never")
        assert store.history() == []
    (base / "new").rename(base / "old")
    with opened(base, "old") as store:
        commit(store, store.inverse_of(call))
        assert [area.changes for area in store.moved_from()] == [0], "nothing was changed at the other path"
    assert (base / "old" / "a").read_text() == "before"


@pytest.mark.promise("changes:moved:named-and-kept")
def test_the_command_line_says_so_too(base, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(base / "config"))
    call = changed(base)
    (base / "old").rename(base / "new")
    listed = CliRunner().invoke(changes_app, ["--workspace", str(base / "new")])
    named = CliRunner().invoke(changes_app, [call, "--workspace", str(base / "new")])
    refused = CliRunner().invoke(undo_app, [call, "--workspace", str(base / "new")])
    assert listed.exit_code == 0
    for said in (listed, named, refused):
        assert f"this directory was at '{base / 'old'}' (1 remembered) before" in " ".join(said.output.split())
    assert named.exit_code == 1
    assert refused.exit_code != 0


def test_another_directory_at_the_old_path_is_told_nothing_of_the_one_before(base):
    changed(base)
    (base / "old").rename(base / "new")
    grow(base / "old", {"a": "another"})
    with opened(base, "old") as store:
        assert (store.history(), store.moved_from()) == ([], [])
    with opened(base, "new") as store:
        assert [area.was_at for area in store.moved_from()] == [str(base / "old")]


KILLED = """
import os, signal, sys
from changes_kit.committing import commit
from handrail import faults
from handrail.changes.plan import Plan
from handrail.changes.store import ChangeStore
from handrail.workspace import Workspace
def hook(name):
    hook.passed += name == "apply:moved"
    if hook.passed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
hook.passed = 0
store = ChangeStore(sys.argv[1], Workspace(sys.argv[2]))
plan = Plan(store.workspace, store.contents)
for name in ("a", "b", "c"):
    plan.write(name, b"after")
changes = plan.changes()
with faults.armed(hook):
    commit(store, changes, "call-1")
"""


@pytest.mark.promise("changes:moved:named-and-kept")
@pytest.mark.promise("changes:crash:all-or-nothing")
def test_a_commit_that_was_cut_off_is_carried_on_after_the_workspace_was_moved(base):
    tests = str(Path(__file__).parent.parent)
    with opened(base, "old"):
        before = tree_of(base / "old")
    arguments = [sys.executable, "-c", KILLED, str(base / "state" / "handrail"), str(base / "old")]
    died = subprocess.run(arguments, env={**os.environ, "PYTHONPATH": tests}, capture_output=True, check=False)
    assert died.returncode == -9, died.stderr.decode()
    (base / "old").rename(base / "new")
    assert tree_of(base / "new") != before
    for _ in range(2):
        with opened(base, "new"):
            assert {name: (base / "new" / name).read_text() for name in os.listdir(base / "new")} == {
                "a": "after",
                "b": "after",
                "c": "after",
            }
