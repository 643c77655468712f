"""``handrail``: the table of commands, and the one place where an exception becomes an exit status.

Exit status: 0 ok · 1 error · 2 usage or configuration · 3 pending · 4 unknown.

A command's file is imported when that command is asked for, never for ``--help`` of the whole: the table holds each
command's one-line help.
"""

import contextlib
import importlib
import os
import signal
import sys
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from handrail.cli.show import say
from handrail.errors import ConfigurationError, HandrailError

EXIT_ERROR = 1
EXIT_USAGE = 2

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("handrail.cli.run:app", "Give a task to a model with tools, or start an interactive session."),
    "call": ("handrail.cli.call:app", "Carry one tool call through the whole corridor."),
    "tools": ("handrail.cli.tools:app", "List the tools there are."),
    "changes": ("handrail.cli.changes:changes_app", "List and show what calls changed in a workspace."),
    "undo": ("handrail.cli.changes:undo_app", "Take back what calls changed, under the same rules."),
    "approvals": ("handrail.cli.approvals:approvals_app", "List, show and answer the calls that wait for a person."),
    "grants": ("handrail.cli.approvals:grants_app", "List and revoke lasting approvals."),
    "policy": ("handrail.cli.policy:app", "Check, explain and try out policy files."),
    "journal": ("handrail.cli.journal:app", "Show, verify, recover, settle and export the journal."),
    "skill": ("handrail.cli.skill:app", "Check skill files."),
    "mcp": ("handrail.cli.mcp:app", "Look at MCP servers and the definitions pinned for them."),
    "serve": ("handrail.cli.serve:serve_app", "Offer tools over MCP."),
    "proxy": ("handrail.cli.serve:proxy_app", "Put one MCP server behind the corridor."),
    "doctor": ("handrail.cli.doctor:app", "Show each protection, its state, and how to mend it."),
}


class _LazyGroup(TyperGroup):
    """Commands from the table: a line of help each, and the real command only when it is run."""

    def list_commands(self, ctx: Any) -> list[str]:
        """In the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A stand-in that knows its line of help."""
        if cmd_name not in COMMANDS:
            return None
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name][1])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The real command, imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, _loaded(name) if name in COMMANDS else command, rest


def _loaded(name: str) -> Any:
    module, attribute = COMMANDS[name][0].split(":")
    command = typer.main.get_command(getattr(importlib.import_module(module), attribute))
    command.name = name
    return command


app = typer.Typer(
    cls=_LazyGroup,
    name="handrail",
    help="Run an agent's tool calls without trusting them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"handrail {version('handrail')}")
        raise typer.Exit


@app.callback()
def _main(
    _: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Run an agent's tool calls without trusting them."""


def run() -> None:
    """The console script: run the command line, and turn what went wrong into one clear line and an exit status."""
    try:
        app()
    except ConfigurationError as error:
        say(f"handrail: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except HandrailError as error:
        say(f"handrail: {error}", err=True)
        sys.exit(EXIT_ERROR)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "handrail":
            raise
        say(f"handrail: this command needs the package {error.name!r}; {_extra_for(error.name)}", err=True)
        sys.exit(EXIT_USAGE)
    except BrokenPipeError:  # the reader of a pipe went away: end as other tools do
        sys.stderr.close()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:  # the disk, the terminal or a directory of ours; what is the tool's is in its outcome
        where = "" if error.filename is None else f": {os.fsdecode(error.filename)!r}"
        with contextlib.suppress(OSError):
            sys.stdout.close()  # else the interpreter tries to write the rest again, and says so in its own words
        say(f"handrail: {error.strerror or error}{where}", err=True)
        sys.exit(EXIT_ERROR)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


_EXTRAS = {"mcp": "mcp", "mcp_types": "mcp", "uvicorn": "mcp", "starlette": "mcp", "psycopg": "postgres"}


def _extra_for(package: str) -> str:
    extra = _EXTRAS.get(package.split(".", maxsplit=1)[0], package.split(".", maxsplit=1)[0])
    return f"install it with: pip install 'handrail[{extra}]'"
