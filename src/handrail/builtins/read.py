"""read: a page of a text file, as a stream. Memory does not grow with the file."""

import os
from dataclasses import dataclass
from io import SEEK_CUR, BufferedReader
from typing import Any

from handrail.builtins._text import (
    CHUNK,
    LOOK_BYTES,
    as_text,
    go_on,
    opened,
    plural,
    refuse_binary,
    shown_argument,
    workspace_of,
)
from handrail.errors import ToolError
from handrail.tool import Job, Replay, RiskLevel, Signal, Tool, ToolDef

MAX_LINES = 2000
MAX_BYTES = 49_000  # leaves room for the closing remark within 50 KB
_BOM = b"\xef\xbb\xbf"

DEFINITION = ToolDef(
    name="read",
    description=(
        "Read a UTF-8 text file of the workspace. Returns at most 2000 lines or 50 KB and says how to go on. "
        "offset is the first line wanted, counted from 1; limit is how many lines."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the workspace."},
            "offset": {"type": "integer", "minimum": 1, "description": "First line, counted from 1."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LINES, "description": "How many lines."},
        },
        "required": ["path"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.READ_ONLY,
    path_args=("path",),
    replay=Replay.SAFE,
    replay_key="builtin:read:v1",
)


def execute(args: dict[str, Any], job: Job) -> str:
    """One page of the file."""
    workspace = workspace_of(job)
    name = shown_argument(workspace, args["path"])
    offset, limit = int(args.get("offset", 1)), int(args.get("limit", MAX_LINES))
    with opened(workspace, args["path"], name, instead="use list to see what is in it") as file:
        size = os.fstat(file.fileno()).st_size
        refuse_binary(file.peek(LOOK_BYTES)[:LOOK_BYTES], name, size)
        if file.peek(len(_BOM))[: len(_BOM)] == _BOM:
            file.read(len(_BOM))
        text = _Text(file, name, size, job.signal)
        _skip_to(text, offset)
        return _page(text, offset, limit)


@dataclass(frozen=True, slots=True)
class _Text:
    """An open file with what is said about it."""

    file: BufferedReader
    name: str
    size: int
    signal: Signal


def _skip_to(text: _Text, offset: int) -> None:
    """Leave the stream at the start of line ``offset``. Raises :class:`ToolError` when there is no such line."""
    missing, ends_in_newline = offset - 1, True
    while missing:
        go_on(text.signal)
        chunk = text.file.read(CHUNK)
        if not chunk:
            break
        refuse_binary(chunk, text.name, text.size)
        found = chunk.count(b"\n")
        if found >= missing:
            text.file.seek(_after_newline(chunk, missing) - len(chunk), SEEK_CUR)
            missing = 0
        else:
            missing -= found
            ends_in_newline = chunk.endswith(b"\n")
    if offset > 1 and (missing or not text.file.peek(1)):
        lines = offset - 1 - missing + (0 if ends_in_newline else 1)
        raise ToolError(f"{text.name} has {plural(lines, 'line')}, so offset {offset} is past its end.")


def _after_newline(chunk: bytes, count: int) -> int:
    """The index after the ``count``-th newline of ``chunk``."""
    place = 0
    for _ in range(count):
        place = chunk.index(b"\n", place) + 1
    return place


def _page(text: _Text, offset: int, limit: int) -> str:
    file, name = text.file, text.name
    lines: list[bytes] = []
    used = 0
    while len(lines) < limit and (line := file.peek(1) and file.readline(MAX_BYTES - used + 1)):
        refuse_binary(line, name, text.size)
        if used + len(line) > MAX_BYTES:
            if not lines:
                return _long_line(text, line, offset)
            return as_text(b"".join(lines), name) + _more(offset, len(lines))
        lines.append(line)
        used += len(line)
    if not lines:
        return f"({name} is empty)"
    return as_text(b"".join(lines), name) + (_more(offset, len(lines)) if file.peek(1) else "")


def _more(offset: int, count: int) -> str:
    last = offset + count - 1
    return f"\n[lines {offset} to {last} are shown and there is more; go on with offset={last + 1}]"


def _long_line(text: _Text, start: bytes, offset: int) -> str:
    """The start of a line that is longer than a page, and where the next line is."""
    last = start
    while last and not last.endswith(b"\n"):
        go_on(text.signal)
        last = text.file.readline(CHUNK)
    after = f"; go on with offset={offset + 1}" if text.file.peek(1) else ""
    beginning = as_text(_whole_characters(start[:MAX_BYTES]), text.name)
    count = len(beginning.encode())
    return f"{beginning}\n[line {offset} is longer than a page; only its first {count} bytes are shown{after}]"


def _whole_characters(raw: bytes) -> bytes:
    """``raw`` without a character that was cut at its end."""
    for back in range(1, min(4, len(raw) + 1)):
        if raw[-back] >= 0xC0:  # the first byte of a character of two to four bytes
            complete = back >= (2 if raw[-back] < 0xE0 else 3 if raw[-back] < 0xF0 else 4)
            return raw if complete else raw[:-back]
    return raw


TOOL = Tool(DEFINITION, execute)
