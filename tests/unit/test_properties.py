"""Properties over many random inputs: the decoder, the walk beneath a workspace, edit."""

import ctypes
import errno
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handrail import PathEscape, PathUnusable, ToolDef, ToolError, Workspace
from handrail.builtins.edit import replaced
from handrail.guard import FilesystemGuard
from handrail.schema import MAX_DEPTH, ArgumentsInvalid, decode_json
from handrail.workspace import Engine

MODEST = settings(deadline=None, max_examples=80)

# The characters that matter to a reader of JSON; drawing from all of Unicode takes most of a test's time.
TEXTS = st.text('ab"\\/\b\n\t\x00\x7fé\u2028\ufeff\uffff\U0001f600', max_size=6)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.promise("decoder:agrees-with-json")
@MODEST
@given(json_values, st.booleans())
def test_what_is_json_decodes_to_what_json_says(value: Any, escaped: bool) -> None:
    text = json.dumps(value, ensure_ascii=escaped)
    assert decode_json(text) == json.loads(text)


def breaks_a_rule(value: Any, depth: int = 0) -> bool:
    if depth > MAX_DEPTH:
        return True
    if isinstance(value, list):
        return any(breaks_a_rule(item, depth + 1) for item in value)
    if isinstance(value, Pairs):
        keys = [key for key, _ in value.pairs]
        return (
            len(set(keys)) < len(keys)
            or any(breaks_a_rule(key) for key in keys)
            or any(breaks_a_rule(item, depth + 1) for _, item in value.pairs)
        )
    if isinstance(value, float):
        return value != value or value in (float("inf"), float("-inf"))
    return isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value)


class Pairs:
    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


FRAGMENTS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"a"',
    '"b"',
    "1",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "true",
    '"\\ud800"',
    " ",
]


@pytest.mark.promise("decoder:refuses-what-two-readers-read-differently")
@MODEST
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
@example('{"a":1,"a":2}')
@example('[{"a":[1e999]}]')
@example('{"\\ud800":1}')
@example("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
@example("[" * MAX_DEPTH + "]" * MAX_DEPTH)
@example("[" * 100_000)
def test_a_text_is_accepted_exactly_when_it_is_json_and_breaks_no_rule(text: str) -> None:
    try:
        plain, valid = json.loads(text, object_pairs_hook=Pairs), True
    except (ValueError, RecursionError):
        plain, valid = None, False
    try:
        decode_json(text)
        accepted = True
    except ArgumentsInvalid:
        accepted = False
    assert accepted == (valid and not breaks_a_rule(plain))


NAMES = st.sampled_from(["a", "b", "c", "d"])
PIECES = st.sampled_from(["a", "b", "c", "d", "..", ".", ""])
PATHS = st.lists(PIECES, min_size=1, max_size=6).map("/".join).filter(bool)
TARGETS = PATHS | st.sampled_from(["/", "/etc", "..", "../outside", "../../etc/passwd", "/proc/self/root"])
FLAGS = st.sampled_from([os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_RDONLY])
STEPS = st.lists(st.tuples(st.sampled_from(["dir", "file", "link"]), st.lists(NAMES, min_size=1, max_size=3), TARGETS))


def lay_out(root: Path, steps: list[tuple[str, list[str], str]]) -> None:
    for kind, names, target in steps:
        place = root
        for name in names[:-1]:
            place /= name
            if not place.is_symlink() and not place.exists():
                place.mkdir()
            if place.is_symlink() or not place.is_dir():
                break
        else:
            place /= names[-1]
            if os.path.lexists(place):
                continue
            if kind == "dir":
                place.mkdir()
            elif kind == "file":
                place.write_text("inside")
            else:
                place.symlink_to(target)


def answer(workspace: Workspace, path: str, flags: int) -> tuple[str, int]:
    """Where a path leads: the inode that was opened, or how it was refused."""
    try:
        fd = workspace.open(path, flags)
    except (PathEscape, PathUnusable) as error:
        return type(error).__name__, 0
    except OSError as error:
        return "os", error.errno or 0
    try:
        return "opened", os.fstat(fd).st_ino
    finally:
        os.close(fd)


@pytest.mark.promise("guard:walk:agrees-with-the-kernel")
@settings(deadline=None, max_examples=60)
@given(
    STEPS, st.lists(PATHS, min_size=1, max_size=6), st.sampled_from([os.O_PATH, os.O_PATH | os.O_NOFOLLOW, os.O_RDONLY])
)
def test_both_engines_lead_to_the_same_place_and_never_outside(
    steps: list[tuple[str, list[str], str]], paths: list[str], flags: int
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "workspace")
        root.mkdir()
        Path(directory, "outside").mkdir()
        lay_out(root, steps)
        inside = {entry.stat(follow_symlinks=False).st_ino for entry in root.rglob("*")} | {root.stat().st_ino}
        with Workspace(root, engine="openat2") as kernel, Workspace(root, engine="walk") as ours:
            for path in paths:
                expected = answer(kernel, path, flags)
                assert answer(ours, path, flags) == expected
                assert expected[0] != "opened" or expected[1] in inside


OPENAT2 = 437  # the same number on every architecture
NO_MAGICLINKS, BENEATH = 0x02, 0x08


def kernel_verdict(root: int, path: str) -> int:
    """The inode where the kernel itself leads, beneath ``root``; the negative errno where it refuses."""
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, NO_MAGICLINKS | BENEATH)
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        return -ctypes.get_errno()
    try:
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def guard_verdict(guard: FilesystemGuard, paths: dict[str, str]) -> dict[str, int] | None:
    """The inode of each path, by both names the guard gives it; ``None`` where the guard refuses the call."""
    definition = ToolDef("probe", "", {"type": "object", "properties": {name: {"type": "string"} for name in paths}})
    definition = definition.with_(path_args=tuple(paths))
    try:
        guarded = guard.check(definition, dict(paths))
    except (PathEscape, PathUnusable):
        return None
    found = {name: os.stat(path).st_ino for name, path in guarded.arguments.items()}
    assert found == {name: os.stat(path, follow_symlinks=False).st_ino for name, path in guarded.resolved.items()}
    return found


