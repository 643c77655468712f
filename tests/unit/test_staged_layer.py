"""What a call wrote to an overlay, read as a ChangeSet."""

import os
from pathlib import Path

import pytest

from changes_kit.committing import commit
from changes_kit.layer import stage
from changes_kit.places import quick_directory
from changes_kit.trees import grow, tree_of
from handrail.changes.store import ChangeStore
from handrail.errors import ChangeConflict, ChangeError
from handrail.outcome import Reason, ToolOutcome
from handrail.sandbox.staging import Stage, staged_effect
from handrail.sandbox.staging_moment import Moment
from handrail.sandbox.staging_probe import probe_staging
from handrail.workspace import Workspace

pytestmark = pytest.mark.walls


@pytest.fixture
def tmp_path():
    with quick_directory() as path:
        yield path


@pytest.fixture
def place(tmp_path: Path):
    root = tmp_path / "workspace"
    grow(root, {"a": "a\n", "b": "b\n", "d/x": "x", "d/y": "y", "d/sub/z": "z", "e/q": "q", "same": "same"})
    (root / "link").symlink_to("a")
    return root


@pytest.fixture
def store(tmp_path: Path, place: Path):
    with Workspace(place) as workspace, ChangeStore(str(tmp_path / "state"), workspace) as opened:
        yield opened


def verbs(changes):
    return {(change.verb, change.path.decode()) for change in changes}


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([["append", "a", "more"]], {("modify", "a")}),
        ([["write", "new", "1"]], {("create", "new")}),
        ([["delete", "a"]], {("delete", "a")}),
        ([["mode", "a", 0o600]], {("mode", "a")}),
        ([["mode", "d", 0o700]], {("mode", "d")}),
        ([["delete", "d"]], {("delete", path) for path in ("d", "d/x", "d/y", "d/sub", "d/sub/z")}),
        ([["move", "a", "c"]], {("delete", "a"), ("create", "c")}),
        ([["rename_over", "a", "b"]], {("delete", "a"), ("modify", "b")}),
        (
            [["move", "e", "f"]],
            {("delete", "e"), ("delete", "e/q"), ("create", "f"), ("create", "f/q")},
        ),
        ([["replace_directory", "e", ["n"]]], {("delete", "e/q"), ("create", "e/n")}),
        (
            [["replace_directory", "d", ["x", "n"]]],
            {("delete", "d/y"), ("delete", "d/sub"), ("delete", "d/sub/z"), ("create", "d/n")},
        ),
        ([["delete", "link"], ["link", "link", "b"]], {("modify", "link")}),
        ([["delete", "link"], ["write", "link", "file"]], {("replace", "link")}),
        (
            [["delete", "e"], ["write", "e", "a file now"]],
            {("replace", "e"), ("delete", "e/q")},
        ),
        ([["delete", "a"], ["mkdir", "a"], ["write", "a/in", "1"]], {("replace", "a"), ("create", "a/in")}),
        ([["touch", "a"], ["append", "b", ""], ["mode", "same", 0o644]], set()),
        ([["delete", "same"], ["write", "same", "same"]], set()),
        ([["write", "temporary", "1"], ["delete", "temporary"]], set()),
        ([["mode", "d", 0o500], ["mode", "d", 0o755]], set()),
    ],
)
def test_what_a_layer_holds_becomes_exactly_these_changes(store, place, operations, expected):
    before = tree_of(place)
    changes = stage(store, operations)
    assert verbs(changes) == expected
    assert tree_of(place) == before
    if changes:
        call = commit(store, changes)
        commit(store, store.inverse_of(call))
        assert tree_of(place) == before


@pytest.mark.parametrize(
    ("operation", "word"),
    [
        (["special", "pipe"], "'pipe' is a FIFO"),
        (["hard_link", "a", "again"], "the call gave 'a.*' several hard links"),
    ],
)
def test_what_cannot_be_committed_faithfully_cannot_be_staged_either(store, operation, word):
    with pytest.raises(ChangeError, match=word):
        stage(store, [operation])


@pytest.mark.promise("changes:hard-links:refused-by-name")
@pytest.mark.parametrize(
    "operation", [["append", "a", "more"], ["mode", "a", 0o600], ["delete", "a"], ["move", "a", "c"]]
)
def test_a_change_that_would_part_a_file_from_its_other_names_is_refused_by_name(store, place, operation):
    os.link(place / "a", place / "also-a")
    before = tree_of(place)
    with pytest.raises(ChangeError, match=r"'a' has 2 hard links; the call's change would part it from its other"):
        stage(store, [operation])
    assert tree_of(place) == before
    assert stage(store, [["append", "b", "more"]]).paths == (b"b",), "the others change as ever"


