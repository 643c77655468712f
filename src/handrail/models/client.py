"""What the loop asks of a model, and what it gets back. One file per provider translates.

Rules for a client:

1. ``stream`` yields any number of :class:`TextDelta` and then exactly one :class:`Reply`, or raises
   :class:`~handrail.errors.ModelError`. It never asks twice by itself: asking again is the caller's decision.
2. ``ModelError.received`` says whether any part of an answer had arrived; only requests without are asked again.
3. A call's arguments are the model's own text. Nobody completes, repairs or coerces them on the way.
4. Text that no UTF-8 holds (a lone surrogate, which a broken provider can send) is mended by whoever reads the answer:
   :func:`as_utf8`.
5. Call ids in a request are ours. The provider's own ids are not unique, are kept for the record, and never sent back.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

from handrail.schema import ArgumentsInvalid, decode_arguments, is_unicode


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as it is offered: the model-facing name, what it does, and its authoritative JSON Schema."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A tool call in an answer. ``arguments`` is JSON text as the model wrote it, perhaps invalid.

    ``call_id`` is ours and unique; clients leave it empty and the loop sets it before anything is kept or run.
    """

    name: str
    arguments: str
    provider_id: str = ""
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a person, or the loop on a person's behalf, says."""

    text: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """An earlier answer of the model's."""

    text: str
    calls: tuple[ModelCall, ...] = ()


@dataclass(frozen=True, slots=True)
class ResultMessage:
    """The one result of one call."""

    call_id: str
    text: str
    is_error: bool = False


Message: TypeAlias = UserMessage | AssistantMessage | ResultMessage


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """Everything one answer is asked from. ``max_output_tokens``: ``None`` is the provider's own bound."""

    system: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    max_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens, as the provider counted them. ``input`` includes what was read from or written to its cache."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )

    @property
    def total(self) -> int:
        """Input and output tokens together."""
        return self.input + self.output

    def to_json(self) -> dict[str, int]:
        """Plain JSON data."""
        return {
            "input": self.input,
            "output": self.output,
            "cache_read": self.cache_read,
            "cache_write": self.cache_write,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, int]) -> "Usage":
        """The inverse of :meth:`to_json`."""
        return cls(**data)


Stop = Literal["end", "calls", "truncated", "refused"]


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer's text, as it comes."""

    text: str


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer. ``stop``: ``end``, ``calls``, ``truncated`` (its calls are not whole), ``refused``."""

    text: str
    calls: tuple[ModelCall, ...] = ()
    stop: Stop = "end"
    usage: Usage = field(default_factory=Usage)
    model: str = ""


ModelEvent: TypeAlias = TextDelta | Reply


def as_utf8(event: ModelEvent) -> ModelEvent:
    """The event with text that can be stored, shown and sent on.

    Halves of a character that came apart are joined. A lone one becomes a replacement character in text and its JSON
    escape in arguments, so that arguments with one are refused as they would have been.
    """
    if isinstance(event, TextDelta):
        return event if is_unicode(event.text) else TextDelta(utf8_text(event.text))
    calls = event.calls
    if not all(is_unicode(call.name + call.arguments + call.provider_id) for call in calls):
        calls = tuple(
            replace(
                call,
                name=utf8_text(call.name),
                arguments=_joined(call.arguments).encode("utf-8", "backslashreplace").decode(),
                provider_id=utf8_text(call.provider_id),
            )
            for call in calls
        )
    elif is_unicode(event.text + event.model):
        return event
    return replace(event, text=utf8_text(event.text), calls=calls, model=utf8_text(event.model))


def _joined(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def utf8_text(text: str) -> str:
    """``text`` with the halves of a character that came apart joined, and each lone one a replacement character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class ModelClient(Protocol):
    """A model. ``name`` is ``provider:model``, for people and the record."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Ask for one answer (rules 1 to 4 above)."""
        ...

    async def close(self) -> None:
        """Give connections back, in the event loop that used them. The client can be used again afterwards."""
        ...


def arguments_object(text: str) -> dict[str, Any]:
    """A call's arguments for a provider's history, which must be an object even where the model's text was none.

    What could not be decoded is kept as ``{"unparsed": …}``: the model sees what it wrote, beside the error result.
    """
    try:
        return decode_arguments(text)
    except ArgumentsInvalid:
        return {"unparsed": text.encode("utf-8", "replace").decode("utf-8")[:2000]}


def arguments_text(text: str) -> str:
    """:func:`arguments_object` as JSON text; valid text stays as it is, byte by byte."""
    decoded = arguments_object(text)
    return json.dumps(decoded, ensure_ascii=False) if set(decoded) == {"unparsed"} else text
