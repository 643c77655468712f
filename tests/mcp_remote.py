"""A remote server that carries a call out and then does not answer it, and the executor that has its tools."""

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager

from handrail import AlwaysApprove, ToolExecutor, ToolRegistry
from handrail.mcp.catalog import ServerSpec
from handrail.mcp.client import opened
from handrail.mcp.joining import register_servers
from handrail.mcp.launch import PlainLauncher
from handrail.mcp.pins import PinStore
from mcp_kit import TOOL


class Breaking:
    """A server of before 2026-07-28 that answers everything but ``tools/call``, which it carries out and breaks off."""

    def __init__(self, ending: bytes) -> None:
        self.ending = ending
        self.effects = 0

    def answer(self, message) -> bytes | None:
        """The bytes of one response; ``None`` for the call."""
        results = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "breaking", "version": "1"},
            },
            "tools/list": {"tools": [TOOL]},
        }
        if message.get("method") == "tools/call":
            return None
        if "id" not in message:
            return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
        found = results.get(message["method"])
        said = {"result": found} if found is not None else {"error": {"code": -32601, "message": "Method not found"}}
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if not head.startswith("POST"):
                    writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
                    continue
                lengths = [line for line in head.lower().splitlines() if line.startswith("content-length:")]
                message = json.loads(await reader.readexactly(int(lengths[0].split(":")[1])))
                answer = self.answer(message)
                if answer is None:
                    self.effects += 1
                    await self.broken_off(writer)
                    break
                writer.write(answer)
        writer.close()

    async def broken_off(self, writer: asyncio.StreamWriter) -> None:
        """What comes instead of an answer."""
        writer.write(self.ending)
        await writer.drain()


@asynccontextmanager
async def breaking(ending: bytes, state, server: Breaking | None = None, *, timeout: float = 120.0):
    """``server``, or one that ends a call with ``ending``, and an executor with its tools."""
    server = server or Breaking(ending)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
    spec = ServerSpec(name="far", url=url, timeout=timeout, start_timeout=120.0)
    pins = PinStore(str(state / "private" / "pins.json"))
    try:
        async with opened([spec], launcher=PlainLauncher(), pins=pins) as servers:
            registry = ToolRegistry()
            register_servers(registry, servers)
            spill = str(state / "spill")
            yield server, ToolExecutor(registry, approver=AlwaysApprove(), spill_directory=spill)
    finally:
        listener.close()
