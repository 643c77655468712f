"""Anthropic's messages API.

Needs the ``anthropic`` extra. The SDK's own retries are off: asking again is decided in one place (``retry.py``).
The standing part of a request (tools, system prompt, the conversation so far) is marked for the provider's cache.
"""

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import anthropic

from handrail.bounds import require_seconds
from handrail.errors import ModelError
from handrail.models.client import (
    AssistantMessage,
    Message,
    ModelCall,
    ModelEvent,
    ModelRequest,
    Reply,
    ResultMessage,
    Stop,
    TextDelta,
    Usage,
    arguments_object,
)
from handrail.models.failure import model_error
from handrail.models.projection import Projections
from handrail.names import MODEL_NAME

DEFAULT_MAX_TOKENS = 16_384
_CACHE = {"type": "ephemeral"}


class Anthropic:
    """One model of Anthropic's, or behind an endpoint that speaks its API. ``key`` is the secret itself.

    ``timeout``: seconds without a byte after which the request counts as failed.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.anthropic.com",
        key: str = "",
        provider: str = "anthropic",
        stream: bool = True,
        timeout: float = 120.0,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        require_seconds("timeout", timeout)
        self.name = f"{provider}:{model}"
        self._model = model
        self._stream = stream
        self._extra = dict(extra or {})
        self._tools = Projections()
        self._key, self._base_url, self._timeout = key or "none", base_url, anthropic.Timeout(timeout, connect=10.0)
        self._client: anthropic.AsyncAnthropic | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask once."""
        answer = _Answer()
        try:
            if self._stream:
                async for delta in self._streamed(request, answer):
                    yield delta
            else:
                answer.take(await self._create(**self.body(request)))
        except Exception as error:
            raise model_error(error, self.name, received=answer.received, secret=self._key) from error
        if answer.stop is None or not answer.whole:
            raise ModelError(f"{self.name}: the answer broke off before its end", received=answer.received)
        calls = tuple(self._tools.restore(call) for call in answer.calls())
        yield Reply(answer.text(), calls, _stop(answer.stop, calls), answer.usage(), answer.model or self._model)

    async def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _create(self, **body: Any) -> Any:
        """The SDK's call. Bodies are plain data; the tests check them against the SDK's own types."""
        if self._client is None:
            self._client = anthropic.AsyncAnthropic(
                api_key=self._key, base_url=self._base_url, max_retries=0, timeout=self._timeout
            )
        create: Any = self._client.messages.create
        return create(**body)

    async def _streamed(self, request: ModelRequest, answer: "_Answer") -> AsyncGenerator[TextDelta, None]:
        async with await self._create(**self.body(request), stream=True) as events:
            async for event in events:
                if text := answer.add(event):
                    yield TextDelta(text)

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request's body, as the provider's schema describes it; the SDK merges ``extra_body`` into it."""
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_output_tokens or DEFAULT_MAX_TOKENS,
            "messages": _messages(request.messages),
        }
        if request.system:
            body["system"] = [{"type": "text", "text": request.system, "cache_control": _CACHE}]
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in self._tools.of(request.tools)
            ]
        if self._extra:
            body["extra_body"] = self._extra
        return body


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Neighbours of one role are joined, as the API wants; empty texts, which it refuses, are left out."""
    made: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if isinstance(message, AssistantMessage) else "user"
        blocks = _blocks(message)
        if not blocks:
            continue
        if made and made[-1]["role"] == role:
            made[-1]["content"].extend(blocks)
        else:
            made.append({"role": role, "content": blocks})
    if made:
        made[-1]["content"][-1] = {**made[-1]["content"][-1], "cache_control": _CACHE}
    return made


