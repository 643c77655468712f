"""What InlineToolExecutor promises, through public names."""

import asyncio
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import handrail
from handrail import Capability, InlineTool, InlineToolExecutor, InlineToolResult, SkillContext, WriteRefused
from handrail.changes.store import ChangeStore

pytestmark = pytest.mark.walls


@pytest.fixture(scope="module")
def executor() -> Iterator[InlineToolExecutor]:
    with InlineToolExecutor() as one:
        yield one


@pytest.fixture
def context(tmp_path: Path) -> Iterator[SkillContext]:
    (tmp_path / "workspace").mkdir()
    with SkillContext(tmp_path / "workspace") as one:
        yield one


def tool(code: str, **options: Any) -> InlineTool:
    return InlineTool(name="probe", code=code, **options)


def test_the_defaults_are_the_promised_ones() -> None:
    executor = InlineToolExecutor()
    assert (executor.max_runtime_seconds, executor.max_output_bytes) == (30.0, 1_048_576)


def test_importing_handrail_loads_no_pydantic_until_it_is_asked_for() -> None:
    assert "InlineToolExecutor" in handrail.__all__
    assert handrail.InlineToolExecutor is InlineToolExecutor


# ── validate_tool ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("inline:validate:only-custom-tools-with-code")
def test_a_custom_tool_with_code_is_inline(executor: InlineToolExecutor) -> None:
    assert executor.validate_tool(tool("result = 1")) == []


@pytest.mark.parametrize("source", ["mcp", "agent_skill", "builtin", "wrapped"])
def test_tools_of_another_source_are_reported_and_do_not_run(
    source: str, executor: InlineToolExecutor, context: SkillContext
) -> None:
    foreign = tool("open('/tmp/x', 'w')", source=source)
    (problem,) = executor.validate_tool(foreign)
    assert repr(source) in problem
    result = executor.execute(foreign, context, {})
    assert not result.success
    assert result.error_message == problem
    assert result.enforcement is None


def test_a_tool_without_code_is_reported(executor: InlineToolExecutor) -> None:
    assert executor.validate_tool(tool("  \n")) == ["tool 'probe' has no code"]
    assert len(executor.validate_tool(tool("", source="mcp"))) == 2


# ── the result ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_result_is_frozen_and_carries_everything(executor: InlineToolExecutor, context: SkillContext) -> None:
    printing = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('again')\n"
    code = printing + "result = {'doubled': input_data['n'] * 2}"
    result = executor.execute(tool(code), context, {"n": 21})
    assert isinstance(result, InlineToolResult)
    assert result.success
    assert result.output == "out\nerr\nagain\n"
    assert result.value == {"doubled": 42}
    assert result.error_message is None
    assert not result.truncated
    assert result.limit is None
    assert result.duration_ms > 0
    assert result.enforcement is not None
    assert result.enforcement.tier == "full"
    with pytest.raises(ValidationError):
        result.success = False
    assert json.loads(result.model_dump_json())["value"] == {"doubled": 42}


def test_the_async_twin_does_the_same_and_streams(executor: InlineToolExecutor, context: SkillContext) -> None:
    heard: list[bytes] = []
    result = asyncio.run(executor.execute_async(tool("print('x')\nresult = 7"), context, {}, on_output=heard.append))
    assert (result.success, result.value, b"".join(heard)) == (True, 7, b"x\n")
    assert len(context.change_tracker.invocations) == 1


def test_cancelling_the_async_twin_kills_the_code(executor: InlineToolExecutor, context: SkillContext) -> None:
    async def cancel_when_it_runs() -> float:
        running = asyncio.Event()
        code = tool("print('up', flush=True)\nwhile True: pass")
        task = asyncio.create_task(executor.execute_async(code, context, {}, on_output=lambda _: running.set()))
        await running.wait()
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - started

    assert asyncio.run(cancel_when_it_runs()) < 10


def test_a_traceback_shows_the_tools_own_lines_under_its_name(
    executor: InlineToolExecutor, context: SkillContext
) -> None:
    result = executor.execute(tool("def half(n):\n    return n / 0\n\nhalf(input_data['n'])"), context, {"n": 1})
    assert not result.success
    assert result.error_message is not None
    lines = result.error_message.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert '  File "probe", line 4, in <module>' in lines
    assert '  File "probe", line 2, in half' in lines
    assert "    return n / 0" in lines
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "handrail" not in result.error_message
    assert result.value is None


def test_output_beyond_the_cap_is_cut_and_said(context: SkillContext) -> None:
    with InlineToolExecutor(max_output_bytes=1000) as executor:
        result = executor.execute(tool("print('a' * 5000)\nprint('the end')"), context, {})
    assert result.success
    assert result.truncated
    assert len(result.output.encode()) <= 1000
    assert result.output.endswith("the end\n")


