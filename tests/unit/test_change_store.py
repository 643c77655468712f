"""ChangeStore: what becomes real, what is refused, and what is kept."""

import os
import shutil
import time
import traceback
from pathlib import Path

import anyio
import pytest

from changes_kit.committing import commit
from changes_kit.places import quick_directory
from changes_kit.trees import grow, tree_of
from handrail import faults
from handrail.changes.beneath import MAX_DEPTH
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.plan import Plan
from handrail.changes.store import IN_FLIGHT_SECONDS, ChangeStore
from handrail.errors import ChangeConflict, ChangeError, ConfigurationError, PathUnusable, UndoUnavailable
from handrail.workspace import Workspace


@pytest.fixture
def tmp_path():
    with quick_directory() as path:
        yield path


@pytest.fixture
def place(tmp_path: Path):
    root = tmp_path / "workspace"
    root.mkdir()
    return root


@pytest.fixture
def store(tmp_path: Path, place: Path):
    with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as opened:
        yield opened


def plan(store: ChangeStore) -> Plan:
    return Plan(store.workspace, store.contents)


def several(store: ChangeStore, place: Path) -> ChangeSet:
    """One ChangeSet with every kind of change."""
    grow(place, {"edit.txt": "old\n", "gone.txt": "bye\n", "dir/a": "a", "dir/sub/b": "b", "run.sh": "#!/bin/sh\n"})
    (place / "swap").symlink_to("edit.txt")
    wishes = plan(store)
    wishes.write("edit.txt", b"new\n")
    wishes.delete("gone.txt")
    wishes.move("dir", "moved/deeper")
    wishes.write("fresh/one/two.txt", b"two\n")
    wishes.write("run.sh", b"#!/bin/sh\n", mode=0o755)
    wishes.delete("swap")
    wishes.mkdir("swap")
    wishes.write("swap/inside", b"inside")
    wishes.link("link", b"edit.txt")
    return wishes.changes()