def _blocks(message: Message) -> list[dict[str, Any]]:
    if isinstance(message, ResultMessage):
        content = [{"type": "text", "text": message.text}] if message.text.strip() else []
        return [
            {
                "type": "tool_result",
                "tool_use_id": message.call_id,
                "content": content,
                "is_error": message.is_error,
            }
        ]
    text = [{"type": "text", "text": message.text}] if message.text.strip() else []
    if not isinstance(message, AssistantMessage):
        return text
    return [
        *text,
        *(
            {
                "type": "tool_use",
                "id": call.call_id,
                "name": call.name if MODEL_NAME.fullmatch(call.name) else "unknown_tool",
                "input": arguments_object(call.arguments),
            }
            for call in message.calls
        ),
    ]


@dataclass(slots=True)
class _Block:
    """One content block while it arrives."""

    kind: str
    text: str = ""
    id: str = ""
    name: str = ""
    given: Any = None


@dataclass(slots=True)
class _Answer:
    """An answer while it arrives."""

    stop: str | None = None
    model: str = ""
    whole: bool = False
    received: bool = False
    _blocks: dict[int, _Block] = field(default_factory=dict[int, _Block])
    _figures: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, event: Any) -> str:
        """Take one event of a stream; returns the text in it."""
        kind = getattr(event, "type", "")
        if kind == "message_start":
            self.model = getattr(event.message, "model", "") or ""
            self._take_usage(getattr(event.message, "usage", None))
        elif kind == "content_block_start":
            self._start(event.index, event.content_block)
            return self._blocks[event.index].text
        elif kind == "content_block_delta" and event.index in self._blocks:
            return self._extend(self._blocks[event.index], event.delta)
        elif kind == "message_delta":
            self.stop = getattr(event.delta, "stop_reason", None) or self.stop
            self._take_usage(getattr(event, "usage", None))
        elif kind == "message_stop":
            self.whole = True
        return ""

    def take(self, message: Any) -> None:
        """Take an answer that came whole."""
        self.received = self.whole = True
        self.model = getattr(message, "model", "") or ""
        self.stop = getattr(message, "stop_reason", None) or "end_turn"
        self._take_usage(getattr(message, "usage", None))
        for index, block in enumerate(cast("list[Any]", getattr(message, "content", None) or [])):
            self._start(index, block)

    def text(self) -> str:
        """All text blocks."""
        return "".join(block.text for block in self._blocks.values() if block.kind == "text")

    def calls(self) -> list[ModelCall]:
        """The tool calls, in order. Arguments are the text as it was streamed."""
        return [
            ModelCall(block.name, block.text or _as_text(block.given), block.id)
            for block in self._blocks.values()
            if block.kind == "tool_use"
        ]

    def usage(self) -> Usage:
        """The figures; Anthropic counts cached input apart from ``input_tokens``."""
        read = self._figures.get("cache_read_input_tokens", 0)
        written = self._figures.get("cache_creation_input_tokens", 0)
        fresh = self._figures.get("input_tokens", 0)
        return Usage(fresh + read + written, self._figures.get("output_tokens", 0), read, written)

    def _start(self, index: int, block: Any) -> None:
        self.received = True
        kind = str(getattr(block, "type", ""))
        text = getattr(block, "text", None) if kind == "text" else None
        self._blocks[index] = _Block(
            kind,
            text or "",
            getattr(block, "id", None) or "",
            getattr(block, "name", None) or "",
            getattr(block, "input", None),
        )

    def _extend(self, block: _Block, delta: Any) -> str:
        kind = getattr(delta, "type", "")
        if kind == "text_delta":
            block.text += delta.text
            return str(delta.text)
        if kind == "input_json_delta":
            block.text += delta.partial_json
        return ""

    def _take_usage(self, usage: Any) -> None:
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            value = getattr(usage, name, None)
            if isinstance(value, int):
                self._figures[name] = value


def _stop(reason: str, calls: tuple[ModelCall, ...]) -> Stop:
    if reason in ("max_tokens", "model_context_window_exceeded"):
        return "truncated"
    if reason == "refusal":
        return "refused"
    return "calls" if calls else "end"


def _as_text(given: Any) -> str:
    return json.dumps(given if isinstance(given, dict) else {}, ensure_ascii=False)
