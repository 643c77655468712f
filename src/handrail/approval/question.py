"""A question as lines of text, pure: what a person is shown before answering.

Everything that a model or a server wrote stands to the right of a bar or a label, quoted and escaped, and is wrapped
here and not by the terminal: no text of theirs can begin a line, and so none can look like ours.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from handrail.approval.decision import ApprovalRequest
from handrail.approval.render import MAX_VALUE_CHARACTERS, arguments_lines, block_lines, quoted
from handrail.parked import GrantPattern
from handrail.tool import RiskLevel

BAR = "│ "
MAX_DIFF_LINES = 400
MAX_DESCRIPTION_LINES = 3
MINIMUM_WIDTH = 20


@dataclass(frozen=True, slots=True)
class Sheet:
    """A question laid out. ``complete``: nothing that would run is missing from ``lines``."""

    lines: tuple[str, ...]
    complete: bool


def sheet(request: ApprovalRequest, *, width: int = 80, whole: bool = False, grants: bool = True) -> Sheet:
    """Lay ``request`` out in lines of at most ``width`` columns.

    ``whole``: leave nothing out, however long. ``grants``: say what a lasting yes would cover, where one may be given.
    """
    limit = 4_000_000 if whole else MAX_VALUE_CHARACTERS
    title = "Make these changes?" if request.changes is not None else "Run this tool?"
    arguments, arguments_complete = arguments_lines(request.arguments, limit)
    links, links_complete = _link_lines(request, limit)
    diff, diff_complete = block_lines(request.diff, max_lines=10**9 if whole else MAX_DIFF_LINES, width=limit)
    lines = [
        title,
        "",
        f"tool      {quoted(request.tool, 300).text}",
        f"risk      {request.risk.value}{' (asked about every time)' if request.risk > RiskLevel.MUTATION else ''}",
        f"from      {quoted(request.source, 300).text}",
        *_optional("agent", request.agent),
        *_optional("run", request.run_id),
        f"because   {quoted(request.why, 600).text}",
        *_enforced(request),
        *_described(request),
        "",
        "arguments:" if arguments else "arguments: none",
        *_barred(arguments),
        *_barred(links),
    ]
    if request.changes is not None:
        count = len(request.changes)
        lines += ["", f"changes to {count} {'path' if count == 1 else 'paths'}:", *_barred(diff)]
    lines += ["", f"digest    {request.binding}"]
    offer = request.offer if grants and request.can_grant else None
    if offer is not None:
        lines += ["", "a lasting yes would cover, in this session:", *_barred(grant_lines(offer, limit))]
    offer_complete = offer is None or grant_is_complete(offer, limit)
    wrapped = tuple(piece for line in lines for piece in wrapped_line(line, max(width, MINIMUM_WIDTH)))
    return Sheet(wrapped, arguments_complete and links_complete and diff_complete and offer_complete)


def _optional(label: str, value: str) -> list[str]:
    return [f"{label:<9} {quoted(value, 200).text}"] if value else []


def _enforced(request: ApprovalRequest) -> list[str]:
    return [f"walls     {quoted(request.enforcement or 'none that are known here', 600).text}"]


def _described(request: ApprovalRequest) -> list[str]:
    lines, _ = block_lines(request.description, max_lines=MAX_DESCRIPTION_LINES, width=300)
    return ["it says of itself:", *_barred(lines)] if request.description else []


def _link_lines(request: ApprovalRequest, limit: int) -> tuple[list[str], bool]:
    """Where paths lead, if that is not where they stand, and whether that is all of it."""
    lines: list[str] = []
    complete = True
    for name, resolved in sorted(request.resolved_paths.items()):
        if resolved != request.arguments.get(name):
            place = quoted(resolved, limit)
            lines.append(f"{quoted(name, 200).text} leads through links to {place.text}")
            complete = complete and place.complete
    return lines, complete


def _barred(lines: list[str]) -> list[str]:
    return [BAR + line for line in lines]


def grant_lines(pattern: GrantPattern, limit: int = MAX_VALUE_CHARACTERS) -> list[str]:
    """What a grant covers, as lines; of a value no more than ``limit`` characters."""
    lines = [f"tool {quoted(pattern.tool, 300).text}, only with:"]
    lines += arguments_lines(pattern.equals, limit)[0]
    lines += [
        f"{quoted(name, 200).text}: anything beneath {quoted(where, limit).text}"
        for name, where in pattern.beneath.items()
    ]
    lines += [f"{quoted(name, 200).text}: any text" for name in pattern.any]
    return lines


def grant_is_complete(pattern: GrantPattern, limit: int = MAX_VALUE_CHARACTERS) -> bool:
    """Whether :func:`grant_lines` leaves nothing out."""
    return arguments_lines(pattern.equals, limit)[1] and all(
        quoted(where, limit).complete for where in pattern.beneath.values()
    )


def columns(text: str) -> int:
    """How many columns a terminal uses for an escaped text."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def wrapped_line(line: str, width: int) -> Iterator[str]:
    """``line`` in pieces of at most ``width`` columns; what follows a bar keeps standing behind it."""
    bar = BAR if line.startswith(BAR) else ""
    if columns(line) <= width:
        yield line
        return
    rest = line.removeprefix(bar)
    indent = bar or " " * 10
    first = True
    while rest:
        prefix = bar if first else indent
        room = width - columns(prefix)
        taken = _fitting(rest, room)
        yield prefix + rest[:taken]
        rest, first = rest[taken:], False


def _fitting(text: str, room: int) -> int:
    """How many characters of ``text`` fit in ``room`` columns; at least one."""
    used = 0
    for index, character in enumerate(text):
        used += columns(character)
        if used > room and index > 0:
            return index
    return len(text)
