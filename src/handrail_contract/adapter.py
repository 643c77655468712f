"""What an adapter offers. A method that a framework has nothing for raises :class:`NotOffered` with the reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


class NotOffered(Exception):
    """The framework has no such feature, or documents that it delegates it. The text says which."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model would read after a call: the text, and whether it was marked as a failure."""

    text: str
    failed: bool


Invoke = Callable[[str], Answer]
"""Takes the model's raw JSON text and carries the call out through the framework."""


class Adapter(Protocol):
    """One framework, used as its documentation says, with the strictest settings it documents."""

    name: str
    package: str
    settings: str
    parses_json: bool  # False: the framework takes a mapping, so the harness had to parse the text

    def typed(self, function: Callable[..., Any]) -> Invoke:
        """A tool made from a typed function by the framework's own decorator."""
        ...

    def raw(self, schema: Mapping[str, Any], function: Callable[[Mapping[str, Any]], str]) -> Invoke:
        """A tool made from a raw JSON Schema, as MCP and plugin tools arrive. May raise: refused at registration."""
        ...

    def timed(self, source: str, directory: str, timeout: float) -> Invoke:
        """A tool whose body is the synchronous Python ``source`` (it may write in ``directory``), with a timeout."""
        ...

    def approve_then_swap(self, approved: str, swapped: str, function: Callable[[str], str]) -> None:
        """Get the call ``function(approved)`` approved, put ``swapped`` where the framework keeps it, go on."""
        ...

    def crash_first(self, directory: str, function: Callable[[], str]) -> None:
        """Run a call to ``function`` once, keeping what the framework keeps in ``directory``."""
        ...

    def crash_again(self, directory: str, function: Callable[[], str]) -> Answer:
        """Go on from ``directory`` after the process died in the middle; return what the model is told of the call."""
        ...
