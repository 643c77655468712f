"""The house stays as it is drawn: imports at the top, doors listed, shapes pinned."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import fields

import handrail
from handrail import Reason, ToolOutcome

SOURCE = Path(__file__).resolve().parents[2] / "src"
MODULES = sorted(SOURCE.rglob("*.py"))
HEAVY = {"anthropic", "apsw", "mcp", "numpy", "openai", "prompt_toolkit", "psycopg", "pydantic", "rich", "typer"}


def _ours(node: ast.Import | ast.ImportFrom) -> bool:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
    relative = isinstance(node, ast.ImportFrom) and node.level > 0
    return relative or any(name.split(".")[0] in ("handrail", "handrail_cell") for name in names)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_of_ours_hides_inside_a_function(module: Path) -> None:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    hidden = [
        f"line {inner.lineno}"
        for outer in ast.walk(ast.parse(module.read_text()))
        if isinstance(outer, functions)
        for inner in ast.walk(outer)
        if isinstance(inner, (ast.Import, ast.ImportFrom)) and _ours(inner)
    ]
    assert not hidden


def test_the_front_hall_lists_every_door_in_order() -> None:
    assert list(handrail.__all__) == sorted(handrail.__all__)
    assert all(getattr(handrail, name) is not None for name in handrail.__all__)


def test_importing_handrail_loads_nothing_heavy() -> None:
    code = "import sys, handrail; print(' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "handrail" in loaded
    assert not HEAVY & set(loaded)


def test_the_help_of_the_command_line_loads_no_extra() -> None:
    code = (
        "import sys\nfrom handrail.cli.main import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "print('\\nLOADED', ' '.join({name.split('.')[0] for name in sys.modules}))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = shown.rpartition("LOADED")[2].split()
    assert "typer" in loaded
    assert not {"anthropic", "apsw", "mcp", "numpy", "openai", "psycopg"} & set(loaded)


def test_the_shape_of_an_outcome_is_pinned() -> None:
    """Programs read these: a new field or reason is an API decision, made here as well."""
    assert [field.name for field in fields(ToolOutcome)] == [
        "status", "text", "reason", "truncated", "full_output", "duration_ms", "call_id", "tool", "value", "content",
        "limit", "approval_id", "edited_arguments", "invalid_output", "changes", "enforcement",
    ]  # fmt: skip
    assert set(ToolOutcome.ok("x").to_json()) == {field.name for field in fields(ToolOutcome)}
    assert sorted(reason.value for reason in Reason) == [
        "approval_expired", "awaiting_approval", "cancelled", "cannot_stage", "changes_rejected", "commit_failed",
        "conflict", "connection_lost", "cpu_limit", "crashed", "denied", "disk_limit", "exit_status",
        "file_size_limit", "internal", "interrupted", "invalid_arguments", "invalid_output", "journal_unavailable",
        "maybe_running", "memory_limit", "no_approver", "not_run", "open_files_limit", "output_limit",
        "path_refused", "process_limit", "quarantined", "rejected", "sandbox_unavailable", "timed_out", "tool_error",
        "unknown_tool", "write_refused",
    ]  # fmt: skip


@pytest.mark.parametrize("module", sorted((SOURCE / "handrail/cli").glob("*.py")), ids=lambda path: path.name)
def test_the_command_line_prints_lines_through_the_one_function_that_makes_them_harmless(module: Path) -> None:
    printing = {"echo", "secho", "print"}
    found = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in printing
    }
    # a console prints what went through the same rules; a view's line is JSON that did
    allowed = {"typer.echo"} if module.name == "show.py" else {"print"} if module.name == "views.py" else set()
    assert {name for name in found if name.split(".")[0] in ("typer", "click", "print")} <= allowed
