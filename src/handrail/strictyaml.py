"""YAML read strictly, with the place of every value. Nothing is constructed but plain JSON values.

Rules (a subset of YAML 1.2, the part that two readers cannot take differently):

1. One document, UTF-8, at most ``MAX_BYTES`` bytes and ``MAX_DEPTH`` levels, without directives. Its lines end in LF
   or CRLF; the other characters that end a line for YAML 1.1 and not for 1.2 are refused, and so are halves of
   surrogate pairs, also where they are written as escapes.
2. No anchors, aliases, tags or merge keys; no key twice in one mapping; keys are text.
3. Unquoted ``null``, ``true``, ``false`` and JSON numbers mean that; everything else unquoted is text
   (``no`` is text, ``1:30`` is text, ``2024-01-01`` is text).
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 1_048_576
MAX_DEPTH = 32

_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_OTHER_LINE_END = re.compile(r"\r(?!\n)|[\x85\u2028\u2029]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where something stands: line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Scalar:
    """A JSON scalar. ``style`` is how it was written: ``|``, ``>``, a quote, or empty."""

    value: str | int | float | bool | None
    place: Place
    style: str = ""

    @property
    def plain(self) -> Any:
        """The value itself."""
        return self.value


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list of located values."""

    items: tuple["Located", ...]
    place: Place

    @property
    def plain(self) -> Any:
        """As a list of plain values."""
        return [item.plain for item in self.items]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A mapping; ``keys`` says where each key stands."""

    items: dict[str, "Located"]
    place: Place
    keys: dict[str, Place] = field(default_factory=dict[str, Place])

    @property
    def plain(self) -> Any:
        """As a dict of plain values."""
        return {key: item.plain for key, item in self.items.items()}


Located = Scalar | Sequence | Mapping


class NotStrict(ValueError):
    """The text is not YAML, or not the part of it that is accepted. ``place`` says where."""

    def __init__(self, message: str, place: Place) -> None:
        super().__init__(message)
        self.message = message
        self.place = place


def read(text: str, *, first_line: int = 1) -> Located:
    """Read one document whose first line is line ``first_line`` of its file. Raises :class:`NotStrict`."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise NotStrict(f"larger than {MAX_BYTES} bytes", Place(first_line, 1))
    line_end = _OTHER_LINE_END.search(text)
    if line_end is not None:
        raise _not_allowed(text, line_end.start(), first_line)
    reader = _Reader(first_line)
    try:
        events: Iterator[Any] = iter(yaml.parse(text, Loader=yaml.SafeLoader))  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
        return reader.document(events)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(first_line, 1) if mark is None else reader.place(mark)
        raise NotStrict(f"not valid YAML: {error.problem or error.context}", place) from None
    except yaml.reader.ReaderError as error:
        raise _not_allowed(text, error.position, first_line) from None


def _not_allowed(text: str, position: int, first_line: int) -> NotStrict:
    before = text[:position]
    place = Place(first_line + before.count("\n"), position - before.rfind("\n"))
    return NotStrict(f"the character U+{ord(text[position]):04X} is not allowed", place)


class _Reader:
    def __init__(self, first_line: int) -> None:
        self._offset = first_line

    def place(self, mark: Any) -> Place:
        return Place(mark.line + self._offset, mark.column + 1)

    def document(self, events: Iterator[Any]) -> Located:
        next(events)  # the stream's start
        start = next(events)
        if isinstance(start, yaml.StreamEndEvent):
            raise NotStrict("empty", Place(self._offset, 1))
        if start.version is not None or start.tags:
            raise NotStrict("directives (%YAML, %TAG) are not accepted", self.place(start.start_mark))
        value = self._value(next(events), events, 1)
        next(events)  # the document's end
        after = next(events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise NotStrict("a second document; one file holds one", self.place(after.start_mark))
        return value

    def _value(self, event: Any, events: Iterator[Any], depth: int) -> Located:
        place = self.place(event.start_mark)
        self._refuse_tricks(event, place)
        if depth > MAX_DEPTH:
            raise NotStrict(f"nested deeper than {MAX_DEPTH} levels", place)
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event.value, event.style)
            if _SURROGATE.search(event.value):
                raise NotStrict("half of a surrogate pair, which is no Unicode text", place)
            if isinstance(value, float) and not math.isfinite(value):
                raise NotStrict(f"the number {event.value} is too large", place)
            return Scalar(value, place, event.style or "")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(events, place, depth)
        return self._mapping(events, place, depth)

    def _refuse_tricks(self, event: Any, place: Place) -> None:
        if isinstance(event, yaml.AliasEvent):
            raise NotStrict(f"the alias *{event.anchor} is not accepted; write the value out", place)
        if event.anchor is not None:
            raise NotStrict(f"the anchor &{event.anchor} is not accepted", place)
        if event.tag is not None:
            raise NotStrict(f"the tag {event.tag!r} is not accepted", place)

    def _sequence(self, events: Iterator[Any], place: Place, depth: int) -> Sequence:
        items: list[Located] = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._value(event, events, depth + 1))
        return Sequence(tuple(items), place)

    def _mapping(self, events: Iterator[Any], place: Place, depth: int) -> Mapping:
        found = Mapping({}, place)
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._value(event, events, depth + 1)
            if not isinstance(key, Scalar) or not isinstance(key.value, str):
                raise NotStrict("a key must be text; quote it", key.place)
            if key.value == "<<" and not key.style:
                raise NotStrict("merge keys (<<) are not accepted", key.place)
            if key.value in found.keys:
                first = found.keys[key.value]
                raise NotStrict(f"the key {key.value!r} was given before, on line {first.line}", key.place)
            found.keys[key.value] = key.place
            found.items[key.value] = self._value(next(events), events, depth + 1)
        return found


def _scalar(text: str, style: str | None) -> str | int | float | bool | None:
    if style:
        return text
    if text in _WORDS:
        return _WORDS[text]
    number = _NUMBER.fullmatch(text)
    if number is None or len(text) > 300:
        return text
    return float(text) if number[2] or number[3] else int(text)
