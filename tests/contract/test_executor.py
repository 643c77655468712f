"""What the executor promises about one call and about many, through public names."""

import asyncio
import functools
import hashlib
import logging
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from handrail import (
    AlwaysApprove,
    ApprovalRequest,
    CallbackApprover,
    ConfigurationError,
    Effect,
    Modify,
    NeverApprove,
    Reason,
    Signal,
    ToolCall,
    ToolDef,
    ToolDefinitionError,
    ToolError,
    ToolExecutor,
    ToolOutcome,
    ToolRegistry,
)

DEADLINE = 30.0  # seconds a test waits for what must happen
OBJECT: dict[str, Any] = {"type": "object"}
NESTED = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "options": {"type": "object", "properties": {"deep": {"type": "integer"}}, "required": ["deep"]},
    },
    "required": ["name"],
}


def executor_of(handler: Callable[..., Any], definition: ToolDef | None = None, **options: Any) -> ToolExecutor:
    registry = ToolRegistry()
    registry.register_from_def(definition or ToolDef("tool", "", OBJECT, risk_level="read_only"), handler)
    return ToolExecutor(registry, **options)


def run(handler: Callable[..., Any], raw: Any = "{}", definition: ToolDef | None = None, **options: Any) -> ToolOutcome:
    with executor_of(handler, definition, **options) as executor:
        return executor.execute_sync(definition.name if definition else "tool", raw)


class Entered:
    """A handler that remembers what it was entered with."""

    def __init__(self) -> None:
        self.with_: list[Any] = []

    def __call__(self, args: dict[str, Any]) -> str:
        self.with_.append(args)
        return "entered"


# ── the checklist ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("call:arguments:never-enters-invalid")
@pytest.mark.parametrize(
    "raw",
    [
        "{}",
        '{"name": 1}',
        '{"name": "x", "options": {}}',
        '{"name": "x", "options": {"deep": "1"}}',
        '{"name": "x", "options": {"deep": true}}',
        '{"name": "x", "options": []}',
        '{"name": "x", "name": "y"}',
        '{"name": "x"',
        "[]",
        "null",
        "",
    ],
)
def test_a_missing_field_or_a_wrong_nested_type_never_enters_the_handler(raw: str) -> None:
    entered = Entered()
    outcome = run(entered, raw, ToolDef("tool", "", NESTED, risk_level="read_only"))
    assert (outcome.status, outcome.reason, entered.with_) == ("error", Reason.INVALID_ARGUMENTS, [])


@pytest.mark.promise("call:paths:follow-the-workspace")
def test_relative_paths_follow_the_workspace_and_not_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workspace/sub").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    entered = Entered()
    definition = ToolDef("tool", "", {"type": "object", "properties": {"path": {"type": "string"}}}, "read_only")
    assert run(entered, {"path": "sub/new.txt"}, definition, workspace=tmp_path / "workspace").status == "ok"
    assert entered.with_ == [{"path": str(tmp_path / "workspace/sub/new.txt")}]


@pytest.mark.promise("guard:multi-path:any-escape-fails-call")
def test_any_escaping_path_among_several_fails_the_whole_call(tmp_path: Path) -> None:
    properties = {name: {"type": "string"} for name in ("source", "destination", "cwd", "log_file")}
    definition = ToolDef("tool", "", {"type": "object", "properties": properties}, "read_only")
    good = {name: f"{name}.txt" for name in properties}
    for escaping in properties:
        entered = Entered()
        outcome = run(entered, {**good, escaping: "../outside"}, definition, workspace=tmp_path)
        assert (outcome.reason, entered.with_) == (Reason.PATH_REFUSED, [])
        assert outcome.text.startswith(f"Path refused: {escaping}:")


ANSWER = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}


@pytest.mark.promise("call:output:broken-result-is-marked")
@pytest.mark.parametrize(
    ("schema", "returned", "wrong"),
    [
        (ANSWER, {"count": 3}, None),
        (ANSWER, {"count": "3"}, 'count: expected a whole number, got "3" (a string)'),
        (ANSWER, {}, "the result: the field 'count' is missing"),
        (ANSWER, [1], "the result: expected an object, got an array"),
        (ANSWER, "only text", "the result: expected an object, got null"),
        (ANSWER, None, "the result: expected an object, got null"),
        (ANSWER, Effect(ToolOutcome.ok("said", value=object())), "the value cannot be checked: Unsupported type"),
        ({"type": "string"}, "text", None),
        ({"type": "null"}, None, None),
        ({"type": "array"}, [], None),
        (None, {"count": "3"}, None),
    ],
)
def test_a_result_that_breaks_its_own_schema_is_completed_and_marked(
    schema: dict[str, Any] | None, returned: Any, wrong: str | None
) -> None:
    outcome = run(lambda args: returned, {}, ToolDef("tool", "", OBJECT, "read_only", output_schema=schema))
    assert outcome.status == "ok"
    assert (outcome.invalid_output, outcome.reason) == (
        (False, None) if wrong is None else (True, Reason.INVALID_OUTPUT)
    )
    note = "[The call completed, but its result breaks the tool's own output schema: "
    assert outcome.text.startswith(note + (wrong or "")) == (wrong is not None)


