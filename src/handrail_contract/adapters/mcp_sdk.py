"""The official MCP SDK: a server's tools called by the SDK's own client, in memory."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from mcp import Client
from mcp.server import MCPServer, Server
from mcp.types import CallToolResult, ListToolsResult, TextContent
from mcp.types import Tool as McpTool

from handrail_contract.adapter import Answer, Invoke, NotOffered
from handrail_contract.probes import parse


async def _call(server: Any, raw: str, read_timeout: float | None = None) -> Answer:
    async with Client(server) as client:
        name = (await client.list_tools()).tools[0].name
        result = await client.call_tool(name, parse(raw), read_timeout_seconds=read_timeout)
    text = "".join(block.text for block in result.content if isinstance(block, TextContent))
    return Answer(text, bool(result.is_error))


class McpSdkAdapter:
    """See :class:`handrail_contract.adapter.Adapter`."""

    name = "mcp"
    package = "mcp"
    settings = "MCPServer.tool() and lowlevel Server, called by Client; read_timeout_seconds"
    parses_json = False

    def typed(self, function: Callable[..., Any]) -> Invoke:
        server = MCPServer("probe")
        server.tool()(function)
        return lambda raw: asyncio.run(_call(server, raw))

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        async def listed(context: Any, params: Any) -> ListToolsResult:
            return ListToolsResult(tools=[McpTool(name="probe", description="Probe.", input_schema=dict(schema))])

        async def called(context: Any, params: Any) -> CallToolResult:
            text = function(params.arguments or {})
            return CallToolResult(content=[TextContent(type="text", text=text)])

        server = Server("probe", on_list_tools=listed, on_call_tool=called)
        return lambda raw: asyncio.run(_call(server, raw))

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        def probe() -> str:
            """Probe."""
            exec(compile(source, "probe", "exec"), {})
            return "done"

        server = MCPServer("probe")
        server.tool()(probe)

        def invoke(raw: str) -> Answer:
            loop = asyncio.new_event_loop()
            return loop.run_until_complete(_call(server, raw, timeout))

        return invoke

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        raise NotOffered("has no approvals; clients ask people by themselves")

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        raise NotOffered("keeps no record of its own")

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        raise NotOffered("see crash_first")
