"""``handrail skill``: look at skill files."""

from typing import Annotated

import typer

from handrail.cli.options import JsonOption
from handrail.cli.show import json_line, say
from handrail.skills import check_skill, load_skill

app = typer.Typer(add_completion=False, help="Check skill files.", no_args_is_help=True)


@app.callback()
def skill() -> None:
    """Check skill files."""


@app.command()
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A skill file (YAML, or SKILL.md or its directory).")],
    json_output: JsonOption = False,
) -> None:
    """List every error of a skill file with its line and column. Nothing of the skill is run."""
    problems = check_skill(file)
    if json_output:
        found = [
            {"file": error.file, "line": error.line, "column": error.column, "message": error.message}
            for error in problems
        ]
        say(json_line({"ok": not found, "errors": found}))
    elif problems:
        for error in problems:
            say(str(error), err=True)
    else:
        loaded = load_skill(file)
        tools = ", ".join(tool.definition.name for tool in loaded.tools) or "no tools"
        say(f"{loaded.name}: {tools}")
    if problems:
        raise typer.Exit(2)
