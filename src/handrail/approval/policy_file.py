"""Policy files: TOML in, compiled rules out; every mistake is refused with its place.

::

    version = 1

    [[rule]]
    tool = "builtin:write"             # an exact name, or glob = "mcp:github/*"
    decision = "allow"                 # allow, ask, deny
    review = "changes"                 # before, changes: when a staged call is asked about
    justification = "drafts are mine to lose"
    grant = false                      # ask: may a person answer for the whole session (default true)
    risk = ["read_only"]               # only calls of these risks
    args.path.beneath = "drafts"       # also: equals, one_of, glob, matches (RE2, whole value)
    match = [{ path = "drafts/a.md" }]         # checked when the file is loaded
    not_match = [{ path = "drafts/../b.md" }]

    [[rule]]
    tool = "builtin:bash"
    decision = "allow"
    command.shapes = ["git-read", "list-read"] # or command.argv = ["npm", ["test", "ci"]]
    match = [{ command = "git status" }]

Where a file may be: in the user's configuration directory, or where the command line says; never at or below the
workspace, and never where everybody may write. The file is judged by where its open descriptor really is.
"""

import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn, TypeGuard, TypeVar

import platformdirs
import re2  # pyright: ignore[reportMissingTypeStubs] - it ships none

from handrail import stricttoml
from handrail.approval import shapes, shell
from handrail.approval.rules import (
    Beneath,
    CommandLike,
    CompiledRules,
    Condition,
    OneOf,
    Pattern,
    Rule,
    Subject,
    Word,
    directory_of,
    is_at_or_below,
    is_literal,
    speaks,
)
from handrail.call import Review
from handrail.errors import PolicyError
from handrail.schema import ArgumentsInvalid, copy_json, is_array, is_object
from handrail.tool import RiskLevel

MAX_FILE_BYTES = 4 * 1_048_576
MAX_RULES = 10_000
EXAMPLE_WORKSPACE = "/workspace"

_re2: Any = re2
_QUIET: Any = _re2.Options()
_QUIET.log_errors = False  # else RE2 writes to the standard error what is told here
_TOP_KEYS = frozenset({"version", "rule"})
_RULE_KEYS = frozenset(
    {"name", "tool", "glob", "decision", "review", "justification", "grant", "risk", "args", "command"}
    | {"match", "not_match"}
)
_TESTS = frozenset({"beneath", "equals", "one_of", "glob", "matches"})
_COMMAND_KEYS = frozenset({"arg", "shapes", "argv"})
_DECISIONS: tuple[Word, ...] = ("allow", "ask", "deny")
_REVIEWS: tuple[Review, ...] = ("before", "changes")
_GLOB_MARKS = frozenset("*?[")
_HEADER = re.compile(r"^\s*\[\[\s*[\"']?rule[\"']?\s*\]\]")
_OneOf = TypeVar("_OneOf", bound=str)


def default_policy_path() -> str:
    """Where the user's own policy is looked for: ``policy.toml`` in the user's configuration directory."""
    return os.path.join(platformdirs.user_config_dir("handrail"), "policy.toml")


def load_policy(path: str, *, workspace: str | None = None) -> CompiledRules:
    """Read, check and compile the policy file at ``path``.

    Raises :class:`~handrail.errors.PolicyError` with file, line and column as well as they are known.
    """
    return parse_policy(_read(path, workspace), file=path)


def parse_policy(text: str, *, file: str = "policy") -> CompiledRules:
    """Check and compile the text of a policy file; run its examples. Raises as :func:`load_policy` does."""
    try:
        document = stricttoml.read(text)
    except stricttoml.NotToml as error:
        raise PolicyError(error.message, file=file, line=error.line, column=error.column) from None
    reader = _Reader(text, file)
    return CompiledRules(reader.rules(document), name=file)


def _read(path: str, workspace: str | None) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        raise PolicyError(f"the policy file cannot be read: {error.strerror}", file=path) from None
    try:
        _check_place(fd, path, workspace)
        with open(fd, "rb", closefd=False) as stream:
            raw = stream.read(MAX_FILE_BYTES + 1)
    finally:
        os.close(fd)
    if len(raw) > MAX_FILE_BYTES:
        raise PolicyError(f"the policy file is larger than {MAX_FILE_BYTES} bytes", file=path)
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise PolicyError(f"the policy file is not UTF-8 (byte {error.start})", file=path) from None


