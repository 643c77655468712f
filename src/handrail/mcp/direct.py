"""Tool calls over a server's pipes without the library in between, which costs several times what the pipe does.

The library opens the connection, settles the protocol's era, lists tools, answers questions and hears changes. A plain
``tools/call`` needs none of that: one line out, one line in. It is sent under an id that the library never uses, with
the envelope (2026-07-28) that the library put on its own last request, and its answer is checked as any other.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any, cast

import anyio

from handrail.mcp.pipes import LineWriter
from handrail.mcp.wire import Intake, Message
from handrail.schema import JsonObject

FIRST_ID = 1 << 40  # exact in every JSON reader, and far beyond what the library counts up to
TELLING_S = 1.0
ENVELOPE = "io.modelcontextprotocol/"


class ConnectionEnded(Exception):
    """The server's side ended before it answered."""


class DirectCalls:
    """The direct calls of one connection. Belongs to its event loop."""

    def __init__(self) -> None:
        self._ids = itertools.count(FIRST_ID)
        self._writer: LineWriter | None = None
        self._intake: Intake | None = None
        self._envelope: Mapping[str, Any] = {}
        self._waiting: dict[int, asyncio.Future[Message]] = {}

    def begin(self, writer: LineWriter, intake: Intake) -> None:
        """The connection is open."""
        self._writer, self._intake = writer, intake

    def end(self) -> None:
        """The server says no more: whoever waits learns of it."""
        self._writer = None
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(ConnectionEnded("the server closed its output"))

    def learn(self, sent: Mapping[str, Any]) -> None:
        """A request of the library's: its envelope will be ours."""
        if sent.get("method") == "tools/list":
            params = cast("Mapping[str, Any]", sent.get("params") or {})
            self._envelope = envelope_of(params)

    def takes(self, message: Message) -> bool:
        """Whether ``message`` is the answer to a call of ours; it is then delivered."""
        waiter = self._waiting.get(message.get("id", 0)) if "method" not in message else None
        if waiter is None:
            return False
        if not waiter.done():
            waiter.set_result(message)
        return True

    async def call(self, name: str, arguments: JsonObject) -> Message | None:
        """Send one call and return its answer; ``None`` when it cannot be sent at once, and nothing was sent.

        Raises :class:`ConnectionEnded` when no answer can come. Cancelled, it tells the server so.
        """
        if self._writer is None or self._intake is None:
            return None
        number = next(self._ids)
        params: dict[str, Any] = {"name": name, "arguments": arguments}
        if self._envelope:
            params["_meta"] = self._envelope
        try:
            if not self._writer.write_now(_line({"id": number, "method": "tools/call", "params": params})):
                return None
        except OSError:
            return None
        self._intake.sent({"id": number, "method": "tools/call"})
        waiter: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiter
        try:
            return await waiter
        except asyncio.CancelledError:
            await self._tell_cancelled(number)
            raise
        finally:
            del self._waiting[number]

    async def _tell_cancelled(self, number: int) -> None:
        """Tell the server that nobody waits any more; its answer, should it come, is dropped."""
        message = {"method": "notifications/cancelled", "params": {"requestId": number}}
        if self._writer is None or self._intake is None:
            return
        self._intake.sent(message)
        with anyio.move_on_after(TELLING_S, shield=True), contextlib.suppress(OSError):
            await self._writer.write(_line(message))


def envelope_of(params: Mapping[str, Any]) -> dict[str, Any]:
    """The protocol's own members of a request's ``_meta``: version, client and capabilities since 2026-07-28."""
    meta = params.get("_meta")
    if not isinstance(meta, Mapping):
        return {}
    found = cast("Mapping[str, Any]", meta)
    return {key: value for key, value in found.items() if key.startswith(ENVELOPE)}


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
