"""grep: lines that match a regular expression, in linear time and bounded memory, with path and line number.

A file is read in pieces of whole lines. A line longer than ``MAX_PIECE`` is searched in pieces of that size; a match
across the border of two pieces is not found. A file with a NUL byte is binary and passed over.
"""

import os
import re
import stat
from collections.abc import Iterator
from io import BufferedReader
from typing import Any

from handrail.builtins._glob import Glob
from handrail.builtins._linear import LinearPattern, PatternError
from handrail.builtins._text import clipped, explained, go_on, opened, shown, shown_argument, stream_of, workspace_of
from handrail.builtins._tree import about_unread, entries_beneath, opened_on_the_way
from handrail.errors import ToolError
from handrail.tool import Job, Replay, RiskLevel, Signal, Tool, ToolDef
from handrail.workspace import Workspace

MAX_MATCHES = 200
MAX_LINE = 400  # characters of a line that are shown
MAX_PIECE = 1_048_576
_NEEDS_ONE_LINE = re.compile(r"\\[Az]|\(\?[a-zA-Z]*-")  # what may look for the ends of the text instead of the line's

DEFINITION = ToolDef(
    name="grep",
    description=(
        "Search file contents with a regular expression (RE2: no look-around, no back-references). Returns "
        f"path:line: text, at most {MAX_MATCHES} matches. What .gitignore names, .git and binary files are left out."
    ),
    parameters={
        "type": "object",
        "properties": {
            "pattern": {"type": "string", "minLength": 1, "maxLength": 2000, "description": "Searched in each line."},
            "path": {"type": "string", "description": "A file or directory; the whole workspace if left out."},
            "glob": {
                "type": "string",
                "minLength": 1,
                "maxLength": 1000,
                "description": "Only files whose name matches, such as '*.py'.",
            },
            "ignore_case": {"type": "boolean", "description": "Whether upper and lower case are the same."},
        },
        "required": ["pattern"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.READ_ONLY,
    path_args=("path",),
    replay=Replay.SAFE,
    replay_key="builtin:grep:v1",
)


def execute(args: dict[str, Any], job: Job) -> str:
    """The matching lines."""
    workspace = workspace_of(job)
    search = _Search(args["pattern"], ignore_case=bool(args.get("ignore_case")))
    lines: list[str] = []
    unread: list[bytes] = []
    for path, file in _files(workspace, args.get("path", "."), args.get("glob"), job.signal, unread):
        with file:
            for number, line in search.matches(file, job.signal):
                if len(lines) == MAX_MATCHES:
                    return "\n".join(lines) + f"\n[only the first {MAX_MATCHES} matches are shown; narrow the search]"
                lines.append(f"{shown(path)}:{number}: {_clipped(line)}")
    return ("\n".join(lines) or f"(no line matches {args['pattern']!r})") + about_unread(unread)


def _files(
    workspace: Workspace, path: str, glob: str | None, signal: Signal, unread: list[bytes]
) -> Iterator[tuple[bytes, BufferedReader]]:
    """The files to search: the named one itself, or all beneath the named directory."""
    name = shown_argument(workspace, path)
    with explained(name):
        start = workspace.locate(path)
        status = workspace.status(start)
        if status is None:
            raise FileNotFoundError
    if not stat.S_ISDIR(status.st_mode):
        with opened(workspace, start, name, instead="it was a file a moment ago") as file:
            yield start, file
        return
    wanted = Glob(glob) if glob is not None else None
    skip = 0 if start == b"." else len(start) + 1
    for entry in entries_beneath(workspace, start, signal, unread):
        if not entry.is_file or (wanted is not None and not wanted.matches(shown(entry.path[skip:]))):
            continue
        fd = opened_on_the_way(workspace, entry.path, os.O_RDONLY, unread)
        if fd is None:
            continue
        if stat.S_ISREG(os.fstat(fd).st_mode):
            yield entry.path, stream_of(fd)
        else:
            os.close(fd)


class _Search:
    """A pattern, searched line by line. RE2's ``never_nl`` keeps a match from crossing a line's end."""

    def __init__(self, pattern: str, *, ignore_case: bool) -> None:
        self._line_by_line = _NEEDS_ONE_LINE.search(pattern) is not None
        try:
            self._regex = LinearPattern(f"(?m){pattern}", ignore_case=ignore_case, within_lines=True)
        except PatternError as error:
            raise ToolError(
                f"{pattern!r} is not a regular expression of RE2 ({error}); it has no look-around or back-references."
            ) from None

    def matches(self, file: BufferedReader, signal: Signal) -> Iterator[tuple[int, bytes]]:
        """Line numbers from 1, and the lines without their ends. Ends at the first sign of a binary file."""
        number = 1
        for piece in _pieces(file):
            go_on(signal)
            if b"\0" in piece:
                return
            place = 0
            for start, end in self._lines_in(piece):
                number += piece.count(b"\n", place, start)
                place = start
                yield number, piece[start:end]
            number += piece.count(b"\n", place)

    def _lines_in(self, piece: bytes) -> Iterator[tuple[int, int]]:
        """Where the matching lines of a piece begin and end."""
        if self._line_by_line:
            yield from self._each_line(piece)
            return
        place = 0
        while place < len(piece) and (found := self._regex.first(piece, place)) is not None:
            start = piece.rfind(b"\n", 0, found) + 1
            if start >= len(piece):  # an empty match after the last line's end is no line
                return
            end = piece.find(b"\n", found)
            end = len(piece) if end < 0 else end
            yield start, end
            place = end + 1

    def _each_line(self, piece: bytes) -> Iterator[tuple[int, int]]:
        place = 0
        while place < len(piece):
            end = piece.find(b"\n", place)
            end = len(piece) if end < 0 else end
            if self._regex.first(piece[place:end]) is not None:
                yield place, end
            place = end + 1


def _pieces(file: BufferedReader) -> Iterator[bytes]:
    """The file in pieces of whole lines, each at most about twice ``MAX_PIECE`` bytes."""
    kept = b""
    while chunk := file.read(MAX_PIECE):
        piece = kept + chunk
        cut = piece.rfind(b"\n") + 1
        if cut == 0 and len(piece) < MAX_PIECE:
            kept = piece
            continue
        cut = cut or len(piece)
        kept = piece[cut:]
        yield piece[:cut]
    if kept:
        yield kept


def _clipped(line: bytes) -> str:
    return clipped(line[: 4 * MAX_LINE + 4].decode("utf-8", "backslashreplace").rstrip("\r"), MAX_LINE)


TOOL = Tool(DEFINITION, execute)
