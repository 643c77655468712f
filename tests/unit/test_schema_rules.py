"""Schemas: references, hidden values, patterns, and the words a model reads."""

from typing import Any

import pytest

from handrail import Schema, ToolDefinitionError
from handrail.schema import MAX_ERRORS, ArgumentsInvalid, decode_json


def of(properties: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **rest}


@pytest.mark.promise("schema:errors:place-expected-came")
@pytest.mark.parametrize(
    ("schema", "value", "said"),
    [
        ({"type": "integer"}, "42", 'x: expected a whole number, got "42" (a string)'),
        ({"type": "integer"}, True, "x: expected a whole number, got true"),
        ({"type": ["string", "null"]}, [1], "x: expected null or a string, got an array"),
        ({"enum": ["a", 1]}, "b", 'x: expected one of "a", 1, got "b" (a string)'),
        ({"const": 1}, 2, "x: expected 1, got 2 (a number)"),
        ({"minLength": 3}, "ab", 'x: expected at least 3 characters, got "ab" (a string)'),
        ({"maximum": 3}, 4, "x: expected 3 or less, got 4 (a number)"),
        ({"pattern": "^a"}, "b", 'x: expected text that matches ^a, got "b" (a string)'),
        ({"items": {"type": "string"}}, ["a", 1], "x[1]: expected a string, got 1 (a number)"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "x: expected a string or null, got 1 (a number)"),
        ({"required": ["y"]}, {}, "x: the field 'y' is missing"),
        ({"additionalProperties": False}, {"q": 1}, "x: something is given here that the schema does not allow"),
        (
            {"properties": {"p": True}, "additionalProperties": False},
            {"q": 1},
            "x: unknown field 'q'; only the fields of the schema are allowed",
        ),
        ({"uniqueItems": True}, [1, 1], "x: expected items that all differ, got an array"),
        ({"type": "integer"}, "z" * 500, 'x: expected a whole number, got "' + "z" * 59 + "… (a string)"),
    ],
)
def test_an_error_names_the_place_what_was_expected_and_what_came(schema: Any, value: Any, said: str) -> None:
    assert Schema(of({"x": schema})).errors({"x": value}) == [said]


@pytest.mark.promise("schema:errors:secrets-hidden")
@pytest.mark.parametrize(
    "schema",
    [
        of({"key": {"type": "integer", "writeOnly": True}}),
        of({"key": {"enum": [1], "writeOnly": True}}),
        of({"key": {"$ref": "#/$defs/secret"}}, **{"$defs": {"secret": {"maxLength": 2, "writeOnly": True}}}),
        of({"key": {"anyOf": [{"type": "integer", "writeOnly": True}]}}),
        of({"key": {"writeOnly": True, "not": {"type": "string"}}}),
        of({}, additionalProperties={"type": "integer", "writeOnly": True}),
    ],
)
def test_the_value_of_a_write_only_property_is_never_shown(schema: Any) -> None:
    (said,) = Schema(schema).errors({"key": "hunter2"})
    assert "hunter2" not in said
    assert "key" in said


def test_what_is_wrong_with_the_whole_value_is_said_of_its_name_and_no_more_than_five_things() -> None:
    assert Schema(of({}, minProperties=1)).errors({}) == ["the arguments: expected at least 1 fields, got an object"]
    (said,) = Schema(of({}, minProperties=1)).errors({}, root="the result")
    assert said == "the result: expected at least 1 fields, got an object"
    many = Schema(of({name: {"type": "string"} for name in "abcdefg"}))
    assert len(many.errors(dict.fromkeys("abcdefg", 1))) == MAX_ERRORS == 5


def test_masking_hides_every_value() -> None:
    assert Schema(of({"x": {"type": "integer"}})).errors({"x": "abc"}, mask=True) == [
        "x: expected a whole number, got a string"
    ]


ONLY_LOCAL = "only local references such as #/$defs/name are followed, and nothing was fetched"
NOT_LINEAR = "is not a regular expression that runs in linear time; look-around and back-references are not supported"
DIALECTS = "http://json-schema.org/draft-07/schema, https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ([], "a schema must be a JSON object, not an array"),
        (
            of({}, default=float("nan")),
            "the schema is not plain JSON: a number is NaN or infinite; use a finite number",
        ),
        ({}, 'the root of the parameters must say "type": "object", not None'),
        ({"type": "array"}, 'the root of the parameters must say "type": "object", not \'array\''),
        (of({}, **{"$schema": 5}), f"$schema 5 is not one of the known dialects ({DIALECTS})"),
        (
            of({"x": {"$schema": "http://a.example/d"}}),
            f"#/properties/x: $schema 'http://a.example/d' is not one of the known dialects ({DIALECTS})",
        ),
        (
            of({"x": {"$ref": "other.json"}}),
            f"#/properties/x/$ref points outside the document ('other.json'); {ONLY_LOCAL}",
        ),
        (
            of({"x": {"pattern": "^(?=a)"}}),
            f"#/properties/x: the pattern '^(?=a)' {NOT_LINEAR}",
        ),
        ({"type": "object", "properties": 5}, 'the schema is not valid: 5 is not of type "object"'),
    ],
)
def test_a_schema_is_refused_by_its_owner_and_its_place_in_these_words(document: Any, said: str) -> None:
    with pytest.raises(ToolDefinitionError) as refused:
        Schema(document, where="tool 't'")
    assert str(refused.value) == f"tool 't': {said}"
    with pytest.raises(ToolDefinitionError, match=r"^schema: "):
        Schema(document)


