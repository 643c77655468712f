"""Compiled rules and their decision, pure: no file, no clock, no memory of earlier calls.

How a decision is made:

1. A rule speaks about a call when its tool matches (an exact canonical id or model-facing name, or a glob that was
   written as one) and all its conditions hold. ``add`` never speaks about ``add_user``.
2. ``deny`` beats ``ask`` beats ``allow``; among equals the first in the file is named. No rule: the risk table.
3. A condition on a guarded path looks at the path as requested (made absolute, lexically) and as it resolves through
   links: an ``allow`` needs both to fit, a ``deny`` or ``ask`` needs one. Containment is by whole components, from the
   workspace's root. A ``deny`` also sees through upper case and Unicode composition.
4. A condition on a command allows only what is read with certainty (:mod:`~handrail.approval.shell`), never a
   wrapper. Where a rule has one and the line is not clear, the answer is at least ``ask``. A ``deny`` reads it loosely,
   and when the line is too large to read, denies.
5. A missing argument fits no condition.

Rules are found through an index (by tool; then by directory, exact value or program; patterns through one RE2 set), so
that a decision does not slow down with their number.
"""

import fnmatch
import os
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, cast

import re2  # pyright: ignore[reportMissingTypeStubs] - it ships none

from handrail.approval import shapes, shell
from handrail.approval.policy import RiskTable, Verdict
from handrail.call import Checked, Review
from handrail.schema import canonical_bytes, digest_of
from handrail.tool import RiskLevel

Word = Literal["allow", "ask", "deny"]
_re2: Any = re2
STRICTNESS: Mapping[str, int] = {"allow": 0, "ask": 1, "deny": 2}
MAX_TOOLS_REMEMBERED = 1_024


@dataclass(frozen=True, slots=True)
class Subject:
    """One call as rules see it.

    ``paths`` maps each guarded argument to its path as requested (absolute, lexically normal) and as it resolves.
    ``names`` are the tool's canonical id and model-facing name.
    """

    names: tuple[str, ...]
    risk: RiskLevel
    arguments: Mapping[str, Any]
    paths: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    workspace: str = ""
    staged: bool = False

    @classmethod
    def of(cls, checked: Checked) -> "Subject":
        """The subject of a checked call."""
        registered = checked.registered
        return cls(
            (registered.canonical_id, registered.model_name),
            registered.tool.definition.risk_level,
            checked.arguments,
            {name: (str(checked.arguments[name]), resolved) for name, resolved in checked.resolved_paths.items()},
            checked.workspace_id,
            registered.tool.body.staged,
        )


@dataclass(frozen=True, slots=True)
class Beneath:
    """The path argument ``name`` is at or below one of ``directories`` (absolute, or relative to the workspace)."""

    name: str
    directories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OneOf:
    """The argument ``name`` is exactly one of ``values`` (as JSON: ``1`` is not ``true``)."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """The string argument ``name`` matches ``regex`` (RE2, from beginning to end). ``text`` is what was written."""

    name: str
    regex: str
    text: str


@dataclass(frozen=True, slots=True)
class CommandLike:
    """The command line in argument ``name`` has one of ``shapes``, or is like ``argv``.

    In an ``allow``, ``argv`` is the whole command: literal words, a list of alternatives, ``*`` for one word and a last
    ``**`` for any words that are no options. In a ``deny`` or ``ask``, its words in this order are enough, the first
    by the last part of its path.
    """

    name: str
    shapes: tuple[str, ...] = ()
    argv: tuple[tuple[str, ...], ...] = ()


Condition = Beneath | OneOf | Pattern | CommandLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule. ``name`` is how it is called in answers (``policy.toml:12``). ``grant``: may a person grant it."""

    name: str
    tool: str
    decision: Word
    is_glob: bool = False
    risks: tuple[RiskLevel, ...] = ()
    conditions: tuple[Condition, ...] = ()
    review: Review | None = None
    justification: str = ""
    grant: bool = True

    def to_json(self) -> dict[str, Any]:
        """What the policy's version is a digest of."""
        return {
            "name": self.name,
            "tool": self.tool,
            "glob": self.is_glob,
            "decision": self.decision,
            "risks": [risk.value for risk in self.risks],
            "conditions": [_condition_json(item) for item in self.conditions],
            "review": self.review,
            "justification": self.justification,
            "grant": self.grant,
        }