@pytest.mark.promise("call:output:broken-result-is-marked")
def test_a_failure_is_not_held_to_the_schema_of_results() -> None:
    def fails(args: dict[str, Any]) -> str:
        raise ToolError("it did not work")

    outcome = run(fails, {}, ToolDef("tool", "", OBJECT, "read_only", output_schema=ANSWER))
    assert (outcome.status, outcome.reason, outcome.invalid_output) == ("error", Reason.TOOL_ERROR, False)
    assert outcome.text == "it did not work"


@pytest.mark.promise("call:edited:checked-again")
def test_modified_arguments_are_checked_again_from_the_beginning(tmp_path: Path) -> None:
    asked: list[Any] = []

    def approver(request: ApprovalRequest) -> Any:
        asked.append(dict(request.arguments))
        return [Modify({"path": "b"}), True][min(len(asked) - 1, 1)]

    definition = ToolDef("tool", "", {"type": "object", "properties": {"path": {"type": "string"}}})
    entered = Entered()
    outcome = run(entered, {"path": "a"}, definition, workspace=tmp_path, approver=CallbackApprover(approver))
    assert outcome.status == "ok"
    assert asked == [{"path": f"{tmp_path}/a"}, {"path": f"{tmp_path}/b"}]
    assert entered.with_ == [{"path": f"{tmp_path}/b"}]
    for edited, reason in (({"path": 1}, Reason.INVALID_ARGUMENTS), ({"path": "/etc/passwd"}, Reason.PATH_REFUSED)):
        entered = Entered()
        modify = CallbackApprover(lambda request, edited=edited: Modify(edited))
        outcome = run(entered, {"path": "a"}, definition, workspace=tmp_path, approver=modify)
        assert (outcome.reason, entered.with_) == (reason, [])


def test_an_approver_that_edits_for_ever_is_given_up() -> None:
    entered = Entered()
    outcome = run(entered, {}, ToolDef("tool"), approver=CallbackApprover(lambda request: Modify({})))
    assert (outcome.status, outcome.reason, entered.with_) == ("error", Reason.REJECTED, [])


@pytest.mark.promise("call:tool:risk-schema-paths-outcome")
def test_every_tool_has_risk_schema_paths_and_an_outcome() -> None:
    definition = ToolDef("tool", "", {"type": "object", "properties": {"path": {"type": "string"}}})
    assert (definition.risk_level, definition.guarded_args) == ("mutation", ("path",))
    assert definition.schema.errors({"path": 1})
    assert isinstance(run(Entered(), "{}"), ToolOutcome)


# ── outcomes ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("outcome:text:string-succeeded")
@pytest.mark.parametrize("text", ["Error: everything is broken", "", '{"error": true}', "Traceback (most recent call"])
def test_a_handler_that_returns_a_string_succeeded_whatever_the_text_says(text: str) -> None:
    outcome = run(lambda args: text)
    assert (outcome.status, outcome.reason, outcome.text) == ("ok", None, text)