@pytest.mark.promise("schema:references:stay-in-the-document")
@pytest.mark.parametrize(
    "document",
    [
        of({"x": {"$ref": "http://127.0.0.1:9/x"}}),
        of({"x": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}),
        of({"x": {"$ref": "file:///etc/passwd"}}),
        of({"x": {"$dynamicRef": "other.json#a"}}),
        of({"x": {"items": {"$ref": "other.json"}}}),
        of({"const": {"$ref": "other.json"}}),
        of({"x": {"$id": "http://a.example/", "$ref": "b"}}),
        of({"x": {"$schema": "http://a.example/dialect"}}),
        of({"x": {"$ref": "#/$defs/missing"}}),
        of({"x": {"$ref": "#nowhere"}}),
    ],
)
def test_a_reference_that_leaves_the_document_or_leads_nowhere_is_refused(document: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="tool 't'"):
        Schema(document, where="tool 't'")


@pytest.mark.parametrize(
    ("document", "good", "bad"),
    [
        (of({"x": {"$ref": "#/$defs/i"}}, **{"$defs": {"i": {"type": "integer"}}}), {"x": 1}, {"x": "1"}),
        (of({"x": {"$ref": "#i"}}, **{"$defs": {"i": {"$anchor": "i", "type": "integer"}}}), {"x": 1}, {"x": ""}),
        (
            of({"x": {"$ref": "i"}}, **{"$id": "http://a.example/s", "$defs": {"i": {"$id": "i", "type": "integer"}}}),
            {"x": 1},
            {"x": ""},
        ),
        (
            of({"x": {"$dynamicRef": "#i"}}, **{"$defs": {"i": {"$dynamicAnchor": "i", "type": "integer"}}}),
            {"x": 1},
            {"x": ""},
        ),
        (of({"$ref": {"type": "integer"}}), {"$ref": 1}, {"$ref": "http://a.example"}),
        (of({"x": {"const": {"$ref": "http://a.example"}}}), {"x": {"$ref": "http://a.example"}}, {"x": {}}),
        (of({"x": {"enum": [{"$ref": 1}]}}), {"x": {"$ref": 1}}, {"x": 1}),
        (of({"x": {"type": "array", "items": {"$ref": "#"}}}), {"x": [{"x": []}]}, {"x": [{"x": 1}]}),
        (of({"x": {"format": "no-such-format"}}), {"x": "anything"}, []),
    ],
)
def test_references_within_the_document_are_followed_and_data_is_no_reference(
    document: Any, good: Any, bad: Any
) -> None:
    schema = Schema(document)
    assert schema.errors(good) == []
    assert schema.errors(bad)


@pytest.mark.promise("schema:patterns:linear-time")
@pytest.mark.parametrize(
    "schema",
    [
        {"pattern": "^(?=a)"},
        {"pattern": r"(a)\1"},
        {"patternProperties": {"^(?!x)": True}},
        {"items": {"pattern": "(?<=a)b"}},
    ],
)
def test_a_pattern_that_cannot_run_in_linear_time_is_refused_by_name(schema: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="look-around and back-references are not supported"):
        Schema(of({"x": schema}))


@pytest.mark.promise("schema:references:stay-in-the-document")
@pytest.mark.parametrize(
    ("hidden", "said"),
    [
        ({"$ref": "file:///etc/hostname"}, "leaves the document; nothing was fetched"),
        ({"$ref": "http://127.0.0.1:9/x"}, "leaves the document; nothing was fetched"),
        ({"$id": "http://127.0.0.1:9/x", "$ref": "y"}, "leaves the document; nothing was fetched"),
        ({"pattern": "^(?=a)"}, "the schema is not valid"),
    ],
)
def test_what_is_a_schema_only_because_a_pointer_leads_there_is_held_to_the_same_rules(hidden: Any, said: str) -> None:
    with pytest.raises(ToolDefinitionError, match=said):
        Schema(of({"x": {"$ref": "#/x-parts/d"}}, **{"x-parts": {"d": hidden}}))


def test_an_evil_pattern_takes_no_longer_than_its_text() -> None:
    schema = Schema(of({"x": {"pattern": "^(a+)+$"}}))
    assert schema.errors({"x": "a" * 50_000 + "!"})


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_does_not_have_is_refused_by_its_name(word: str) -> None:
    with pytest.raises(ArgumentsInvalid, match=f"^{word} is not a JSON number; use a finite number$"):
        decode_json(f'{{"n": {word}}}')
