"""Somebody else edits a file at every single step of a commit: no edit is ever lost."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from changes_kit.committing import commit
from changes_kit.places import quick_directory
from changes_kit.trees import grow, tree_of
from handrail import faults
from handrail.changes.plan import Plan
from handrail.changes.store import ChangeStore
from handrail.errors import ChangeConflict
from handrail.workspace import Workspace

START = {"f": "old\n", "gone": "g", "dir/x": "x", "dir/sub/y": "y", "late": "l\n"}


def append(place: Path) -> None:
    with open(place / "f", "a") as file:
        file.write("edit\n")


def replace(place: Path) -> None:
    (place / "mine").write_text("edit\n")
    os.rename(place / "mine", place / "f")


def into_deleted_directory(place: Path) -> None:
    if (place / "dir/sub").is_dir():
        (place / "dir/sub/mine").write_text("edit\n")


def onto_new_name(place: Path) -> None:
    try:
        fd = os.open(place / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return
    os.write(fd, b"edit\n")
    os.close(fd)


def edited_last(place: Path) -> None:
    with open(place / "late", "a") as file:
        file.write("edit\n")


EDITS: dict[str, Callable[[Path], None]] = {
    edit.__name__: edit for edit in (append, replace, into_deleted_directory, onto_new_name, edited_last)
}


def changes_of(store: ChangeStore):
    plan = Plan(store.workspace, store.contents)
    plan.write("f", b"new\n")
    plan.delete("gone")
    plan.delete("dir")
    plan.write("late", b"new\n")
    plan.write("new", b"new\n")
    return plan.changes()


def attempt(base: Path, at: int, edit: Callable[[Path], None]) -> tuple[bool, int, dict, dict]:
    """One commit with one edit at point ``at``: (conflict?, points passed, tree with the edit alone, tree now)."""
    place = base / "workspace"
    grow(place, START)
    passed = 0
    with Workspace(place) as workspace, ChangeStore(str(base / "state"), workspace) as store:
        changes = changes_of(store)

        def hook(_: str) -> None:
            nonlocal passed
            passed += 1
            if passed == at:
                edit(place)

        with faults.armed(hook):
            try:
                commit(store, changes)
                conflict = False
            except ChangeConflict:
                conflict = True
    now = tree_of(place)
    only = base / "only"
    grow(only, START)
    edit(only)
    return conflict, passed, tree_of(only), now


def texts_in(place: Path) -> list[bytes]:
    return [path.read_bytes() for path in place.rglob("*") if path.is_file()]


@pytest.mark.promise("changes:race:no-edit-lost")
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_at_any_point_of_a_commit_is_kept(name):
    edit, at, conflicts = EDITS[name], 0, 0
    while True:
        at += 1
        with quick_directory() as base:
            conflict, passed, edited_alone, now = attempt(base, at, edit)
            texts = texts_in(base / "workspace")
        if at > passed:
            break
        conflicts += conflict
        if conflict:
            assert now == edited_alone, f"taken back at point {at}, and the edit is there"
        else:
            assert not any(path.startswith(b".handrail") for path in now)
            made = any(b"edit" in text for text in texts)
            assert made or name in ("into_deleted_directory", "onto_new_name"), f"lost at point {at}"
    assert conflicts > 3


@pytest.mark.promise("changes:race:no-edit-lost")
def test_whoever_holds_a_file_open_for_writing_makes_it_a_conflict_and_their_words_stay():
    with quick_directory() as base:
        place = base / "workspace"
        grow(place, START)
        with Workspace(place) as workspace, ChangeStore(str(base / "state"), workspace) as store:
            changes = changes_of(store)
            with open(place / "f", "r+") as held:
                with pytest.raises(ChangeConflict):
                    commit(store, changes)
                held.seek(0, os.SEEK_END)
                held.write("edit\n")
            assert (place / "f").read_text() == "old\nedit\n"
            shutil.rmtree(place / "dir")


def test_commits_of_many_threads_and_stores_come_one_after_the_other():
    """Each adds one to a counter file, from what it saw; whoever meets a conflict tries again."""
    with quick_directory() as base:
        place = base / "workspace"
        grow(place, {"counter": "0"})
        problems: list[BaseException] = []

        def count_up(times: int) -> None:
            try:
                with Workspace(place) as workspace, ChangeStore(str(base / "state"), workspace) as store:
                    done = 0
                    while done < times:
                        plan = Plan(workspace, store.contents)
                        plan.write("counter", str(int(plan_read(plan, store)) + 1).encode())
                        try:
                            commit(store, plan.changes())
                            done += 1
                        except ChangeConflict:
                            continue
            except BaseException as error:
                problems.append(error)

        def plan_read(plan: Plan, store: ChangeStore) -> bytes:
            state = plan.state("counter")
            assert state is not None
            return store.contents.read(state.sha256 or "", 100)

        threads = [threading.Thread(target=count_up, args=(6,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert problems == []
        assert (place / "counter").read_text() == "24"