def test_every_kind_of_change_becomes_real_and_nothing_is_left_behind(store, place):
    changes = several(store, place)
    assert {change.verb for change in changes} == {"create", "delete", "modify", "mode", "replace"}
    commit(store, changes)
    assert (place / "edit.txt").read_text() == "new\n"
    assert not (place / "gone.txt").exists()
    assert (place / "moved/deeper/sub/b").read_text() == "b"
    assert (place / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (place / "swap/inside").read_text() == "inside"
    assert os.readlink(place / "link") == "edit.txt"
    assert not [name for name in os.listdir(place) if name.startswith(".handrail")]
    assert not (Path(store.path) / "commit.json").exists()


def test_undo_gives_back_the_tree_byte_for_byte_and_can_itself_be_undone(store, place):
    changes = several(store, place)
    before = tree_of(place)
    call = commit(store, changes)
    after = tree_of(place)
    undo = commit(store, store.inverse_of(call))
    assert tree_of(place) == before
    commit(store, store.inverse_of(undo))
    assert tree_of(place) == after


def test_an_outside_edit_means_conflict_names_the_file_and_changes_nothing(store, place):
    changes = several(store, place)
    (place / "edit.txt").write_text("mine\n")
    (place / "dir/added").write_text("mine\n")
    before = tree_of(place)
    with pytest.raises(ChangeConflict) as caught:
        commit(store, changes)
    assert set(caught.value.paths) == {b"edit.txt", b"dir/added"}
    assert tree_of(place) == before


def test_a_call_that_is_committed_already_is_not_applied_again(store, place):
    wishes = plan(store)
    wishes.write("a", b"1")
    commit(store, wishes.changes(), "call")
    (place / "a").write_text("edited since")
    commit(store, wishes.changes(), "call")
    assert (place / "a").read_text() == "edited since"
    other = plan(store)
    other.write("b", b"2")
    with pytest.raises(ChangeError, match="committed other changes already"):
        commit(store, other.changes(), "call")


def test_nothing_is_applied_when_the_journal_cannot_say_that_it_begins(store, place):
    async def fail() -> None:
        raise RuntimeError("journal")

    wishes = plan(store)
    wishes.write("a", b"1")
    with pytest.raises(RuntimeError, match="journal"):
        commit(store, wishes.changes(), begun=fail)
    assert os.listdir(place) == []


def test_begun_comes_before_the_first_change_and_ended_after_the_last(store, place):
    seen: list[tuple[str, bool]] = []

    async def begun() -> None:
        seen.append(("begun", (place / "a").exists()))

    async def ended() -> None:
        seen.append(("ended", (place / "a").exists()))

    wishes = plan(store)
    wishes.write("a", b"1")
    commit(store, wishes.changes(), begun=begun, ended=ended)
    assert seen == [("begun", False), ("ended", True)]


@pytest.mark.parametrize("attack", ["hard link", "set-user-id", "fifo", "set-user-id after"])
def test_what_a_copy_cannot_be_faithful_to_is_refused(store, place, attack):
    target = place / "f"
    target.write_text("x")
    wishes = plan(store)
    wishes.write("f", b"y", mode=0o4755 if attack == "set-user-id after" else None)
    changes = wishes.changes()
    if attack == "hard link":
        os.link(target, place / "g")
    elif attack == "set-user-id":
        target.chmod(0o4755)
        state = changes.changes[0]
        assert state.before is not None
        before = FileState("file", 0o4755, 1, state.before.sha256)
        changes = ChangeSet((Change(b"f", before, state.after),))
    elif attack == "fifo":
        target.unlink()
        os.mkfifo(target)
    before = sorted(os.listdir(place))
    with pytest.raises(ChangeError) as caught:
        commit(store, changes)
    assert "'f'" in str(caught.value)
    assert sorted(os.listdir(place)) == before


def test_a_commit_never_goes_through_a_link(store, place, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    grow(place, {"d/f": "old"})
    wishes = plan(store)
    wishes.write("d/f", b"new")
    os.rename(place / "d", place / "elsewhere")
    (place / "d").symlink_to(outside)
    (outside / "f").write_text("old")
    with pytest.raises(ChangeConflict):
        commit(store, wishes.changes())
    assert (outside / "f").read_text() == "old"
    assert (place / "elsewhere/f").read_text() == "old"


@pytest.mark.parametrize("path", [b"../x", b"/etc/x", b"a/../../x", b"", b"a//b", b"a\0b", b".handrail-commit-x/y"])
def test_a_path_that_is_no_path_inside_is_refused(store, path):
    state = FileState("file", 0o644, 1, store.contents.put(b"x"))
    with pytest.raises(ChangeError):
        commit(store, ChangeSet((Change(path, None, state),)))


def test_a_damaged_content_is_noticed_before_anything_changes(store, place):
    wishes = plan(store)
    wishes.write("a", b"right")
    name = wishes.changes().changes[0].after.sha256
    (Path(store.path) / "contents" / name).write_bytes(b"wrong")
    with pytest.raises(ChangeError, match="damaged"):
        commit(store, wishes.changes())
    assert os.listdir(place) == []


def test_held_changes_wait_durably_and_a_drop_forgets_them(store, place, tmp_path):
    wishes = plan(store)
    wishes.write("a", b"1")
    anyio.run(store.hold, "parked", wishes.changes())
    with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as other:
        held = anyio.run(other.held, "parked")
        assert held == wishes.changes()
        anyio.run(other.drop, "parked")
    assert anyio.run(store.held, "parked") is None
    assert os.listdir(place) == []


def test_the_state_directory_may_not_lie_inside_the_workspace(place):
    with Workspace(place) as workspace, pytest.raises(ConfigurationError, match="outside"):
        ChangeStore(str(place / "state"), workspace)


def test_a_store_that_cannot_be_opened_leaves_nothing_open(store, place, tmp_path):
    os.rename(f"{store.path}/contents", f"{store.path}/moved")
    Path(store.path, "contents").write_text("no directory")
    with Workspace(place) as workspace:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="contents"):
            ChangeStore(str(Path(store.path).parents[1]), workspace)
        assert os.listdir("/proc/self/fd") == before


def test_the_private_store_is_private(store):
    for above, directories, files in os.walk(store.path):
        assert os.stat(above).st_mode & 0o077 == 0, above
        for name in [*directories, *files]:
            assert os.stat(os.path.join(above, name)).st_mode & 0o077 == 0, name


def test_the_oldest_undo_goes_first_when_the_store_is_full_and_it_says_so(tmp_path, place):
    with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace, max_bytes=2500) as store:
        calls = []
        for number in range(4):
            wishes = plan(store)
            wishes.write("f", bytes([65 + number]) * 800)
            calls.append(commit(store, wishes.changes()))
            assert store.contents.bytes_in_use <= 2500
        with pytest.raises(UndoUnavailable, match="limit of 2500 bytes"):
            store.inverse_of(calls[0])
        commit(store, store.inverse_of(calls[-1]))
        assert (place / "f").read_bytes() == b"C" * 800
        held = sum(size for _, size, _ in store.contents.sizes())
        assert held == store.contents.bytes_in_use <= 2500


