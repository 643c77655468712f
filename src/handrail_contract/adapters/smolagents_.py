"""smolagents: ``Tool`` objects with their argument check, and ``LocalPythonExecutor`` for code with a timeout."""

from collections.abc import Callable, Mapping
from typing import Any

from smolagents import LocalPythonExecutor, Tool, tool, validate_tool_arguments

from handrail_contract.adapter import Answer, Invoke, NotOffered
from handrail_contract.probes import parse


def _invoke(made: Tool) -> Invoke:
    def invoke(raw: str) -> Answer:
        arguments = parse(raw)
        validate_tool_arguments(made, arguments)
        return Answer(str(made(**arguments, sanitize_inputs_outputs=True)), False)

    return invoke


class SmolagentsAdapter:
    """See :class:`handrail_contract.adapter.Adapter`."""

    name = "smolagents"
    package = "smolagents"
    settings = "@tool with validate_tool_arguments, as ToolCallingAgent does; LocalPythonExecutor(timeout_seconds=…)"
    parses_json = False

    def typed(self, function: Callable[..., Any]) -> Invoke:
        return _invoke(tool(function))

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        raise NotOffered("tools declare Python types in `inputs`; there are no raw-schema tools")

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        def invoke(raw: str) -> Answer:
            executor = LocalPythonExecutor(
                ["os", "time", "posixpath"], timeout_seconds=timeout, additional_functions={"open": open}
            )
            executor.send_tools({})
            return Answer(str(executor(source).output), False)

        return invoke

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        raise NotOffered("has no approvals for tools")

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        raise NotOffered("keeps no record of its own")

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        raise NotOffered("see crash_first")
