"""A newcomer with nothing but a page: each step prints what stands there."""

from pathlib import Path

import pytest
from transcript import ROOT, Command, File, Reader, assert_printed, steps

PAGES = ["README.md", "docs/tutorial.md"]


@pytest.mark.walls
@pytest.mark.slow
@pytest.mark.promise("docs:newcomer:each-step-prints-what-stands-there")
@pytest.mark.parametrize("page", PAGES)
def test_each_step_of_the_page_prints_what_stands_there(page: str, tmp_path: Path) -> None:
    todo = list(steps((ROOT / page).read_text(encoding="utf-8")))
    assert sum(isinstance(step, Command) for step in todo) >= 8
    reader = Reader(tmp_path)
    for step in todo:
        reader.follow(step)


def test_the_readme_shows_the_demo_a_tool_a_skill_a_reviewed_change_and_an_undo() -> None:
    typed = [step.line for step in steps((ROOT / "README.md").read_text(encoding="utf-8")) if isinstance(step, Command)]
    for beginning in ("make demo", "python count.py", "handrail skill check", "handrail call bash", "handrail undo"):
        assert any(line.startswith(beginning) for line in typed), beginning


def test_make_demo_runs_what_the_test_runs() -> None:
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("\ndemo:")[2].splitlines()[1]
    assert recipe == "\t$(BIN)/python -m handrail.demo"


@pytest.mark.parametrize(
    ("page", "printed"),
    [
        (("one", "two"), "one\nthree"),
        (("one",), "one\ntwo"),
        (("one", "two"), "one"),
        (("…", "two"), "one\nthree"),
        (("one", "…", "four"), "one\ntwo\nfour\nfive"),
        ((), "one"),
    ],
)
def test_a_page_that_says_something_else_is_noticed(page: tuple[str, ...], printed: str) -> None:
    with pytest.raises(AssertionError):
        assert_printed(Command("true", page), printed)


def test_ids_and_times_are_not_compared_and_dots_stand_for_any_lines() -> None:
    page = Command("x", ("ok · 3 ms · call 01990000-0000-7000-8000-000000000001", "…", "last"))
    assert_printed(page, "ok · 71.5 ms · call 01a22e69-7847-781d-a655-625e85c7d961\none\ntwo\nlast\n")


def test_a_page_is_read_as_files_and_commands() -> None:
    page = (
        '```python title="a.py"\nprint(1)\n```\ntext\n```console\n$ python a.py\n1\n$ true\n```\n```\n$ not this\n```\n'
    )
    assert list(steps(page)) == [File("a.py", "print(1)\n"), Command("python a.py", ("1",)), Command("true", ())]
