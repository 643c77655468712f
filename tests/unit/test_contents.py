"""Blobs: what is counted is what is there, also after a writer was killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handrail import faults
from handrail.changes import beneath
from handrail.changes.contents import Blobs, StoreFull
from handrail.errors import ChangeError

LIMIT = 2500
PUT = "import sys; from handrail.changes.contents import Blobs; Blobs(sys.argv[1], int(sys.argv[2])).put(b'x' * 1000)"


def killed_while_writing(path: Path) -> int:
    """The status of a process that was killed when a content was written and not yet in its place."""
    environment = {**os.environ, "HANDRAIL_FAULT_KILL_AT": "contents:written"}
    return subprocess.run([sys.executable, "-c", PUT, str(path), str(LIMIT)], env=environment, check=False).returncode


def partials(path: Path) -> list[str]:
    return [name for name in os.listdir(path) if name.startswith("partial-")]


@pytest.mark.promise("changes:store:killed-writers-take-no-room")
def test_writers_that_were_killed_do_not_fill_the_store(tmp_path):
    path = tmp_path / "contents"
    assert [killed_while_writing(path) for _ in range(3)] == [-9, -9, -9]  # the third found room again
    blobs = Blobs(str(path), LIMIT)
    blobs.sweep()
    assert (blobs.bytes_in_use, partials(path)) == (0, [])
    blobs.put(b"y" * LIMIT)
    assert blobs.bytes_in_use == LIMIT
    blobs.close()


@pytest.mark.promise("changes:store:killed-writers-take-no-room")
def test_a_writer_that_lives_keeps_its_room_and_its_file(tmp_path):
    blobs = Blobs(str(tmp_path / "contents"), LIMIT)
    seen: list[int] = []

    def meanwhile(_: str) -> None:
        if not seen:
            seen.append(blobs.bytes_in_use)
            with pytest.raises(StoreFull):
                blobs.put(b"too much" * 250)
            blobs.sweep()
            seen.append(blobs.bytes_in_use)

    with faults.armed(meanwhile):
        name = blobs.put(b"x" * 1000)
    assert seen == [1000, 1000]
    assert (blobs.read(name, 2000), blobs.bytes_in_use) == (b"x" * 1000, 1000)
    blobs.close()


def test_a_write_that_fails_gives_its_room_back(tmp_path):
    blobs = Blobs(str(tmp_path / "contents"), 10 * beneath.CHUNK)
    unreadable = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    os.ftruncate(unreadable, 2 * beneath.CHUNK)
    with pytest.raises(ChangeError, match="cannot be written"):
        blobs.put_fd(unreadable)
    os.close(unreadable)
    assert (blobs.bytes_in_use, partials(tmp_path / "contents")) == (0, [])
    blobs.close()


def test_the_same_content_twice_is_kept_and_counted_once(tmp_path):
    blobs = Blobs(str(tmp_path / "contents"), LIMIT)

    def another_was_quicker(_: str) -> None:
        with faults.armed(lambda _: None):
            blobs.put(b"same")

    with faults.armed(another_was_quicker):
        first = blobs.put(b"same")
    assert (blobs.put(b"same"), blobs.bytes_in_use) == (first, 4)
    blobs.close()


def test_a_content_that_another_process_wrote_is_flushed_by_whoever_relies_on_it(tmp_path, monkeypatch):
    path = str(tmp_path / "contents")
    flushed: list[bytes] = []
    flush_name = beneath.flush_name
    monkeypatch.setattr(beneath, "flush_name", lambda fd, name: (flushed.append(name), flush_name(fd, name)))
    theirs, ours = Blobs(path, LIMIT), Blobs(path, LIMIT)
    name = theirs.put(b"x")
    assert ours.put(b"x") == name
    ours.flush([name, "0" * 64], whole=False)
    ours.flush([name], whole=False)
    assert flushed == [name.encode()]  # once, and not what is no longer here
    keep = os.open(path, os.O_RDONLY)
    os.link(name, "held", src_dir_fd=keep, dst_dir_fd=keep)  # so that its inode is not used again
    theirs.remove(name)
    theirs.put(b"x")
    ours.flush([name], whole=False)
    assert flushed == [name.encode()] * 2
    os.close(keep)
    theirs.close()
    ours.close()
