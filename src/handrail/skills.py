"""Skill files: a name, a description, instructions, and tools whose code runs in a cell.

A skill is a YAML file, or a ``SKILL.md`` whose front matter follows the Agent Skills convention and whose text is the
instructions. Both take the same keys::

    name: text-tools                    # a-z, 0-9 and single hyphens, at most 64; SKILL.md: its directory's name
    description: Counts words.          # what the model is told, at most 1024 characters
    instructions: |                     # YAML only; in SKILL.md it is the text after the front matter
      Use `count` before you guess.
    preload: [numpy]                    # imports of a warm parent of their own
    tools:
      - name: count
        description: Count the words of a file.
        parameters: {type: object, properties: {path: {type: string}}, required: [path]}
        risk: read_only
        capability: {reads: true}       # reads, writes, network, exec
        path_args: [path]
        limits: {wall_s: 5, memory_bytes: 256MiB}
        code: |
          result = len(open(input_data["path"]).read().split())

Rules:

1. A skill is not trusted. It can lower limits, and raise them to ``CEILING`` at most; it cannot name host directories,
   environment or a weaker tier; a tool that writes, runs programs or uses the network is at least ``mutation``.
2. Unknown keys are errors, and every error has its file, line and column.
3. Nothing in a skill is imported or run on the host; its code is compiled here once, to report syntax errors.
"""

import ast
import math
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn

from handrail import strictyaml
from handrail.call import RegisteredTool
from handrail.errors import SkillError, ToolDefinitionError
from handrail.registry import ToolRegistry
from handrail.sandbox.bodies import CellBody, Cells
from handrail.sandbox.supervisor import InlineCode
from handrail.schema import digest_of, json_text
from handrail.strictyaml import Located, NotStrict, Place, Scalar
from handrail.tool import Capability, Job, Plugin, Replay, RiskLevel, Tool, ToolDef
from handrail_cell.wire import Limits

CEILING = Limits(
    wall_s=600.0,
    cpu_s=600.0,
    memory_bytes=4 << 30,
    processes=512,
    disk_bytes=4 << 30,
    file_bytes=4 << 30,
    open_files=4096,
    output_bytes=16 << 20,
)
"""What a skill may ask for at most."""

_SKILL_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TOOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,47}")
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,18})\s*([KMG]i?B|B)?")
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_CONVENTION_KEYS = ("license", "compatibility", "metadata", "allowed-tools")
_SKILL_KEYS = ("name", "description", "instructions", "preload", "tools", *_CONVENTION_KEYS)
_TOOL_KEYS = (
    "name",
    "description",
    "parameters",
    "risk",
    "capability",
    "path_args",
    "limits",
    "replay",
    "replay_key",
    "output_schema",
    "code",
)


@dataclass(frozen=True, slots=True)
class SkillTool:
    """One tool of a skill: its declaration, its code, the limits of one call, and where the code's text starts."""

    definition: ToolDef
    code: str
    limits: Limits
    code_line: int


@dataclass(frozen=True, slots=True)
class Skill:
    """A skill file that was read without an error. ``digest`` is of all that a tool's behaviour depends on."""

    name: str
    description: str
    instructions: str
    tools: tuple[SkillTool, ...]
    preload: tuple[str, ...]
    file: str
    digest: str

    def plugin(self, cells: Cells) -> Plugin:
        """The skill's tools, run by ``cells``."""
        return Plugin(
            "skill", tuple(self._tool(tool, cells) for tool in self.tools), f"skill {self.name} ({self.file})"
        )

    def register(self, registry: ToolRegistry, cells: Cells) -> list[RegisteredTool]:
        """Register each tool as ``skill:NAME/tool``, all or none. Raises as ``ToolRegistry.register``."""
        plugin = self.plugin(cells)
        done: list[RegisteredTool] = []
        try:
            for tool in plugin.tools:
                done += [registry.register(tool, plugin=plugin.name, source=plugin.source, alias=self.name)]
        except ToolDefinitionError:
            for registered in done:
                registry.remove(registered.canonical_id)
            raise
        return done

    def _tool(self, tool: SkillTool, cells: Cells) -> Tool:
        body = CellBody(
            cells,
            _program(f"{self.name}/{tool.definition.name}", tool.code),
            capability=tool.definition.capability,
            limits=tool.limits,
            preload=self.preload,
            identity={"skill": self.digest, "code": digest_of(tool.code)},
        )
        return Tool(tool.definition, body=body)


def _program(name: str, code: str) -> Callable[[Job], InlineCode]:
    return lambda job: InlineCode(code, name, json_text(job.arguments).encode(errors="surrogatepass"))


