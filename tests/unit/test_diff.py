"""Diffs for people: what they say is what changed, at the line they say, and no file makes them slow."""

import difflib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.diff import CONTEXT_LINES, MAX_COMPARED_LINES, unified_diff

HEAD = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@\n")


def diff_of(old: str, new: str) -> str:
    states = [FileState("file", 0o644, len(text), name) for name, text in (("old", old), ("new", new))]
    texts = {"old": old.encode(), "new": new.encode()}
    changes = ChangeSet((Change(b"f", states[0], states[1]),))
    return unified_diff(changes, lambda _path, state, limit: texts[state.sha256 or ""][:limit])


def applied(old: list[str], diff: str) -> list[str]:
    """What patch(1) would make of ``old``; each line that goes or stays must be where the diff says."""
    result: list[str] = []
    at = 0
    for line in diff.splitlines(keepends=True)[3:]:
        if head := HEAD.fullmatch(line):
            start = int(head[1]) - (head[2] != "0")
            result += old[at:start]
            at = start
            assert len(result) == int(head[3]) - (head[4] != "0")
        elif line[0] == "+":
            result.append(line[1:])
        else:
            assert old[at] == line[1:]
            at += 1
            result += [line[1:]] if line[0] == " " else []
    return result + old[at:]


LINES = st.lists(st.sampled_from(["a\n", "b\n", "c\n"]), max_size=30)


@settings(deadline=None, max_examples=150)
@given(before=LINES, old=LINES, new=LINES, after=LINES)
def test_a_diff_leads_from_the_old_text_to_the_new_one(before, old, new, after):
    old, new = [*before, *old, *after], [*before, *new, *after]
    diff = diff_of("".join(old), "".join(new))
    assert applied(old, diff) == new if old != new else "@@" not in diff


def test_lines_that_repeat_all_over_a_large_file_are_not_compared_with_each_other(monkeypatch: pytest.MonkeyPatch):
    """Each line just too rare to count as common: matching the whole file takes minutes for one changed line."""
    compared: list[int] = []

    class Counted(difflib.SequenceMatcher):
        def __init__(self, isjunk, a, b) -> None:
            compared.append(max(len(a), len(b)))
            super().__init__(isjunk, a[:MAX_COMPARED_LINES], b[:MAX_COMPARED_LINES])  # so that a failure ends too

    monkeypatch.setattr(difflib, "SequenceMatcher", Counted)
    old = [f"{number % 101:x}\n" for number in range(170_000)]
    new = [*old[:85_000], "changed\n", *old[85_001:]]
    assert "@@ -84998,7 +84998,7 @@" in diff_of("".join(old), "".join(new))
    assert compared
    assert max(compared) <= MAX_COMPARED_LINES + 2 * CONTEXT_LINES
