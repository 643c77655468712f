"""``handrail call TOOL ARGS``: one tool call, through the whole corridor."""

import json
from typing import Annotated, Any, cast

import typer

from handrail.cli.notice import tell_interrupted
from handrail.cli.options import (
    ApproveOption,
    JsonOption,
    McpConfigOption,
    McpOption,
    PluginOption,
    PolicyOption,
    SkillOption,
    WeakerOption,
    WorkspaceOption,
    names,
    standard_input,
)
from handrail.cli.show import finish
from handrail.errors import ConfigurationError
from handrail.schema import ArgumentsInvalid, decode_json
from handrail.tool import ToolDef
from handrail.wiring import Settings, open_house

app = typer.Typer(add_completion=False)


@app.command()
def call(
    tool: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name, as `handrail tools` shows it.")],
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ARGS…]", help="A JSON object, '-' for standard input, or key=value pairs."),
    ] = None,
    workspace: WorkspaceOption = ".",
    plugin: PluginOption = None,
    skill: SkillOption = None,
    mcp: McpOption = None,
    mcp_config: McpConfigOption = None,
    approve: ApproveOption = "ask",
    policy: PolicyOption = None,
    allow_weaker_walls: WeakerOption = False,
    json_: JsonOption = False,
) -> None:
    """Carry one tool call through the whole corridor and print its outcome.

    Exit status: 0 ok, 1 error, 2 usage, 3 pending, 4 unknown.
    """
    settings = Settings(
        workspace=workspace,
        plugins=names(plugin),
        skills=tuple(skill or ()),
        mcp=names(mcp) or (),
        mcp_config=mcp_config,
        approve=approve,
        policy=policy,
        allow_weaker_walls=allow_weaker_walls,
        door="cli",
    )
    with open_house(settings) as house:
        tell_interrupted(house)
        registered = house.registry.find(tool)
        definition = registered.tool.definition if registered is not None else None
        raw = raw_arguments(args or [], definition)
        outcome = house.executor.execute_sync(tool, raw)
    finish(outcome, as_json=json_)


def raw_arguments(words: list[str], definition: ToolDef | None) -> str | dict[str, Any]:
    """What the words after the tool's name mean: JSON text as it stands, standard input, or ``key=value`` pairs.

    A pair's value is read as the schema's type says (a string stays a string); the schema then checks it as always.
    """
    if not words:
        return {}
    if words == ["-"]:
        return standard_input()
    if len(words) == 1 and words[0].lstrip()[:1] in ("{", "["):
        return words[0]
    pairs: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigurationError(f"{word!r} is neither a JSON object nor a key=value pair")
        if key in pairs:
            raise ConfigurationError(f"{key!r} is given twice")
        pairs[key] = _typed(key, value, _type_of(key, definition))
    return pairs


def _type_of(key: str, definition: ToolDef | None) -> Any:
    properties: Any = definition.parameters.get("properties", {}) if definition is not None else {}
    return properties.get(key, {}).get("type", "string") if isinstance(properties.get(key), dict) else "string"


def _typed(key: str, value: str, kind: Any) -> Any:
    kinds = cast("list[Any]", kind) if isinstance(kind, list) else [kind]
    if "string" in kinds:
        return value
    try:
        return decode_json(value)
    except ArgumentsInvalid as error:
        if _is_loose_json(value):
            raise ConfigurationError(f"{key}: {error}") from None
        return value  # the schema will say what was expected


def _is_loose_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
