"""Schemas that are small to write and endless to check, and values that make one so. Pure.

A validator looks at a part of a value once for each way that leads there, so alternatives and references multiply:
thirty definitions that each name the next one twice are two to the thirtieth looks at one string. :class:`Cost` counts
without looking. Rules of the counting:

1. A *step* is one look of one subschema at one part of a value, and one more for each name, value or pattern that it
   lists for that part.
2. Subschemas of the same part add up (``allOf``, ``anyOf``, ``$ref`` …). Of those that divide the value, only the most
   expensive counts (``properties``, ``prefixItems``), since a part has one name. Several patterns can match one name,
   so ``patternProperties`` add up.
3. ``unevaluated…`` looks at its part again to learn what was evaluated, and everything below it does so too.
4. The steps on the most expensive way through a value, times the value's parts, are never fewer than what the whole
   check takes. So a bound on this product bounds the check.

Not counted is how long one step takes. It is at most proportional to what it looks at, and for a ``pattern`` also to
the pattern.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from handrail.subschemas import References, Subschema

MAX_SUBSCHEMAS = 10_000
MAX_STEPS = 50_000_000
"""Steps that one check may take: a second or two."""
MAX_STEPS_SHALLOW = 100_000
"""Steps on the way through a value of ``SHALLOW`` levels, beyond which a schema is refused."""
SHALLOW = 6
LARGEST = 2**19  # the parts of a value that is read from 1 MiB of JSON, where each takes two bytes or more
CHARACTERS = 64  # of a text or a key that count as one more part

_SAME_ONE = ("not", "if", "then", "else")
_SAME_LISTS = ("allOf", "anyOf", "oneOf")
_SAME_NAMES = ("dependentSchemas", "dependencies")
_UNEVALUATED = ("unevaluatedProperties", "unevaluatedItems")
_REFERENCES = ("$ref", "$dynamicRef")


class Cost:
    """The steps that checking against one document takes. ``found`` are its subschemas, the root first.

    ``circular``: some look at the same part in a circle, so that there is no count. ``always``: no value of at most
    ``LARGEST`` parts takes more than ``MAX_STEPS``.
    """

    __slots__ = ("_graph", "_steps", "always", "circular")

    def __init__(self, found: Sequence[Subschema]) -> None:
        self._graph: _Graph | None = None
        settled = True
        if any(keyword in subschema.node for subschema in found for keyword in (*_REFERENCES, *_UNEVALUATED)):
            self._graph = _Graph(found)
            self._steps, settled = self._graph.steps(SHALLOW)
        else:  # no way through a value meets one of them twice
            self._steps = [sum(_weight(subschema.node) + _patterns(subschema.node) for subschema in found)]
        self.circular = self._graph is not None and self._graph.circular
        self.always = settled and self._steps[-1] * LARGEST <= MAX_STEPS

    def steps(self, depth: int) -> int:
        """The steps on the most expensive way through a value of ``depth`` levels; not exact beyond ``MAX_STEPS``."""
        if depth >= len(self._steps) and self._graph is not None:
            self._steps, _ = self._graph.steps(depth)
        return self._steps[min(depth, len(self._steps) - 1)]

    def allows(self, value: Any) -> bool:
        """Whether checking ``value`` takes at most ``MAX_STEPS``."""
        parts, depth = measured(value)
        return parts * self.steps(depth) <= MAX_STEPS


def measured(value: Any) -> tuple[int, int]:
    """The parts of a value, among them its keys and each ``CHARACTERS`` of its texts; and how many levels it has."""
    level: list[Any] = [value]
    parts, depth = 0, -1
    while level:
        depth += 1
        parts += len(level)
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                parts += len(item) // CHARACTERS
            elif isinstance(item, Mapping):
                mapping = cast("Mapping[str, Any]", item)
                below.extend(mapping)
                below.extend(mapping.values())
            elif isinstance(item, list):
                below.extend(cast("list[Any]", item))
        level = below
    return parts, depth


class _Node:
    """A subschema with what it leads to, as places in the list of all nodes.

    ``named`` and ``placed`` are alternatives: of each, one looks at a part. ``matched`` look at the same part as one of
    the named, ``other`` and ``rest`` where none of those does, ``every`` and ``each`` at every part.
    """

    __slots__ = ("again", "each", "every", "matched", "named", "other", "patterns", "placed", "rest", "same", "weight")

    def __init__(self, node: Mapping[str, Any], references: References, places: Mapping[int, int]) -> None:
        def to(children: Iterable[Any]) -> list[int]:
            return [places[id(child)] for child in children if id(child) in places]

        self.weight = _weight(node)
        self.patterns = _patterns(node)
        self.again = any(keyword in node for keyword in _UNEVALUATED)
        self.same = to(_same(node, references))
        self.named, self.matched, self.other, self.every, self.placed, self.rest, self.each = map(to, _parts(node))

    def below(self, steps: Sequence[int]) -> int:
        """The steps for the most expensive part of this one's value. A value is an object or an array."""
        named = max((steps[child] for child in self.named), default=0) + sum(steps[child] for child in self.matched)
        fields = max(named, sum(steps[child] for child in self.other)) + sum(steps[child] for child in self.every)
        fields += self.patterns
        placed = max((steps[child] for child in (*self.placed, *self.rest)), default=0)
        return max(fields, placed + sum(steps[child] for child in self.each))


