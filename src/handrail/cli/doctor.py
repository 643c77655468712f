"""``handrail doctor``: which walls this machine gives, on what evidence, and how to mend what is missing.

Exit status: 0 full walls, 1 weaker ones (they are used only where the caller allows it), 2 none.
"""

import sys

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from handrail.cli.options import JsonOption, is_terminal
from handrail.cli.show import json_line, say
from handrail.sandbox.report import MachineReport, probe

app = typer.Typer(help="Show each protection, its state, and how to mend it.")

EXIT_OF_TIER = {"full": 0, "reduced": 1, "none": 2}
COLOURS = {"active": "green", "degraded": "yellow", "disabled": "yellow", "unavailable": "red"}
IN_WORDS = {
    "full": "Inline code and commands run behind full walls.",
    "reduced": "Only the weaker walls can be built here; they are used only with --allow-weaker-walls.",
    "none": "No cell can be built here: running inline code or commands is refused.",
}


@app.command()
def doctor(json_: JsonOption = False) -> None:
    """Build a cell on this machine, look at its walls from inside, and say what stands.

    Exit status: 0 full walls, 1 weaker ones, 2 none.
    """
    report = probe()
    if json_:
        say(json_line(report.to_json(), indent=2))
    else:
        _show(report)
    raise typer.Exit(EXIT_OF_TIER[report.tier])


def _show(report: MachineReport) -> None:
    """A table for people. In a pipe it has no colours, and is as wide as it needs."""
    console = Console(width=None if is_terminal(sys.stdout) else 160, highlight=False)
    table = Table("protection", "state", "evidence", box=None, pad_edge=False, header_style="bold")
    for item in report.protections:
        table.add_row(item.name.replace("_", " "), Text(item.state, COLOURS[item.state]), Text(item.evidence))
        if item.remedy:
            table.add_row("", "", Text(f"to mend: {item.remedy}"))
    console.print(Text(report.system))
    console.print(table)
    console.print(Text(IN_WORDS[report.tier]))
