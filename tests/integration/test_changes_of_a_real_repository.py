"""A real repository: bash formats it, tests it and commits; the diff is shown; undo leaves ``git status`` clean."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from changes_kit.trees import tree_of
from handrail.approval.decision import AlwaysApprove
from handrail.builtins.bash import bash_plugin
from handrail.builtins.undo import undo_plugin
from handrail.changes.store import ChangeStore
from handrail.executor import ToolExecutor
from handrail.registry import ToolRegistry
from handrail.sandbox.bodies import Cells
from handrail.sandbox.supervisor import Supervisor
from handrail.workspace import Workspace

pytestmark = [pytest.mark.walls, pytest.mark.slow]
REPOSITORY = Path(__file__).resolve().parent.parent.parent
TEST = "from untidy import answer\n\n\ndef test_it():\n    assert answer() == 42\n"
# Looking must not write: without this, `git status` rewrites .git/index, which the undo would rightly call a conflict.
GIT = ("git", "--no-optional-locks", "-c", "user.name=t", "-c", "user.email=t@example.org")


def git(place: Path, *words: str) -> str:
    return subprocess.run([*GIT, *words], cwd=place, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """This project, with one badly formatted file and a test of it committed."""
    place = tmp_path / "clone"
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a checkout")
    subprocess.run(["git", "clone", "-q", "--no-hardlinks", str(REPOSITORY), str(place)], check=True)
    (place / "src/handrail/untidy.py").write_text("def  answer( ):\n    return   42\n")
    (place / "tests/unit/test_untidy.py").write_text(
        "from untidy import answer\n\n\ndef test_it():\n    assert answer() == 42\n"
    )
    git(place, "add", "-A")
    git(place, "commit", "-q", "-m", "untidy")
    return place


def test_format_test_commit_and_undo(clone, tmp_path):
    before, head = tree_of(clone), git(clone, "rev-parse", "HEAD")
    python = sys.executable
    command = (
        f"{python} -m ruff format --no-cache -q src/handrail/untidy.py && "
        f"PYTHONPATH=src/handrail {python} -m pytest -q -p no:cacheprovider -c /dev/null tests/unit/test_untidy.py && "
        "git -c user.name=t -c user.email=t@example.org commit -qam formatted && git status --porcelain"
    )
    outside = tuple(dict.fromkeys(os.path.realpath(path) for path in (sys.prefix, sys.base_prefix)))
    with (
        Supervisor() as supervisor,
        Workspace(clone) as workspace,
        ChangeStore(str(tmp_path / "state"), workspace) as store,
    ):
        registry = ToolRegistry()
        registry.register_plugin(bash_plugin(Cells(supervisor, read_only_dirs=outside)))
        registry.register_plugin(undo_plugin(store))
        with ToolExecutor(registry, workspace=workspace, changes=store, approver=AlwaysApprove()) as executor:
            outcome = executor.execute_sync("bash", {"command": command})
            assert outcome.status == "ok", outcome.text
            assert "1 passed" in outcome.text
            assert "-def  answer( ):\n" in outcome.changes.diff
            assert "+def answer():\n" in outcome.changes.diff
            assert outcome.changes.committed
            assert git(clone, "status", "--porcelain") == ""
            assert git(clone, "log", "-1", "--format=%s") == "formatted\n"
            git(clone, "fsck", "--strict")
            undone = executor.execute_sync("undo", {"calls": [outcome.call_id]})
            assert undone.status == "ok", undone.text
    assert tree_of(clone) == before
    assert git(clone, "status", "--porcelain") == ""
    assert git(clone, "rev-parse", "HEAD") == head
