"""The file tools, through the corridor, on real files."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handrail import AlwaysApprove, Reason, Signal, ToolExecutor, ToolOutcome, ToolRegistry, Workspace
from handrail.builtins import BUILTIN_PLUGINS
from handrail.builtins._tree import entries_beneath
from small_keeper import SmallKeeper


class Corridor:
    def __init__(self, root: Path, store: Path) -> None:
        self.root = root
        workspace = Workspace(root)
        registry = ToolRegistry()
        for plugin in BUILTIN_PLUGINS:
            registry.register_plugin(plugin)
        keeper = SmallKeeper(workspace, store)
        self.executor = ToolExecutor(registry, workspace=workspace, approver=AlwaysApprove(), changes=keeper)

    def __call__(self, tool: str, **arguments: Any) -> ToolOutcome:
        return self.executor.execute_sync(tool, arguments)

    def ok(self, tool: str, **arguments: Any) -> str:
        outcome = self(tool, **arguments)
        assert outcome.status == "ok", outcome.text
        return outcome.text

    def fails(self, tool: str, **arguments: Any) -> str:
        outcome = self(tool, **arguments)
        assert (outcome.status, outcome.reason) == ("error", Reason.TOOL_ERROR), outcome
        assert "Traceback" not in outcome.text
        return outcome.text


@pytest.fixture
def call(tmp_path: Path) -> Iterator[Corridor]:
    root = tmp_path / "workspace"
    root.mkdir()
    corridor = Corridor(root, tmp_path / "store")
    yield corridor
    corridor.executor.close()


# ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_read_returns_the_exact_text(call: Corridor) -> None:
    (call.root / "a.txt").write_bytes("eins\r\nzwei ü\nlast".encode())
    assert call.ok("read", path="a.txt") == "eins\r\nzwei ü\nlast"


def test_read_pages_through_a_file_until_every_line_was_seen_once(call: Corridor) -> None:
    lines = [f"line {number}\n" for number in range(1, 4502)]
    (call.root / "a.txt").write_text("".join(lines))
    seen, offset = "", 1
    while True:
        text = call.ok("read", path="a.txt", offset=offset)
        page, marker, said = text.partition("\n[lines ")
        seen += page
        if not marker:
            break
        offset = int(said.rpartition("offset=")[2].rstrip("]"))
    assert seen == "".join(lines)


def test_read_stays_within_50_kb_and_2000_lines(call: Corridor) -> None:
    (call.root / "wide.txt").write_text("".join("x" * 999 + "\n" for _ in range(100)))
    (call.root / "long.txt").write_text("\n" * 5000)
    wide, long = call("read", path="wide.txt"), call("read", path="long.txt")
    assert len(wide.text.encode()) <= 50_000
    assert not wide.truncated
    assert wide.text.endswith("go on with offset=50]")
    assert long.text.endswith("[lines 1 to 2000 are shown and there is more; go on with offset=2001]")


@pytest.mark.parametrize("length", [48_999, 49_000, 49_001, 120_000])
def test_read_shows_the_start_of_a_line_longer_than_a_page_and_goes_on_after_it(call: Corridor, length: int) -> None:
    (call.root / "a.txt").write_text("ü" * (length // 2) + "y" * (length % 2) + "\nnext\n")
    text = call.ok("read", path="a.txt")
    assert "go on with offset=2]" in text
    assert call.ok("read", path="a.txt", offset=2) == "next\n"


def test_read_says_what_is_wrong_in_one_sentence(call: Corridor) -> None:
    (call.root / "d").mkdir()
    (call.root / "b.bin").write_bytes(b"a\0b")
    (call.root / "latin.txt").write_bytes("ü".encode("latin-1"))
    (call.root / "short.txt").write_text("one\ntwo")
    (call.root / "empty.txt").touch()
    assert call.fails("read", path="no.txt") == "no.txt does not exist."
    assert call.fails("read", path="d") == "d is a directory; use list to see what is in it."
    assert "binary file (3 bytes)" in call.fails("read", path="b.bin")
    assert "not UTF-8" in call.fails("read", path="latin.txt")
    assert call.fails("read", path="short.txt", offset=3) == "short.txt has 2 lines, so offset 3 is past its end."
    assert call.fails("read", path="short.txt", offset=99) == "short.txt has 2 lines, so offset 99 is past its end."
    assert call.ok("read", path="empty.txt") == "(empty.txt is empty)"
    assert call("read", path="short.txt", offset=0).reason is Reason.INVALID_ARGUMENTS


def test_read_leaves_out_a_byte_order_mark(call: Corridor) -> None:
    (call.root / "a.txt").write_bytes(b"\xef\xbb\xbfhello\n")
    assert call.ok("read", path="a.txt") == "hello\n"


# ── write, edit ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_write_makes_parents_and_keeps_the_mode_of_what_was_there(call: Corridor) -> None:
    call.ok("write", path="x/y/z.txt", content="new")
    assert (call.root / "x/y/z.txt").read_text() == "new"
    script = call.root / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    outcome = call("write", path="run.sh", content="new")
    assert outcome.text == "Wrote run.sh (3 bytes)."
    assert (script.read_text(), stat.S_IMODE(script.stat().st_mode)) == ("new", 0o750)
    assert outcome.changes is not None
    assert (outcome.changes.paths, outcome.changes.committed) == (("run.sh",), True)
    assert "-old" in outcome.changes.diff


def test_write_through_a_link_that_stays_inside_changes_the_file_and_keeps_the_link(call: Corridor) -> None:
    (call.root / "real.txt").write_text("old")
    (call.root / "link.txt").symlink_to("real.txt")
    call.ok("write", path="link.txt", content="new")
    assert (call.root / "link.txt").is_symlink()
    assert (call.root / "real.txt").read_text() == "new"


def test_write_says_what_stands_in_the_way(call: Corridor) -> None:
    (call.root / "d").mkdir()
    (call.root / "f").write_text("")
    assert call.fails("write", path="d", content="") == "d is a directory; write works on files."
    assert call("write", path="f/x", content="").status == "error"
    assert call.ok("write", path="f", content="") == "f holds exactly this already; nothing to change."


def test_edit_keeps_crlf_bom_and_the_missing_final_newline(call: Corridor) -> None:
    (call.root / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    edits = [{"old_text": "one\ntwo\n", "new_text": "1\n2\n"}, {"old_text": "three", "new_text": "3\n4"}]
    assert call.ok("edit", path="a.txt", edits=edits) == "Edited a.txt: 2 replacements."
    assert (call.root / "a.txt").read_bytes() == b"\xef\xbb\xbf1\r\n2\r\n3\r\n4"


def test_edit_leaves_the_file_alone_unless_every_edit_fits(call: Corridor) -> None:
    original = "alpha\nbeta\nbeta\naaa\n"
    (call.root / "a.txt").write_text(original)
    good = {"old_text": "alpha", "new_text": "x"}
    for bad, said in (
        ({"old_text": "gamma", "new_text": ""}, "Edit 2: its old_text is not in a.txt"),
        ({"old_text": "beta", "new_text": ""}, "Edit 2: its old_text is in a.txt more than once"),
        ({"old_text": "aa", "new_text": "b"}, "Edit 2: its old_text is in a.txt more than once"),
        ({"old_text": "lpha\n", "new_text": "b"}, "Edits 1 and 2 overlap"),
    ):
        assert call.fails("edit", path="a.txt", edits=[good, bad]).startswith(said)
        assert (call.root / "a.txt").read_text() == original


# ── list, find, grep ─────────────────────────────────────────────────────────────────────────────────────────────


def test_list_shows_kinds_and_names_that_are_not_utf_8(call: Corridor) -> None:
    (call.root / "dir").mkdir()
    (call.root / "file").touch()
    (call.root / "link").symlink_to("file")
    os.mkfifo(call.root / "pipe")
    (call.root / os.fsdecode(b"odd\xff")).touch()
    assert call.ok("list").splitlines() == ["dir/", "file", "link -> file", "odd\\xff", "pipe (special file)"]
    assert "empty directory" in call.ok("list", path="dir")
    assert "a part of this path is a file" in call.fails("list", path="file")


def lay_out_project(root: Path) -> None:
    (root / "src/deep").mkdir(parents=True)
    (root / "build").mkdir()
    (root / ".git").mkdir()
    for name in ("src/a.py", "src/deep/b.py", "src/deep/c.log", "src/keep.log", "build/d.py", ".git/e.py", "top.py"):
        (root / name).write_text(f"# in {name}\nneedle = '{name}'\n")
    (root / ".gitignore").write_text("build/\n*.log\n[\n")
    (root / "src/.gitignore").write_text("!keep.log\n")
    (root / "out").symlink_to("/")


def test_find_honours_gitignore_and_never_goes_through_links(call: Corridor) -> None:
    lay_out_project(call.root)
    assert call.ok("find", pattern="*.py").splitlines() == ["top.py", "src/a.py", "src/deep/b.py"]
    assert call.ok("find", pattern="src/*.{py,log}").splitlines() == ["src/a.py", "src/keep.log"]
    assert call.ok("find", pattern="**/[!a].py", path="src").splitlines() == ["src/deep/b.py"]
    assert call.ok("find", pattern="deep") == "src/deep/"
    assert call.ok("find", pattern="*.rs") == "(nothing matches '*.rs')"


def test_grep_names_path_and_line_and_leaves_out_what_is_ignored(call: Corridor) -> None:
    lay_out_project(call.root)
    (call.root / "bin").write_bytes(b"needle\0")
    assert call.ok("grep", pattern="^needle").splitlines() == [
        "top.py:2: needle = 'top.py'",
        "src/a.py:2: needle = 'src/a.py'",
        "src/keep.log:2: needle = 'src/keep.log'",
        "src/deep/b.py:2: needle = 'src/deep/b.py'",
    ]
    assert call.ok("grep", pattern="NEEDLE", ignore_case=True, glob="a.py") == "src/a.py:2: needle = 'src/a.py'"
    assert call.ok("grep", pattern="needle", path="build/d.py") == "build/d.py:2: needle = 'build/d.py'"
    assert call.ok("grep", pattern=r"\Aneedle", path="top.py") == "top.py:2: needle = 'top.py'"
    assert call.ok("grep", pattern=r"py\s*needle") == r"(no line matches 'py\\s*needle')"
    assert call.ok("grep", pattern=r"\Q'top.p", path="top.py") == "top.py:2: needle = 'top.py'"
    assert call.ok("grep", pattern="^x|^needle", path="top.py") == "top.py:2: needle = 'top.py'"
    assert "not a regular expression" in call.fails("grep", pattern="(?=x)")
    assert "not a regular expression" in call.fails("grep", pattern="a)|(b")


def test_a_walk_passes_over_a_directory_that_became_a_link_to_outside(tmp_path: Path) -> None:
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "b" / "secret").touch()
    root = tmp_path / "workspace"
    (root / "a" / "b" / "c").mkdir(parents=True)
    (root / "z").touch()
    with Workspace(root) as workspace:
        unread: list[bytes] = []
        walk = entries_beneath(workspace, b".", Signal(), unread)
        seen = [next(walk).path for _ in range(3)]
        (root / "a").rename(tmp_path / "was-a")
        (root / "a").symlink_to("../outside")
        assert [*seen, *(entry.path for entry in walk)] == [b"a", b"z", b"a/b"]
        assert unread == []


def test_find_and_grep_say_that_they_could_not_see_everything(call: Corridor) -> None:
    deep = os.open(call.root, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(20):  # beyond the 4096 bytes that one path may have
        os.mkdir("d" * 250, dir_fd=deep)
        above, deep = deep, os.open("d" * 250, os.O_RDONLY | os.O_DIRECTORY, dir_fd=deep)
        os.close(above)
    os.mkdir("needle", dir_fd=deep)
    os.close(deep)
    note = r"\[1 entry could not be read, such as d+…\]$"
    assert re.match(r"\(nothing matches 'needle'\)\n" + note, call.ok("find", pattern="needle"))
    assert re.match(r"\(no line matches 'needle'\)\n" + note, call.ok("grep", pattern="needle"))


# ── move, delete, mkdir ──────────────────────────────────────────────────────────────────────────────────────────


def test_move_delete_and_mkdir_do_what_they_say(call: Corridor) -> None:
    call.ok("mkdir", path="a/b")
    assert (call.root / "a/b").is_dir()
    assert call.ok("mkdir", path="a/b") == "a/b exists already."
    (call.root / "a/b/f").write_text("x")
    (call.root / "a/l").symlink_to("b/f")
    assert call.ok("move", source="a", destination="n/m") == "Moved a to n/m with everything in it (3)."
    assert (call.root / "n/m/b/f").read_text() == "x"
    assert os.readlink(call.root / "n/m/l") == "b/f"
    assert not (call.root / "a").exists()
    assert "cannot be moved" in call.fails("move", source="n", destination="n/x")
    assert "exists already" in call.fails("move", source="n/m/b/f", destination="n/m/l")
    assert "say recursive" in call.fails("delete", path="n")
    call.ok("delete", path="n/m/l")
    assert (call.root / "n/m/b/f").exists()
    assert call.ok("delete", path="n", recursive=True) == "Deleted n and the 3 entries in it."
    assert list(call.root.iterdir()) == []
    assert call.fails("delete", path="n") == "n does not exist."
    assert call("delete", path=".").reason is Reason.PATH_REFUSED
