"""An MCP client that speaks in lines, in either era, and sees exactly what comes back."""

import json

import anyio

from handrail.mcp.pipes import LineReader, LineWriter

ENVELOPE = "io.modelcontextprotocol/"
ERAS = ["2025-11-25", "2026-07-28"]


class Conversation:
    """A client that speaks in lines."""

    def __init__(self, era, write_fd, read_fd, capabilities):
        self.era, self.capabilities = era, capabilities
        self.library: list[str] = []
        self.writer, self.reader = LineWriter(write_fd), LineReader(read_fd, 1 << 20)
        self._ids = iter(range(1, 1000))

    async def line(self):
        with anyio.fail_after(60):
            return json.loads(await self.reader.line())

    async def say(self, message):
        await self.writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def ask(self, method, params, **more):
        number = next(self._ids)
        if self.era == "2026-07-28":
            envelope = {
                ENVELOPE + "protocolVersion": self.era,
                ENVELOPE + "clientInfo": {"name": "lines", "version": "1"},
                ENVELOPE + "clientCapabilities": self.capabilities,
            }
            params = params | {"_meta": envelope | params.get("_meta", {})}
        await self.say({"id": number, "method": method, "params": params, **more})
        return number

    async def asked(self, method, params):
        number = await self.ask(method, params)
        answer = await self.line()
        assert answer["id"] == number
        return answer

    async def call(self, name, arguments=None, **meta):
        params = {"name": name, "arguments": arguments or {}}
        return await self.asked("tools/call", params | ({"_meta": meta} if meta else {}))

    async def open(self):
        if self.era != "2026-07-28":
            info = {"name": "lines", "version": "1"}
            params = {"protocolVersion": self.era, "capabilities": self.capabilities, "clientInfo": info}
            await self.asked("initialize", params)
            await self.say({"method": "notifications/initialized"})
        return await self.asked("tools/list", {})
