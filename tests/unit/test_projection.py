"""Projections of awkward schemas: accepted by every provider, and the way back for the arguments."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.models.client import ToolSpec
from handrail.models.projection import GOOD_KEY, MAX_NODES, good_key, project


def shown(schema: dict[str, Any]) -> dict[str, Any]:
    return project(ToolSpec("t", "d", schema)).parameters


def words_of(node: Any) -> set[str]:
    """Every key that stands anywhere in a schema."""
    if isinstance(node, dict):
        return set(node) | {word for item in node.values() for word in words_of(item)}
    return {word for item in node for word in words_of(item)} if isinstance(node, list) else set()


def test_an_object_says_its_properties() -> None:
    assert shown({"type": "object"}) == {"type": "object", "properties": {}}
    nested = shown({"type": "object", "properties": {"a": {"type": "object"}}})
    assert nested["properties"]["a"] == {"type": "object", "properties": {}}


def test_keys_about_the_document_are_dropped() -> None:
    schema = {"$schema": "x", "$id": "y", "$comment": "z", "type": "object", "properties": {"$id": {"type": "string"}}}
    assert shown(schema) == {"type": "object", "properties": {good_key("$id"): {"type": "string"}}}


def test_local_references_are_put_in_place() -> None:
    schema = {
        "type": "object",
        "$defs": {"name/with~signs": {"type": "string"}, "b": {"$anchor": "here", "type": "integer"}},
        "properties": {
            "a": {"$ref": "#/$defs/name~1with~0signs", "description": "kept"},
            "b": {"$ref": "#here"},
        },
    }
    assert shown(schema)["properties"] == {
        "a": {"type": "string", "description": "kept"},
        "b": {"type": "integer"},
    }


@pytest.mark.parametrize("reference", ["#", "#/$defs/node"])
def test_a_cycle_ends(reference: str) -> None:
    node = {"type": "object", "properties": {"next": {"$ref": reference}}}
    made = shown({**node, "$defs": {"node": node}})
    assert "$ref" not in words_of(made)
    assert len(json.dumps(made)) < 2_000


def test_a_reference_bomb_is_shown_plainly() -> None:
    levels = {
        f"d{n}": {"type": "object", "properties": {key: {"$ref": f"#/$defs/d{n + 1}"} for key in "abcdefgh"}}
        for n in range(20)
    }
    schema = {"type": "object", "$defs": {**levels, "d20": {}}, "properties": {"x": {"$ref": "#/$defs/d0"}, "y": {}}}
    assert shown(schema) == {"type": "object", "properties": {"x": {}, "y": {}}}
    assert MAX_NODES < 8**20


@pytest.mark.parametrize("combinator", ["anyOf", "oneOf"])
def test_alternatives_at_the_root_are_folded(combinator: str) -> None:
    schema = {
        "type": "object",
        "properties": {"c": {}},
        "required": ["c"],
        "additionalProperties": False,
        combinator: [
            {"properties": {"a": {"type": "string"}, "k": {"const": 1}}, "required": ["a", "k"]},
            {"properties": {"b": {"type": "string"}, "k": {"const": 2}}, "required": ["b", "k"]},
        ],
    }
    made = shown(schema)
    assert combinator not in made
    assert set(made["properties"]) == {"a", "b", "c", "k"}
    assert sorted(made["required"]) == ["c", "k"]


def test_all_of_at_the_root_is_joined() -> None:
    schema = {"type": "object", "allOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]}
    assert shown(schema) == {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}


def test_draft_7_tuples_become_prefix_items() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}, True]}}}
    assert shown(schema)["properties"]["a"] == {"type": "array", "prefixItems": [{"type": "string"}, {}]}


KEYS = st.text(min_size=1, max_size=80).filter(lambda text: text.isprintable())


@settings(deadline=None, max_examples=60)
@given(st.lists(KEYS, min_size=1, max_size=8, unique=True))
def test_bad_names_are_renamed_and_named_back_whatever_they_are(keys: list[str]) -> None:
    schema = {"type": "object", "properties": {key: {"type": "string"} for key in keys}, "required": keys}
    made = project(ToolSpec("t", "", schema))
    names = list(made.parameters["properties"])
    assert len(set(names)) == len(keys)
    assert all(GOOD_KEY.fullmatch(name) for name in names)
    assert set(made.parameters["required"]) == set(names)
    arguments = json.dumps({name: str(index) for index, name in enumerate(names)})
    assert json.loads(made.restore(arguments)) == {key: str(index) for index, key in enumerate(keys)}


def test_text_that_is_no_object_is_left_for_the_corridor() -> None:
    made = project(ToolSpec("t", "", {"type": "object", "properties": {"ä": {}}}))
    assert made.restore('{"ä": ') == '{"ä": '
    assert made.restore(f'{{"{good_key("ä")}": NaN}}').endswith("NaN}")