def test_a_content_larger_than_the_whole_store_is_refused_and_replacing_one_cannot_be_undone(tmp_path, place):
    (place / "f").write_bytes(b"x" * 5000)
    with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace, max_bytes=1000) as store:
        with pytest.raises(ChangeError, match="full"):
            store.contents.put(b"y" * 5000)
        before = FileState("file", 0o644, 5000, __import__("hashlib").sha256(b"x" * 5000).hexdigest())
        after = FileState("file", 0o644, 3, store.contents.put(b"new"))
        call = commit(store, ChangeSet((Change(b"f", before, after),)))
        assert (place / "f").read_bytes() == b"new"
        with pytest.raises(UndoUnavailable, match="did not fit"):
            store.inverse_of(call)


def test_an_undo_older_than_the_age_limit_is_given_up(tmp_path, place):
    now = [1000.0]
    with (
        Workspace(place) as workspace,
        ChangeStore(str(tmp_path / "state"), workspace, max_age=60, clock=lambda: now[0]) as store,
    ):
        wishes = plan(store)
        wishes.write("f", b"1")
        call = commit(store, wishes.changes())
        now[0] += 59
        store.tidy()
        assert store.inverse_of(call)
        now[0] += 2
        store.tidy()
        with pytest.raises(UndoUnavailable, match="older than"):
            store.inverse_of(call)
        assert [entry.call_id for entry in store.history()] == [call]


def test_owner_and_user_attributes_of_an_edited_file_are_kept(store, place):
    target = place / "f"
    target.write_text("x")
    os.setxattr(target, "user.note", b"kept")
    if os.geteuid() == 0:
        os.chown(target, 1234, 4321)
    wishes = plan(store)
    wishes.write("f", b"y")
    commit(store, wishes.changes())
    found = target.stat()
    assert os.getxattr(target, "user.note") == b"kept"
    if os.geteuid() == 0:
        assert (found.st_uid, found.st_gid) == (1234, 4321)


def test_a_plan_writes_several_files_into_a_directory_that_it_makes(store, place):
    wishes = plan(store)
    wishes.write("d/one", b"1")
    wishes.write("d/two", b"2")
    commit(store, wishes.changes())
    assert sorted(os.listdir(place / "d")) == ["one", "two"]


def test_a_path_as_deep_as_is_allowed_is_written_and_a_deeper_one_refused(store, place):
    wishes = plan(store)
    with pytest.raises(PathUnusable, match="directories deep"):
        wishes.write("d/" * 1500 + "f", b"1")
    wishes.write("d/" * MAX_DEPTH + "f", b"1")
    call = commit(store, wishes.changes())
    commit(store, store.inverse_of(call))
    assert os.listdir(place) == []
    os.makedirs(place / ("d/" * (MAX_DEPTH + 2)))
    wishes = plan(store)
    wishes.delete("d")
    with pytest.raises(ChangeError, match="directories deep"):
        commit(store, wishes.changes())


class Cut(BaseException):
    """The process ends here, as far as the store can tell."""


def cut_off_at(point: str):
    def hook(name: str) -> None:
        if name == point:
            raise Cut

    return faults.armed(hook)


def test_a_workspace_whose_name_is_not_utf8_has_a_store(tmp_path):
    root = os.path.join(os.fsencode(tmp_path), b"w\xff")
    os.mkdir(root)
    with Workspace(os.fsdecode(root)) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as store:
        wishes = plan(store)
        wishes.write("a", b"1")
        call = commit(store, wishes.changes())
        commit(store, store.inverse_of(call))
    assert os.listdir(root) == []


@pytest.mark.parametrize("point", ["commit:recorded", "commit:applied"])
def test_a_cut_off_commit_whose_directory_somebody_removed_keeps_nobody_out(store, place, tmp_path, point):
    wishes = plan(store)
    wishes.write("a", b"1")
    with pytest.raises(Cut), cut_off_at(point):
        commit(store, wishes.changes(), "call")
    for left in place.glob(".handrail-commit-*"):
        shutil.rmtree(left)
    with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as again:
        assert again.fate("call") == "unknown"
        other = plan(again)
        other.write("b", b"2")
        commit(again, other.changes())
        assert (place / "b").read_text() == "2"