def _condition_json(condition: Condition) -> dict[str, Any]:
    kind = type(condition).__name__
    if isinstance(condition, Beneath):
        return {"kind": kind, "name": condition.name, "directories": list(condition.directories)}
    if isinstance(condition, OneOf):
        return {"kind": kind, "name": condition.name, "values": list(condition.values)}
    if isinstance(condition, Pattern):
        return {"kind": kind, "name": condition.name, "regex": condition.regex}
    words = [list(words) for words in condition.argv]
    return {"kind": kind, "name": condition.name, "shapes": list(condition.shapes), "argv": words}


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule says about a call, and why it says it."""

    rule: Rule
    decision: Word
    why: str


class CompiledRules:
    """Rules, indexed. ``version`` is a digest of everything a decision depends on."""

    def __init__(self, rules: Iterable[Rule], *, name: str = "rules") -> None:
        self.rules: tuple[Rule, ...] = tuple(rules)
        self.name = name
        self._exact: dict[str, list[tuple[int, Rule]]] = {}
        self._globs: list[tuple[int, Rule]] = []
        self._indexes: dict[tuple[str, ...], _Index] = {}
        self._table = RiskTable()
        for order, rule in enumerate(self.rules):
            if rule.is_glob:
                self._globs.append((order, rule))
            else:
                self._exact.setdefault(rule.tool, []).append((order, rule))
        self.version = digest_of(
            {
                "rules": [rule.to_json() for rule in self.rules],
                "engine": "rules:v1",
                "shapes": shapes.VERSION,
                "table": RiskTable.version,
            }
        )

    def decide(self, checked: Checked) -> Verdict:
        """The decision about a checked call: the strictest rule that speaks, else the risk table."""
        subject = Subject.of(checked)
        finding = self.find(subject)
        return self._table.decide(checked) if finding is None else verdict_of(finding, subject)

    def find(self, subject: Subject) -> Finding | None:
        """The rule that decides, or ``None`` when no rule speaks about the call."""
        return self._index(subject.names).find(subject)

    def findings(self, subject: Subject) -> list[Finding]:
        """Every rule that speaks about the call, strictest first: for explaining."""
        index = self._index(subject.names)
        found = [finding for _, rule in index.rules if (finding := speaks(rule, subject)) is not None]
        return sorted(found, key=lambda finding: -STRICTNESS[finding.decision])

    def _index(self, names: tuple[str, ...]) -> "_Index":
        index = self._indexes.get(names)
        if index is None:
            mine = [pair for name in dict.fromkeys(names) for pair in self._exact.get(name, ())]
            mine += [pair for pair in self._globs if any(fnmatch.fnmatchcase(name, pair[1].tool) for name in names)]
            index = _Index(sorted(mine, key=lambda pair: pair[0]))
            if len(self._indexes) >= MAX_TOOLS_REMEMBERED:
                self._indexes.clear()
            self._indexes[names] = index
        return index


def verdict_of(finding: Finding, subject: Subject) -> Verdict:
    """A finding as the corridor reads it. Only a ``mutation`` may be granted, whatever the rule says."""
    rule = finding.rule
    review: Review = rule.review or ("changes" if subject.staged else "before")
    if review == "changes" and not subject.staged:
        review = "before"
    can_grant = finding.decision == "ask" and rule.grant and subject.risk is RiskLevel.MUTATION
    return Verdict(finding.decision, review, rule.name, finding.why, can_grant)


def speaks(rule: Rule, subject: Subject) -> Finding | None:
    """What ``rule`` says about ``subject``, whose tool it matches already."""
    if rule.risks and subject.risk not in rule.risks:
        return None
    decision: Word = rule.decision
    why = rule.justification or f"{rule.decision} {rule.tool}"
    for condition in rule.conditions:
        if isinstance(condition, CommandLike):
            held = _command_holds(condition, subject, rule.decision)
            if held is None:
                return None
            if held is not True:
                decision, why = ("deny" if rule.decision == "deny" else "ask"), held
        elif not _holds(condition, subject, rule.decision):
            return None
    return Finding(rule, decision, why)


# ── conditions ───────────────────────────────────────────────────────────────────────────────────────────────────


def _key(value: Any) -> Hashable:
    """Equal for values that are the same JSON, and only for those: ``1`` is not ``true``, ``1.0`` is ``1``."""
    return value if type(value) is str else canonical_bytes(value)


def _holds(condition: Beneath | OneOf | Pattern, subject: Subject, decision: Word) -> bool:
    if condition.name not in subject.arguments:
        return False
    if isinstance(condition, OneOf):
        value = _key(subject.arguments[condition.name])
        return any(_key(item) == value for item in condition.values)
    quantifier: Callable[[Iterable[bool]], bool] = all if decision == "allow" else any
    if isinstance(condition, Beneath):
        pair = subject.paths.get(condition.name)
        if pair is None and decision == "allow":  # nobody resolved it, so nobody knows where it leads
            return False
        seen = pair or (_lexical(subject.arguments[condition.name], subject.workspace),)
        return quantifier(_is_beneath(path, condition.directories, subject.workspace, decision) for path in seen)
    compiled = _re2.compile(condition.regex)
    texts = _texts(condition.name, subject)
    return bool(texts) and quantifier(compiled.fullmatch(text) is not None for text in texts)


def _texts(name: str, subject: Subject) -> tuple[str, ...]:
    """What a pattern looks at: a guarded path relative to the workspace, both ways it reads; else the string."""
    pair = subject.paths.get(name)
    if pair is not None:
        return tuple(_relative(path, subject.workspace) for path in pair)
    value = subject.arguments.get(name)
    return (value,) if isinstance(value, str) else ()


def _relative(path: str, workspace: str) -> str:
    root = workspace.rstrip("/") + "/"
    return path[len(root) :] if path.startswith(root) else "." if path == workspace else path


def _lexical(value: Any, workspace: str) -> str:
    return os.path.normpath(os.path.join(workspace or "/", value)) if isinstance(value, str) else ""


@lru_cache(maxsize=4_096)
def directory_of(text: str, workspace: str) -> str:
    """A rule's directory as an absolute path: relative ones start at the workspace's root, and only there."""
    return os.path.normpath(os.path.join(workspace or "/", text))


def folded(path: str) -> str:
    """A path as a careless file system would compare it: composed, case-folded."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())


