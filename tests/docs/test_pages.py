"""What the pages show is what happens: examples run, and print what the page says they print."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import commands_page
import pytest
import typer

from handrail import ToolDef, ToolExecutor, ToolRegistry
from handrail.approval.policy_file import load_policy
from handrail.cli.main import COMMANDS
from handrail.cli.serve import proxy_app, serve_app
from handrail.skills import check_skill

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_tool_of_ones_own_prints_what_its_page_says() -> None:
    example = ROOT / "examples" / "own_tool.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=True)
    page = (ROOT / "docs" / "howto" / "tool.md").read_text()
    assert f"It prints\n\n```\n{done.stdout}```" in page


def test_the_smallest_agent_runs_to_its_end() -> None:
    example = ROOT / "examples" / "agent.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "done - Milk and bread.\n"


def test_the_skill_and_the_policy_that_the_pages_show_are_accepted() -> None:
    assert check_skill(ROOT / "examples" / "count.skill.yaml") == []
    load_policy(str(ROOT / "examples" / "policy.toml"))


def test_the_adapter_that_its_page_shows_makes_the_round_trip() -> None:
    page = (ROOT / "docs" / "extending" / "framework-adapter.md").read_text()
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    written: dict[str, Any] = {}
    exec(shown, written)

    class Framework:
        @staticmethod
        def Tool(*parts: Any) -> tuple[Any, ...]:
            return parts

    registry = ToolRegistry()
    for name in ("first", "second"):
        parameters = {"type": "object", "properties": {"n": {"type": "integer"}}}
        registry.register_from_def(ToolDef(name, name, parameters, "safe"), lambda args, name=name: f"{name} {args}")
    with ToolExecutor(registry) as executor:
        tools = {name: run for name, _, _, run in written["tools_for"](Framework, executor)}
        assert asyncio.run(tools["first"]('{"n": 1}')) == "first {'n': 1}"
        assert asyncio.run(tools["second"]('{"n": 2}')) == "second {'n': 2}"
        assert "expected a whole number" in asyncio.run(tools["first"]('{"n": "42"}'))


MCP_FILES = sorted((ROOT / "examples" / "mcp").iterdir())
DOORS = {"serve": serve_app, "proxy": proxy_app}


def mcp_entries(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The servers that a client's configuration starts."""
    (servers,) = document.values()
    return list(servers.values())


def shown_configurations(page: Path) -> list[dict[str, Any]]:
    """The configurations of MCP clients on a page."""
    blocks = re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)
    return [document for document in map(json.loads, blocks) if document.keys() & {"mcpServers", "servers"}]


def assert_starts(entry: dict[str, Any]) -> None:
    """Our command line takes these words."""
    door, *words = entry["args"]
    assert entry["command"] == "handrail"
    command = typer.main.get_command(DOORS[door])
    with command.make_context(door, [*words]) as context:
        assert context.params["workspace"] in words
        assert context.params.get("command", words[-2:]) == words[-2:]


@pytest.mark.parametrize("file", MCP_FILES, ids=lambda path: path.name)
def test_every_mcp_client_configuration_starts_one_of_our_doors(file: Path) -> None:
    entries = mcp_entries(json.loads(file.read_text()))
    assert len(entries) == 2
    for entry in entries:
        assert_starts(entry)


def test_the_pages_show_every_configuration_as_the_file_has_it() -> None:
    how = shown_configurations(ROOT / "docs" / "howto" / "mcp-firewall.md")
    files = {file.name: json.loads(file.read_text()) for file in MCP_FILES}
    assert files["cursor.mcp.json"] == files["claude_desktop_config.json"]  # one form, as the page says
    assert all(document in how for document in files.values())
    shown = shown_configurations(ROOT / "README.md")
    assert len(shown) == 2
    for document in shown:
        ((name, entry),) = [item for servers in document.values() for item in servers.items()]
        assert any(entry == servers.get(name) for file in files.values() for servers in file.values())


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_on_a_page_is_one_we_have(page: Path) -> None:
    text = page.read_text()
    shown = set(re.findall(r"^(?:\$ )?handrail ([a-z]+)", text, re.MULTILINE)) | set(
        re.findall(r"`handrail ([a-z]+)", text)
    )
    assert shown <= set(COMMANDS), f"{shown - set(COMMANDS)} is no command"


@pytest.mark.promise("docs:commands:help-is-the-programs")
def test_the_page_of_commands_is_the_programs_own_help() -> None:
    assert commands_page.PAGE.read_text(encoding="utf-8") == commands_page.page()


@pytest.mark.promise("docs:commands:help-is-the-programs")
@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_option_on_a_page_is_one_its_command_has(page: Path) -> None:
    sections = commands_page.page().split("\n## ")
    for command, words in re.findall(
        r"(?:^|`|\$ )handrail ([a-z]+)((?:[^`\n]| \\\n)*)", page.read_text(), re.MULTILINE
    ):
        ours = words.partition(" -- ")[0].partition("#")[0]
        there = "\n".join(section for section in sections if section.startswith(f"handrail {command}"))
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]+", ours):
            assert f"`{option}" in there, f"handrail {command} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r'--8<-- "([^"]+)"', text) + re.findall(r"`((?:src|examples|docs|tests)/[\w./-]+)`", text)
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing
