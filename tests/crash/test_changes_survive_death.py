"""Kill the process at point 1, 2, 3 … of staging, commit, undo and recovery, until a run survives.

After every death the next start finds the workspace as it was before or as it is after, never between, and starting
once more changes nothing.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from changes_kit.committing import commit
from changes_kit.places import quick_directory
from changes_kit.trees import Tree, grow, tree_of
from handrail.changes.plan import Plan
from handrail.changes.store import ChangeStore
from handrail.workspace import Workspace

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).parent.parent / "changes_kit" / "doomed.py"
BEFORE = {
    "a-gone": "bye",
    "b-edit": "old",
    "c-dir/x": "x",
    "c-dir/sub/y": "y",
    "d-mode": "m",
    "e-kind/in": "1",
    "z": "z",
}


@pytest.fixture(scope="module")
def doomed() -> Iterator[subprocess.Popen]:
    environment = {**os.environ, "PYTHONPATH": str(PROGRAM.parent.parent)}
    with subprocess.Popen(
        [sys.executable, str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.stdin.close()


class Scene:
    """A prototype of workspace and state that every death starts from, and the two trees that may come out."""

    def __init__(self, base: Path, doomed: subprocess.Popen) -> None:
        self.base = base
        self.root = base / "workspace"
        self.state = base / "state"
        self.doomed = doomed
        self.stores: list[ChangeStore] = []
        self.state.mkdir(mode=0o700)
        grow(self.root, BEFORE)

    def store(self) -> ChangeStore:
        return ChangeStore(str(self.state), Workspace(self.root))

    def remember(self) -> None:
        """Everything as it is now is where each run begins. The workspace directory itself stays: it is who we are."""
        for name in ("workspace", "state"):
            shutil.copytree(self.base / name, self.base / f"prototype-{name}", symlinks=True)

    def reset(self) -> None:
        for name in ("workspace", "state"):
            for entry in os.scandir(self.base / name):
                shutil.rmtree(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)
            shutil.copytree(self.base / f"prototype-{name}", self.base / name, symlinks=True, dirs_exist_ok=True)

    def order(self, do: str, at: int, **more: str) -> dict:
        order = {"do": do, "at": at, "root": str(self.root), "state": str(self.state), "call": "call", **more}
        self.doomed.stdin.write(json.dumps(order) + "\n")
        self.doomed.stdin.flush()
        return json.loads(self.doomed.stdout.readline())

    def restart(self) -> Tree:
        with self.store() as store:
            store.workspace.close()
        assert not (Path(store.path) / "commit.json").exists()
        return tree_of(self.root)

    def die_everywhere(self, do: str, outcomes: list[Tree], **more: str) -> list[str]:
        """Die at each point in turn; return the names of the points of the run that survived."""
        for at in range(1, 500):
            self.reset()
            answer = self.order(do, at, **more)
            first = self.restart()
            assert first in outcomes, (at, answer["points"][-1:])
            assert self.restart() == first
            if not answer["died"]:
                assert first == outcomes[-1]
                return answer["points"]
        raise AssertionError("it never survived")


@pytest.fixture
def scene(doomed):
    with quick_directory() as base:
        yield Scene(base, doomed)


def wishes(store: ChangeStore):
    plan = Plan(store.workspace, store.contents)
    plan.delete("a-gone")
    plan.write("b-edit", b"new")
    plan.move("c-dir", "f-moved")
    plan.write("d-mode", b"m", mode=0o755)
    plan.delete("e-kind")
    plan.write("e-kind", b"a file now")
    plan.write("g/new/file", b"new")
    return plan.changes()


def after_commit(scene: Scene) -> tuple[Tree, Tree]:
    """The trees before and after, found by doing it once."""
    with scene.store() as store:
        before = tree_of(scene.root)
        call = commit(store, wishes(store))
        after = tree_of(scene.root)
        commit(store, store.inverse_of(call))
        assert tree_of(scene.root) == before
        store.workspace.close()
    shutil.rmtree(scene.state)
    scene.state.mkdir(mode=0o700)
    return before, after


def hold(scene: Scene) -> None:
    with scene.store() as store:
        anyio.run(store.hold, "call", wishes(store))
        store.workspace.close()


@pytest.mark.promise("changes:crash:all-or-nothing")
def test_death_at_any_point_of_a_commit_leaves_all_or_nothing(scene):
    before, after = after_commit(scene)
    hold(scene)
    scene.remember()
    points = scene.die_everywhere("commit", [before, after])
    assert {"prepare:slot", "commit:recorded", "apply:moved", "apply:mode", "commit:ended", "discard:step"} <= set(
        points
    )


@pytest.mark.promise("changes:crash:all-or-nothing")
def test_death_at_any_point_of_an_undo_leaves_all_or_nothing(scene):
    with scene.store() as store:
        before = tree_of(scene.root)
        commit(store, wishes(store), "call")
        store.workspace.close()
    after = tree_of(scene.root)
    scene.remember()
    scene.die_everywhere("undo", [after, before])


@pytest.mark.promise("changes:crash:all-or-nothing")
def test_death_at_any_point_of_staging_leaves_nothing_or_all(scene):
    before = tree_of(scene.root)
    upper = scene.base / "upper"
    grow(upper, {"b-edit": "by the call", "c-dir/x": "replaced", "new/file": "new"})
    os.setxattr(upper / "c-dir", "user.overlay.opaque", b"y")
    scene.remember()
    scene.order("stage", 0, upper=str(upper))
    after = scene.restart()
    assert b"c-dir/sub" in before
    assert b"c-dir/sub" not in after
    assert b"new/file" in after
    points = scene.die_everywhere("stage", [before, after], upper=str(upper))
    assert {"stage:entry", "contents:written"} <= set(points)


@pytest.mark.promise("changes:crash:recovery-twice")
def test_death_during_recovery_itself_is_recovered_from(scene):
    before, after = after_commit(scene)
    hold(scene)
    scene.remember()
    points = scene.order("commit", 0)["points"]
    middle = points.index("apply:moved") + 2
    scene.reset()
    assert scene.order("commit", middle)["died"]
    assert tree_of(scene.root) not in (before, after)
    for name in ("workspace", "state"):
        shutil.rmtree(scene.base / f"prototype-{name}")
    # the slots' inodes are evidence, so this scene is not copied: each death goes on from the last
    for at in range(1, 100):
        answer = scene.order("recover", at)
        if not answer["died"]:
            break
    assert at > 3
    assert scene.restart() == after
    assert scene.restart() == after


@pytest.mark.promise("changes:race:no-edit-lost")
def test_death_while_a_commit_is_taken_back_keeps_the_outside_edit_and_nothing_else(scene):
    before, after = after_commit(scene)
    hold(scene)
    scene.remember()
    outcomes = []
    for at in range(1, 500):
        scene.reset()
        answer = scene.order("meddle", at, edit="e-kind/in")
        tree = scene.restart()
        assert scene.restart() == tree
        edited = tree.get(b"e-kind/in", ("", 0, b""))[2] not in (b"", before[b"e-kind/in"][2])
        expected = {**before, b"e-kind/in": tree[b"e-kind/in"]} if edited else None
        assert tree in ([expected] if edited else [before, after]), (at, answer)
        outcomes.append(edited)
        if not answer["died"]:
            assert "'e-kind/in'" in answer["error"]
            break
    assert outcomes[-1]
    assert not outcomes[0]
