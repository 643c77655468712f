"""Chat completions as OpenAI defined them: OpenAI, OpenRouter, vLLM, Ollama, DeepSeek and many others.

Needs the ``openai`` extra. The SDK's own retries are off: asking again is decided in one place (``retry.py``).
What servers are known to do and this client bears: call fragments without an index, several calls under index 0, the
same id for two calls, ids repeated in every fragment, no usage, no ``[DONE]``.
"""

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import openai

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
    arguments_text,
)
from handrail.models.failure import model_error
from handrail.models.projection import Projections

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class OpenAICompatible:
    """One model behind one endpoint. ``key`` is the secret itself; ``stream=False`` for servers that cannot.

    ``timeout``: seconds without a byte after which the request counts as failed. ``extra`` is added to every request
    body (``{"temperature": 0}``).
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str = "https://api.openai.com/v1",
        key: str = "",
        provider: str = "openai",
        stream: bool = True,
        timeout: float = 120.0,
        max_tokens_field: str = "max_completion_tokens",
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        require_seconds("timeout", timeout)
        self.name = f"{provider}:{model}"
        self._model = model
        self._stream = stream
        self._max_tokens_field = max_tokens_field
        self._extra = dict(extra or {})
        self._tools = Projections()
        self._key, self._base_url, self._timeout = key or "none", base_url, openai.Timeout(timeout, connect=10.0)
        self._client: openai.AsyncOpenAI | None = None

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask once."""
        answer = _Answer()
        try:
            if self._stream:
                async for delta in self._streamed(request, answer):
                    yield delta
            else:
                await self._whole(request, answer)
        except Exception as error:
            raise model_error(error, self.name, received=answer.received, secret=self._key) from error
        if answer.finish is None:
            raise ModelError(f"{self.name}: the answer broke off before its end", received=answer.received)
        calls = tuple(self._tools.restore(call) for call in answer.calls())
        stop: Stop = "refused" if answer.refusal else _stop(answer.finish, calls)
        yield Reply(answer.text or answer.refusal, calls, stop, answer.usage, answer.model or self._model)

    async def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _create(self, **body: Any) -> Any:
        """The SDK's call. Bodies are plain data; the tests check them against the SDK's own types."""
        if self._client is None:
            self._client = openai.AsyncOpenAI(
                api_key=self._key, base_url=self._base_url, max_retries=0, timeout=self._timeout
            )
        create: Any = self._client.chat.completions.create
        return create(**body)

    async def _streamed(self, request: ModelRequest, answer: "_Answer") -> AsyncGenerator[TextDelta, None]:
        body = {**self.body(request), "stream": True, "stream_options": {"include_usage": True}}
        async with await self._create(**body) as chunks:
            async for chunk in chunks:
                if text := answer.add(chunk):
                    yield TextDelta(text)

    async def _whole(self, request: ModelRequest, answer: "_Answer") -> None:
        answer.take(await self._create(**self.body(request)))

    def body(self, request: ModelRequest) -> dict[str, Any]:
        """The request's body, as the provider's schema describes it; the SDK merges ``extra_body`` into it."""
        body: dict[str, Any] = {"model": self._model, "messages": _messages(request)}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                        "strict": False,
                    },
                }
                for tool in self._tools.of(request.tools)
            ]
        if request.max_output_tokens is not None:
            body[self._max_tokens_field] = request.max_output_tokens
        if self._extra:
            body["extra_body"] = self._extra
        return body


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": request.system}] if request.system else []
    return [*system, *map(_message, request.messages)]


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, ResultMessage):
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    if not isinstance(message, AssistantMessage):
        return {"role": "user", "content": message.text}
    made: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.calls:
        made["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": history_name(call.name), "arguments": arguments_text(call.arguments)},
            }
            for call in message.calls
        ]
    return made


def history_name(name: str) -> str:
    """A tool's name as it may stand in a provider's history, also where the model made up an impossible one."""
    return name if _NAME.fullmatch(name) else re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:64] or "unnamed"


@dataclass(slots=True)
class _Fragments:
    """One call while it arrives."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class _Answer:
    """An answer while it arrives. Servers' objects are read without trusting that a field is there."""

    text: str = ""
    refusal: str = ""
    finish: str | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    received: bool = False
    _calls: list[_Fragments] = field(default_factory=list[_Fragments])
    _by_index: dict[int, _Fragments] = field(default_factory=dict[int, _Fragments])

    def add(self, chunk: Any) -> str:
        """Take one chunk of a stream; returns the text in it."""
        self._take_figures(chunk)
        for choice in _list(chunk, "choices")[:1]:
            self.finish = getattr(choice, "finish_reason", None) or self.finish
            delta = getattr(choice, "delta", None)
            text = _text(delta, "content")
            self.text += text
            self.refusal += _text(delta, "refusal")
            for part in _list(delta, "tool_calls"):
                self._add_fragment(part)
            self.received = self.received or bool(text or self.refusal or self._calls)
            return text
        return ""

    def take(self, completion: Any) -> None:
        """Take an answer that came whole."""
        self.received = True
        self._take_figures(completion)
        for choice in _list(completion, "choices")[:1]:
            self.finish = getattr(choice, "finish_reason", None) or "stop"
            message = getattr(choice, "message", None)
            self.text, self.refusal = _text(message, "content"), _text(message, "refusal")
            for part in _list(message, "tool_calls"):
                function = getattr(part, "function", None)
                self._calls.append(_Fragments(_text(part, "id"), _text(function, "name"), _text(function, "arguments")))

    def calls(self) -> list[ModelCall]:
        """The calls, in the order in which they began."""
        return [ModelCall(call.name, call.arguments, call.id) for call in self._calls]

    def _add_fragment(self, part: Any) -> None:
        function = getattr(part, "function", None)
        identity, name = _text(part, "id"), _text(function, "name")
        call = self._call_for(getattr(part, "index", None), identity, name)
        call.id = call.id or identity
        if name and name != call.name:  # a name comes whole, or in pieces; a server that repeats it adds nothing
            call.name += name
        call.arguments += _text(function, "arguments")

    def _call_for(self, index: Any, identity: str, name: str) -> _Fragments:
        known = self._by_index.get(index) if isinstance(index, int) else (self._calls[-1] if self._calls else None)
        starts = known is None or bool(identity and known.id and identity != known.id)
        if not isinstance(index, int) and known is not None and name and known.arguments:
            starts = True  # without an index, a name after arguments is the next call
        if starts or known is None:
            known = _Fragments()
            self._calls.append(known)
            if isinstance(index, int):
                self._by_index[index] = known
        return known

    def _take_figures(self, source: Any) -> None:
        self.model = _text(source, "model") or self.model
        usage = getattr(source, "usage", None)
        if usage is not None:
            details = getattr(usage, "prompt_tokens_details", None)
            self.usage = Usage(
                _number(usage, "prompt_tokens"),
                _number(usage, "completion_tokens"),
                _number(details, "cached_tokens"),
                _number(details, "cache_write_tokens"),
            )


def _stop(finish: str, calls: tuple[ModelCall, ...]) -> Stop:
    if finish == "length":
        return "truncated"
    if finish == "content_filter":
        return "refused"
    return "calls" if calls else "end"


def _text(source: Any, name: str) -> str:
    value = getattr(source, name, None)
    return value if isinstance(value, str) else ""


def _number(source: Any, name: str) -> int:
    value = getattr(source, name, None)
    return value if isinstance(value, int) else 0


def _list(source: Any, name: str) -> list[Any]:
    value = getattr(source, name, None)
    return cast("list[Any]", value) if isinstance(value, list) else []