def _check_place(fd: int, path: str, workspace: str | None) -> None:
    """Judge the file that is open, not its name: a link or a rename cannot change what is judged."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        raise PolicyError("the policy file is no regular file", file=path)
    if status.st_mode & stat.S_IWOTH:
        raise PolicyError("everybody may write to the policy file; take that away (chmod o-w)", file=path)
    if status.st_nlink != 1:  # the other name may lie in the workspace
        raise PolicyError("the policy file has a second name (a hard link); make it a file of its own", file=path)
    if workspace is None:
        return
    root = os.path.realpath(workspace)
    for place in (os.readlink(f"/proc/self/fd/{fd}"), os.path.abspath(path)):
        if is_at_or_below(place, root):
            raise PolicyError(
                "the policy file lies in the workspace, where tools may write; keep it outside", file=path
            )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one rule stands: its lines with their numbers, from its header to the next; none where that is unknown."""

    lines: Sequence[tuple[int, str]] = ()

    @property
    def line(self) -> int | None:
        """The header's line."""
        return self.lines[0][0] if self.lines else None

    def line_of(self, key: str) -> int | None:
        """The line where ``key`` is first written in the rule, else the rule's own."""
        wanted = re.compile(rf"^\s*(?:[\w\"'.-]*[.\"'])?{re.escape(key)}[\"']?\s*[.=]")
        return next((number for number, line in self.lines if wanted.match(line)), self.line)