def load_skill(file: str | os.PathLike[str]) -> Skill:
    """Read a skill file. Raises :class:`~handrail.errors.SkillError`, the first error (``check_skill`` gives them all).

    ``file`` may also be a directory that holds a ``SKILL.md``.
    """
    skill, problems = _read_skill(os.fspath(file))
    if skill is None:
        raise problems[0]
    return skill


def check_skill(file: str | os.PathLike[str]) -> list[SkillError]:
    """Every error of a skill file, in the order of the file; empty when it can be used."""
    return _read_skill(os.fspath(file))[1]


def _read_skill(file: str) -> tuple[Skill | None, list[SkillError]]:
    if os.path.isdir(file):
        file = os.path.join(file, "SKILL.md")
    report = _Report(file)
    try:
        skill = _Reading(file, report).skill()
    except NotStrict as error:
        report.at(error.place, error.message)
        skill = None
    except SkillError as error:
        return None, [error]
    problems = sorted(report.problems, key=lambda error: (error.line or 0, error.column or 0))
    return (None if problems else skill), problems


class _Report:
    """Collects what is wrong, so that one reading says everything."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[SkillError] = []

    def at(self, place: Place, message: str) -> None:
        self.problems.append(SkillError(message, file=self.file, line=place.line, column=place.column))


def _text_of(file: str) -> str:
    def refuse(message: str) -> NoReturn:
        raise SkillError(message, file=file) from None

    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO is refused, never waited for
        with open(fd, "rb") as handle:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                refuse("is not a regular file")
            raw = handle.read(strictyaml.MAX_BYTES + 1)
    except OSError as error:
        refuse(f"cannot be read: {error.strerror}")
    except ValueError as error:  # a NUL byte in its name
        refuse(f"cannot be read: {error}")
    if len(raw) > strictyaml.MAX_BYTES:
        refuse(f"larger than {strictyaml.MAX_BYTES} bytes")
    try:
        return raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise SkillError(f"not UTF-8 (byte {error.start})", file=file, line=line, column=1) from None


class _Reading:
    """One reading of one file, top to bottom."""

    def __init__(self, file: str, report: _Report) -> None:
        self._file = file
        self._report = report
        self._is_markdown = file.endswith(".md")
        text = _text_of(file)
        self._lines = text.split("\n")
        front, self._body, first_line = _front_matter(text) if self._is_markdown else (text, "", 1)
        self._document = strictyaml.read(front, first_line=first_line)

    def skill(self) -> Skill | None:
        top = self._mapping(self._document, "a skill", _SKILL_KEYS, ("name", "description"))
        if top is None:
            return None
        if self._is_markdown and "instructions" in top.items:
            self._report.at(
                top.keys["instructions"], "in SKILL.md the instructions are the text after the front matter"
            )
        self._convention_keys(top)
        name = self._name(top)
        description = self._text(top, "description", most=1024)
        preload = self._preload(top)
        tools = self._tools(top)
        if self._report.problems:
            return None
        instructions = self._body.strip() if self._is_markdown else self._text(top, "instructions")
        digest = digest_of(top.plain)
        return Skill(name, description, instructions, tuple(tools), preload, self._file, digest)

    # ── parts of a skill ─────────────────────────────────────────────────────────────────────────────────────

    def _name(self, top: strictyaml.Mapping) -> str:
        name = self._text(top, "name", most=64)
        if not name:
            return name
        place = top.items["name"].place
        if not _SKILL_NAME.fullmatch(name):
            self._report.at(place, f"the name {name!r} must be of a-z, 0-9 and single hyphens between them")
        directory = os.path.basename(os.path.dirname(os.path.abspath(self._file)))
        if self._is_markdown and name != directory:
            self._report.at(place, f"the name {name!r} must be the name of its directory, {directory!r}")
        return name

    def _convention_keys(self, top: strictyaml.Mapping) -> None:
        for key in _CONVENTION_KEYS:
            item = top.items.get(key)
            if key == "metadata" and item is not None:
                values = item.items.values() if isinstance(item, strictyaml.Mapping) else ()
                if not isinstance(item, strictyaml.Mapping) or not all(isinstance(value, Scalar) for value in values):
                    self._report.at(item.place, "metadata must be a mapping of names to single values")
            elif item is not None:
                self._text(top, key, most=500)

    def _preload(self, top: strictyaml.Mapping) -> tuple[str, ...]:
        names = self._strings(top, "preload")
        for name, place in names:
            if not _MODULE.fullmatch(name):
                self._report.at(place, f"{name!r} is not the name of a module")
        return tuple(name for name, _ in names)

    def _tools(self, top: strictyaml.Mapping) -> list[SkillTool]:
        item = top.items.get("tools")
        if item is None:
            return []
        if not isinstance(item, strictyaml.Sequence):
            self._report.at(item.place, "tools must be a list")
            return []
        tools: list[SkillTool] = []
        seen: dict[str, Place] = {}
        for part in item.items:
            tool = self._tool(part, seen)
            if tool is not None:
                tools.append(tool)
        return tools

    # ── parts of a tool ──────────────────────────────────────────────────────────────────────────────────────

    def _tool(self, part: Located, seen: dict[str, Place]) -> SkillTool | None:
        tool = self._mapping(part, "a tool", _TOOL_KEYS, ("name", "code"))
        if tool is None:
            return None
        before = len(self._report.problems)
        name = self._tool_name(tool, seen)
        capability = self._capability(tool)
        risk = self._risk(tool, capability)
        limits = self._limits(tool)
        code, line = self._code(tool)
        path_args = tuple(text for text, _ in self._strings(tool, "path_args")) if "path_args" in tool.items else None
        options: dict[str, Any] = {
            key: tool.items[key].plain for key in ("parameters", "output_schema") if self._is_mapping(tool, key)
        }
        replay = self._text(tool, "replay") or Replay.NEVER
        replay_key = self._text(tool, "replay_key") or None
        description = self._text(tool, "description", most=1024)
        if len(self._report.problems) > before:
            return None
        try:
            definition = ToolDef(
                name=name,
                description=description,
                risk_level=risk,
                path_args=path_args,
                replay=Replay(replay) if replay in list(Replay) else replay,  # type: ignore[arg-type] # checked there
                replay_key=replay_key,
                capability=capability,
                timeout=limits.wall_s,
                **options,
            )
        except ToolDefinitionError as error:
            self._report.at(_place_of(tool, str(error)), str(error))
            return None
        return SkillTool(definition, code, limits, line)

    def _tool_name(self, tool: strictyaml.Mapping, seen: dict[str, Place]) -> str:
        name = self._text(tool, "name")
        place = tool.items["name"].place
        if name and not _TOOL_NAME.fullmatch(name):
            self._report.at(place, f"the tool name {name!r} must be letters, digits, _ and -, at most 48 characters")
        elif name in seen:
            self._report.at(place, f"a tool named {name!r} was declared before, on line {seen[name].line}")
        seen.setdefault(name, place)
        return name

    def _capability(self, tool: strictyaml.Mapping) -> Capability:
        item = tool.items.get("capability")
        if item is None:
            return Capability()
        names = tuple(one.name for one in fields(Capability))
        mapping = self._mapping(item, "a capability", names, ())
        given: dict[str, bool] = {}
        for name, value in () if mapping is None else mapping.items.items():
            if name not in names:
                continue  # reported as unknown
            if isinstance(value.plain, bool):
                given[name] = value.plain
            else:
                self._report.at(value.place, f"{name} must be true or false")
        return Capability(**given)

    def _risk(self, tool: strictyaml.Mapping, capability: Capability) -> RiskLevel:
        item = tool.items.get("risk")
        if item is None:
            return RiskLevel.MUTATION
        if item.plain not in list(RiskLevel):
            self._report.at(item.place, f"risk must be one of: {', '.join(RiskLevel)}")
            return RiskLevel.MUTATION
        risk = RiskLevel(item.plain)
        needs = [name for name in ("writes", "network", "exec") if getattr(capability, name)]
        if needs and risk < RiskLevel.MUTATION:
            self._report.at(item.place, f"a tool with the capability {needs[0]!r} is at least of risk 'mutation'")
        return risk

    def _limits(self, tool: strictyaml.Mapping) -> Limits:
        item = tool.items.get("limits")
        if item is None:
            return Limits()
        names = tuple(one.name for one in fields(Limits))
        mapping = self._mapping(item, "limits", names, ())
        given: dict[str, Any] = {}
        for name, value in () if mapping is None else mapping.items.items():
            if name not in names:
                continue  # reported as unknown
            number = _amount(name, value.plain)
            most = getattr(CEILING, name)
            if number is None:
                unit = "a number of seconds" if name.endswith("_s") else "a whole number, or a size such as 64MiB"
                self._report.at(value.place, f"{name} must be {unit}, more than 0")
            elif number > most:
                self._report.at(value.place, f"{name} is {number}; a skill may ask for {most} at most")
            else:
                given[name] = number
        limits = Limits().with_(**given)
        # A busy tool meets its wall time, not the processor time beside it, unless that was asked for.
        return limits if "cpu_s" in given else limits.with_(cpu_s=limits.wall_s + 1)

    def _code(self, tool: strictyaml.Mapping) -> tuple[str, int]:
        item = tool.items["code"]
        if not isinstance(item, Scalar) or not isinstance(item.value, str) or not item.value.strip():
            self._report.at(item.place, "code must be Python text, best as a literal block (code: |)")
            return "", item.place.line
        if item.style == ">":
            self._report.at(item.place, "a folded block (>) joins the lines of the code; use a literal block (|)")
            return "", item.place.line
        starts = _code_place(item, self._lines)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a SyntaxWarning is the tool's affair, seen when it runs
                ast.parse(item.value)
        except SyntaxError as error:
            self._report.at(_error_place(item, starts, error), f"the code is not valid Python: {error.msg}")
        except (ValueError, RecursionError, MemoryError) as error:
            self._report.at(starts, f"the code cannot be compiled: {error}")
        return item.value, starts.line

    # ── kinds of values ──────────────────────────────────────────────────────────────────────────────────────

    def _mapping(
        self, item: Located, what: str, known: Sequence[str], required: Sequence[str]
    ) -> strictyaml.Mapping | None:
        if not isinstance(item, strictyaml.Mapping):
            self._report.at(item.place, f"{what} must be a mapping")
            return None
        for key, place in item.keys.items():
            if key not in known:
                self._report.at(place, f"unknown key {key!r}; {what} takes: {', '.join(known)}")
        missing = [key for key in required if key not in item.items]
        for key in missing:
            self._report.at(item.place, f"{what} needs {key!r}")
        return None if missing else item

    def _is_mapping(self, parent: strictyaml.Mapping, key: str) -> bool:
        item = parent.items.get(key)
        if item is not None and not isinstance(item, strictyaml.Mapping):
            self._report.at(item.place, f"{key} must be a mapping (a JSON Schema)")
        return isinstance(item, strictyaml.Mapping)

    def _text(self, parent: strictyaml.Mapping, key: str, *, most: int | None = None) -> str:
        item = parent.items.get(key)
        if item is None:
            return ""
        if not isinstance(item, Scalar) or not isinstance(item.value, str) or not item.value.strip():
            self._report.at(item.place, f"{key} must be text")
            return ""
        if most is not None and len(item.value) > most:
            self._report.at(item.place, f"{key} is longer than {most} characters")
        return item.value

    def _strings(self, parent: strictyaml.Mapping, key: str) -> list[tuple[str, Place]]:
        item = parent.items.get(key)
        if item is None:
            return []
        parts = item.items if isinstance(item, strictyaml.Sequence) else None
        if parts is None or not all(isinstance(part, Scalar) and isinstance(part.value, str) for part in parts):
            self._report.at(item.place, f"{key} must be a list of text")
            return []
        return [(part.plain, part.place) for part in parts]


# ── pure helpers ─────────────────────────────────────────────────────────────────────────────────────────────────


def _front_matter(text: str) -> tuple[str, str, int]:
    """The YAML between the two ``---`` lines, the text after them, and the line where the YAML starts."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise NotStrict("a SKILL.md starts with a line '---' and its front matter", Place(1, 1))
    for index in range(1, len(lines)):
        if lines[index].rstrip() == "---":
            return "\n".join(lines[1:index]) + "\n", "\n".join(lines[index + 1 :]), 2
    raise NotStrict("the front matter has no closing line '---'", Place(1, 1))


