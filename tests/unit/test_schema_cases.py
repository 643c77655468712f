"""The handed cases for arguments and definitions."""

from typing import Any

import pytest

from cases_dir import cases
from handrail import Schema, ToolDef, ToolDefinitionError
from handrail.schema import ArgumentsInvalid, decode_arguments


@pytest.mark.parametrize("case", cases("arguments"), ids=lambda case: case["name"])
def test_arguments_get_the_right_verdict(case: dict[str, Any]) -> None:
    try:
        verdict = "reject" if Schema(case["schema"]).errors(decode_arguments(case["raw"])) else "accept"
    except ArgumentsInvalid:
        verdict = "reject"
    assert verdict == case["expect"]


@pytest.mark.parametrize("case", cases("schemas"), ids=lambda case: case["name"])
def test_definitions_get_the_right_verdict(case: dict[str, Any]) -> None:
    options = {key: case[key] for key in ("path_args", "risk_level") if key in case}
    try:
        ToolDef(case.get("tool_name", "probe"), "", case["parameters"], **options)
        verdict = "register"
    except ToolDefinitionError:
        verdict = "refuse"
    assert verdict == case["expect"]
