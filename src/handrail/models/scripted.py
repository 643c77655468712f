"""A model that says what a script says: for tests, demonstrations and benchmarks. Everything but the model is real."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from handrail.errors import ModelError
from handrail.models.client import ModelCall, ModelEvent, ModelRequest, Reply, TextDelta, Usage

Step: TypeAlias = "Reply | str | ModelError | Callable[[ModelRequest], Reply | str | ModelError]"


def call(name: str, arguments: Mapping[str, Any] | str | None = None, provider_id: str = "") -> ModelCall:
    """A tool call; ``arguments`` as a mapping, or as the raw text that a model would write."""
    text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}), ensure_ascii=False)
    return ModelCall(name, text, provider_id)


def calls(*proposed: ModelCall, text: str = "", stop: str = "calls") -> Reply:
    """An answer that proposes calls. ``stop="truncated"`` is one that was cut off."""
    return Reply(text, proposed, "truncated" if stop == "truncated" else "calls", Usage(10, 5), "scripted")


class ScriptedModel:
    """Answers with the steps of a script, in order; ``requests`` keeps what it was asked.

    A step is a :class:`Reply`, a text, an error to raise, or a function from the request to one of these. When the
    script is over, ``then`` is the text of every further answer; without it, asking is an error.
    """

    def __init__(self, steps: Sequence[Step], *, then: str | None = None, name: str = "scripted:test") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._steps = list(steps)
        self._then = then

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The next step."""
        self.requests.append(request)
        step = self._next(request)
        if isinstance(step, ModelError):
            raise step
        reply = Reply(step, (), "end", Usage(10, 5), "scripted") if isinstance(step, str) else step
        for word in reply.text.splitlines(keepends=True):
            yield TextDelta(word)
        yield reply

    async def close(self) -> None:
        """There are no connections."""

    def _next(self, request: ModelRequest) -> "Reply | str | ModelError":
        if self._steps:
            step = self._steps.pop(0)
            return step(request) if callable(step) else step
        if self._then is None:
            raise ModelError("the script is over")
        return self._then