def test_a_call_that_set_a_user_id_bit_is_refused(store):
    with pytest.raises(ChangeError, match="set-user-id"):
        stage(store, [["mode", "a", 0o4755]])


@pytest.mark.parametrize("edit", ["content", "replaced", "deleted", "mode"])
def test_an_edit_while_the_call_ran_is_a_conflict_although_the_layer_never_saw_it(store, place, edit):
    def outside():
        if edit == "content":
            (place / "a").write_text("mine")
        elif edit == "replaced":
            (place / "mine").write_text("mine")
            os.rename(place / "mine", place / "a")
        elif edit == "deleted":
            (place / "a").unlink()
        else:
            (place / "a").chmod(0o600)

    with pytest.raises(ChangeConflict) as caught:
        stage(store, [["append", "a", "more"]], during=outside)
    assert caught.value.paths == (b"a",)


def test_a_file_that_appears_outside_in_a_directory_the_call_deleted_is_a_conflict(store, place):
    with pytest.raises(ChangeConflict) as caught:
        stage(store, [["delete", "d"]], during=lambda: (place / "d/mine").write_text("mine"))
    assert b"d/mine" in caught.value.paths


def test_an_edit_elsewhere_while_the_call_ran_is_no_conflict(store, place):
    changes = stage(store, [["append", "a", "more"]], during=lambda: (place / "b").write_text("mine"))
    commit(store, changes)
    assert (place / "a").read_text() == "a\nmore"
    assert (place / "b").read_text() == "mine"


@pytest.mark.parametrize("moment", [Moment.now, Moment.after_the_tick])
def test_a_moment_parts_the_change_before_it_from_the_change_after_it(place, moment):
    told = []
    for turn in range(200):
        (place / "a").write_text(f"before {turn}")
        since = moment()
        told.append(since.may_precede(os.stat(place / "a").st_ctime_ns))
        (place / "b").write_text(f"after {turn}")
        assert since.may_precede(os.stat(place / "b").st_ctime_ns), "a later change is always told"
    assert told.count(True) <= len(told) // 10, "an earlier one is hardly ever taken for a later one"


def test_a_moment_that_needs_no_waiting_is_found_where_stamps_are_fine():
    found = [Moment.at_once() for _ in range(20)]
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert any(found) == (release >= (6, 13))


@pytest.mark.parametrize("grain", [1, 100, 10**6, 10**9, 2 * 10**9])
def test_a_stamp_with_fewer_digits_stands_for_all_the_time_to_the_next(grain):
    now = 1_700_000_000_123_456_789
    since = Moment(now, 0)
    assert since.may_precede((now + 1) // grain * grain)
    assert since.may_precede((now + grain) // grain * grain)
    assert not since.may_precede(now // grain * grain - grain)


def test_a_clock_that_was_set_back_is_noticed(store):
    moment = Moment.now()
    with pytest.raises(ChangeError, match="clock"):
        Moment(moment.realtime_ns + 10**9, moment.monotonic_ns).require_steady_clock()


def test_a_failed_call_changes_nothing_and_a_refusal_carries_its_reason(store, place, tmp_path):
    upper = tmp_path / "upper"
    upper.mkdir()
    (upper / "new").write_text("1")
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY)
    since = Moment.now()
    ran = ToolOutcome.ok("it ran")

    def effect(outcome=ran, contents=store.contents):
        return staged_effect(outcome, Stage(since), fd, store.workspace.fd, contents)

    assert effect(ToolOutcome.error("no")).changes is None
    assert effect(contents=None).outcome.reason is Reason.CANNOT_STAGE
    assert effect().changes.paths == (b"new",)
    os.mkfifo(upper / "pipe")
    assert effect().outcome.reason is Reason.CANNOT_STAGE
    (upper / "pipe").unlink()
    (upper / "a").write_text("theirs")
    (place / "a").write_text("mine")
    assert effect().outcome.reason is Reason.CONFLICT
    assert effect().outcome.text.startswith("it ran")
    os.close(fd)


def test_the_probe_tries_a_staged_call_for_real():
    found = probe_staging()
    assert (found.name, found.state) == ("staging", "active"), found
