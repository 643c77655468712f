"""@tool: what a typed function becomes, and what it is entered with."""

import asyncio
import functools
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field

from handrail import (
    Job,
    Reason,
    Signal,
    Tool,
    ToolDefinitionError,
    ToolExecutor,
    ToolOutcome,
    ToolRegistry,
    Workspace,
    tool,
)


@dataclass
class JobOfModels:
    name: str
    report: Path | None = None


@dataclass
class Tree:
    children: "list[Tree]"
    file: Path


class Colour(StrEnum):
    RED = "red"


class Place(BaseModel):
    row: int
    title: str = ""


@dataclass
class Size:
    width: int


def run(made: Tool, arguments: Any, workspace: Path | None = None) -> ToolOutcome:
    registry = ToolRegistry()
    registry.register(made)
    with ToolExecutor(registry, workspace=workspace) as executor:
        return executor.execute_sync(made.name, arguments)


@tool(risk_level="read_only")
def describe(name: str, count: int = 1, kind: Literal["a", "b"] | None = None) -> str:
    """Describe something.

    In two paragraphs.

    Args:
        name: What it is called,
            on two lines.
        count (int): How many: one, or more.

    Returns:
        A text.
    """
    return f"{name!r} {count!r} {kind!r}"


def test_the_docstring_and_the_types_become_the_definition() -> None:
    assert describe.description == "Describe something.\n\nIn two paragraphs."
    assert describe.parameters == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "What it is called, on two lines."},
            "count": {"type": "integer", "default": 1, "description": "How many: one, or more."},
            "kind": {"anyOf": [{"enum": ["a", "b"], "type": "string"}, {"type": "null"}], "default": None},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


@pytest.mark.promise("tool:decorator:shown-is-enforced")
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"name": 1},
        {"name": "x", "count": "1"},
        {"name": "x", "count": True},
        {"name": "x", "kind": "c"},
        {"name": "x", "extra": 1},
    ],
)
def test_the_schema_it_shows_is_the_schema_it_enforces(arguments: dict[str, Any]) -> None:
    assert describe.definition.schema.errors(arguments)
    assert run(describe, arguments).reason is Reason.INVALID_ARGUMENTS


def test_a_valid_call_is_entered_with_what_was_given() -> None:
    assert run(describe, {"name": "x"}).text == "'x' 1 None"
    assert run(describe, {"name": "x", "count": 3, "kind": "b"}).text == "'x' 3 'b'"


def test_checked_values_arrive_as_the_annotated_types() -> None:
    seen: list[Any] = []

    @tool(risk_level="safe")
    async def typed(colour: Colour, day: date, place: Place, size: Size, model_config: list[tuple[int, str]]) -> str:
        seen.extend((colour, day, place, size, model_config))
        return "ok"

    arguments = {
        "colour": "red",
        "day": "2024-02-29",
        "place": {"row": 1, "title": "t"},
        "size": {"width": 2},
        "model_config": [[1, "a"]],
    }
    assert run(typed, arguments).text == "ok"
    assert seen == [Colour.RED, date(2024, 2, 29), Place(row=1, title="t"), Size(2), [(1, "a")]]
    assert run(typed, {**arguments, "place": {"row": "1"}}).reason is Reason.INVALID_ARGUMENTS


def test_what_only_pydantic_can_refuse_never_enters_the_function() -> None:
    def even(value: int) -> int:
        if value % 2:
            raise ValueError("must be even")
        return value

    @tool(risk_level="safe")
    def halved(value: Annotated[int, Field(ge=0), AfterValidator(even)]) -> str:
        return str(value // 2)

    assert run(halved, {"value": 4}).text == "2"
    assert run(halved, {"value": -2}).reason is Reason.INVALID_ARGUMENTS
    odd = run(halved, {"value": 3})
    assert (odd.status, odd.text) == ("error", "Invalid arguments: value: Value error, must be even.")


def test_the_corridor_gives_what_it_alone_has_and_the_model_does_not_see_it(tmp_path: Path) -> None:
    @tool(risk_level="safe")
    def given(word: str, stop: Signal, home: Workspace, call: Job) -> str:
        return f"{word} {stop.is_set()} {home.path == str(tmp_path)} {call.definition.name}"

    assert list(given.parameters["properties"]) == ["word"]
    assert run(given, {"word": "w"}, tmp_path).text == "w False True given"


def test_a_parameter_of_type_path_is_held_in_the_workspace(tmp_path: Path) -> None:
    @tool(risk_level="read_only")
    def look(report: Path, cwd: str = ".") -> str:
        return str(report)

    assert look.definition.guarded_args == ("report", "cwd")
    assert run(look, {"report": "a.txt"}, tmp_path).text == f"{tmp_path}/a.txt"
    assert run(look, {"report": "/etc/passwd"}, tmp_path).reason is Reason.PATH_REFUSED


def test_what_cannot_be_a_tool_is_refused_by_name() -> None:
    def untyped(x) -> str:  # type: ignore[no-untyped-def]
        return ""

    def variadic(*x: int) -> str:
        return ""

    def hidden_path(reports: list[Path]) -> str:
        return ""

    def path_in_a_model(job: JobOfModels) -> str:
        return ""

    def path_in_itself(tree: Tree) -> str:
        return ""

    def no_schema(x: asyncio.Event) -> str:
        return ""

    def look_around(x: Annotated[str, Field(pattern="^(?!a)")]) -> str:
        return ""

    def parts(x: int) -> Any:
        yield x

    async def parts_later(x: int) -> Any:
        yield x

    for function, said in (
        (parts, "'parts': a generator cannot be a tool"),
        (parts_later, "'parts_later': a generator cannot be a tool"),
        (untyped, "'x' has no type"),
        (variadic, "'x' cannot be given by name"),
        (hidden_path, "'reports' holds a path"),
        (path_in_a_model, "'job' holds a path"),
        (path_in_itself, "'tree' holds a path"),
        (functools.partial(hidden_path), "has no name"),
        (no_schema, "no schema can be made"),
        (look_around, "look-around"),
    ):
        with pytest.raises(ToolDefinitionError, match=said):
            tool(function)
