"""Every promise has a test, and every test that names a promise names one that was made."""

import ast
import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
PROMISES = TESTS.parent / "docs" / "promises.md"
LINE = re.compile(r"^- `(?P<id>[a-z0-9-]+(?::[a-z0-9-]+)+)` — (?P<sentence>\S.*)$")


def promised() -> list[str]:
    return [found["id"] for line in PROMISES.read_text().splitlines() if (found := LINE.match(line))]


def kept() -> set[str]:
    """The ids that stand in ``promise(...)`` marks anywhere in the tests."""
    return {
        argument.value
        for file in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "promise"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_every_promise_is_kept_by_a_test() -> None:
    assert sorted(set(promised()) - kept()) == []


def test_every_test_that_names_a_promise_names_one_that_was_made() -> None:
    assert sorted(kept() - set(promised())) == []


def test_no_promise_is_made_twice() -> None:
    assert [name for name, times in Counter(promised()).items() if times > 1] == []


def test_every_line_with_an_id_reads_as_a_promise() -> None:
    lines = [line for line in PROMISES.read_text().splitlines() if line.startswith("- `")]
    assert [line for line in lines if not LINE.match(line)] == []
    assert lines
