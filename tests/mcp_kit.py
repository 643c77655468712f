"""A scripted MCP server, and everything that stands between it and a test."""

import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from handrail import AlwaysApprove, ToolExecutor, ToolRegistry
from handrail.mcp.catalog import ServerSpec
from handrail.mcp.client import McpServer, McpServers
from handrail.mcp.launch import PlainLauncher
from handrail.mcp.pins import PinStore

VICTIM = Path(__file__).parent / "victims" / "mcp_server.py"
TOOL = {
    "name": "act",
    "description": "Acts.",
    "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}},
}


def tool(name: str = "act", **more) -> dict:
    """A plain definition, with some of it replaced."""
    return TOOL | {"name": name} | more


@dataclass
class Victim:
    """A scripted server, and everything that stands between it and a test."""

    directory: Path
    spec: ServerSpec
    pins: PinStore

    def script(self, **script) -> None:
        """Write what the server is to do from its next start on."""
        script = {
            "tools": [TOOL],
            "effects": str(self.directory / "effects"),
            "pid": str(self.directory / "pid"),
        } | script
        (self.directory / "script.json").write_text(json.dumps(script))

    @property
    def effects(self) -> list[str]:
        """What the server did, in order."""
        file = self.directory / "effects"
        return file.read_text().split() if file.exists() else []

    @property
    def pid(self) -> int:
        return int((self.directory / "pid").read_text())

    def with_(self, **changes) -> None:
        self.spec = replace(self.spec, **changes)

    @asynccontextmanager
    async def opened(self, approver=None, **options):
        """The server's tools behind an executor. ``approver`` answers the server's own questions."""
        async with McpServers([self.spec], launcher=PlainLauncher(), pins=self.pins, approver=approver) as servers:
            registry = ToolRegistry()
            for plugin in servers.plugins():
                registry.register_plugin(plugin)
            spill = str(self.directory / "spill")
            executor = ToolExecutor(registry, approver=AlwaysApprove(), spill_directory=spill, **options)
            yield Opened(servers.servers[0], registry, executor)


@dataclass
class Opened:
    server: McpServer
    registry: ToolRegistry
    executor: ToolExecutor

    async def call(self, name: str = "act", arguments: dict | None = None, **options):
        return await self.executor.execute(f"mcp:victim/{name}", arguments or {}, **options)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until ``condition`` holds."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)
