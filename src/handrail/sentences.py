"""What is wrong with a value, in words a model can act on: where, what was expected, what came.

Values are shown short, objects and arrays never: only their kind. A hidden value is shown as its kind alone.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

MAX_SHOWN = 60
MAX_OPTIONS = 20

_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a string",
    "boolean": "true or false",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def kind_of(value: Any) -> str:
    """The JSON word for a value's type, as a model would say it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "an array"
    return "an object"


def sentence(keyword: str, kind: Any, value: Any, path: Sequence[str | int], *, hidden: bool, root: str) -> str:
    """One complaint. ``kind`` carries what the keyword demands, as the validator names it; ``root`` names the whole."""
    place = _place(path) or root
    if keyword == "required":
        return f"{place}: the field {kind.property!r} is missing"
    if keyword in ("additionalProperties", "unevaluatedProperties"):
        extra = ", ".join(repr(str(name)) for name in kind.unexpected[:MAX_OPTIONS])
        return f"{place}: unknown field {extra}; only the fields of the schema are allowed"
    if keyword == "falseSchema":
        return f"{place}: something is given here that the schema does not allow"
    return f"{place}: expected {_expected(keyword, kind)}, got {_got(value, hidden=hidden)}"


def _place(path: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _got(value: Any, *, hidden: bool) -> str:
    if hidden or isinstance(value, (list, Mapping)):
        return kind_of(value)
    text = json.dumps(value, ensure_ascii=False)
    shown = text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"
    return shown if value is None or isinstance(value, bool) else f"{shown} ({kind_of(value)})"


def _options(values: Sequence[Any]) -> str:
    shown = ", ".join(json.dumps(value, ensure_ascii=False) for value in values[:MAX_OPTIONS])
    return f"one of {shown}" + (", …" if len(values) > MAX_OPTIONS else "")


def _types(kind: Any) -> str:
    names = cast("Sequence[str]", kind.types)
    return " or ".join(_TYPES.get(name, name) for name in names)


def _branches(kind: Any) -> str:
    """What the branches of anyOf or oneOf ask for, where each asks for a type only."""
    asked: list[str] = []
    for errors in cast("Sequence[Sequence[Any]]", kind.context):
        if len(errors) != 1 or errors[0].kind.name != "type":
            return "a value of one of the forms that the schema allows"
        asked.append(_types(errors[0].kind))
    return " or ".join(dict.fromkeys(asked))


_EXPECTED: Mapping[str, Callable[[Any], str]] = {
    "type": _types,
    "enum": lambda kind: _options(kind.options),
    "const": lambda kind: json.dumps(kind.expected_value, ensure_ascii=False),
    "pattern": lambda kind: f"text that matches {kind.pattern}",
    "format": lambda kind: f"text in the format {kind.format}",
    "minLength": lambda kind: f"at least {kind.limit} characters",
    "maxLength": lambda kind: f"at most {kind.limit} characters",
    "minimum": lambda kind: f"{kind.limit} or more",
    "maximum": lambda kind: f"{kind.limit} or less",
    "exclusiveMinimum": lambda kind: f"more than {kind.limit}",
    "exclusiveMaximum": lambda kind: f"less than {kind.limit}",
    "multipleOf": lambda kind: f"a multiple of {kind.multiple_of}",
    "minItems": lambda kind: f"at least {kind.limit} items",
    "maxItems": lambda kind: f"at most {kind.limit} items",
    "uniqueItems": lambda _: "items that all differ",
    "minProperties": lambda kind: f"at least {kind.limit} fields",
    "maxProperties": lambda kind: f"at most {kind.limit} fields",
    "additionalItems": lambda kind: f"at most {kind.limit} items",
    "unevaluatedItems": lambda _: "no items beyond those of the schema",
    "contains": lambda _: "an item of the form that the schema asks for",
    "propertyNames": lambda _: "field names that the schema allows",
    "anyOf": _branches,
    "oneOf": lambda _: "a value of exactly one of the forms that the schema allows",
    "not": lambda _: "a value that is not of the form the schema excludes",
}


def _expected(keyword: str, kind: Any) -> str:
    words = _EXPECTED.get(keyword)
    return words(kind) if words is not None else f"a value that satisfies {keyword!r}"
