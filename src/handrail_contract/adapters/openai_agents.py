"""OpenAI Agents SDK, through ``Runner`` with a scripted ``Model``. Strictest documented: ``strict_mode=True``."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from agents import Agent, FunctionTool, Model, ModelResponse, RunConfig, Runner, RunState, Usage, function_tool
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from handrail_contract.adapter import Answer, Invoke, NotOffered

_CONFIG = RunConfig(tracing_disabled=True)


class _Scripted(Model):
    """Makes one call with ``raw`` as its arguments, then stops."""

    def __init__(self, raw: str) -> None:
        self._raw = raw

    async def get_response(self, *given: Any, **options: Any) -> ModelResponse:
        asked = given[1] if len(given) > 1 else options["input"]
        tools = given[3] if len(given) > 3 else options["tools"]
        answered = not isinstance(asked, str) and any(
            isinstance(item, dict) and item.get("type") == "function_call_output" for item in asked
        )
        item: Any
        if answered:
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            item = ResponseOutputMessage(id="m1", content=[text], role="assistant", status="completed", type="message")
        else:
            item = ResponseFunctionToolCall(arguments=self._raw, call_id="c1", name=tools[0].name, type="function_call")
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("the probes do not stream")


async def _run(tool: FunctionTool, raw: str) -> Answer:
    result = await Runner.run(Agent("probe", model=_Scripted(raw), tools=[tool]), "go", run_config=_CONFIG)
    outputs = [item for item in result.new_items if item.type == "tool_call_output_item"]
    return Answer(str(outputs[0].output), False) if outputs else Answer("no result", True)


def _invoke(tool: FunctionTool) -> Invoke:
    return lambda raw: asyncio.run(_run(tool, raw))


class OpenAIAgentsAdapter:
    """See :class:`handrail_contract.adapter.Adapter`."""

    name = "openai-agents"
    package = "openai-agents"
    settings = (
        "function_tool(strict_mode=True); FunctionTool(strict_json_schema=True) where the schema allows; timeout="
    )
    parses_json = True

    def typed(self, function: Callable[..., Any]) -> Invoke:
        return _invoke(function_tool(function, strict_mode=True))

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        async def entered(context: Any, raw: str) -> str:
            return function(json.loads(raw))

        return _invoke(FunctionTool("probe", "Probe.", dict(schema), entered, strict_json_schema=True))

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        def work() -> None:
            exec(compile(source, "probe", "exec"), {})

        async def probe() -> str:
            """Probe."""
            await asyncio.to_thread(work)
            return "done"

        tool = function_tool(probe, timeout=timeout)

        def invoke(raw: str) -> Answer:
            loop = asyncio.new_event_loop()  # asyncio.run would wait for the thread, which is the application's affair
            return loop.run_until_complete(_run(tool, raw))

        return invoke

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        async def scenario() -> None:
            tool = function_tool(function, needs_approval=True)
            agent = Agent("probe", model=_Scripted(f'{{"target": "{approved}"}}'), tools=[tool])
            result = await Runner.run(agent, "go", run_config=_CONFIG)
            state = result.to_state()
            state.approve(state.get_interruptions()[0])
            kept = state.to_string().replace(approved, swapped)
            await Runner.run(agent, await RunState.from_string(agent, kept), run_config=_CONFIG)

        asyncio.run(scenario())

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        raise NotOffered("keeps no record of its own while a tool runs; RunState is a snapshot the application takes")

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        raise NotOffered("see crash_first")
