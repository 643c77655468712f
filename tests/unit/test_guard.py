"""The guard itself: what it hands on where no argument is a path, and where some are."""

import os
from pathlib import Path

import pytest

from handrail import ToolDef
from handrail.errors import PathEscape, PathUnusable, ToolDefinitionError, WorkspaceError
from handrail.guard import FilesystemGuard, Guarded
from handrail.workspace import Workspace

TEXT = {"type": "string"}
BOTH = ToolDef(
    "copy",
    parameters={"type": "object", "properties": {"source": TEXT, "target": TEXT}},
    path_args=("source", "target"),
)


def test_a_call_without_paths_is_handed_on_as_it_is(tmp_path: Path) -> None:
    arguments = {"text": "../x", "count": 3}
    with Workspace(tmp_path) as workspace:
        guarded = FilesystemGuard(workspace).check(ToolDef("say"), arguments)
    assert guarded == Guarded(arguments, {}, {})
    assert guarded.arguments is arguments


def test_what_is_no_text_is_left_to_the_schema_and_absent_paths_are_no_paths(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        assert FilesystemGuard(workspace).check(BOTH, {"source": 5}) == Guarded({"source": 5}, {}, {})


def test_each_path_is_kept_as_requested_and_as_it_resolves_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    given = {"source": "link/a", "target": "real/../b", "mode": "fast"}
    with Workspace(tmp_path) as workspace:
        guarded = FilesystemGuard(workspace).check(BOTH, given)
        root = os.fsdecode(workspace.root)
    assert guarded.arguments == {"source": f"{root}/link/a", "target": f"{root}/b", "mode": "fast"}
    assert guarded.requested == {"source": "link/a", "target": "real/../b"}
    assert guarded.resolved == {"source": f"{root}/real/a", "target": f"{root}/b"}
    assert given["source"] == "link/a"


def test_a_refused_path_is_named_with_its_argument(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace, pytest.raises(PathEscape, match=r"^target: .* leads outside the workspace"):
        FilesystemGuard(workspace).check(BOTH, {"source": "a", "target": "../b"})


def test_a_path_that_climbs_out_of_a_link_is_where_the_kernel_says_and_not_its_text(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "f").write_text("the kernel's")
    (tmp_path / "f").write_text("the text's")
    (tmp_path / "link").symlink_to("a/b")
    with Workspace(tmp_path) as workspace:
        stands, leads = FilesystemGuard(workspace).place("path", "link/../f")
    assert stands == leads == str(tmp_path / "a" / "f")


def test_a_path_the_kernel_will_not_take_is_named_with_the_reason(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace, pytest.raises(PathUnusable, match=r"^path: 'x{300}': File name too long$"):
        FilesystemGuard(workspace).place("path", "x" * 300)


@pytest.mark.promise("guard:customary:guarded-unless-declared")
@pytest.mark.parametrize("name", ["path", "source", "destination", "cwd", "log_path", "log_file"])
@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"type": "object", "properties": {"other": TEXT}},
        {"type": "object", "allOf": [{"properties": {"path": TEXT}}]},
        {"type": "object", "patternProperties": {"_file$": TEXT}},
        {"type": "object", "additionalProperties": TEXT},
    ],
)
def test_a_customary_name_is_guarded_also_where_the_schema_admits_it_without_naming_it(
    tmp_path: Path, name: str, parameters: dict[str, object]
) -> None:
    definition = ToolDef("free", parameters=parameters)
    with Workspace(tmp_path) as workspace:
        guard = FilesystemGuard(workspace)
        with pytest.raises(PathEscape, match=f"^{name}: .* leads outside the workspace"):
            guard.check(definition, {name: "../x"})
        assert guard.check(definition, {name: "x"}).arguments == {name: str(tmp_path / "x")}
        declared = definition.with_(path_args=())
        assert guard.check(declared, {name: "../x"}).arguments == {name: "../x"}


@pytest.mark.promise("guard:customary:guarded-unless-declared")
@pytest.mark.parametrize("value", [["../x"], {"to": "../x"}])
def test_paths_in_a_list_or_an_object_are_refused_because_nobody_could_guard_them(
    tmp_path: Path, value: object
) -> None:
    with Workspace(tmp_path) as workspace, pytest.raises(PathUnusable, match=r"^path: an (array|object), where only"):
        FilesystemGuard(workspace).check(ToolDef("free"), {"path": value})


@pytest.mark.parametrize("kind", ["array", "object"])
def test_a_definition_with_such_an_argument_is_refused_unless_it_says_that_it_holds_no_paths(kind: str) -> None:
    parameters = {"type": "object", "properties": {"path": {"type": kind}}}
    with pytest.raises(ToolDefinitionError, match=r"'path' is named like a path.*say path_args=\(\)"):
        ToolDef("keys", parameters=parameters)
    assert ToolDef("keys", parameters=parameters, path_args=()).guarded_args == ()


@pytest.mark.parametrize("name", ["", b"", "a\0b"])
def test_a_workspace_without_a_usable_name_is_refused_and_is_not_the_current_directory(name: str | bytes) -> None:
    with pytest.raises(WorkspaceError, match="the workspace"):
        Workspace(name)