@pytest.mark.promise("outcome:raised:failed-short")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "error", [ValueError("bad luck"), SystemExit(3), asyncio.CancelledError(), TimeoutError("own")]
)
def test_a_handler_that_raises_failed_and_the_traceback_goes_to_the_log_alone(
    error: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def handler(args: dict[str, Any]) -> str:
        raise error

    async def async_handler(args: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        raise error

    with caplog.at_level(logging.ERROR, "handrail"):
        outcome = run(async_handler if is_async else handler)
    assert (outcome.status, outcome.reason) == ("error", Reason.TOOL_ERROR)
    assert "Traceback" not in outcome.text
    assert __file__ not in outcome.text
    assert any(record.exc_info for record in caplog.records)


def test_a_tool_error_is_what_the_model_reads(caplog: pytest.LogCaptureFixture) -> None:
    def handler(args: dict[str, Any]) -> str:
        raise ToolError("Give a shorter name.")

    assert run(handler).text == "Give a shorter name."
    assert not caplog.records


def test_a_result_with_lone_surrogates_reaches_the_model_as_valid_text() -> None:
    assert run(lambda args: "a\udcffb").text == "a?b"


@pytest.mark.promise("output:cap:whole-text-kept-privately")
@pytest.mark.parametrize("unit", ["x", "ü", "漢", "𝄞"])
def test_a_long_output_keeps_head_and_tail_and_lies_whole_in_a_private_file(unit: str, tmp_path: Path) -> None:
    whole = "BEGIN" + unit * 40_000 + "END"
    raw = whole.encode()
    directory = tmp_path / "private/outputs"
    outcome = run(lambda args: whole, max_output_bytes=10_000, spill_directory=str(directory))
    assert (outcome.status, outcome.truncated) == ("ok", True)
    head, marker, tail = outcome.text.split("\n")
    assert head.startswith("BEGIN")
    assert tail.endswith("END")
    missing = int(marker.split()[1])
    assert len(head.encode()) + missing + len(tail.encode()) == len(raw)
    assert whole.startswith(head)
    assert whole.endswith(tail)
    kept = outcome.full_output
    assert kept is not None
    assert Path(kept.path).read_bytes() == raw
    assert (kept.bytes, kept.sha256) == (len(raw), hashlib.sha256(raw).hexdigest())
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(os.stat(kept.path).st_mode) == 0o600


def test_an_output_that_cannot_be_kept_is_cut_and_the_call_still_succeeded(tmp_path: Path) -> None:
    open_to_all = tmp_path / "outputs"
    open_to_all.mkdir(mode=0o755)
    outcome = run(lambda args: "x" * 20_000, max_output_bytes=1000, spill_directory=str(open_to_all))
    assert (outcome.status, outcome.truncated, outcome.full_output) == ("ok", True, None)
    assert "could not be kept" in outcome.text
    assert list(open_to_all.iterdir()) == []


@pytest.mark.promise("output:cap:never-in-the-workspace")
def test_whole_outputs_never_lie_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "way").symlink_to(tmp_path)
    for inside in (tmp_path, tmp_path / "outputs", tmp_path / "way/outputs"):
        with pytest.raises(ConfigurationError, match="inside the workspace"):
            executor_of(Entered(), workspace=tmp_path, spill_directory=str(inside))


# ── time, cancellation ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("time:sync:caller-gets-control-and-the-truth")
def test_a_sync_handler_over_its_time_gives_control_back_and_the_outcome_says_it_may_still_run() -> None:
    release, ended = threading.Event(), threading.Event()

    def handler(args: dict[str, Any]) -> str:
        release.wait(DEADLINE)
        ended.set()
        return "late"

    outcome = run(handler, definition=ToolDef("tool", "", OBJECT, "read_only", timeout=0.05))
    still_running = not ended.is_set()
    release.set()
    assert still_running
    assert (outcome.status, outcome.reason, outcome.limit) == ("unknown", Reason.MAYBE_RUNNING, "wall")
    assert "may still be running" in outcome.text
    assert ended.wait(DEADLINE)


def test_a_sync_handler_that_ends_when_it_is_told_is_known_to_have_stopped() -> None:
    def handler(args: dict[str, Any], signal: Signal) -> str:
        told = threading.Event()
        signal.on_set(told.set)
        told.wait(DEADLINE)
        return "stopped early"

    outcome = run(handler, definition=ToolDef("tool", "", OBJECT, "read_only", timeout=0.05))
    assert (outcome.status, outcome.reason) == ("error", Reason.TIMED_OUT)


def test_handlers_that_never_end_take_no_place_from_the_calls_after_them() -> None:
    release = threading.Event()
    registry = ToolRegistry()
    registry.register_from_def(
        ToolDef("hang", "", OBJECT, "read_only", timeout=0.01), lambda args: release.wait(DEADLINE)
    )
    registry.register_from_def(ToolDef("quick", "", OBJECT, "read_only"), lambda args: "done")
    with ToolExecutor(registry, max_parallel=2) as executor:
        hung = [executor.execute_sync("hang", "{}").reason for _ in range(4)]
        assert executor.execute_sync("quick", "{}").text == "done"
    release.set()
    assert hung == [Reason.MAYBE_RUNNING] * 4


@pytest.mark.promise("time:async:cancelled-at-timeout")
def test_an_async_handler_over_its_time_is_cancelled() -> None:
    saw: list[str] = []

    async def handler(args: dict[str, Any]) -> str:
        try:
            await asyncio.sleep(DEADLINE)
        finally:
            saw.append("cancelled")
        return "late"

    outcome = run(handler, definition=ToolDef("tool", "", OBJECT, "read_only", timeout=0.05))
    assert (outcome.status, outcome.reason, outcome.limit, saw) == ("error", Reason.TIMED_OUT, "wall", ["cancelled"])


@pytest.mark.promise("cancel:passed-on")
def test_cancelling_the_caller_cancels_the_handler_and_is_passed_on() -> None:
    async def main() -> tuple[list[str], str | None]:
        entered, saw, signal = asyncio.Event(), list[str](), Signal()

        async def handler(args: dict[str, Any]) -> str:
            entered.set()
            try:
                await asyncio.sleep(DEADLINE)
            except asyncio.CancelledError:
                saw.append("cancelled")
                raise
            return "late"

        with executor_of(handler) as executor:
            task = asyncio.create_task(executor.execute("tool", "{}", signal=signal))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        return saw, signal.reason

    assert asyncio.run(main()) == (["cancelled"], "cancelled")


def test_cancelling_the_caller_tells_a_handler_in_a_thread() -> None:
    told = threading.Event()

    async def main() -> None:
        entered = asyncio.Event()
        loop = asyncio.get_running_loop()

        def handler(args: dict[str, Any], signal: Signal) -> str:
            signal.on_set(told.set)
            loop.call_soon_threadsafe(entered.set)
            told.wait(DEADLINE)
            return "late"

        with executor_of(handler) as executor:
            task = asyncio.create_task(executor.execute("tool", "{}"))
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert told.wait(DEADLINE)


@pytest.mark.parametrize("is_async", [False, True])
def test_setting_the_signal_ends_the_call_with_an_outcome(is_async: bool) -> None:
    async def main() -> tuple[ToolOutcome, ToolOutcome]:
        entered, signal = asyncio.Event(), Signal()
        loop = asyncio.get_running_loop()
        release = threading.Event()

        def handler(args: dict[str, Any]) -> str:
            loop.call_soon_threadsafe(entered.set)
            release.wait(DEADLINE)
            return "late"

        async def async_handler(args: dict[str, Any], signal: Signal) -> str:
            entered.set()
            return await signal.wait()

        async def stubborn(args: dict[str, Any]) -> str:
            entered.set()
            await asyncio.sleep(DEADLINE)
            return "late"

        with executor_of(stubborn if is_async else handler) as executor:
            task = asyncio.create_task(executor.execute("tool", "{}", signal=signal))
            await entered.wait()
            signal.set("the user pressed stop")
            during = await task
            release.set()
            return during, await executor.execute("tool", "{}", signal=signal)

    during, before = asyncio.run(main())
    assert (during.status, during.reason) == (
        "unknown",
        Reason.CANCELLED if is_async else Reason.MAYBE_RUNNING,
    )
    assert (before.status, before.reason) == ("error", Reason.CANCELLED)
    assert "nothing happened" in before.text


# ── many calls ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("parallel:limit")
def test_calls_run_in_parallel_up_to_the_limit_and_answer_in_order() -> None:
    async def main() -> tuple[list[str], int]:
        running, most = 0, 0
        full = asyncio.Event()

        async def handler(args: dict[str, Any]) -> str:
            nonlocal running, most
            running += 1
            most = max(most, running)
            if running == 3:
                full.set()
            await asyncio.wait_for(full.wait(), DEADLINE)
            await asyncio.sleep(0)
            running -= 1
            return str(args["n"])

        with executor_of(handler, max_parallel=3) as executor:
            outcomes = await executor.execute_many([ToolCall(name="tool", arguments={"n": n}) for n in range(9)])
        return [outcome.text for outcome in outcomes], most

    assert asyncio.run(main()) == ([str(n) for n in range(9)], 3)


@pytest.mark.promise("parallel:one-failure-loses-no-other")
def test_one_failure_never_loses_the_result_of_another() -> None:
    def handler(args: dict[str, Any]) -> Any:
        match args["n"]:
            case 1:
                raise ValueError("one")
            case 2:
                raise SystemExit
            case 3:
                raise asyncio.CancelledError
            case 4:
                return object()
            case _:
                return "fine"

    with executor_of(handler) as executor:
        calls = [ToolCall(name="tool", arguments={"n": n}) for n in range(6)]
        calls.insert(3, ToolCall(name="no such tool", arguments="{}"))
        outcomes = asyncio.run(executor.execute_many(calls))
    assert [outcome.status for outcome in outcomes] == ["ok", "error", "error", "error", "error", "error", "ok"]


def test_a_call_made_by_a_handler_does_not_wait_for_the_place_its_own_call_holds() -> None:
    async def main() -> ToolOutcome:
        registry = ToolRegistry()
        executor = ToolExecutor(registry, max_parallel=1)

        async def outer(args: dict[str, Any]) -> ToolOutcome:
            return await executor.execute("inner", "{}")

        registry.register_from_def(ToolDef("outer", "", OBJECT, "read_only"), outer)
        registry.register_from_def(ToolDef("inner", "", OBJECT, "read_only"), lambda args: "from within")
        with executor:
            return await asyncio.wait_for(executor.execute("outer", "{}"), DEADLINE)

    assert asyncio.run(main()).text == "from within"


# ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("approval:nobody-there:refused")
@pytest.mark.parametrize("risk", ["mutation", "destructive", "dangerous"])
def test_a_call_that_can_change_something_is_refused_when_nobody_is_there_to_ask(risk: str) -> None:
    entered = Entered()
    outcome = run(entered, "{}", ToolDef("tool", "", OBJECT, risk))
    assert (outcome.status, outcome.reason, entered.with_) == ("error", Reason.NO_APPROVER, [])
    assert f"a {risk} call needs an approver" in outcome.text


@pytest.mark.parametrize("risk", ["safe", "read_only"])
def test_a_call_that_only_reads_asks_nobody(risk: str) -> None:
    assert run(Entered(), "{}", ToolDef("tool", "", OBJECT, risk), approver=NeverApprove()).status == "ok"


def test_a_no_says_why() -> None:
    outcome = run(Entered(), "{}", ToolDef("tool"), approver=NeverApprove("Not on Fridays."))
    assert (outcome.reason, outcome.text) == (Reason.REJECTED, "Rejected: Not on Fridays.")


def test_a_staged_tool_is_not_entered_where_no_store_keeps_its_changes() -> None:
    registry, entered = ToolRegistry(), Entered()
    registry.register_from_def(ToolDef("tool"), entered, staged=True)
    with ToolExecutor(registry, approver=AlwaysApprove()) as executor:
        outcome = executor.execute_sync("tool", "{}")
    assert (outcome.reason, entered.with_) == (Reason.CANNOT_STAGE, [])


def test_a_handler_may_return_an_outcome_or_an_effect_of_its_own() -> None:
    assert run(lambda args: ToolOutcome.error("no luck")).text == "no luck"
    assert run(lambda args: Effect(ToolOutcome.ok("luck"))).text == "luck"


def test_execute_sync_refuses_to_block_a_running_loop() -> None:
    async def main() -> None:
        with executor_of(Entered()) as executor, pytest.raises(RuntimeError, match="await execute"):
            executor.execute_sync("tool", "{}")

    asyncio.run(main())


@pytest.mark.parametrize("call_id", ["a\0b", "\ud800", "ok\udfff"])
def test_a_call_id_that_no_journal_can_keep_is_refused_before_it_meets_its_neighbours(call_id):
    entered = []
    registry = ToolRegistry()
    registry.register_from_def(ToolDef("tool", risk_level="safe"), lambda args: entered.append(1) or "done")
    with ToolExecutor(registry) as executor:
        with pytest.raises(ConfigurationError, match="no journal can keep it"):
            executor.execute_sync("tool", {}, call_id=call_id)
        assert executor.execute_sync("tool", {}, call_id="ünï 1").call_id == "ünï 1"
    assert entered == [1]


@pytest.mark.parametrize("name", ["timeout", "approval_ttl"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "5", None, True])
def test_an_executor_takes_no_time_that_never_ends_or_never_begins(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be a positive number of seconds"):
        ToolExecutor(ToolRegistry(), **{name: value})


@pytest.mark.parametrize("name", ["max_output_bytes", "max_parallel"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "8", None, True])
def test_an_executor_with_room_for_nothing_is_refused_and_does_not_wait_for_ever(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} must be a whole number from 1 to"):
        ToolExecutor(ToolRegistry(), **{name: value})


def yields(args: dict[str, Any]) -> Any:
    yield "part"


async def yields_later(args: dict[str, Any]) -> Any:
    yield "part"


class Yielding:
    def __call__(self, args: dict[str, Any]) -> Any:
        yield "part"


@pytest.mark.parametrize("handler", [yields, yields_later, Yielding(), functools.partial(yields_later)])
def test_a_generator_is_refused_as_a_tool_before_anybody_calls_it(handler: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=r"^tool 'look': a generator cannot be a tool; return one value"):
        ToolRegistry().register_from_def(ToolDef("look"), handler)
