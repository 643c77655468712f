"""The guard itself: what it hands on where no argument is a path, and where some are."""

import os
from pathlib import Path

import pytest

from handrail import ToolDef
from handrail.errors import PathEscape, PathUnusable
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
