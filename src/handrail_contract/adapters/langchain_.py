"""LangChain and LangGraph, through ``create_agent`` with a scripted chat model and ``durability="sync"``."""

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command
from pydantic import BaseModel, ConfigDict, create_model

from handrail_contract.adapter import Answer, Invoke
from handrail_contract.probes import parse

_THREAD: Any = {"configurable": {"thread_id": "t1"}}


class _Scripted(BaseChatModel):
    """Makes one call with these arguments, then stops."""

    arguments: dict[str, Any]
    tool_name: str

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        if any(isinstance(message, ToolMessage) for message in messages):
            answer = AIMessage("done")
        else:
            call = {"name": self.tool_name, "args": self.arguments, "id": "c1", "type": "tool_call"}
            answer = AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


def _agent(made: BaseTool, arguments: dict[str, Any], **options: Any) -> Any:
    return create_agent(_Scripted(arguments=arguments, tool_name=made.name), [made], **options)


def _invoke(made: BaseTool) -> Invoke:
    def invoke(raw: str) -> Answer:
        result = _agent(made, parse(raw)).invoke({"messages": [("user", "go")]})
        return _first_answer(result["messages"])

    return invoke


def _first_answer(messages: list[BaseMessage]) -> Answer:
    answer = next(message for message in messages if isinstance(message, ToolMessage))
    return Answer(str(answer.content), answer.status == "error")


def _strict_arguments(function: Callable[..., Any]) -> type[BaseModel]:
    """The function's arguments as a Pydantic model of the caller's, with the strictest settings a model has."""
    fields: dict[str, Any] = {
        name: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
    }
    return create_model("Arguments", __config__=ConfigDict(strict=True, extra="forbid"), **fields)


class LangChainAdapter:
    """See :class:`handrail_contract.adapter.Adapter`."""

    name = "langchain"
    package = "langchain"
    settings = (
        "tool(args_schema=a strict Pydantic model); StructuredTool(args_schema=schema); step_timeout; "
        "HumanInTheLoopMiddleware; SqliteSaver, durability='sync'"
    )
    parses_json = False

    def typed(self, function: Callable[..., Any]) -> Invoke:
        return _invoke(tool(function, args_schema=_strict_arguments(function)))

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        def entered(**arguments: Any) -> str:
            return function(arguments)

        made = StructuredTool.from_function(entered, name="probe", description="Probe.", args_schema=dict(schema))
        return _invoke(made)

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        def work() -> None:
            exec(compile(source, "probe", "exec"), {})

        async def probe() -> str:
            """Probe."""
            await asyncio.to_thread(work)
            return "done"

        made = tool(probe)

        def invoke(raw: str) -> Answer:
            agent = _agent(made, parse(raw))
            agent.step_timeout = timeout
            loop = asyncio.new_event_loop()  # asyncio.run would wait for the thread, which is the application's affair
            result = loop.run_until_complete(agent.ainvoke({"messages": [("user", "go")]}))
            return Answer(str(result["messages"][-1].content), failed=False)

        return invoke

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        made = tool(function)
        approver = HumanInTheLoopMiddleware(interrupt_on={made.name: True})
        agent = _agent(made, {"target": approved}, middleware=[approver], checkpointer=InMemorySaver())
        agent.invoke({"messages": [("user", "go")]}, _THREAD)
        kept = agent.get_state(_THREAD).values["messages"][-1]
        kept.tool_calls[0]["args"] = {"target": swapped}
        agent.update_state(_THREAD, {"messages": [kept]}, as_node="model")
        agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), _THREAD)

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        with SqliteSaver.from_conn_string(os.path.join(directory, "checkpoints.sqlite")) as saver:
            agent = _agent(tool(function), {}, checkpointer=saver)
            agent.invoke({"messages": [("user", "go")]}, _THREAD, durability="sync")

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        with SqliteSaver.from_conn_string(os.path.join(directory, "checkpoints.sqlite")) as saver:
            agent = _agent(tool(function), {}, checkpointer=saver)
            result = agent.invoke(None, _THREAD, durability="sync")
        return _first_answer(result["messages"])
