"""Untrusted text made fit for a person's screen: everything is shown, nothing acts, what is left out is counted.

Rules:

1. No byte of it can steer a terminal: what is hidden (:mod:`~handrail.hidden`) is shown as ``\\n``, ``\\t``,
   ``\\x1b``, ``\\u202e`` …
2. A backslash is shown as ``\\\\``, so that no text can spell an escape that is not there.
3. It is shown as one quoted line (:func:`quoted`), so that no text can look like part of the question.
4. A run of the same escape longer than a few is counted: ``\\[510×\\n]``. (No text can spell that, by rule 2.)
5. What is longer than the room for it is shown by its beginning, its end, its size and digest, and is then *not
   complete*: what is not complete cannot be approved by one key.
"""

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from handrail.hidden import escape, is_hidden
from handrail.schema import json_text

MAX_VALUE_CHARACTERS = 2_000
EDGE_CHARACTERS = 160
MAX_RUN = 4
MAX_COMBINING = 2

_NAMED = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", '"': '\\"'}
_PLAIN = re.compile(r"[ !#-\[\]-~]*\Z")  # printable ASCII without the quote and the backslash


@dataclass(frozen=True, slots=True)
class Shown:
    """A text made fit for a screen. ``complete``: all of it is in ``text``."""

    text: str
    complete: bool


def escaped(text: str) -> str:
    """``text`` with rules 1, 2 and 4 applied; also ``"`` is escaped, so that it can stand between quotes."""
    if _PLAIN.match(text):
        return text
    pieces: list[str] = []
    last, run, combining = "", 0, 0
    for character in text:
        combining = combining + 1 if unicodedata.combining(character) else 0
        piece = _piece(character, combining)
        if piece is last or (piece == last and len(piece) > 1):
            run += 1
            continue
        _end_run(pieces, last, run)
        last, run = piece, 1
    _end_run(pieces, last, run)
    return "".join(pieces)


def visible(line: str) -> str:
    """:func:`escaped`, for a line that stands by itself: its quotes end nothing, so they stay as they are."""
    return escaped(line).replace('\\"', '"')


def _piece(character: str, combining: int) -> str:
    named = _NAMED.get(character)
    if named is not None:
        return named
    if not is_hidden(character) and combining <= MAX_COMBINING:
        return character
    return escape(character)


def _end_run(pieces: list[str], piece: str, run: int) -> None:
    if run <= MAX_RUN or not piece.startswith("\\") or piece in {"\\\\", '\\"'}:
        pieces.append(piece * run)
    else:
        pieces.append(f"\\[{run}×{piece}]")


def quoted(text: str, limit: int = MAX_VALUE_CHARACTERS) -> Shown:
    """``text`` as one quoted line (rules 1 to 5)."""
    if len(text) <= limit:
        shown = escaped(text)
        if len(shown) <= 2 * limit:
            return Shown(f'"{shown}"', complete=True)
    raw = text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(raw).hexdigest()
    head, tail = escaped(text[:EDGE_CHARACTERS]), escaped(text[-EDGE_CHARACTERS:])
    return Shown(f'"{head}" … "{tail}" ({len(raw)} bytes, sha256 {digest}; not shown whole)', complete=False)


def arguments_lines(arguments: Mapping[str, Any], limit: int = MAX_VALUE_CHARACTERS) -> tuple[list[str], bool]:
    """Arguments as lines ``name: value``, sorted by name, and whether they are complete.

    Strings are quoted; everything else is JSON under the same rules.
    """
    lines: list[str] = []
    complete = True
    for name in sorted(arguments):
        value = _value(arguments[name], limit)
        complete = complete and value.complete
        label = quoted(name, 200)
        complete = complete and label.complete
        plain = name.isidentifier() and name.isascii() and label.complete
        lines.append(f"{name if plain else label.text}: {value.text}")
    return lines, complete


def _value(value: Any, limit: int) -> Shown:
    if isinstance(value, str):
        return quoted(value, limit)
    if value is None or isinstance(value, (bool, int, float)):
        return Shown(json_text(value), complete=True)
    shown = _json(value)
    if len(shown) <= 2 * limit:
        return Shown(shown, complete=True)
    return quoted(json_text(value), limit)


def _json(value: Any) -> str:
    """Nested values as JSON-like text in which every string went through :func:`escaped`."""
    if isinstance(value, str):
        return f'"{escaped(value)}"'
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value)
        return "{" + ", ".join(f'"{escaped(key)}": {_json(items[key])}' for key in sorted(items)) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(_json(item) for item in cast("Sequence[Any]", value)) + "]"
    return json_text(value)


def block_lines(text: str, *, max_lines: int, width: int = 2_000) -> tuple[list[str], bool]:
    """A text of several lines (a diff, a description) as escaped lines, and whether all of it is there.

    A line that begins with nothing but blanks many times over is counted, and so are lines beyond ``max_lines``.
    """
    lines: list[str] = []
    complete, blank = True, 0
    source = text.split("\n")
    for number, line in enumerate(source):
        if not line.strip():
            blank += 1
            continue
        if blank:
            lines.append("" if blank == 1 else f"({blank} blank lines)")
            blank = 0
        if len(lines) >= max_lines:
            lines.append(f"({len(source) - number} more lines are not shown)")
            return lines, False
        shown = visible(line)
        if len(shown) > width:
            shown, complete = shown[:width] + f"… ({len(line)} characters, not shown whole)", False
        lines.append(shown)
    if blank > 1:
        lines.append(f"({blank} blank lines)")
    return lines, complete
