"""A diff and an output on a person's screen: no character of a file can begin a line of its own."""

import io
import unicodedata

import pytest
from rich.console import Console

from handrail.agent.events import CallFinished
from handrail.cli.show import diff_lines, show_diff, text_lines
from handrail.cli.views import MAX_DIFF_LINES, TextView
from handrail.outcome import ChangesReport, ToolOutcome

SEPARATORS = ("\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
FORGED = "-    require_admin()"


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200, highlight=False), out


@pytest.mark.parametrize("separator", SEPARATORS, ids=ascii)
def test_a_line_of_a_file_cannot_forge_a_line_of_the_diff(separator: str) -> None:
    assert len("a\nb".splitlines()) == len(f"a{separator}b".splitlines()) == 2  # what would be fooled
    diff = f"+x = 1{separator}{FORGED}\n"
    screen, out = console()
    show_diff(screen, diff)
    view_screen, view_out = console()
    outcome = ToolOutcome.ok("done").with_(changes=ChangesReport("d", ("a",), diff, committed=True))
    TextView(view_screen, view_screen, live=False).show(CallFinished("1", "write", outcome))
    for shown in (out.getvalue(), view_out.getvalue()):
        assert not any(line.strip().startswith("-") for line in shown.split("\n"))
        assert FORGED in shown
        assert separator not in shown


def test_every_line_of_a_diff_is_there_in_its_style() -> None:
    lines = diff_lines("modify a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-one\n+\ttwo\n three\n\\ No newline at end of file\n")
    assert [line.plain for line in lines] == [
        "modify a",
        "--- a/a",
        "+++ b/a",
        "@@ -1 +1 @@",
        "-one",
        "+\\ttwo",
        " three",
        "\\ No newline at end of file",
    ]
    assert [str(line.style) for line in lines] == ["", "bold", "bold", "cyan", "red", "green", "", ""]


def test_a_long_diff_ends_in_the_number_of_lines_that_are_not_shown() -> None:
    screen, out = console()
    diff = "".join(f"+{number}\n" for number in range(MAX_DIFF_LINES + 3))
    outcome = ToolOutcome.ok("done").with_(changes=ChangesReport("d", ("a",), diff, committed=True))
    TextView(screen, screen, live=False).show(CallFinished("1", "write", outcome))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert lines[1:] == [*(f"+{number}" for number in range(MAX_DIFF_LINES)), "… 3 more lines"]


def test_an_output_keeps_its_lines_and_hides_nothing() -> None:
    assert text_lines("one\n\ntwo\x0cthree\n") == ["one", "", "two\\x0cthree"]
    assert text_lines("") == []
    everything = "".join(map(chr, range(0x2100)))
    assert not any(unicodedata.category(mark) in {"Cc", "Cf"} for line in text_lines(everything) for mark in line)
