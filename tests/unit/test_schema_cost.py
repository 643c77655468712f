"""What checking a value may cost: schemas that multiply are refused wherever they are registered, values that make one
multiply are refused unchecked, and the count is never below what a real validator does.
"""

import asyncio
import functools
import itertools
import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from handrail import ToolDef, ToolDefinitionError, ToolExecutor, ToolRegistry
from handrail.mcp.definitions import Malformed, read_definition
from handrail.outcome import Reason
from handrail.schema import Schema
from handrail.schema_cost import LARGEST, MAX_STEPS, MAX_STEPS_SHALLOW, MAX_SUBSCHEMAS, SHALLOW, Cost, measured
from handrail.subschemas import subschemas

PROMISE = pytest.mark.promise("schema:cost:bounded-wherever-registered")


def chain(length: int, link: Any, end: Any = True) -> dict[str, Any]:
    """Definitions of which each is made from a reference to the next, and a root that leads to the first."""
    found = {f"d{number}": link(f"#/$defs/d{number + 1}") for number in range(length)}
    return {"type": "object", "$defs": found | {f"d{length}": end}, "allOf": [{"$ref": "#/$defs/d0"}]}


def twice(keyword: str) -> Any:
    return lambda reference: {keyword: [{"$ref": reference}, {"$ref": reference}]}


def nested(times: int, keyword: str) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(times):
        schema = {"type": "object", keyword: [schema], "unevaluatedProperties": False}
    return schema


def circle(size: int) -> dict[str, Any]:
    names = range(size)
    others = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{m}"} for m in names if m != n]} for n in names}
    return {"type": "object", "$defs": others, "properties": {"a": {"$ref": "#/$defs/d0"}}}


def embedded(length: int) -> dict[str, Any]:
    """The same chain through resources of their own names, which no pointer shows."""
    found = {
        f"d{n}": {"$id": f"urn:x:{n}", "anyOf": [{"$ref": f"urn:x:{n + 1}"}, {"$ref": f"urn:x:{n + 1}"}]}
        for n in range(length)
    }
    found[f"d{length}"] = {"$id": f"urn:x:{length}", "type": "object"}
    return {"type": "object", "$defs": found, "allOf": [{"$ref": "urn:x:0"}]}


def anchored(length: int, keyword: str, reference: str) -> dict[str, Any]:
    found = {f"d{n}": {keyword: f"a{n}", "oneOf": [{reference: f"#a{n + 1}"}] * 2} for n in range(length)}
    found[f"d{length}"] = {keyword: f"a{length}"}
    return {"type": "object", "$defs": found, "allOf": [{reference: "#a0"}]}


def hidden(length: int) -> dict[str, Any]:
    """The same chain in a place where no schema is, until a pointer makes it one."""
    found = {f"d/{n}": {"allOf": [{"$ref": f"#/x-parts/d~1{n + 1}"}] * 2} for n in range(length)} | {f"d/{length}": {}}
    return {"type": "object", "x-parts": found, "allOf": [{"$ref": "#/%78-parts/d~10"}]}


BOMBS = {
    "allOf": chain(40, twice("allOf")),
    "anyOf": chain(40, twice("anyOf")),
    "oneOf": chain(40, twice("oneOf")),
    "if": chain(40, lambda reference: {"if": {"$ref": reference}, "then": {"$ref": reference}}),
    "not": chain(40, lambda reference: {"not": {"$ref": reference}, "$ref": reference}),
    "dependentSchemas": chain(40, lambda reference: {"dependentSchemas": {key: {"$ref": reference} for key in "ab"}}),
    "wide alternatives": chain(4, lambda reference: {"anyOf": [{"$ref": reference}] * 30}),
    "unevaluated": nested(40, "anyOf"),
    "embedded resources": embedded(40),
    "anchors": anchored(40, "$anchor", "$ref"),
    "dynamic anchors": anchored(40, "$dynamicAnchor", "$dynamicRef"),
    "a place that is no schema": hidden(40),
    "a circle": circle(8),
    "itself": {"type": "object", "$ref": "#"},
    "very many properties": {"type": "object", "properties": {f"p{n}": {} for n in range(MAX_SUBSCHEMAS)}},
    "very many alternatives": {"type": "object", "anyOf": [{"type": "object"}] * MAX_SUBSCHEMAS},
    "deep nesting": functools.reduce(lambda inner, _: {"type": "object", "properties": {"a": inner}}, range(70), {}),
}