def test_printed_bytes_that_are_no_text_are_replaced(executor: InlineToolExecutor, context: SkillContext) -> None:
    result = executor.execute(tool(r"import os; os.write(1, b'\xff\x00ok')"), context, {})
    assert result.output == "\ufffd\x00ok"


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("inline:timeout:message-text")
@pytest.mark.parametrize("seconds", [0.5, 1])
@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(100)"])
def test_a_timeout_says_exactly_this(seconds: float, code: str, context: SkillContext) -> None:
    with InlineToolExecutor(max_runtime_seconds=seconds) as executor:
        executor.execute(tool("pass"), context, {})  # warm: what is timed below is the code
        result = executor.execute(tool(code), context, {})
    assert result.error_message == f"Execution timed out after {seconds}s"
    assert (result.success, result.limit) == (False, "wall")


@pytest.mark.promise("inline:timeout:process-is-dead")
def test_after_a_timeout_the_process_is_dead(context: SkillContext) -> None:
    """It would go on writing into a directory it may write; a second look finds nothing newer."""
    code = "import os\nnumber = 0\nwhile True:\n    number += 1\n    open('beat', 'w').write(str(number))"
    with InlineToolExecutor(max_runtime_seconds=1.5) as executor:
        executor.execute(tool("pass"), context, {})
        result = executor.execute(tool(code, capability=Capability(writes=True)), context, {})
        beat = context.get_sandbox_path() / "beat"
        seen = beat.stat().st_mtime_ns
        assert result.limit == "wall"
        assert executor.execute(tool("import time; time.sleep(0.2)"), context, {}).success
        assert beat.stat().st_mtime_ns == seen


def test_a_lock_that_the_code_kept_is_free_once_its_call_has_ended(
    executor: InlineToolExecutor, context: SkillContext
) -> None:
    path = context.get_sandbox_path() / "kept"
    path.touch()
    code = """
import fcntl, os
fcntl.flock(os.open("kept", os.O_RDONLY), fcntl.LOCK_EX)
try:
    fcntl.flock(os.open("kept", os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)
    result = "free"
except BlockingIOError:
    result = "held"
"""
    for _ in range(40):  # what is left to the kernel to close was sometimes still open
        assert executor.execute(tool(code), context, {}).value == "held"
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# ── the write guard ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("inline:write-guard:runs-nothing")
def test_a_writing_tool_in_a_read_only_context_runs_nothing(executor: InlineToolExecutor, tmp_path: Path) -> None:
    context = SkillContext(tmp_path, read_only=True)
    with pytest.raises(WriteRefused, match="read-only"):
        context.enforce_write_guard()
    result = executor.execute(tool("open('x', 'w')", capability=Capability(writes=True)), context, {})
    assert not result.success
    assert "read-only" in (result.error_message or "")
    assert result.enforcement is None
    assert list(tmp_path.iterdir()) == []
    assert executor.execute(tool("result = 1"), context, {}).value == 1


@pytest.mark.promise("inline:write-guard:kernel-holds-undeclared-writes")
def test_a_tool_that_did_not_declare_writes_finds_the_workspace_read_only(
    executor: InlineToolExecutor, context: SkillContext
) -> None:
    (context.get_sandbox_path() / "kept").write_text("kept")
    for attempt in ("open('x', 'w')", "import os; os.remove('kept')", "import os; os.chmod('kept', 0)"):
        result = executor.execute(tool(attempt), context, {})
        assert "[Errno 30] Read-only file system" in (result.error_message or "")
    assert context.change_tracker.invocations[-1].changes is not None
    assert len(context.change_tracker.invocations[-1].changes) == 0


def test_a_tool_without_reads_does_not_see_the_workspace(executor: InlineToolExecutor, context: SkillContext) -> None:
    code = f"import os\nresult = os.path.exists({str(context.get_sandbox_path())!r})"
    assert executor.execute(tool(code, capability=Capability(reads=False)), context, {}).value is False
    assert executor.execute(tool(code), context, {}).value is True


# ── paths ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("inline:paths:resolved-beneath-the-sandbox")
def test_paths_of_the_input_are_resolved_beneath_the_sandbox_path(
    executor: InlineToolExecutor, context: SkillContext
) -> None:
    base = context.get_sandbox_path()
    data = {"path": "a", "in_path": "b/c", "log_file": "d", "many": ["e", "f"], "title": "../x", "text": "/etc/passwd"}
    result = executor.execute(tool("result = input_data", path_args=("many",)), context, data)
    assert result.value == {
        "path": str(base / "a"),
        "in_path": str(base / "b" / "c"),
        "log_file": str(base / "d"),
        "many": [str(base / "e"), str(base / "f")],
        "title": "../x",
        "text": "/etc/passwd",
    }


@pytest.mark.parametrize("name", ["path", "in_path", "log_file", "named"])
@pytest.mark.parametrize("bad", ["../x", "/etc/passwd", "link/x", "a\0b", ""])
def test_a_path_that_leads_outside_fails_the_call_before_it_runs(
    name: str, bad: str, executor: InlineToolExecutor, context: SkillContext
) -> None:
    (context.get_sandbox_path() / "link").symlink_to("/etc")
    result = executor.execute(tool("result = 1", path_args=("named",)), context, {name: bad})
    assert not result.success
    assert (result.error_message or "").startswith(f"{name}: ")
    assert result.enforcement is None


