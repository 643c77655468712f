"""edit: exact replacements in a text file, all checked before anything is staged.

Each ``old_text`` must match exactly once in the original, and no two matches may overlap. Everything outside the
matches keeps its bytes: the byte order mark, the line ends, the final newline. Line ends are compared as LF, because
a model rarely sees the difference; what is put in place of a match takes the line end that was used there.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from handrail.builtins._staging import plan_of, planning, same_bytes, staged
from handrail.builtins._text import as_text, opened, plural, refuse_binary, shown
from handrail.errors import ToolError
from handrail.tool import Capability, Effect, Job, RiskLevel, Tool, ToolDef

MAX_BYTES = 16 * 1024 * 1024
_BOM = "\ufeff"

DEFINITION = ToolDef(
    name="edit",
    description=(
        "Change parts of a text file. Each old_text must match exactly once in the file as it is now, whitespace "
        "included, and matches may not overlap; if one does not, nothing is changed."
    ),
    parameters={
        "type": "object",
        "properties": {
            "path": {"type": "string", "description": "The file, relative to the workspace."},
            "edits": {
                "type": "array",
                "minItems": 1,
                "maxItems": 200,
                "items": {
                    "type": "object",
                    "properties": {
                        "old_text": {"type": "string", "minLength": 1, "description": "Text that stands there once."},
                        "new_text": {"type": "string", "description": "What to put in its place."},
                    },
                    "required": ["old_text", "new_text"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["path", "edits"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.MUTATION,
    path_args=("path",),
    capability=Capability(writes=True),
)


def execute(args: dict[str, Any], job: Job) -> Effect:
    """Stage the edited file."""
    plan = plan_of(job)
    path = plan.workspace.locate(args["path"])
    name = shown(path)
    with opened(plan.workspace, path, name, instead="edit works on files") as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ToolError(f"{name} is larger than {MAX_BYTES} bytes, too large to edit.")
    refuse_binary(raw, name, len(raw))
    edits = [(edit["old_text"], edit["new_text"]) for edit in args["edits"]]
    after = replaced(as_text(raw, name), edits, name).encode()
    if after == raw:
        return staged(f"{name} reads the same after these edits; nothing to change.")
    with planning(name):
        if not same_bytes(plan.state(path), raw):
            raise ToolError(f"{name} changed while it was read; read it again.")
        plan.write(path, after)
    return staged(f"Edited {name}: {plural(len(edits), 'replacement')}.", plan.changes())


@dataclass(frozen=True, slots=True, order=True)
class _Match:
    """Where one edit applies in the original text, and what goes there."""

    start: int
    end: int
    number: int
    new: str


def replaced(original: str, edits: list[tuple[str, str]], name: str = "the text") -> str:
    """``original`` with every edit applied. Pure. Raises :class:`ToolError`, naming the edit that does not fit."""
    view = _LfView(original)
    matches = sorted(_match(view, number, old, new, name) for number, (old, new) in enumerate(edits, 1))
    for one, next_one in pairwise(matches):
        if next_one.start < one.end:
            raise ToolError(f"Edits {one.number} and {next_one.number} overlap in {name}; make them one edit.")
    out: list[str] = []
    place = 0
    for match in matches:
        out += (original[place : match.start], match.new)
        place = match.end
    return "".join(out) + original[place:]


class _LfView:
    """A text with its line ends as LF, and the way back to where each character stood."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.text = original.replace("\r\n", "\n")
        self._dropped = _places_of_crlf(original)

    def back(self, index: int) -> int:
        """The index in the original of ``index`` in the view."""
        return index + bisect_left(self._dropped, index)

    def line_end_near(self, start: int, end: int) -> str:
        """The line end used in ``original[start:end]``, else in the line where it begins, else before it."""
        newline = self.original.find("\n", start, end)
        newline = self.original.find("\n", start) if newline < 0 else newline
        newline = self.original.rfind("\n", 0, start) if newline < 0 else newline
        return "\r\n" if newline > 0 and self.original[newline - 1] == "\r" else "\n"


def _places_of_crlf(original: str) -> list[int]:
    """The index in the LF view of each newline that was CRLF."""
    places: list[int] = []
    at = original.find("\r\n")
    while at >= 0:
        places.append(at - len(places))
        at = original.find("\r\n", at + 2)
    return places


def _match(view: _LfView, number: int, old: str, new: str, name: str) -> _Match:
    wanted = old.replace("\r\n", "\n").removeprefix(_BOM)
    first = view.text.find(wanted) if wanted else -1
    if first < 0:
        raise ToolError(
            f"Edit {number}: its old_text is not in {name}; nothing was changed. Read the file and copy it exactly."
        )
    if view.text.find(wanted, first + 1) >= 0:
        raise ToolError(
            f"Edit {number}: its old_text is in {name} more than once; nothing was changed. Add lines around it "
            "until it is unique."
        )
    start, end = view.back(first), view.back(first + len(wanted))
    put = new.replace("\r\n", "\n").removeprefix(_BOM)
    return _Match(start, end, number, put.replace("\n", view.line_end_near(start, end)))


TOOL = Tool(DEFINITION, execute, staged=True)