@PROMISE
@pytest.mark.parametrize("name", BOMBS)
def test_a_schema_that_multiplies_is_refused_in_words(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match=r"multiply|leads back|subschemas|deeper") as refused:
        ToolDef("bomb", "Bomb.", BOMBS[name])
    assert "bomb" in str(refused.value)


BOMB = BOMBS["anyOf"]


@PROMISE
def test_it_is_refused_wherever_a_tool_comes_from() -> None:
    with pytest.raises(ToolDefinitionError, match="multiply"):
        ToolDef("bomb", "Bomb.", {"type": "object"}, output_schema=BOMB)
    assert isinstance(read_definition({"name": "bomb", "inputSchema": BOMB}), Malformed)
    plain = {"name": "bomb", "inputSchema": {"type": "object"}}
    assert isinstance(read_definition(plain | {"outputSchema": BOMB}), Malformed)
    assert not isinstance(read_definition(plain), Malformed)


def steps_of(document: dict[str, Any], depth: int = SHALLOW) -> int:
    return Cost(list(subschemas(document))).steps(depth)


REAL = {
    "two hundred properties": {
        "type": "object",
        "properties": {f"p{n}": {"type": ["string", "null"], "enum": ["a", "b", None]} for n in range(200)},
        "required": [f"p{n}" for n in range(50)],
        "additionalProperties": False,
    },
    "a tree": {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}},
    },
    "blocks of thirty kinds that hold blocks": {
        "type": "object",
        "properties": {"blocks": {"type": "array", "items": {"$ref": "#/$defs/block"}}},
        "$defs": {
            "block": {
                "anyOf": [
                    {
                        "type": "object",
                        "properties": {
                            "kind": {"const": f"k{n}"},
                            "children": {"type": "array", "items": {"$ref": "#/$defs/block"}},
                        },
                        "required": ["kind"],
                        "unevaluatedProperties": False,
                    }
                    for n in range(30)
                ]
            }
        },
    },
    "a definition used in two hundred places": {
        "type": "object",
        "properties": {f"p{n}": {"anyOf": [{"$ref": "#/$defs/id"}, {"type": "null"}]} for n in range(200)},
        "$defs": {"id": {"type": "string", "pattern": "^[a-z]+$"}},
    },
}


@PROMISE
def test_a_schema_may_have_as_many_subschemas_and_steps_as_that_and_no_more() -> None:
    many = {"type": "object", "properties": {f"p{n}": {} for n in range(MAX_SUBSCHEMAS - 1)}}
    assert Schema(many).accepts({})
    many["properties"]["one more"] = {}
    with pytest.raises(ToolDefinitionError, match=f"^t: the schema has more than {MAX_SUBSCHEMAS} subschemas$"):
        Schema(many, where="t")
    long: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": list(range(MAX_STEPS_SHALLOW - 2))}}}
    assert Schema(long).accepts({"a": 1})
    long["properties"]["a"]["enum"].append(-1)
    with pytest.raises(ToolDefinitionError, match=f"could take more than {MAX_STEPS_SHALLOW} steps for each part"):
        Schema(long)


@PROMISE
@pytest.mark.parametrize("name", REAL)
def test_what_real_tools_have_is_far_below_the_limit(name: str) -> None:
    ToolDef("real", "Real.", REAL[name])
    value = {"blocks": [{"kind": "k29", "children": [{"kind": f"k{n}"} for n in range(20)]}] * 20}
    assert Schema(REAL[name]).too_much(value) is False


# Each of these doubles with each level of the value: shallow ones can be checked, deep ones cannot.
DOUBLING: list[tuple[dict[str, Any], Any]] = [
    ({"patternProperties": {"a": {"$ref": "#"}, "^a$": {"$ref": "#"}}}, lambda inner: {"a": inner}),
    ({"properties": {"a": {"items": {"$ref": "#"}, "contains": {"$ref": "#"}}}}, lambda inner: {"a": [inner]}),
    ({"properties": {"a": {"oneOf": [{"$ref": "#"}, {"$ref": "#"}, {"not": {}}]}}}, lambda inner: {"a": inner}),
]


@PROMISE
@pytest.mark.parametrize(("schema", "around"), DOUBLING)
def test_what_doubles_with_each_level_is_checked_as_far_as_it_can_be(schema: dict[str, Any], around: Any) -> None:
    compiled = Schema({"type": "object"} | schema)
    values = list(itertools.accumulate(range(30), lambda inner, _: around(inner), initial={}))
    assert not compiled.too_much(values[4])
    assert compiled.too_much(values[30])


TWO_WAYS = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}},
    "additionalProperties": False,
}


