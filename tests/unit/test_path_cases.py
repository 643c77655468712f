"""The handed cases for path arguments, through the corridor, with both engines that can hold a path."""

import os
from pathlib import Path
from typing import Any

import pytest

from cases_dir import cases
from handrail import AlwaysApprove, Reason, ToolDef, ToolExecutor, ToolRegistry, Workspace
from handrail.workspace import Engine


def lay_out(steps: list[str], workspace: Path, outside: Path) -> None:
    for step in steps:
        kind, *words = step.format(workspace=workspace, outside=outside).split(" ")
        match kind:
            case "file" | "outside-file":
                place = workspace / words[0]
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text("secret" if kind == "outside-file" else "inside")
            case "dir" | "outside-dir":
                (workspace / words[0]).mkdir(parents=True, exist_ok=True)
            case "link":
                (workspace / words[0]).symlink_to(words[1])
            case "fifo":
                os.mkfifo(workspace / words[0])
            case _:
                raise AssertionError(f"a step of an unknown kind: {step}")


@pytest.mark.promise("guard:paths:handed-cases")
@pytest.mark.parametrize("engine", ["openat2", "walk"])
@pytest.mark.parametrize("case", cases("paths"), ids=lambda case: case["name"])
def test_paths_get_the_right_verdict(case: dict[str, Any], engine: Engine, tmp_path: Path) -> None:
    root, outside = tmp_path / "workspace", tmp_path / "outside"
    root.mkdir()
    lay_out(case["setup"], root, outside)
    workspace = Workspace(root, engine=engine)

    def handler(args: dict[str, Any], workspace: Workspace) -> str:
        flags = os.O_RDONLY if case["access"] == "read" else os.O_PATH
        if case["access"] == "write":
            workspace.locate(args["path"])
            return "inside"
        fd = workspace.open(args["path"], flags)
        try:
            return os.read(fd, 100).decode()
        finally:
            os.close(fd)

    registry = ToolRegistry()
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    registry.register_from_def(ToolDef("probe", "", parameters, path_args=("path",)), handler)
    with ToolExecutor(registry, workspace=workspace, approver=AlwaysApprove()) as executor:
        outcome = executor.execute_sync("probe", {"path": case["arg"].format(workspace=root, outside=outside)})
    if case["expect"] == "inside":
        assert (outcome.status, outcome.text) == ("ok", "inside")
    else:
        assert outcome.status == "error"
        assert outcome.reason in (Reason.PATH_REFUSED, Reason.TOOL_ERROR)
        assert "secret" not in outcome.text
