"""``docs/commands.md``, made from the program itself: ``python tests/docs/commands_page.py`` writes it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from handrail.cli.main import COMMANDS, _loaded

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
HEAD = """# Commands

Written from the program's own help by `python tests/docs/commands_page.py`; a test compares the two. Exit status: 0 ok,
1 error, 2 usage or configuration, 3 pending, 4 unknown.
"""


def page() -> str:
    parts = [HEAD]
    for name in COMMANDS:
        parts += _section(f"handrail {name}", _loaded(name))
    return "\n".join(parts)


def _section(path: str, command: Any) -> Iterator[str]:
    yield f"## {path}\n"
    yield f"{' '.join((command.help or '').split())}\n"
    inner = getattr(command, "commands", {})
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option"]
    if not inner:
        yield f"```\n{' '.join([path, '[OPTIONS]', *map(_value, arguments)])}\n```\n"
    if arguments or options:
        yield "| | |\n|---|---|"
        yield from (f"| `{_value(item)}` | {_help(item)} |" for item in arguments)
        yield from (f"| {_names(item)} | {_help(item)} |" for item in options)
        yield ""
    for name, below in inner.items():
        yield from _section(f"{path} {name}", below)


def _value(item: Any) -> str:
    """The word that stands for a value."""
    return item.metavar or item.name.upper().strip("_")


def _names(option: Any) -> str:
    value = "" if option.is_flag else f" {_value(option)}"
    return ", ".join(f"`{name}{value}`" for name in [*option.opts, *option.secondary_opts]).replace("|", "\\|")


def _help(item: Any) -> str:
    return " ".join((item.help or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
