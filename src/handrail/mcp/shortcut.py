"""Plain tool calls of a stdio client, answered without the library in between, which costs more than the call itself.

The library opens the connection, settles the protocol's era, and answers everything it has not answered before. A
``tools/call`` is answered here when it says nothing that needs more: no progress is asked for, no question is replied
to, and its envelope is the one of a request that the library accepted on this connection. The door it enters is the
same.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import anyio
import mcp_types as types
from mcp import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from handrail.mcp.direct import envelope_of
from handrail.mcp.server import Answer, Context, CorridorServer
from handrail.mcp.stdio import Steps

log = logging.getLogger("handrail.mcp")

_KEYS = frozenset(("jsonrpc", "id", "method", "params"))
_PARAMS = frozenset(("name", "arguments", "_meta"))
MessageId = int | str


class PlainCalls:
    """The plain calls of one connection to ``door``."""

    def __init__(self, door: CorridorServer) -> None:
        self._door = door
        self._accepted: tuple[dict[str, Any], Context] | None = None
        self._running: dict[MessageId, anyio.CancelScope] = {}
        door.on_request = self._learn

    def _learn(self, context: Context) -> None:
        """The library accepted a request: others with its envelope come from the same client, in the same era."""
        self._accepted = (envelope_of(context.params or {}), context)

    def take(self, message: dict[str, Any]) -> Steps | None:
        """The steps of a plain call; a cancellation is heard, and left to the library as well."""
        if message.get("method") == "notifications/cancelled":
            self._cancel(message.get("params"))
            return None
        identity, params = message.get("id"), message.get("params")
        if message.get("method") != "tools/call" or message.get("jsonrpc") != "2.0" or message.keys() != _KEYS:
            return None
        if type(identity) not in (int, str) or not isinstance(params, dict):
            return None
        context = self._context_of(cast("dict[str, Any]", params))
        call = _call_of(cast("dict[str, Any]", params))
        if context is None or call is None:
            return None
        here = replace(context, request_id=identity, params=params, meta=None)
        return partial(self._answered, cast("MessageId", identity), here, call)

    def _context_of(self, params: Mapping[str, Any]) -> Context | None:
        meta = params.get("_meta", {})
        if self._accepted is None or not isinstance(meta, Mapping) or "progressToken" in meta:
            return None
        envelope, context = self._accepted
        return context if envelope_of(params) == envelope else None

    def _cancel(self, params: Any) -> None:
        identity = cast("Mapping[str, Any]", params).get("requestId") if isinstance(params, Mapping) else None
        scope = self._running.get(identity) if isinstance(identity, (int, str)) else None
        if scope is not None:
            scope.cancel()

    async def _answered(self, identity: MessageId, context: Context, call: types.CallToolRequestParams) -> bytes | None:
        """Carry the call out. A cancelled one is not answered: the client asked for that."""
        scope = anyio.CancelScope()
        self._running[identity] = scope
        answer: dict[str, Any] = {}
        try:
            with scope:
                answer = await self._answer(context, call)
        finally:
            if self._running.get(identity) is scope:
                del self._running[identity]
        if scope.cancelled_caught:
            return None
        return _line({"jsonrpc": "2.0", "id": identity, **answer})

    async def _answer(self, context: Context, call: types.CallToolRequestParams) -> dict[str, Any]:
        try:
            return {"result": self._finished(await self._door.call(context, call), context)}
        except MCPError as error:
            return {"error": error.error.model_dump(by_alias=True, mode="json", exclude_none=True)}
        except Exception:
            log.exception("a call of %s could not be answered", call.name)
            return {"error": {"code": types.INTERNAL_ERROR, "message": "The call could not be answered"}}

    def _finished(self, answer: Answer, context: Context) -> dict[str, Any]:
        """The answer as its era writes it. Since 2026-07-28 a result says its kind, and who answers."""
        if isinstance(answer, types.InputRequiredResult):
            result: dict[str, Any] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        else:
            result = answer
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return result
        meta = {**result.get("_meta", {}), types.SERVER_INFO_META_KEY: self._door.server.server_info_stamp}
        return {"resultType": "complete", **result, "_meta": meta}


def _call_of(params: Mapping[str, Any]) -> types.CallToolRequestParams | None:
    """The call, when ``params`` holds one and nothing else."""
    name, arguments = params.get("name"), params.get("arguments")
    if not params.keys() <= _PARAMS or not isinstance(name, str) or not isinstance(arguments, (dict, type(None))):
        return None
    return types.CallToolRequestParams(name=name, arguments=cast("dict[str, Any] | None", arguments))


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
