"""Schemas that are small to write and endless to check. Pure.

A validator visits a subschema once for each way that leads to it, so references can multiply: thirty definitions that
each name the next one twice are two to the thirtieth visits. :func:`visits` counts them without making them, and
:func:`depth_allowed` says how deep a value may nest before checking it would cost more than ``BUDGET`` visits.

What this does not count: the width of a value. The visits are per path through it, so the whole cost is at most the
value's size times the bound, and both are bounded.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

from handrail.errors import ToolDefinitionError
from handrail.schema import MAX_DEPTH

BUDGET = 100_000
MIN_DEPTH = 6

# Keywords by where their subschemas apply: to the same value, or to a part of it.
_SAME = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies")
_PART = (
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames",
    "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
)  # fmt: skip
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_STEPS = dict.fromkeys(_SAME, 0) | dict.fromkeys(_PART, 1)
_MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies")


def refuse_explosive(document: Mapping[str, Any], *, where: str) -> None:
    """Raise :class:`~handrail.errors.ToolDefinitionError` when even a shallow value would cost too much to check."""
    if depth_allowed(document) < MIN_DEPTH:
        raise ToolDefinitionError(f"{where}: its references multiply; checking one value would take too long")


def depth_allowed(document: Mapping[str, Any]) -> int:
    """How many levels a value may have (0 to ``MAX_DEPTH``) so that checking it stays within ``BUDGET`` visits."""
    counter = _Counter(document)
    if not counter.refers or counter.visits(document, MAX_DEPTH) <= BUDGET:
        return MAX_DEPTH
    return bisect_right(range(MAX_DEPTH + 1), BUDGET, key=lambda depth: counter.visits(document, depth)) - 1


def depth_of(value: Any) -> int:
    """How many levels of arrays and objects ``value`` has; 0 for a plain one."""
    level, depth = [value], -1
    while level:
        depth += 1
        below: list[Any] = []
        for item in level:
            if isinstance(item, Mapping):
                below.extend(cast("Mapping[str, Any]", item).values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
        level = below
    return depth


class _Counter:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._below: dict[int, tuple[tuple[Any, int], ...]] = {}
        self.refers = _refers(root)
        self._known: dict[tuple[int, int], int] = {}
        self._open: set[tuple[int, int]] = set()

    def visits(self, node: Any, depth: int) -> int:
        """Visits for ``node`` and a value of ``depth`` levels, capped just above ``BUDGET``."""
        if not isinstance(node, dict) or depth < 0:
            return 0
        key = (id(cast("Any", node)), depth)
        if key in self._known:
            return self._known[key]
        if key in self._open:  # a reference that meets itself on the same value: visited once, then cut
            return 0
        self._open.add(key)
        total = 1
        for child, step in self._children(cast("Mapping[str, Any]", node)):
            total = min(BUDGET + 1, total + self.visits(child, depth - step))
        self._open.discard(key)
        self._known[key] = total
        return total

    def _children(self, node: Mapping[str, Any]) -> tuple[tuple[Any, int], ...]:
        below = self._below.get(id(node))
        if below is None:
            below = self._below[id(node)] = tuple(self._find_children(node))
        return below

    def _find_children(self, node: Mapping[str, Any]) -> Iterator[tuple[Any, int]]:
        """Each subschema, with how many levels of the value lie between."""
        for keyword, value in node.items():
            if keyword in _REFERENCES and isinstance(value, str):
                yield self._target(value), 0
            elif keyword in _STEPS:
                for child in _subschemas(keyword, value):
                    yield child, _STEPS[keyword]

    def _target(self, reference: str) -> Any:
        if reference in ("#", ""):
            return self._root
        if reference.startswith("#/"):
            return self._pointed(reference)
        return self._anchored(reference.removeprefix("#"))

    def _pointed(self, reference: str) -> Any:
        node: Any = self._root
        for part in reference[2:].split("/"):
            step = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(node, Mapping):
                node = cast("Mapping[str, Any]", node).get(step)
            elif isinstance(node, list) and step.isdigit() and int(step) < len(cast("list[Any]", node)):
                node = cast("list[Any]", node)[int(step)]
            else:
                return None
        return node

    def _anchored(self, name: str) -> Any:
        level: list[Any] = [self._root]
        while level:
            node = level.pop()
            if isinstance(node, Mapping):
                mapping = cast("Mapping[str, Any]", node)
                if name in (mapping.get("$anchor"), mapping.get("$dynamicAnchor")):
                    return mapping
                level.extend(mapping.values())
            elif isinstance(node, list):
                level.extend(cast("list[Any]", node))
        return None


def _refers(root: Mapping[str, Any]) -> bool:
    level: list[Any] = [root]
    while level:
        node = level.pop()
        if isinstance(node, dict):
            mapping = cast("dict[str, Any]", node)
            if not mapping.keys().isdisjoint(_REFERENCES):
                return True
            level.extend(mapping.values())
        elif isinstance(node, list):
            level.extend(cast("list[Any]", node))
    return False


def _subschemas(keyword: str, value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        yield from cast("list[Any]", value)
    elif keyword in _MAPS and isinstance(value, Mapping):
        yield from cast("Mapping[str, Any]", value).values()
    elif isinstance(value, Mapping):
        yield cast("Mapping[str, Any]", value)