# ── the tracker ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("inline:tracker:every-invocation-is-recorded")
def test_every_invocation_is_recorded_success_or_not(executor: InlineToolExecutor, context: SkillContext) -> None:
    executor.execute(tool("result = 1"), context, {"n": 1})
    executor.execute(tool("1 / 0"), context, {})
    executor.execute(tool("x", source="mcp"), context, {})
    executor.execute(tool("result = 1"), context, {"path": "/etc/passwd"})
    executor.execute(tool("result = 1"), context, {"bad": float("nan")})
    first, *failed = context.change_tracker.invocations
    assert (first.tool, first.success, first.error_message, dict(first.input_data)) == ("probe", True, None, {"n": 1})
    assert [one.success for one in failed] == [False] * 4
    assert all(one.error_message for one in failed)


@pytest.mark.promise("inline:tracker:holds-the-real-changes")
def test_with_a_store_the_tracker_holds_what_really_changed(executor: InlineToolExecutor, tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "old").write_text("old")
    writer = Capability(writes=True)
    with SkillContext(tmp_path / "workspace") as plain, ChangeStore(str(tmp_path / "state"), plain.workspace) as store:
        context = SkillContext(plain.workspace, changes=store)
        done = executor.execute(
            tool("open('new', 'w').write('x'); import os; os.remove('old')", capability=writer), context, {}
        )
        failed = executor.execute(tool("open('other', 'w').write('x'); 1 / 0", capability=writer), context, {})
        later = asyncio.run(executor.execute_async(tool("open('third', 'w')", capability=writer), context, {}))
    assert (done.success, failed.success, later.success) == (True, False, True)
    changes = [one.changes for one in context.change_tracker.invocations]
    assert [None if one is None else one.paths for one in changes] == [(b"new", b"old"), (), (b"third",)]
    assert sorted(os.listdir(tmp_path / "workspace")) == ["new", "third"]


# ── what the code sees ───────────────────────────────────────────────────────────────────────────────────────────


def test_code_sees_its_input_and_nothing_of_the_host(
    executor: InlineToolExecutor, context: SkillContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANDRAIL_TEST_SECRET", "secret")
    code = (
        "import os, sys\nfds = []\nfor fd in range(1024):\n    try: os.fstat(fd)\n    except OSError: continue\n"
        "    fds.append(fd)\n"
        "result = {'fds': fds, 'environment': sorted(os.environ), 'argv': sys.argv,"
        " 'names': sorted(n for n in globals() if not n.startswith('__'))}"
    )
    value = executor.execute(tool(code), context, {"n": 1}).value
    assert value["fds"] == [0, 1, 2]
    assert "HANDRAIL_TEST_SECRET" not in value["environment"]
    assert set(value["environment"]) <= {"HOME", "LANG", "MALLOC_ARENA_MAX", "PATH", "TMPDIR"}
    assert value["argv"] == ["probe"]
    assert {"input_data"} <= set(value["names"]) <= {"input_data", "os", "sys", "fds", "fd", "n"}


def test_code_gets_the_very_values_that_were_given(executor: InlineToolExecutor, context: SkillContext) -> None:
    given = {"z": 2**60, "a": [2.0, 1e17, -(10**30), True, None, "é\u2028"]}
    assert executor.execute(tool("result = repr(input_data)"), context, given).value == repr(given)


def test_the_environment_is_what_the_executor_was_given(context: SkillContext) -> None:
    with InlineToolExecutor(environment={"TZ": "UTC"}) as executor:
        assert executor.execute(tool("import os; result = os.environ['TZ']"), context, {}).value == "UTC"


def test_a_read_only_directory_of_the_hosts_configuration_is_visible(context: SkillContext, tmp_path: Path) -> None:
    tools = tmp_path / "toolchain"
    tools.mkdir()
    (tools / "version").write_text("1.2")
    code = f"open({str(tools / 'version')!r}).read()"
    with InlineToolExecutor(read_only_dirs=(str(tools),)) as executor:
        assert executor.execute(tool(f"result = {code}"), context, {}).value == "1.2"
        refused = executor.execute(tool(f"open({str(tools / 'new')!r}, 'w')"), context, {})
        assert "Read-only file system" in (refused.error_message or "")
    with InlineToolExecutor() as executor:
        assert "FileNotFoundError" in (executor.execute(tool(code), context, {}).error_message or "")


def test_input_that_breaks_the_tools_schema_runs_nothing(executor: InlineToolExecutor, context: SkillContext) -> None:
    strict = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    result = executor.execute(tool("result = 1", parameters=strict), context, {"n": "1"})
    assert (result.error_message or "").startswith("Invalid input for probe: n: ")
    assert result.enforcement is None


def test_it_runs_the_very_interpreter_of_the_host(executor: InlineToolExecutor, context: SkillContext) -> None:
    value = executor.execute(tool("import sys; result = sys.version"), context, {}).value
    assert value == sys.version