@pytest.mark.promise("guard:verdict:agrees-with-the-kernel")
@settings(deadline=None, max_examples=60)
@given(STEPS, st.lists(PATHS, min_size=1, max_size=8), st.sampled_from(["openat2", "walk"]))
@example([("link", ["a"], "../outside")], ["a", "a/secret"], "walk")
@example([("dir", ["a"], ""), ("link", ["a", "b"], ".."), ("link", ["c"], "a/b")], ["c", "c/a/b", "c/.."], "walk")
@example([("link", ["a"], "b"), ("link", ["b"], "a")], ["a", "b/c"], "openat2")
@example([("file", ["a"], ""), ("link", ["b"], "a")], ["a", "b", "a/c", "b/."], "openat2")
def test_the_guards_verdict_is_the_kernels_own(
    steps: list[tuple[str, list[str], str]], paths: list[str], engine: Engine
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "workspace")
        root.mkdir()
        Path(directory, "outside").mkdir()
        Path(directory, "outside/secret").touch()
        lay_out(root, steps)
        with Workspace(root, engine=engine) as workspace:
            guard = FilesystemGuard(workspace)
            kernel = {f"p{number}": kernel_verdict(workspace.fd, path) for number, path in enumerate(paths)}
            kernel = {name: verdict for name, verdict in kernel.items() if verdict != -errno.ENOENT}
            named = {name: paths[int(name[1:])] for name in kernel}
            for name, path in named.items():
                expected = {name: kernel[name]} if kernel[name] > 0 else None
                assert guard_verdict(guard, {name: path}) == expected
            every = kernel if all(verdict > 0 for verdict in kernel.values()) else None
            assert guard_verdict(guard, named) == every


@pytest.mark.promise("edit:exact:only-the-matches-change")
@MODEST
@given(
    st.lists(st.sampled_from(["one", "two", "three", "ü", " ", "", "x"]), min_size=1, max_size=8),
    st.lists(st.sampled_from(["\n", "\r\n"]), min_size=8, max_size=8),
    st.booleans(),
    st.integers(0, 7),
    st.text("ab\n", max_size=4),
)
def test_edit_changes_what_it_matched_and_keeps_every_other_byte(
    words: list[str], ends: list[str], bom: bool, chosen: int, new: str
) -> None:
    lines = [f"{number}{word}{end}" for number, (word, end) in enumerate(zip(words, ends, strict=False))]
    original = ("\ufeff" if bom else "") + "".join(lines)
    chosen %= len(lines)
    old = f"{chosen}{words[chosen]}\n"
    if original.replace("\r\n", "\n").count(old) != 1:
        with pytest.raises(ToolError):
            replaced(original, [(old, new)])
        return
    result = replaced(original, [(old, new)])
    before = ("\ufeff" if bom else "") + "".join(lines[:chosen])
    after = "".join(lines[chosen + 1 :])
    assert result == before + new.replace("\n", ends[chosen]) + after


@MODEST
@given(st.text("ab\n", max_size=12), st.lists(st.tuples(st.text("ab\n", min_size=1, max_size=3), st.text("xy"))))
def test_edit_applies_all_or_nothing_and_agrees_with_replacing_one_by_one(
    original: str, edits: list[tuple[str, str]]
) -> None:
    places = [(original.find(old), original.find(old) + len(old)) for old, _ in edits]
    once = all(original.find(old) >= 0 and original.find(old, original.find(old) + 1) < 0 for old, _ in edits)
    apart = all(a[1] <= b[0] or b[1] <= a[0] for i, a in enumerate(places) for b in places[i + 1 :])
    try:
        result: str | None = replaced(original, edits)
    except ToolError:
        result = None
    if not (once and apart):
        assert result is None
        return
    expected, by_place = original, sorted(zip(places, edits, strict=True), reverse=True)
    for (start, end), (_, new) in by_place:
        expected = expected[:start] + new + expected[end:]
    assert result == expected
