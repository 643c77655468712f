"""Mistakes in rules that a load cannot refuse: rules that never speak, that others hide, that allow too much.

Pure, and careful to one side: what is reported is so; not everything that is so is found.
"""

import fnmatch
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from handrail.approval.rules import (
    STRICTNESS,
    Beneath,
    CommandLike,
    CompiledRules,
    Condition,
    OneOf,
    Pattern,
    Rule,
    is_at_or_below,
)
from handrail.call import RegisteredTool
from handrail.schema import canonical_bytes
from handrail.tool import RiskLevel


@dataclass(frozen=True, slots=True)
class Mistake:
    """One finding. ``rule`` is its name; ``kind`` sorts it."""

    kind: Literal["never", "shadowed", "broad"]
    rule: str
    text: str


def review(rules: CompiledRules, tools: Sequence[RegisteredTool] = ()) -> list[Mistake]:
    """Everything found, in the order of the rules. ``tools``: what is registered, where that is known."""
    found: list[Mistake] = []
    for index, rule in enumerate(rules.rules):
        never = _never(rule, tools)
        if never is not None:
            found.append(Mistake("never", rule.name, never))
        hiding = next((other for other in _others(rules.rules, index) if _hides(*other, rule, index)), None)
        if hiding is not None:
            found.append(
                Mistake("shadowed", rule.name, f"{hiding[0].name} ({hiding[0].decision}) speaks first, always")
            )
        broad = _broad(rule, tools)
        if broad is not None:
            found.append(Mistake("broad", rule.name, broad))
    return found


def _others(rules: Sequence[Rule], index: int) -> Iterable[tuple[Rule, int]]:
    return ((rule, place) for place, rule in enumerate(rules) if place != index)


# ── never ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _never(rule: Rule, tools: Sequence[RegisteredTool]) -> str | None:
    contradiction = _contradiction(rule.conditions)
    if contradiction is not None:
        return contradiction
    if not tools:
        return None
    mine = [tool for tool in tools if _names(rule, tool)]
    if not mine:
        return f"no tool here is named {rule.tool!r}"
    if rule.risks and not any(tool.tool.definition.risk_level in rule.risks for tool in mine):
        risks = sorted({tool.tool.definition.risk_level.value for tool in mine})
        return f"its tools are of risk {', '.join(risks)}, never of one that is named"
    for condition in rule.conditions:
        if not any(_has_argument(tool, condition.name) for tool in mine):
            return f"none of its tools has an argument {condition.name!r}"
        if (
            isinstance(condition, Beneath)
            and rule.decision == "allow"
            and not any(condition.name in tool.tool.definition.guarded_args for tool in mine)
        ):
            return f"{condition.name!r} is not declared as a path by any of its tools, so nobody knows where it leads"
    return None


def _names(rule: Rule, tool: RegisteredTool) -> bool:
    names = (tool.canonical_id, tool.model_name)
    return any(fnmatch.fnmatchcase(name, rule.tool) if rule.is_glob else name == rule.tool for name in names)


def _has_argument(tool: RegisteredTool, name: str) -> bool:
    parameters = tool.tool.definition.parameters
    closed = parameters.get("additionalProperties") is False
    return name in parameters.get("properties", {}) or not closed


def _contradiction(conditions: tuple[Condition, ...]) -> str | None:
    for place, one in enumerate(conditions):
        for other in conditions[place + 1 :]:
            if one.name != other.name:
                continue
            if isinstance(one, OneOf) and isinstance(other, OneOf) and not _values(one) & _values(other):
                return f"{one.name!r} cannot have both sets of values"
            if isinstance(one, Beneath) and isinstance(other, Beneath) and not _overlap(one, other):
                return f"{one.name!r} cannot be beneath both {one.directories[0]!r} and {other.directories[0]!r}"
    return None


def _values(condition: OneOf) -> set[bytes]:
    return {canonical_bytes(value) for value in condition.values}


def _overlap(one: Beneath, other: Beneath) -> bool:
    if any(os.path.isabs(a) != os.path.isabs(b) for a in one.directories for b in other.directories):
        return True  # a relative and an absolute directory may be one
    return any(
        is_at_or_below(a, b) or is_at_or_below(b, a) or "." in (a, b)
        for a in one.directories
        for b in other.directories
    )


# ── shadowed ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _hides(other: Rule, other_place: int, rule: Rule, place: int) -> bool:
    """Whether ``other`` decides every call that ``rule`` speaks about."""
    stronger = min(STRICTNESS[other.decision] - STRICTNESS[rule.decision], _strictest(other) - _strictest(rule))
    if stronger < 0 or (stronger == 0 and other_place > place):
        return False
    if not _tools_within(rule, other):
        return False
    if other.risks and not (rule.risks and set(rule.risks) <= set(other.risks)):
        return False
    if rule.decision == "allow" and other.decision != "allow" and _has_command(other):
        return False  # an allow asks about every line that it cannot read; the other hears such a line loosely
    return all(any(_implies(mine, theirs) for mine in rule.conditions) for theirs in other.conditions)


def _strictest(rule: Rule) -> int:
    """The most that a rule can say: one that allows commands asks about a line that it cannot read."""
    return STRICTNESS["ask" if rule.decision == "allow" and _has_command(rule) else rule.decision]


def _has_command(rule: Rule) -> bool:
    return any(isinstance(condition, CommandLike) for condition in rule.conditions)


def _tools_within(rule: Rule, other: Rule) -> bool:
    if not other.is_glob:
        return not rule.is_glob and rule.tool == other.tool
    if not rule.is_glob:
        return fnmatch.fnmatchcase(rule.tool, other.tool)
    prefix = re.fullmatch(r"([^*?\[]*)\*", other.tool)
    return rule.tool == other.tool or (prefix is not None and rule.tool.startswith(prefix[1]))


def _implies(mine: Condition, theirs: Condition) -> bool:
    if mine.name != theirs.name:
        return False
    if mine == theirs:
        return True
    if isinstance(mine, OneOf) and isinstance(theirs, OneOf):
        return _values(mine) <= _values(theirs)
    if isinstance(mine, Beneath) and isinstance(theirs, Beneath):
        return all(any(is_at_or_below(a, b) for b in theirs.directories) for a in mine.directories)
    if isinstance(mine, Pattern) and isinstance(theirs, Pattern):
        return theirs.regex in {"(?:.*)", "(?:(?s:.*))"}
    if isinstance(mine, CommandLike) and isinstance(theirs, CommandLike):
        return not mine.argv and not theirs.argv and set(mine.shapes) <= set(theirs.shapes)
    return False


# ── broad ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _broad(rule: Rule, tools: Sequence[RegisteredTool]) -> str | None:
    if rule.decision != "allow" or rule.conditions:
        return None
    if rule.is_glob and not rule.risks:
        return "it allows every call of every tool that the glob meets, also of tools that come later"
    risky = [
        tool.canonical_id
        for tool in tools
        if _names(rule, tool)
        and tool.tool.definition.risk_level > RiskLevel.MUTATION
        and (not rule.risks or tool.tool.definition.risk_level in rule.risks)
    ]
    return f"it allows every call of {', '.join(sorted(risky))}, whatever its arguments" if risky else None
