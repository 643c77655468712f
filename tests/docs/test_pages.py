"""What the pages show is what happens: examples run, and print what the page says they print."""

import re
import subprocess
import sys
from pathlib import Path

import commands_page
import pytest

from handrail.approval.policy_file import load_policy
from handrail.cli.main import COMMANDS
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