def _is_beneath(path: str, directories: tuple[str, ...], workspace: str, decision: Word) -> bool:
    for text in directories:
        directory = directory_of(text, workspace)
        if is_at_or_below(path, directory):
            return True
        if decision != "allow" and is_at_or_below(folded(path), folded(directory)):
            return True
    return False


def is_at_or_below(path: str, directory: str) -> bool:
    """By whole components: ``/w/proj-evil`` is not below ``/w/proj``."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _command_holds(condition: CommandLike, subject: Subject, decision: Word) -> Literal[True] | str | None:
    """``True``: it is such a command; ``None``: it is not; a text: it cannot be told, and why."""
    line = subject.arguments.get(condition.name)
    if not isinstance(line, str):
        return None
    if decision == "allow":
        return _allowed_command(condition, line)
    parsed = shell.parse(line)
    if isinstance(parsed, shell.Unclear) and parsed.limit:
        return f"the command cannot be read: {parsed.why}"
    return True if _mentions(condition, line, parsed) else None


def _allowed_command(condition: CommandLike, line: str) -> Literal[True] | str | None:
    parsed = shell.parse(line)
    if isinstance(parsed, shell.Unclear):
        return f"the command cannot be read with certainty: {parsed.why}"
    if parsed.wrapper is not None:
        return f"{parsed.wrapper!r} runs another command, which is not looked at"
    if condition.argv and argv_equals(condition.argv, parsed.argv):
        return True if shell.interpreter_of(parsed.argv) is None or is_literal(condition.argv) else None
    if any(shapes.fits(shape, parsed.argv) is None for shape in condition.shapes):
        return True
    return None


def is_literal(pattern: tuple[tuple[str, ...], ...]) -> bool:
    """Whether the pattern has no ``*`` and no ``**``."""
    return not any(words in {("*",), ("**",)} for words in pattern)


def argv_equals(pattern: tuple[tuple[str, ...], ...], argv: tuple[str, ...]) -> bool:
    """Whether the whole ``argv`` is what an ``allow`` pattern says."""
    open_ended = pattern[-1] == ("**",)
    fixed = pattern[:-1] if open_ended else pattern
    if len(argv) < len(fixed) or (len(argv) > len(fixed) and not open_ended):
        return False
    if any(word.startswith("-") for word in argv[len(fixed) :]):
        return False
    return all(
        not word.startswith("-") if words == ("*",) else word in words for words, word in zip(fixed, argv, strict=False)
    )


def _mentions(condition: CommandLike, line: str, parsed: shell.Plain | shell.Unclear) -> bool:
    """Whether the pattern's words stand in the line in this order, loosely read or as the shell reads it (rule 4)."""
    if isinstance(parsed, shell.Plain):
        if any(shapes.fits(shape, parsed.argv) is None for shape in condition.shapes):
            return True
        if _stand_in_order(condition.argv, parsed.argv):
            return True
    return _stand_in_order(condition.argv, shell.loose_words(line))


