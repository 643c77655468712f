"""``handrail changes`` and ``handrail undo``, and the tool behind it, through the corridor."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from changes_kit.trees import grow, tree_of
from handrail.cli.changes import changes_app, undo_app
from handrail.wiring import Settings, open_house


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    root = tmp_path / "workspace"
    grow(root, {"a.txt": "one\n", "b.txt": "b\n"})
    return root


def call(place: Path, tool: str, **arguments: object):
    with open_house(Settings(workspace=str(place), approve="always")) as house:
        outcome = house.executor.execute_sync(tool, arguments)
    assert outcome.status == "ok", outcome
    return outcome


def run(app, *words: str):
    return CliRunner().invoke(app, list(words))


def undo(place: Path, *calls: str):
    done = run(undo_app, "-w", str(place), "--json", *calls)
    return done.exit_code, json.loads(done.stdout)


def test_a_listed_call_is_undone_and_the_undo_is_a_call_that_can_be_undone(place):
    before = tree_of(place)
    written = call(place, "write", path="a.txt", content="two\n")
    after = tree_of(place)
    listed = json.loads(run(changes_app, "-w", str(place), "--json").stdout)
    assert [(entry["call"], entry["paths"], entry["undoable"]) for entry in listed] == [
        (written.call_id, ["a.txt"], True)
    ]
    shown = run(changes_app, "-w", str(place), written.call_id)
    assert "-one" in shown.stdout
    assert "+two" in shown.stdout
    status, undone = undo(place, written.call_id)
    assert (status, undone["status"], undone["changes"]["committed"]) == (0, "ok", True)
    assert tree_of(place) == before
    assert undo(place, undone["call_id"])[0] == 0
    assert tree_of(place) == after


def test_several_calls_are_undone_together_latest_first(place):
    before = tree_of(place)
    calls = [
        call(place, "write", path="a.txt", content="two\n").call_id,
        call(place, "move", source="a.txt", destination="c.txt").call_id,
        call(place, "write", path="c.txt", content="three\n").call_id,
    ]
    status, _ = undo(place, *calls)
    assert status == 0
    assert tree_of(place) == before


def test_an_undo_is_refused_with_the_names_when_a_file_changed_since(place):
    first = call(place, "write", path="a.txt", content="two\n").call_id
    (place / "a.txt").write_text("mine\n")
    status, outcome = undo(place, first)
    assert (status, outcome["reason"]) == (1, "conflict")
    assert "'a.txt'" in outcome["text"]
    assert (place / "a.txt").read_text() == "mine\n"


def test_a_call_in_between_that_is_not_undone_too_is_a_conflict(place):
    first = call(place, "write", path="a.txt", content="two\n").call_id
    call(place, "write", path="a.txt", content="three\n")
    third = call(place, "write", path="a.txt", content="four\n").call_id
    status, outcome = undo(place, first, third)
    assert (status, outcome["reason"]) == (1, "conflict")
    assert (place / "a.txt").read_text() == "four\n"


def test_a_call_nobody_remembers_cannot_be_undone_or_shown(place):
    status, outcome = undo(place, "no-such-call")
    assert status == 1
    assert "no-such-call" in outcome["text"]
    assert run(changes_app, "-w", str(place), "no-such-call").exit_code == 1


def test_hostile_names_and_contents_are_made_visible(place):
    call(place, "write", path="bad\x1b[2Jname", content="clear \x1b[2J screen\n")
    listed = run(changes_app, "-w", str(place))
    assert "\x1b[2J" not in listed.stdout
    name = json.loads(run(changes_app, "-w", str(place), "--json").stdout)[0]["call"]
    shown = run(changes_app, "-w", str(place), name)
    assert "\x1b" not in shown.stdout
    assert "\\x1b[2J" in shown.stdout