def _weight(node: Mapping[str, Any]) -> int:
    """The steps of one look: rule 1. ``true`` and ``false`` among alternatives are no nodes of their own."""
    listed = sum(len(_list(node.get(keyword))) for keyword in ("required", "enum"))
    listed += sum(len(_values(node.get(keyword))) for keyword in ("dependentRequired", *_SAME_NAMES))
    return 1 + listed + sum(type(item) is bool for keyword in _SAME_LISTS for item in _list(node.get(keyword)))


def _patterns(node: Mapping[str, Any]) -> int:
    return len(_values(node.get("patternProperties")))


def _same(node: Mapping[str, Any], references: References) -> Iterator[Any]:
    """What looks at the same part of the value as ``node``."""
    for keyword in _SAME_LISTS:
        yield from _list(node.get(keyword))
    for keyword in _SAME_NAMES:
        yield from _values(node.get(keyword))
    for keyword in _SAME_ONE:
        yield node.get(keyword)
    yield from references.targets(node)


def _parts(node: Mapping[str, Any]) -> tuple[Iterable[Any], ...]:
    """What looks at parts of ``node``'s value, in the order of :class:`_Node`'s fields."""
    items = node.get("items")
    return (
        _values(node.get("properties")),
        _values(node.get("patternProperties")),
        [node.get("additionalProperties")],
        [node.get("propertyNames"), node.get("unevaluatedProperties")],
        [*_list(node.get("prefixItems")), *_list(items)],
        [node.get("additionalItems"), items],
        [node.get("contains"), node.get("unevaluatedItems")],
    )


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _values(value: Any) -> list[Any]:
    return list(cast("Mapping[str, Any]", value).values()) if isinstance(value, Mapping) else []


class _Graph:
    """The nodes that the root leads to, each after those that look at the same part; a circle of such is cut."""

    __slots__ = ("_nodes", "_root", "circular")

    def __init__(self, found: Sequence[Subschema]) -> None:
        references = References(found)
        order, self.circular = _ordered(found[0].node, references)
        places = {id(node): place for place, node in enumerate(order)}
        self._root = places[id(found[0].node)]
        self._nodes = [_Node(node, references, places) for node in order]

    def steps(self, depth: int) -> tuple[list[int], bool]:
        """The root's steps for values of 0 to ``depth`` levels, until they settle; and whether they did."""
        taken: list[int] = []
        before = [0] * len(self._nodes)
        for _ in range(depth + 1):
            now, again = [0] * len(before), [0] * len(before)
            for place, node in enumerate(self._nodes):
                same = sum(now[child] for child in node.same)
                again[place] = min(MAX_STEPS + 1, same + sum(again[child] for child in node.same))
                own = node.weight + (node.below(before) if taken else 0) + (again[place] if node.again else 0)
                now[place] = min(MAX_STEPS + 1, same + own)
            taken.append(now[self._root])
            if now == before:
                return taken, True
            before = now
        return taken, False


def _ordered(root: Mapping[str, Any], references: References) -> tuple[list[Mapping[str, Any]], bool]:
    """What ``root`` leads to, each after those that look at the same part; and whether some do so in a circle."""
    order: list[Mapping[str, Any]] = []
    entered: set[int] = set()
    left: set[int] = set()
    circular = False
    apart: list[Any] = [root]
    while apart:
        waiting: list[tuple[Any, bool]] = [(apart.pop(), False)]
        while waiting:
            node, leaving = waiting.pop()
            if not isinstance(node, Mapping):
                continue
            schema = cast("Mapping[str, Any]", node)
            if leaving:
                left.add(id(schema))
                order.append(schema)
            elif id(schema) not in entered:
                entered.add(id(schema))
                waiting.append((schema, True))
                waiting.extend((child, False) for child in _same(schema, references))
                apart.extend(child for group in _parts(schema) for child in group)
            else:
                circular = circular or id(schema) not in left
    return order, circular
