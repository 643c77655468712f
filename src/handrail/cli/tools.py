"""``handrail tools``: which tools there are, what they take, and what they may do."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from handrail.approval.render import escaped
from handrail.call import RegisteredTool
from handrail.cli.options import (
    JsonOption,
    McpConfigOption,
    McpOption,
    PluginOption,
    SkillOption,
    WorkspaceOption,
    names,
)
from handrail.cli.show import json_line, say
from handrail.wiring import Settings, open_house

app = typer.Typer(add_completion=False)


@app.command()
def tools(
    name: Annotated[str | None, typer.Argument(metavar="[TOOL]", help="Show one tool whole, with its schema.")] = None,
    workspace: WorkspaceOption = ".",
    plugin: PluginOption = None,
    skill: SkillOption = None,
    mcp: McpOption = None,
    mcp_config: McpConfigOption = None,
    json_: JsonOption = False,
) -> None:
    """List the tools there are, with their risk and what they may touch; name one to see its schema."""
    settings = Settings(
        workspace=workspace,
        plugins=names(plugin),
        skills=tuple(skill or ()),
        mcp=names(mcp) or (),
        mcp_config=mcp_config,
        journal=False,
        door="cli",
    )
    with open_house(settings) as house:
        found = sorted(house.registry, key=lambda item: item.canonical_id)
    if name is not None:
        found = [item for item in found if name in (item.model_name, item.canonical_id, item.tool.name)]
        if not found:
            say(f"handrail: there is no tool named {name!r}", err=True)
            raise typer.Exit(1)
    if json_:
        say(json_line([describe(item) for item in found]))
    elif name is not None:
        say(json_line(describe(found[0]), indent=2))
    else:
        _show_table(found)


def describe(item: RegisteredTool) -> dict[str, Any]:
    """One tool as JSON: its whole declaration, its ids, and what holds it."""
    return {
        **item.tool.definition.to_json(),
        "id": item.canonical_id,
        "modelName": item.model_name,
        "source": item.source,
        "staged": item.tool.body.staged,
        "digest": item.tool.definition.digest,
    }


def _show_table(found: list[RegisteredTool]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("tool", "risk", "replay", "touches", "what it does"):
        table.add_column(column, overflow="fold")
    for item in found:
        definition = item.tool.definition
        description = escaped(_first_sentence(definition.description))
        shown = item.tool.name if item.canonical_id == f"builtin:{item.tool.name}" else item.canonical_id
        table.add_row(escaped(shown), definition.risk_level.value, definition.replay.value, _touches(item), description)
    Console(highlight=False).print(table)


def _first_sentence(text: str) -> str:
    line = text.strip().split("\n", 1)[0]
    return line.split(". ", 1)[0].removesuffix(".")


def _touches(item: RegisteredTool) -> str:
    capability = item.tool.definition.capability
    words = [word for word in ("reads", "writes", "network", "exec") if getattr(capability, word)]
    return ", ".join(words) + (" (staged)" if item.tool.body.staged else "")
