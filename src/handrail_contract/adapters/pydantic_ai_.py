"""Pydantic AI, through ``Agent`` with a scripted ``FunctionModel``. Strictest documented: ``strict=True`` tools."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_ai import Agent, DeferredToolRequests, DeferredToolResults, Tool, ToolApproved
from pydantic_ai.messages import ModelMessage, ModelResponse, RetryPromptPart, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from handrail_contract.adapter import Answer, Invoke, NotOffered


def _scripted(raw: str) -> FunctionModel:
    """A model that makes one call with ``raw`` as its arguments, then stops."""

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if any(isinstance(message, ModelResponse) for message in messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, raw, tool_call_id="c1")])

    return FunctionModel(respond)


def _run(tool: Tool[None], raw: str) -> Answer:
    result = Agent(_scripted(raw), tools=[tool]).run_sync("go")
    for message in result.all_messages():
        for part in message.parts:
            if isinstance(part, RetryPromptPart):
                return Answer(part.model_response(), failed=True)
            if isinstance(part, ToolReturnPart):
                return Answer(part.model_response_str(), failed=False)
    return Answer("no result", failed=True)


class PydanticAIAdapter:
    """See :class:`handrail_contract.adapter.Adapter`."""

    name = "pydantic-ai"
    package = "pydantic-ai-slim"
    settings = "Tool(strict=True); Tool.from_schema; timeout=; requires_approval=True"
    parses_json = True

    def typed(self, function: Callable[..., Any]) -> Invoke:
        return lambda raw: _run(Tool(function, strict=True), raw)

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        def entered(**arguments: Any) -> str:
            return function(arguments)

        tool = Tool.from_schema(entered, "probe", "Probe.", dict(schema))
        return lambda raw: _run(tool, raw)

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        def probe() -> str:
            """Probe."""
            exec(compile(source, "probe", "exec"), {})
            return "done"

        return lambda raw: _run(Tool(probe, timeout=timeout), raw)

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        agent = Agent(
            _scripted(f'{{"target": "{approved}"}}'),
            tools=[Tool(function, requires_approval=True)],
            output_type=[str, DeferredToolRequests],
        )
        result = agent.run_sync("go")
        history = result.all_messages()
        for message in history:
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    part.args = f'{{"target": "{swapped}"}}'
        answers = DeferredToolResults(approvals={"c1": ToolApproved()})
        agent.run_sync(message_history=history, deferred_tool_results=answers)

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        raise NotOffered("keeps no record of its own; delegates to Temporal, DBOS, Prefect or Restate (at least once)")

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        raise NotOffered("see crash_first")
