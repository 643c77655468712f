"""A page as a newcomer follows it: every ``$`` line is typed in a real terminal, every line below it must be printed.

In a page, a block of ``console`` holds commands and what they print; a block with ``title="NAME"`` is a file that the
reader makes. In what is printed, a line ``…`` stands for any lines, call ids and milliseconds are not compared, and
``CALL`` in a command is the id that was printed last. Where the program asks, the page shows its question; the reader
answers ``n`` where the page goes on with ``Rejected.``, and ``y`` elsewhere.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pexpect

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 300.0
COLUMNS = 100
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CALL_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_STYLE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|[()][A-Z0-9]|[=>])")
_ANSWERED = "y yes, once"
_INSTALLED = {"make demo": "python -m handrail.demo"}
"""What the Makefile runs once everything is installed, which it is where tests run."""


@dataclass(frozen=True, slots=True)
class File:
    """A file that the page tells its reader to make."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A line to type, and the lines that the page says it prints."""

    line: str
    printed: tuple[str, ...]


def steps(page: str) -> Iterator[File | Command]:
    for language, title, body in _BLOCK.findall(page):
        if title:
            yield File(title, _included(body))
        elif language == "console":
            yield from _commands(body)


def _included(body: str) -> str:
    found = re.fullmatch(r'--8<-- "([^"]+)"\n', body)
    return (ROOT / found.group(1)).read_text(encoding="utf-8") if found else body


def _commands(body: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        typed, *printed = part.rstrip("\n").split("\n")
        yield Command(typed, tuple(printed))


class Reader:
    """Somebody with nothing but the page, an empty directory and the commands on the path."""

    def __init__(self, directory: Path) -> None:
        self.place = directory / "play"
        self.place.mkdir()
        home = directory / "home"
        home.mkdir()
        programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        self._environment = {"PATH": programs, "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
        self._call = ""

    def follow(self, step: File | Command) -> None:
        if isinstance(step, File):
            (self.place / step.name).write_text(step.text, encoding="utf-8")
            return
        asked = any(_ANSWERED in line for line in step.printed)
        key = "n" if "Rejected." in step.printed else "y"
        line = _INSTALLED.get(step.line, step.line).replace("CALL", self._call)
        printed = self.type(line, key if asked else "")
        ids = _CALL_ID.findall(printed)
        self._call = ids[-1] if ids else self._call
        assert_printed(step, printed)

    def type(self, line: str, answer: str) -> str:
        """Run one line to its end, answering its question with a key; what the terminal showed."""
        child = pexpect.spawn(
            "/bin/bash",
            ["-c", line],
            cwd=self.place,
            env=self._environment,
            dimensions=(50, COLUMNS),
            timeout=PATIENCE,
            encoding="utf-8",
        )
        shown = ""
        if answer:
            child.expect_exact(_ANSWERED)
            shown = f"{child.before}{child.after}"
            child.send(answer)
        child.expect(pexpect.EOF)
        child.close()
        return _STYLE.sub("", f"{shown}{child.before}").replace("\r\n", "\n").replace("\r", "")


def assert_printed(step: Command, printed: str) -> None:
    """Fail with the first line of the page that is not what was printed."""
    got = [_plain(line) for line in printed.strip("\n").split("\n")] if printed.strip() else []
    wanted = [_plain(line) for line in step.printed]
    at, skipping = 0, False
    for line in wanted:
        if line == "…":
            skipping = True
            continue
        if skipping:
            at = next((place for place in range(at, len(got)) if got[place] == line), len(got))
        assert at < len(got), f"$ {step.line}\nthe page says {line!r}, which never came; it printed:\n{printed}"
        assert got[at] == line, f"$ {step.line}\nthe page says {line!r}, but it printed {got[at]!r}; all:\n{printed}"
        at, skipping = at + 1, False
    assert skipping or at == len(got), f"$ {step.line}\nit printed more than the page says:\n" + "\n".join(got[at:])


def _plain(line: str) -> str:
    line = _CALL_ID.sub("CALL", line.rstrip())
    line = re.sub(r"\d+(?:\.\d+)? m?s\b", "N ms", line)
    line = re.sub(r"\b\d\d-\d\d \d\d:\d\d\b", "WHEN", line)
    return re.sub(r"sha256:[0-9a-f]{64}", "sha256:D", line)
