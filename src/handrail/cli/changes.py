"""``handrail changes [CALL]`` and ``handrail undo CALL…``: what calls changed, and taking it back."""

from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from handrail.approval.render import escaped
from handrail.builtins.undo import undo_plugin
from handrail.changes.areas import elsewhere
from handrail.changes.diff import short_tree
from handrail.changes.store import ChangeStore, Committed
from handrail.cli.options import JsonOption, PolicyOption, WorkspaceOption
from handrail.cli.show import finish, json_line, say, show_diff
from handrail.wiring import Settings, open_house

changes_app = typer.Typer(add_completion=False)
undo_app = typer.Typer(add_completion=False)


@changes_app.command()
def changes(
    call: Annotated[str | None, typer.Argument(metavar="[CALL]", help="Show what this call changed.")] = None,
    workspace: WorkspaceOption = ".",
    json_: JsonOption = False,
) -> None:
    """List what calls changed in the workspace, oldest first; name one to see its diff."""
    with open_house(Settings(workspace=workspace, plugins=(), journal=False, door="cli")) as house:
        if call is None:
            _list(house.changes.history(), as_json=json_)
            moved = [area for area in house.changes.moved_from() if area.changes]
            if moved:
                say(f"handrail: {elsewhere(moved)}", err=True)
            return
        entry = house.changes.find(call)
        if entry is None:
            say(f"handrail: {house.changes.unknown(call)}", err=True)
            raise typer.Exit(1)
        _show(house.changes, entry, as_json=json_)


@undo_app.command()
def undo(
    calls: Annotated[list[str], typer.Argument(metavar="CALL…", help="Calls as `handrail changes` lists them.")],
    workspace: WorkspaceOption = ".",
    policy: PolicyOption = None,
    json_: JsonOption = False,
) -> None:
    """Take back what calls changed: all of it, or nothing where a file changed since.

    It is a call itself, with an id of its own, and can be undone. Whoever gives the command approves it; a policy's
    deny still holds.
    """
    with open_house(Settings(workspace=workspace, plugins=(), approve="always", policy=policy, door="cli")) as house:
        house.registry.register_plugin(undo_plugin(house.changes))
        outcome = house.executor.execute_sync("undo", {"calls": list(dict.fromkeys(calls))})
    finish(outcome, as_json=json_)


def _list(entries: list[Committed], *, as_json: bool) -> None:
    if as_json:
        say(json_line([_summary(entry) for entry in entries]))
        return
    if not entries:
        say("No call changed anything here.")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("call", no_wrap=True)  # an id is there to be copied
    table.add_column("when", no_wrap=True)
    for column in ("what", "undo"):
        table.add_column(column, overflow="fold")
    for entry in entries:
        first = short_tree(entry.changes).splitlines()
        more = f"\n… and {len(first) - 3} more" if len(first) > 3 else ""
        what = "\n".join(escaped(line) for line in first[:3]) + more
        when = datetime.fromtimestamp(entry.at).astimezone().strftime("%m-%d %H:%M")
        table.add_row(escaped(entry.call_id), when, what, escaped(entry.gone) or "possible")
    Console(highlight=False, markup=False).print(table)


def _show(store: ChangeStore, entry: Committed, *, as_json: bool) -> None:
    diff = store.diff(entry.changes)
    if as_json:
        say(json_line({**_summary(entry), "changes": entry.changes.to_json(), "diff": diff}))
        return
    console = Console(highlight=False, markup=False, soft_wrap=True)
    console.print(f"call {escaped(entry.call_id)} · {_when(entry)} · undo: {escaped(entry.gone) or 'possible'}")
    for line in short_tree(entry.changes).splitlines():
        console.print(escaped(line))
    console.print()
    show_diff(console, diff)


def _summary(entry: Committed) -> dict[str, Any]:
    return {
        "call": entry.call_id,
        "at": entry.at,
        "digest": entry.changes.digest,
        "paths": [path.decode("utf-8", "backslashreplace") for path in entry.changes.paths],
        "undoable": not entry.gone,
        "why_not": entry.gone or None,
    }


def _when(entry: Committed) -> str:
    return datetime.fromtimestamp(entry.at).astimezone().isoformat(" ", "seconds")
