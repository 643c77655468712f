"""The official JSON-Schema-Test-Suite: our verdict, the suite's and that of the ``jsonschema`` library, case by case.

Whole schemas that we refuse by rule (a reference or a dialect that leaves the document) are listed in ``REFUSED``: one
more, or one fewer, fails the test.
"""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry

from handrail import Schema, ToolDefinitionError

SUITE = Path(__file__).parent.parent / "vendor/json-schema-test-suite"
DRAFTS: dict[str, tuple[str, Any]] = {
    "draft2020-12": ("https://json-schema.org/draft/2020-12/schema", jsonschema.Draft202012Validator),
    "draft7": ("http://json-schema.org/draft-07/schema#", jsonschema.Draft7Validator),
}
FILES = sorted(str(file.relative_to(SUITE)) for draft in DRAFTS for file in (SUITE / draft).glob("*.json"))

OUTSIDE = "points outside the document"
DIALECT = "is not one of the known dialects"
REFUSED: dict[str, dict[str, str]] = {
    "draft2020-12/defs.json": {
        "validate definition against metaschema": OUTSIDE,
    },
    "draft2020-12/dynamicRef.json": {
        "strict-tree schema, guards against misspelled properties": OUTSIDE,
        "tests for implementation dynamic anchor and reference link": OUTSIDE,
        "$ref and $dynamicAnchor are independent of order - $defs first": OUTSIDE,
        "$ref and $dynamicAnchor are independent of order - $ref first": OUTSIDE,
        "$ref to $dynamicRef finds detached $dynamicAnchor": OUTSIDE,
    },
    "draft2020-12/ref.json": {
        "remote ref, containing refs itself": OUTSIDE,
    },
    "draft2020-12/refRemote.json": {
        "remote ref": OUTSIDE,
        "fragment within remote ref": OUTSIDE,
        "anchor within remote ref": OUTSIDE,
        "ref within remote ref": OUTSIDE,
        "base URI change": OUTSIDE,
        "base URI change - change folder": OUTSIDE,
        "base URI change - change folder in subschema": OUTSIDE,
        "root ref in remote ref": OUTSIDE,
        "remote ref with ref to defs": OUTSIDE,
        "Location-independent identifier in remote ref": OUTSIDE,
        "retrieved nested refs resolve relative to their URI not $id": OUTSIDE,
        "remote HTTP ref with different $id": OUTSIDE,
        "remote HTTP ref with different URN $id": OUTSIDE,
        "remote HTTP ref with nested absolute ref": OUTSIDE,
        "$ref to $ref finds detached $anchor": OUTSIDE,
    },
    "draft2020-12/vocabulary.json": {
        "schema that uses custom metaschema with with no validation vocabulary": DIALECT,
        "ignore unrecognized optional vocabulary": DIALECT,
    },
    "draft7/definitions.json": {
        "validate definition against metaschema": OUTSIDE,
    },
    "draft7/ref.json": {
        "remote ref, containing refs itself": OUTSIDE,
    },
    "draft7/refRemote.json": {
        "remote ref": OUTSIDE,
        "fragment within remote ref": OUTSIDE,
        "ref within remote ref": OUTSIDE,
        "base URI change": OUTSIDE,
        "base URI change - change folder": OUTSIDE,
        "base URI change - change folder in subschema": OUTSIDE,
        "root ref in remote ref": OUTSIDE,
        "remote ref with ref to definitions": OUTSIDE,
        "Location-independent identifier in remote ref": OUTSIDE,
        "retrieved nested refs resolve relative to their URI not $id": OUTSIDE,
        "$ref to $ref finds location-independent $id": OUTSIDE,
    },
}


def groups(file: str) -> list[dict[str, Any]]:
    return json.loads((SUITE / file).read_text("utf-8"))


def document_of(schema: Any, dialect: str) -> dict[str, Any]:
    """The schema as a document that names its dialect. A boolean, which a definition may not be, is put inside one."""
    return {"$schema": dialect, **(schema if isinstance(schema, dict) else {"allOf": [schema]})}


@pytest.mark.promise("schema:suite:verdicts-of-the-official-suite")
@pytest.mark.parametrize("file", FILES)
def test_every_verdict_is_the_suites_and_the_oracles(file: str) -> None:
    dialect, oracle = DRAFTS[Path(file).parent.name]
    refused: dict[str, str] = {}
    wrong: list[tuple[str, str, bool]] = []
    for group in groups(file):
        document = document_of(group["schema"], dialect)
        try:
            schema = Schema(document, root_object=False)
        except ToolDefinitionError as error:
            refused[group["description"]] = str(error)
            continue
        second = oracle(document, registry=Registry())  # closed: it fetches nothing
        for case in group["tests"]:
            verdict = schema.accepts(case["data"])
            assert verdict == (schema.errors(case["data"]) == [])
            if not verdict == case["valid"] == second.is_valid(case["data"]):
                wrong.append((group["description"], case["description"], verdict))
    assert wrong == []
    expected = REFUSED.get(file, {})
    assert sorted(refused) == sorted(expected)
    for name, why in expected.items():
        assert why in refused[name]


def test_the_suite_is_all_here_and_the_refusals_name_its_files() -> None:
    counted = {
        draft: sum(len(group["tests"]) for file in FILES if file.startswith(draft) for group in groups(file))
        for draft in DRAFTS
    }
    assert counted == {"draft2020-12": 1257, "draft7": 913}
    assert set(REFUSED) <= set(FILES)


@pytest.mark.parametrize("document", [True, False, None, [], "object", 1])
def test_a_schema_that_is_no_json_object_is_refused(document: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="a schema must be a JSON object"):
        Schema(document, root_object=False)
