"""Diffs for people: what they say is what changed, at the line they say, and no file makes them slow."""

import difflib
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.diff import (
    CONTEXT_LINES,
    MAX_COMPARED_LINES,
    MAX_DIFF_BYTES,
    MAX_FILE_BYTES,
    quoted,
    short_tree,
    unified_diff,
)

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


FILE = FileState("file", 0o644, 1_234, "one")
LINK = FileState("link", 0o777, target=b"there\x1b[2J")


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (None, FILE, "+ f (1,234 bytes)"),
        (None, FileState("file", 0o755, 2, "x"), "+ f (mode 0755, 2 bytes)"),
        (None, FileState("directory", 0o755), "+ f (directory)"),
        (None, LINK, '+ f (link, to "there\\x1b[2J")'),
        (FILE, None, "- f (1,234 bytes)"),
        (FILE, FileState("file", 0o644, 5, "two"), "~ f (1,234 bytes → 5 bytes)"),
        (FILE, FileState("file", 0o755, 5, "two"), "~ f (mode 0644 → 0755, 1,234 bytes → 5 bytes)"),
        (FILE, FileState("file", 0o600, 1_234, "one"), "m f (mode 0644 → 0600)"),
        (FILE, LINK, '~ f (file → link, to "there\\x1b[2J")'),
        (LINK, FileState("link", 0o777, target=b"else"), '~ f (link, to "there\\x1b[2J" → else)'),
    ],
)
def test_a_change_is_said_in_one_line(before: FileState | None, after: FileState | None, line: str):
    assert short_tree(ChangeSet((Change(b"f", before, after),))) == line + "\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"a b-\xc3\xa9.txt", "a b-é.txt"),
        (b"a\n+++ b/x", '"a\\n+++ b/x"'),
        (b"a\tb", '"a\\tb"'),
        (b'a"b\\c', '"a\\"b\\\\c"'),
        (b"a\xffb", '"a\\xffb"'),
        ("a\x1b\u202e\u2028\u3164".encode(), '"a\\x1b\\u202e\\u2028\\u3164"'),
    ],
    ids=ascii,
)
def test_a_name_stands_on_one_line_and_hides_nothing(name: bytes, shown: str):
    assert quoted(name) == shown


def test_what_is_too_long_or_not_kept_or_no_text_is_said_in_one_line():
    def shown(content: bytes | None, size: int) -> str:
        changes = ChangeSet((Change(b"f", None, FileState("file", 0o644, size, "x")),))
        return unified_diff(changes, lambda _path, _state, _limit: content).splitlines()[-1].strip()

    assert shown(b"text\n", MAX_FILE_BYTES) == "+text"
    assert shown(b"text\n", MAX_FILE_BYTES + 1) == f"too large to show: nothing → {MAX_FILE_BYTES + 1:,} bytes"
    assert shown(b"te\0xt\n", 6) == "binary: nothing → 6 bytes"
    assert shown(b"te\xffxt\n", 6) == "binary: nothing → 6 bytes"
    assert shown(None, 6) == "content no longer kept: nothing → 6 bytes"


def test_many_changes_end_in_their_names_and_the_rest_in_a_number():
    state = FileState("file", 0o644, 100_000, "x")
    changes = ChangeSet(tuple(Change(b"%03d" % number, None, state) for number in range(60)))
    diff = unified_diff(changes, lambda _path, _state, _limit: b"x" * 99_000 + b"\n")
    assert len(diff) < MAX_DIFF_BYTES + 5_000
    assert diff.count("\n+x") == 2
    shown, rest = diff.split("The rest is too long to show line by line:\n")
    assert shown.count("create ") == 2
    named = [f"create {number:03d} (100,000 bytes)" for number in range(2, 52)]
    assert rest.splitlines() == [*named, "… and 8 more changed paths"]
