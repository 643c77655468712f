"""A ToolDef is checked when it is made: what could not be shown, journaled or kept to later is refused there."""

from typing import Any

import pytest

from handrail import Capability, ToolDef, ToolDefinitionError

PATHS = {"type": "object", "properties": {"path": {"type": "string"}}}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("name", None, "name must be text"),
        ("name", 5, "name must be text"),
        ("description", None, "description must be text"),
        ("description", b"x", "description must be text"),
        ("description", "\ud800", "description holds a lone surrogate"),
        ("replay_key", 5, "replay_key must be text"),
        ("replay_key", "\udcff", "replay_key holds a lone surrogate"),
        ("timeout", 0, "timeout must be a positive number of seconds"),
        ("timeout", -1.5, "timeout must be a positive number of seconds"),
        ("timeout", float("nan"), "timeout must be a positive number of seconds"),
        ("timeout", float("inf"), "timeout must be a positive number of seconds"),
        ("timeout", True, "timeout must be a positive number of seconds"),
        ("timeout", "5", "timeout must be a positive number of seconds"),
        ("path_args", "path", "path_args must be a tuple of names"),
        ("path_args", 5, "path_args must be a tuple of names"),
        ("path_args", (5,), "path_args names 5, which is no property"),
        ("capability", None, "capability must be a Capability"),
        ("capability", {"reads": True}, "capability must be a Capability"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_and_named(field: str, value: Any, said: str) -> None:
    with pytest.raises(ToolDefinitionError, match=said):
        ToolDef(**{"name": "a", "parameters": PATHS, field: value})


def test_what_is_of_the_right_kind_is_taken() -> None:
    definition = ToolDef(
        "a",
        "Größe \U0001f600",
        PATHS,
        path_args=("path",),
        replay="safe",  # type: ignore[arg-type]
        replay_key="a:v1",
        capability=Capability(writes=True),
        timeout=0.5,
    )
    assert (definition.timeout, definition.guarded_args) == (0.5, ("path",))