def _stand_in_order(pattern: tuple[tuple[str, ...], ...], words: Iterable[str]) -> bool:
    fixed = pattern[:-1] if pattern[-1:] == (("**",),) else pattern
    met = 0
    for word in words:
        if met < len(fixed):
            name = word if met else os.path.basename(word).casefold()
            met += fixed[met] == ("*",) or name in fixed[met]
    return met == len(fixed) > 0


# ── the index ────────────────────────────────────────────────────────────────────────────────────────────────────

_Ordered = tuple[int, Rule]


class _Index:
    """The rules of one tool, by what makes them speak.

    Each rule hangs on one anchor that its conditions need: a directory, an exact value, a pattern. A call looks up the
    anchors it has; only the rules found there are tried in full. Rules without such a condition are tried always.
    """

    def __init__(self, rules: list[_Ordered]) -> None:
        self.rules = rules
        self._always: list[_Ordered] = []
        self._by_value: dict[tuple[str, Hashable], list[_Ordered]] = {}
        self._by_directory: dict[tuple[str, str], list[_Ordered]] = {}
        self._by_word: dict[tuple[str, str], list[_Ordered]] = {}
        self._value_names: set[str] = set()
        self._directory_names: set[str] = set()
        self._word_names: set[str] = set()
        self._patterns: dict[str, _PatternSet] = {}
        self._unclear: dict[str, list[_Ordered]] = {}
        self._heard: set[tuple[str, Word]] = set()
        for pair in rules:
            self._hang(pair)

    def _hang(self, pair: _Ordered) -> None:
        rule = pair[1]
        for condition in rule.conditions:
            if isinstance(condition, OneOf):
                self._value_names.add(condition.name)
                for value in condition.values:
                    self._by_value.setdefault((condition.name, _key(value)), []).append(pair)
                return
            if isinstance(condition, Beneath):
                self._directory_names.add(condition.name)
                for text in condition.directories:
                    self._by_directory.setdefault((condition.name, folded(os.path.normpath(text))), []).append(pair)
                return
            if isinstance(condition, CommandLike) and not condition.shapes:
                self._word_names.add(condition.name)
                self._hear(condition.name, pair)
                for word in _telling_words(condition):
                    self._by_word.setdefault((condition.name, word), []).append(pair)
                return
            if isinstance(condition, Pattern):
                self._patterns.setdefault(condition.name, _PatternSet()).add(condition.regex, pair)
                return
        self._always.append(pair)

    def _hear(self, name: str, pair: _Ordered) -> None:
        """Note a rule that has its say about a line that nobody can read; of those that would say the same, one."""
        rule = pair[1]
        if len(rule.conditions) == 1 and not rule.risks:
            if (name, rule.decision) in self._heard:
                return
            self._heard.add((name, rule.decision))
        self._unclear.setdefault(name, []).append(pair)

    def find(self, subject: Subject) -> Finding | None:
        best: Finding | None = None
        strictness, order = -1, 0
        for place, rule in self._candidates(subject):
            finding = speaks(rule, subject)
            if finding is None:
                continue
            found = STRICTNESS[finding.decision]
            if found > strictness or (found == strictness and place < order):
                best, strictness, order = finding, found, place
        return best

    def _candidates(self, subject: Subject) -> Iterator[_Ordered]:
        yield from self._always
        arguments = subject.arguments
        for name in self._value_names:
            if name in arguments:
                yield from self._by_value.get((name, _key(arguments[name])), ())
        for name in self._directory_names:
            if name in arguments:
                for directory in _directories(name, subject):
                    yield from self._by_directory.get((name, directory), ())
        for name, patterns in self._patterns.items():
            for text in _texts(name, subject):
                yield from patterns.matching(text)
        for name in self._word_names:
            line = arguments.get(name)
            if isinstance(line, str):
                yield from self._by_program(name, line)

    def _by_program(self, name: str, line: str) -> Iterator[_Ordered]:
        parsed = shell.parse(line)
        words = set(shell.loose_words(line))
        if isinstance(parsed, shell.Plain):
            words.update(parsed.argv)
        if isinstance(parsed, shell.Unclear) or parsed.wrapper is not None:
            yield from self._unclear[name]
        words.update([word.rpartition("/")[2].casefold() for word in words])
        for word in words:
            yield from self._by_word.get((name, word), ())