def test_what_is_committed_is_no_longer_held_also_after_a_kill_in_between(store, place, tmp_path):
    async def die() -> None:
        raise Cut

    wishes = plan(store)
    wishes.write("a", b"1")
    anyio.run(store.hold, "again", wishes.changes())
    with pytest.raises(Cut):
        commit(store, wishes.changes(), "again", ended=die)
    commit(store, wishes.changes(), "again")
    assert anyio.run(store.held, "again") is None
    wishes = plan(store)
    wishes.write("b", b"2")
    anyio.run(store.hold, "never again", wishes.changes())
    with pytest.raises(Cut):
        commit(store, wishes.changes(), "never again", ended=die)
    with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as other:
        assert anyio.run(other.held, "never again") is None


def test_half_a_file_of_a_killed_process_is_swept_and_one_being_written_is_not(store, place):
    area = Path(store.path)
    for part in ("", "held", "history"):
        for name, age in (("old.json.0.partial", IN_FLIGHT_SECONDS + 60), ("new.json.0.partial", 0)):
            (area / part / name).write_text("{")
            os.utime(area / part / name, (time.time() - age,) * 2)
    store.tidy()
    assert sorted(path.name for path in area.rglob("*.partial")) == ["new.json.0.partial"] * 3


def test_a_damaged_file_of_the_store_is_named(store, place):
    wishes = plan(store)
    wishes.write("a", b"1")
    commit(store, wishes.changes())
    (entry,) = (Path(store.path) / "history").glob("*.json")
    entry.write_bytes(b"{")
    with pytest.raises(ChangeError, match=f"{entry.name}.* is damaged"):
        store.history()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs two users: files of one, a store of the other")
def test_what_belongs_to_somebody_else_and_cannot_be_removed_keeps_nobody_from_the_next_commit(tmp_path, place):
    grow(place, {"built/theirs/file": "theirs"})
    for path in (tmp_path, place, place / "built"):
        os.chown(path, 65534, 65534)
    child = os.fork()
    if child == 0:  # an ordinary user from here on
        try:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
            for _ in range(2):
                with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as store:
                    wishes = plan(store)
                    if (place / "built").exists():
                        wishes.delete("built")
                    wishes.write("a", b"1")
                    commit(store, wishes.changes())
            os._exit(0 if max(os.listdir(place)) == "a" and not (place / "built").exists() else 3)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (left,) = place.glob(".handrail-commit-*-left-*")
    assert [path.read_text() for path in left.rglob("file")] == ["theirs"]


def test_undo_and_history_keep_the_order_of_commits_when_the_clock_steps_back(tmp_path: Path, place: Path):
    now = [1e9]
    grow(place, {"a": "0"})

    def write(store: ChangeStore, text: str, at: float) -> str:
        now[0] = at
        wishes = plan(store)
        wishes.write("a", text.encode())
        return commit(store, wishes.changes())

    with Workspace(place) as workspace:
        calls: list[str] = []
        for text, at in (("1", 1e9), ("2", 9e8), ("3", 9e8 - 1), ("4", 1.8e9)):  # each by another process
            with ChangeStore(str(tmp_path / "state"), workspace, clock=lambda: now[0], max_age=1e9) as store:
                calls.append(write(store, text, at))
        with ChangeStore(str(tmp_path / "state"), workspace, clock=lambda: now[0], max_age=1e9) as store:
            assert [entry.call_id for entry in store.history()] == calls
            commit(store, store.inverse_of(calls[2], calls[3]))
            assert (place / "a").read_text() == "2"
            commit(store, store.inverse_of(calls[0], calls[1]))
    assert (place / "a").read_text() == "0"


def test_a_count_of_commits_that_a_power_cut_took_back_is_made_anew(tmp_path: Path, place: Path):
    grow(place, {"a": "0"})
    with Workspace(place) as workspace:
        calls: list[str] = []
        for text in "12":
            with ChangeStore(str(tmp_path / "state"), workspace, clock=lambda: 1e9 - int(text), max_age=1e9) as store:  # noqa: B023 - used at once
                wishes = plan(store)
                wishes.write("a", text.encode())
                calls.append(commit(store, wishes.changes()))
                (Path(store.path) / "last-place").write_bytes(b"%020d" % 0)
        with ChangeStore(str(tmp_path / "state"), workspace, clock=lambda: 1.0, max_age=1e9) as store:
            assert [entry.call_id for entry in store.history()] == calls