def nested_value(depth: int, end: Any = None) -> Any:
    value: Any = {"b": 1} if end is None else end
    for _ in range(depth):
        value = {"a": value}
    return value


@PROMISE
def test_a_value_that_would_make_a_schema_multiply_is_refused_unchecked() -> None:
    schema = Schema(TWO_WAYS)
    assert schema.errors(nested_value(4, {})) == []
    assert "one of the forms" in schema.errors(nested_value(2))[0]
    said = schema.errors(nested_value(60), root="the arguments")
    assert said == ["the arguments cannot be checked: that would take too long; send less, or nest it less"]
    assert not schema.accepts(nested_value(60, {}))


@PROMISE
def test_such_a_value_never_enters_a_handler() -> None:
    entered: list[Any] = []
    registry = ToolRegistry()
    registry.register_from_def(ToolDef("two", "Two ways.", TWO_WAYS), lambda arguments: entered.append(arguments) or "")
    refused = asyncio.run(ToolExecutor(registry).execute("two", nested_value(60, {})))
    assert refused.reason is Reason.INVALID_ARGUMENTS
    assert "would take too long" in refused.text
    assert entered == []


def test_many_parts_count_as_well_as_many_levels() -> None:
    schema = Schema({"type": "object", "additionalProperties": {"anyOf": [{"const": n} for n in range(9000)]}})
    assert schema.errors({str(n): 8999 for n in range(100)}) == []
    assert "cannot be checked" in schema.errors({str(n): 8999 for n in range(9000)})[0]
    assert "cannot be checked" in schema.errors({"a": "b" * 1_000_000})[0]


def test_a_plain_schema_measures_no_value() -> None:
    plain = Cost(list(subschemas(REAL["a tree"]["properties"] | {"type": "object"})))
    assert plain.always
    assert plain.steps(64) * LARGEST <= MAX_STEPS


# ── the count is never below what a validator does ──────────────────────────────────────────────────────────────

NAMES = st.sampled_from(["a", "b", "ab"])
LEAVES = st.sampled_from([True, {}, {"type": "string"}, {"enum": [1, "a", None]}, {"required": ["a", "b"]}])
REFERENCE = st.sampled_from(["d0", "d1", "d2"]).map(lambda name: {"$ref": f"#/$defs/{name}"})


def combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(NAMES, inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "allOf": some,
            "anyOf": some,
            "oneOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "dependentSchemas": named,
            "properties": named,
            "patternProperties": named,
            "additionalProperties": inner,
            "propertyNames": inner,
            "prefixItems": some,
            "items": inner,
            "contains": inner,
            "unevaluatedProperties": inner,
            "unevaluatedItems": inner,
        },
    )


SCHEMAS = st.recursive(LEAVES | REFERENCE, combined, max_leaves=12)
VALUES = st.recursive(
    st.sampled_from([None, 1, "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=15,
)


LOOK = "x-look"
"""Stands in every subschema of the oracle's document, so that each of its looks is counted once."""


def marked(schema: Any) -> Any:
    if isinstance(schema, list):
        return [marked(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    names = ("properties", "patternProperties", "dependentSchemas", "$defs")
    within = {
        key: {name: marked(item) for name, item in value.items()}
        if key in names
        else value
        if key == "enum"
        else marked(value)
        for key, value in schema.items()
    }
    return within | {LOOK: True}


def looks(document: dict[str, Any], value: Any) -> int:
    """How many looks the oracle takes to find every error."""
    count = itertools.count()

    def look(validator: Any, here: Any, instance: Any, schema: Any) -> None:
        next(count)

    counting = jsonschema.validators.extend(jsonschema.Draft202012Validator, {LOOK: look})
    for _ in counting(marked(document)).iter_errors(value):
        pass
    return next(count)


@PROMISE
@settings(deadline=None, max_examples=150)
@given(SCHEMAS, st.tuples(SCHEMAS, SCHEMAS, SCHEMAS), VALUES)
def test_no_check_takes_more_looks_than_were_counted(schema: Any, defs: Any, value: Any) -> None:
    document = {"$defs": {f"d{n}": found for n, found in enumerate(defs)}, "allOf": [schema]}
    cost = Cost(list(subschemas(document)))
    assume(not cost.circular)
    parts, depth = measured(value)
    counted = parts * cost.steps(depth)
    assume(counted < 20_000)
    assert looks(document, value) <= counted


@given(VALUES)
def test_every_key_and_value_is_a_part(value: Any) -> None:
    assert measured(value)[0] == len(re.findall(r'"[^"]*"|\d|null|[\[{]', json.dumps(value)))
