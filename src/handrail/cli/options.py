"""Options that several commands share, declared once, and what they add up to.

Everything here is trusted: it comes from the person at the command line. Nothing is ever read from the workspace.
"""

import sys
from typing import Annotated, TextIO, cast

import typer

from handrail.errors import ConfigurationError
from handrail.schema import is_unicode

WorkspaceOption = Annotated[
    str,
    typer.Option("--workspace", "-w", metavar="DIR", help="Where tools may reach.", show_default="this one"),
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="NAME[,NAME…]", help="Only these tools or plugins (an allowlist; repeatable)."),
]
SkillOption = Annotated[
    list[str] | None, typer.Option("--skill", metavar="FILE", help="A skill file whose tools to offer (repeatable).")
]
McpOption = Annotated[
    list[str] | None,
    typer.Option("--mcp", metavar="SERVER[,SERVER…]", help="MCP servers of the catalog (repeatable)."),
]
McpConfigOption = Annotated[
    str | None, typer.Option("--mcp-config", metavar="FILE", help="The MCP catalog to use instead of your own.")
]
ApproveOption = Annotated[
    str,
    typer.Option(
        "--approve",
        metavar="always|never|ask|park",
        help="Who answers when policy asks: yes to all, no to all, you at the terminal, or kept for later.",
    ),
]
PolicyOption = Annotated[
    str | None, typer.Option("--policy", metavar="FILE", help="The policy file to use instead of your own.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
WeakerOption = Annotated[
    bool,
    typer.Option("--allow-weaker-walls", help="Accept the second tier where the machine cannot give the full walls."),
]


def names(values: list[str] | None) -> tuple[str, ...] | None:
    """Flatten repeated, comma-separated values: ``["read,edit", "grep"]`` → ``("read", "edit", "grep")``."""
    if values is None:
        return None
    return tuple(part.strip() for value in values for part in value.split(",") if part.strip())


def id_text(word: str) -> str:
    """The word of an id. Raises :class:`~handrail.errors.ConfigurationError` for one that nothing here ever had."""
    if not is_unicode(word):
        raise ConfigurationError(f"{word!r} is not Unicode text, and so is no id")
    return word


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person is at this end of the process. A stream that was closed before it started is ``None``."""
    return stream is not None and stream.isatty()


def standard_input() -> str:
    """All of standard input. Raises :class:`~handrail.errors.ConfigurationError` where there is none or no text."""
    if cast("TextIO | None", sys.stdin) is None:
        raise ConfigurationError("there is no standard input to read")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"standard input is not {error.encoding} text, from byte {error.start} on") from None
