"""How an outcome is shown: readable for people, one JSON object for programs, and its exit status."""

import json
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text

from handrail.approval.render import visible
from handrail.changes.diff import NO_NEWLINE
from handrail.hidden import is_hidden, printable
from handrail.outcome import ToolOutcome

EXIT_STATUS = {"ok": 0, "error": 1, "pending": 3, "unknown": 4}
_MARK = {
    "ok": "[green]ok[/]",
    "error": "[red]error[/]",
    "pending": "[yellow]pending[/]",
    "unknown": "[magenta]unknown[/]",
}
_DIFF_STYLE = {"+": "green", "-": "red", "@": "cyan"}


def say(text: str, *, err: bool = False) -> None:
    """Print a line, or lines, of which any part may be untrusted: nothing in it can steer a terminal."""
    typer.echo(printable(text), err=err)


def json_line(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON text that is fit for a screen and means the same: what is hidden is written as its escape."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(
        character if character == "\n" or not is_hidden(character) else json.dumps(character)[1:-1]
        for character in text
    )


def finish(outcome: ToolOutcome, *, as_json: bool) -> None:
    """Print the outcome and end the command with its exit status."""
    if as_json:
        say(json_line(outcome.to_json()))
    else:
        show_outcome(outcome)
    raise typer.Exit(EXIT_STATUS[outcome.status])


def show_outcome(outcome: ToolOutcome) -> None:
    """The text on standard output; everything about it on standard error, so that pipes get the text alone.

    On a terminal, control and invisible characters are shown as escapes: the text is the tool's, not ours.
    """
    out, err = Console(highlight=False, soft_wrap=True), Console(stderr=True, highlight=False)
    if outcome.text:
        for line in text_lines(outcome.text) if out.is_terminal else ():
            out.print(line, markup=False)
        if not out.is_terminal:
            typer.echo(outcome.text, nl=not outcome.text.endswith("\n"))
    if outcome.changes is not None and outcome.changes.diff:
        show_diff(err, outcome.changes.diff)
    reason = f" ({outcome.reason.value})" if outcome.reason is not None else ""
    spilled = f" · whole output: {escape(outcome.full_output.path)}" if outcome.full_output is not None else ""
    said = f"{_MARK[outcome.status]}{reason} · {outcome.duration_ms:.1f} ms · call {outcome.call_id}{spilled}"
    err.print(said, soft_wrap=True)  # an id or a path is there to be copied


def text_lines(text: str) -> list[str]:
    """Untrusted text as lines fit for a screen. A line ends at a line feed, so no other separator can begin one."""
    return [visible(line) for line in text.removesuffix("\n").split("\n")] if text else []


def diff_lines(diff: str) -> list[Text]:
    """A unified diff as lines in colour, as :func:`text_lines` makes them: no character of a file can forge one."""
    return [Text(line, style=_diff_style(line)) for line in map(_own_mark, text_lines(diff))]


def _own_mark(line: str) -> str:
    """The diff's own mark of an unended line, unescaped; every line of a file stands behind a sign of its own."""
    return NO_NEWLINE if line == visible(NO_NEWLINE) else line


def _diff_style(line: str) -> str:
    return "bold" if line.startswith(("+++", "---")) else _DIFF_STYLE.get(line[:1], "")


def show_diff(console: Console, diff: str) -> None:
    """Print a unified diff in colour."""
    for line in diff_lines(diff):
        console.print(line, soft_wrap=True)