class _Reader:
    """Turns one parsed document into rules. Each method reads one thing and refuses everything else."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        lines = list(enumerate(text.split("\n"), 1))  # TOML's own: other separators are characters of a line
        starts = [number - 1 for number, line in lines if _HEADER.match(line)]
        self._places = [_Place(lines[start:end]) for start, end in pairwise([*starts, len(lines)])]

    def rules(self, document: Mapping[str, Any]) -> list[Rule]:
        unknown = sorted(set(document) - _TOP_KEYS)
        if unknown:
            self._refuse(f"unknown key {unknown[0]!r}; the keys here are: {', '.join(sorted(_TOP_KEYS))}")
        if document.get("version") != 1 or isinstance(document.get("version"), bool):
            self._refuse("say version = 1 at the top")
        tables = document.get("rule", [])
        if not is_array(tables):
            self._refuse("rules are written as [[rule]]")
        if len(tables) > MAX_RULES:
            self._refuse(f"more than {MAX_RULES} rules")
        places = self._places if len(self._places) == len(tables) else [_Place()] * len(tables)
        rules: list[Rule] = []
        names: set[str] = set()
        for number, table in enumerate(tables):
            place = places[number]
            rule = self._rule(table, number + 1, place)
            if rule.name in names:
                self._refuse(f"two rules are named {rule.name!r}", place.line_of("name"))
            names.add(rule.name)
            rules.append(rule)
        return rules

    def _rule(self, table: Any, number: int, place: _Place) -> Rule:
        if not is_object(table):
            self._refuse("rules are written as [[rule]]")
        self._known_keys(table, _RULE_KEYS, "a rule", place)
        decision = self._choice(table, "decision", _DECISIONS, place)
        tool, is_glob = self._tool(table, place)
        rule = Rule(
            name=self._text(table, "name", place) or f"{os.path.basename(self._file)}:{place.line or f'rule {number}'}",
            tool=tool,
            is_glob=is_glob,
            decision=decision,
            risks=self._risks(table, place),
            conditions=tuple(self._conditions(table, decision, place)),
            review=self._choice(table, "review", _REVIEWS, place) if "review" in table else None,
            justification=self._text(table, "justification", place),
            grant=self._flag(table, "grant", place, default=True),
        )
        self._examples(rule, table, place)
        return rule

    def _tool(self, fields: Mapping[str, Any], place: _Place) -> tuple[str, bool]:
        if ("tool" in fields) == ("glob" in fields):
            self._refuse("a rule names its tool with either tool (exact) or glob", place.line)
        key = "tool" if "tool" in fields else "glob"
        name = self._text(fields, key, place)
        if not name:
            self._refuse(f"{key} is empty", place.line_of(key))
        has_marks = not _GLOB_MARKS.isdisjoint(name)
        if key == "tool" and has_marks:
            self._refuse(
                f"{name!r} looks like a pattern; write glob = {name!r} if it is meant as one", place.line_of(key)
            )
        if key == "glob" and not has_marks:
            self._refuse(f"{name!r} has no *, ? or [; write tool = {name!r}", place.line_of(key))
        return name, key == "glob"

    def _risks(self, fields: Mapping[str, Any], place: _Place) -> tuple[RiskLevel, ...]:
        if "risk" not in fields:
            return ()
        known = {risk.value: risk for risk in RiskLevel}
        words = self._words(fields["risk"], "risk", place.line_of("risk"))
        for word in words:
            if word not in known:
                self._refuse(f"risk {word!r} is not one of: {', '.join(known)}", place.line_of("risk"))
        return tuple(known[word] for word in words)

    # ── conditions ───────────────────────────────────────────────────────────────────────────────────────────

    def _conditions(self, fields: Mapping[str, Any], decision: Word, place: _Place) -> Iterable[Condition]:
        if "command" in fields:
            yield self._command(fields["command"], decision, place)
        arguments = fields.get("args", {})
        if not is_object(arguments):
            self._refuse("args is a table: args.NAME.beneath = …", place.line_of("args"))
        for name, tests in arguments.items():
            if not is_object(tests) or not tests:
                self._refuse(f"args.{name} needs a test, such as args.{name}.equals = …", place.line_of(name))
            self._known_keys(tests, _TESTS, f"args.{name}", place)
            for test, value in tests.items():
                yield self._condition(name, test, value, place.line_of(test))

    def _condition(self, name: str, test: str, value: Any, line: int | None) -> Condition:
        if test == "equals":
            return OneOf(name, (self._json(value, test, line),))
        if test == "one_of":
            if not is_array(value) or not value:
                self._refuse("one_of is a list of values", line)
            return OneOf(name, tuple(self._json(item, test, line) for item in value))
        words = self._words(value, test, line)
        if test == "beneath":
            return self._beneath(name, words, line)
        regexes = [_glob_regex(word) if test == "glob" else word for word in words]
        joined = "|".join(f"(?:{regex})" for regex in regexes)
        return Pattern(name, self._regex(joined, line), ", ".join(words))

    def _beneath(self, name: str, words: Sequence[str], line: int | None) -> Beneath:
        for word in words:
            if word.startswith("~") or "$" in word or not _GLOB_MARKS.isdisjoint(word):
                self._refuse(f"{word!r}: beneath takes a plain directory; nothing in it is expanded", line)
            if ".." in word.split("/"):
                self._refuse(f"{word!r}: write the directory without '..'", line)
        return Beneath(name, tuple(os.path.normpath(word) for word in words))

    def _regex(self, regex: str, line: int | None) -> str:
        try:
            _re2.compile(regex, _QUIET)
        except _re2.error as error:
            self._refuse(f"the pattern is not one RE2 knows: {error.args[0].decode(errors='replace')}", line)
        return regex

    def _json(self, value: Any, key: str, line: int | None) -> Any:
        try:
            return copy_json(value)
        except ArgumentsInvalid as error:
            self._refuse(f"{key} is no JSON value: {error}", line)

    def _command(self, value: Any, decision: Word, place: _Place) -> CommandLike:
        line = place.line_of("command")
        if not is_object(value):
            self._refuse("command is a table: command.argv = […] or command.shapes = […]", line)
        self._known_keys(value, _COMMAND_KEYS, "command", place)
        known = self._texts(value.get("shapes", []), "command.shapes", place.line_of("shapes"))
        for shape in known:
            if shape not in shapes.SHAPES:
                self._refuse(f"the shapes are: {', '.join(shapes.SHAPES)}; not {shape!r}", place.line_of("shapes"))
        argv = self._argv(value.get("argv", []), decision, place.line_of("argv"))
        if not known and not argv:
            self._refuse("command needs argv or shapes", line)
        return CommandLike(self._text(value, "arg", place) or "command", tuple(known), argv)

    def _argv(self, value: Any, decision: Word, line: int | None) -> tuple[tuple[str, ...], ...]:
        if not is_array(value):
            self._refuse("command.argv is a list of words", line)
        words: list[tuple[str, ...]] = []
        for item in value:
            words.append((item,) if isinstance(item, str) else tuple(self._texts(item, "command.argv", line)))
            if not words[-1] or "" in words[-1]:
                self._refuse("command.argv has an empty word", line)
        if ("**",) in words[:-1] or (words and words[0] in {("*",), ("**",)}):
            self._refuse("'**' stands last in command.argv, and the program is written out", line)
        if words and decision != "allow":
            words[0] = tuple(os.path.basename(word).casefold() for word in words[0])
        elif words:
            self._check_allowed_programs(tuple(words), line)
        return tuple(words)

    def _check_allowed_programs(self, argv: tuple[tuple[str, ...], ...], line: int | None) -> None:
        for program in argv[0]:
            if shell.wrapper_of((program,)) is not None:
                self._refuse(
                    f"{program!r} runs another command; what it runs is not looked at, so it cannot be allowed", line
                )
            if shell.interpreter_of((program,)) is not None and not is_literal(argv):
                self._refuse(
                    f"{program!r} runs code from its arguments; it can be allowed only word for word, without *", line
                )

    # ── examples ─────────────────────────────────────────────────────────────────────────────────────────────

    def _examples(self, rule: Rule, fields: Mapping[str, Any], place: _Place) -> None:
        for key, wanted in (("match", True), ("not_match", False)):
            line = place.line_of(key)
            examples = fields.get(key, [])
            if not is_array(examples):
                self._refuse(f"{key} is a list of argument tables", line)
            for example in examples:
                if not is_object(example):
                    self._refuse(f"{key} is a list of argument tables", line)
                found = speaks(rule, _example_subject(rule, self._json(example, key, line)))
                fits = found is not None and found.decision == rule.decision
                if fits is not wanted:
                    said = "does not match" if wanted else "matches"
                    self._refuse(f"the rule {said} its {key} example {example!r}", line)

    # ── small things ─────────────────────────────────────────────────────────────────────────────────────────

    def _known_keys(self, fields: Mapping[str, Any], known: frozenset[str], where: str, place: _Place) -> None:
        for key in fields:
            if key not in known:
                self._refuse(
                    f"unknown key {key!r} in {where}; the keys are: {', '.join(sorted(known))}", place.line_of(key)
                )

    def _choice(self, fields: Mapping[str, Any], key: str, words: Sequence[_OneOf], place: _Place) -> _OneOf:
        chosen = next((word for word in words if word == fields.get(key)), None)
        if chosen is None:
            said = f"{key} is {fields[key]!r}" if key in fields else f"{key} is missing"
            self._refuse(f"{said}; it must be one of: {', '.join(words)}", place.line_of(key))
        return chosen

    def _text(self, fields: Mapping[str, Any], key: str, place: _Place) -> str:
        value = fields.get(key, "")
        if not isinstance(value, str):
            self._refuse(f"{key} must be a text, not {value!r}", place.line_of(key))
        return value

    def _texts(self, value: Any, where: str, line: int | None) -> Sequence[str]:
        if not _are_texts(value):
            self._refuse(f"{where} is a list of texts", line)
        return value

    def _words(self, value: Any, key: str, line: int | None) -> Sequence[str]:
        """One text or several, none of them empty."""
        texts = [value] if isinstance(value, str) else value
        if not _are_texts(texts) or not texts or "" in texts:
            self._refuse(f"{key} is a text, or a list of texts", line)
        return texts

    def _flag(self, fields: Mapping[str, Any], key: str, place: _Place, *, default: bool) -> bool:
        value = fields.get(key, default)
        if not isinstance(value, bool):
            self._refuse(f"{key} must be true or false, not {value!r}", place.line_of(key))
        return value

    def _refuse(self, message: str, line: int | None = None) -> NoReturn:
        raise PolicyError(message, file=self._file, line=line)


def _are_texts(value: Any) -> TypeGuard[list[str]]:
    return is_array(value) and all(isinstance(item, str) for item in value)


def _example_subject(rule: Rule, arguments: Mapping[str, Any]) -> Subject:
    """A call with these arguments in a made-up workspace without links.

    Every argument that a ``beneath`` of the rule names counts as a guarded path.
    """
    named = {condition.name for condition in rule.conditions if isinstance(condition, Beneath)}
    places = {
        name: directory_of(value, EXAMPLE_WORKSPACE)
        for name, value in arguments.items()
        if name in named and isinstance(value, str)
    }
    risk = rule.risks[0] if rule.risks else RiskLevel.MUTATION
    paths = {name: (place, place) for name, place in places.items()}
    return Subject((rule.tool,), risk, {**arguments, **places}, paths, EXAMPLE_WORKSPACE)


def _glob_regex(text: str) -> str:
    """A glob over a whole text as RE2: ``*`` any characters but ``/``, ``**`` any at all, ``?`` one but ``/``."""
    pieces = re.split(r"(\*\*|\*|\?)", text)
    meaning = {"**": "(?s:.*)", "*": r"[^/]*", "?": r"[^/]"}
    return "".join(meaning.get(piece) or _re2.escape(piece) for piece in pieces)
