"""What a server writes, read strictly, one message at a time; a bad part never takes its neighbours down. Pure.

Rules:

1. A message is strict JSON (:mod:`handrail.schema`): no duplicate keys, no NaN, no lone surrogates, bounded.
2. An answer is passed on only while its request waits: late answers, and answers nobody asked for, are dropped.
3. Of ``tools/list`` the library sees names and input schemas only; the raw definitions go to our own reader. A
   definition that cannot even be decoded is set aside alone.
4. An answer that breaks rule 1, or is too large, becomes an error answer to its own request: the call is over and its
   connection lives on. Where it cannot be told whose answer it is, the connection must end. What the end of the stream
   cut off is no answer.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from handrail.schema import ArgumentsInvalid, decode_json

UNREADABLE_ANSWER = -32091
TOO_LARGE_ANSWER = -32092
EDGE_BYTES = 4096
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(rf"{_STRING}|[{{}}\[\],]", re.DOTALL)
_KEY = re.compile(rf"\s*({_STRING})\s*:\s*", re.DOTALL)
_ID_FIRST = re.compile(r'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d+)\s*,')
_ID_LAST = re.compile(r',\s*"id"\s*:\s*(\d+)\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$')

Message = dict[str, Any]
MessageId = int | str


class Unplaceable(Exception):
    """A message that cannot be read, and nobody can tell whose answer it is."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    """A tool definition whose JSON cannot be accepted; ``reason`` says why. Stands in a page for the definition."""

    name: str
    reason: str


class Intake:
    """Reads one connection's messages. ``on_page`` receives each page of raw tool definitions, before its answer."""

    def __init__(self, max_bytes: int, on_page: Callable[[list[Any]], None]) -> None:
        self.max_bytes = max_bytes
        self._on_page = on_page
        self._waiting: dict[MessageId, str] = {}

    def sent(self, message: Mapping[str, Any]) -> None:
        """Note what we send: a request waits for its answer until it is answered or cancelled."""
        method, request_id = message.get("method"), message.get("id")
        if method is not None and request_id is not None:
            self._waiting[request_id] = method
        elif method == "notifications/cancelled":
            params = cast("Mapping[str, Any]", message.get("params") or {})
            self._waiting.pop(params.get("requestId", ""), None)

    def waits_for(self, request_id: Any) -> bool:
        """Whether a request of ours still waits for its answer."""
        return type(request_id) in (int, str) and request_id in self._waiting

    def read(self, raw: bytes, *, cut: bool = False) -> Message | None:
        """One message's text. ``None``: there is nothing to pass on. Raises :class:`Unplaceable`.

        ``cut``: the stream ended within or just after it.
        """
        try:
            message = decode_json(raw, max_bytes=self.max_bytes)
        except ArgumentsInvalid as error:
            if cut:
                return None
            return self._salvaged(raw.decode("utf-8", "surrogateescape"), str(error))
        return self.accept(message)

    def accept(self, message: Any) -> Message | None:
        """One decoded message (rules 2 and 3)."""
        if not isinstance(message, dict):
            return None
        decoded = cast("Message", message)
        if "method" in decoded:
            return decoded
        method = self._answered(decoded.get("id"))
        if method is None:
            return None
        result = decoded.get("result")
        if method == "tools/list" and isinstance(result, dict):
            return decoded | {"result": self._listed(cast("dict[str, Any]", result))}
        return decoded

    def too_large(self, head: bytes, tail: bytes, size: int) -> Message | None:
        """A message beyond ``max_bytes`` whose middle was thrown away. Raises :class:`Unplaceable`."""
        found = _ID_FIRST.match(head.decode("utf-8", "replace")) or _ID_LAST.search(tail.decode("utf-8", "replace"))
        why = f"the answer has {size} bytes; at most {self.max_bytes} are read"
        if found is None:
            raise Unplaceable(why)
        return self._error(int(found.group(1)), TOO_LARGE_ANSWER, why)

    def _answered(self, request_id: Any) -> str | None:
        if type(request_id) not in (int, str):
            return None
        return self._waiting.pop(request_id, None)

    def _error(self, request_id: Any, code: int, why: str) -> Message | None:
        if self._answered(request_id) is None:
            return None
        return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": why}}

    def _listed(self, result: dict[str, Any]) -> dict[str, Any]:
        given = result.get("tools")
        page = cast("list[Any]", given) if isinstance(given, list) else []
        self._on_page(page)
        cursor = result.get("nextCursor")
        plain: dict[str, Any] = {"tools": _for_library(page), "resultType": "complete", "ttlMs": 0}
        plain["cacheScope"] = "private"
        return plain | ({"nextCursor": cursor} if isinstance(cursor, str) else {})

    def _salvaged(self, text: str, why: str) -> Message | None:
        """Rule 4: find the request that this answers, and for ``tools/list`` every definition that can be read."""
        parts = dict(members(text))
        identity = _decoded(parts.get("id", ""))
        if "method" in parts and identity is None:
            return None  # a broken notification concerns nobody
        if type(identity) not in (int, str):
            raise Unplaceable(why)
        if self._waiting.get(identity) == "tools/list" and "result" in parts:
            return self.accept({"jsonrpc": "2.0", "id": identity, "result": _salvaged_page(parts["result"])})
        return self._error(identity, UNREADABLE_ANSWER, why)


def _for_library(page: list[Any]) -> list[dict[str, Any]]:
    """The least that the library accepts and needs: it maps arguments to headers by the input schema."""
    tools: list[dict[str, Any]] = []
    for item in page:
        if isinstance(item, Mapping):
            tool = cast("Mapping[str, Any]", item)
            schema = tool.get("inputSchema")
            if isinstance(tool.get("name"), str) and isinstance(schema, dict):
                given = cast("dict[str, Any]", schema)
                if given.get("type") == "object" and isinstance(given.get("properties", {}), dict):
                    tools.append({"name": tool["name"], "inputSchema": given})
    return tools


def _salvaged_page(text: str) -> dict[str, Any]:
    parts = dict(members(text))
    page: list[Any] = []
    for element in elements(parts.get("tools", "")):
        try:
            page.append(decode_json(element))
        except ArgumentsInvalid as error:
            name = _decoded(dict(members(element)).get("name", ""))
            page.append(Undecodable(name if isinstance(name, str) else "", str(error)))
    return {"tools": page, "nextCursor": _decoded(parts.get("nextCursor", ""))}


def _decoded(text: str) -> Any:
    try:
        return decode_json(text)
    except ArgumentsInvalid:
        return None


def members(text: str) -> Iterator[tuple[str, str]]:
    """The members of the JSON object that ``text`` holds, as (key, text of the value), without decoding values.

    Nests as deep as the text does, without recursion. Text that is no object has no members.
    """
    if text.lstrip()[:1] != "{":
        return
    for part in elements(text):
        key = _KEY.match(part)
        if key is not None:
            try:
                yield json.loads(key.group(1)), part[key.end() :].strip()
            except ValueError:
                continue  # a key that is no JSON string names nothing we look for


def elements(text: str) -> Iterator[str]:
    """The texts between the outermost commas of the JSON array or object that ``text`` holds."""
    depth, start = 0, 0
    for token in _TOKEN.finditer(text):
        symbol = token.group()
        if symbol in "{[":
            depth += 1
            start = token.end() if depth == 1 else start
        elif symbol == "," and depth == 1:
            yield text[start : token.start()]
            start = token.end()
        elif symbol in "}]":
            depth -= 1
            if depth == 0:
                if text[start : token.start()].strip():
                    yield text[start : token.start()]
                return