def _amount(name: str, value: Any) -> float | int | None:
    if name.endswith("_s"):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if is_number and value > 0 and math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if value > 0 else None
    size = _SIZE.fullmatch(value) if isinstance(value, str) and name.endswith("_bytes") else None
    return int(size[1]) * _UNITS[size[2] or "B"] or None if size else None


def _place_of(tool: strictyaml.Mapping, message: str) -> Place:
    """The key that a refused definition speaks of; the tool itself when it names none."""
    for key in ("output_schema", "path_args", "path argument", "parameters", "replay_key", "replay"):
        item = tool.items.get(key.replace("path argument", "path_args"))
        if key in message and item is not None:
            return item.place
    return tool.place


def _code_place(item: Scalar, lines: list[str]) -> Place:
    """Where the first line of a code block stands in the file."""
    if item.style != "|":
        return item.place
    code = str(item.value).split("\n")
    index = next(number for number, line in enumerate(code) if line.strip())
    in_file = lines[item.place.line + index]
    return Place(item.place.line + 1, len(in_file) - len(code[index]) + 1)


def _error_place(item: Scalar, starts: Place, error: SyntaxError) -> Place:
    line, column = error.lineno or 1, error.offset or 1
    if item.style != "|":
        return item.place
    return Place(starts.line + line - 1, starts.column + column - 1)


def described(skills: Mapping[str, Skill]) -> Iterator[str]:
    """One line for each skill, as a model is told what there is to open: name and description."""
    for name in sorted(skills):
        yield f"{name}: {' '.join(skills[name].description.split())}"