def _telling_words(condition: CommandLike) -> tuple[str, ...]:
    """Words of which one must stand in a line that the pattern fits: of the second place if there are any."""
    second = condition.argv[1] if len(condition.argv) > 1 else ("*",)
    return (condition.argv or (("",),))[0] if second in {("*",), ("**",)} else second


def _directories(name: str, subject: Subject) -> set[str]:
    """Every directory that holds the path, each way it reads, absolute and relative to the workspace, folded."""
    found: set[str] = set()
    seen = subject.paths.get(name) or (_lexical(subject.arguments[name], subject.workspace),)
    for path in dict.fromkeys(seen):
        relative = _relative(path, subject.workspace)
        _add_ancestors(folded(path), found)
        if relative != path:
            _add_ancestors(folded(relative), found)
            found.add(".")
    return found


def _add_ancestors(path: str, found: set[str]) -> None:
    """Add ``path`` and every directory above it, textually."""
    end = len(path)
    while end > 0:
        found.add(path[:end])
        end = path.rfind("/", 0, end)
    if path.startswith("/"):
        found.add("/")


class _PatternSet:
    """Many RE2 patterns, matched at once.

    In sets of a size that stays far within RE2's memory budget: a set that runs out of it reports no match, and a
    ``deny`` must not be lost that way.
    """

    _SIZE = 512
    _MEMORY = 1 << 28

    def __init__(self) -> None:
        self._regexes: list[str] = []
        self._rules: list[_Ordered] = []
        self._sets: list[Any] = []

    def add(self, regex: str, pair: _Ordered) -> None:
        self._regexes.append(regex)
        self._rules.append(pair)

    def matching(self, text: str) -> Iterator[_Ordered]:
        if not self._sets:
            self._sets = [self._compiled(start) for start in range(0, len(self._regexes), self._SIZE)]
        for number, compiled in enumerate(self._sets):
            for index in cast("list[int] | None", compiled.Match(text)) or ():
                yield self._rules[number * self._SIZE + index]

    def _compiled(self, start: int) -> Any:
        options = _re2.Options()
        options.max_mem = self._MEMORY
        compiled = _re2.Set.FullMatchSet(options)
        for regex in self._regexes[start : start + self._SIZE]:
            compiled.Add(regex)
        compiled.Compile()
        return compiled
