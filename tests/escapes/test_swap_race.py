"""Attack: a directory in the workspace is swapped for a link to outside, again and again, while tools work in it."""

import ctypes
import os
import threading
from pathlib import Path

import pytest

from handrail import AlwaysApprove, ToolExecutor, ToolRegistry, Workspace
from handrail.builtins import BUILTIN_PLUGINS
from handrail.changes.store import ChangeStore
from handrail.workspace import Engine

SWAPS = 10_000
AT_FDCWD = -100
RENAME_EXCHANGE = 2
LIBC = ctypes.CDLL(None, use_errno=True)  # a call through it gives the interpreter lock away: swaps go on meanwhile


def exchange(one: bytes, other: bytes) -> None:
    if LIBC.renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.slow
@pytest.mark.promise("guard:race:not-one-byte-outside")
@pytest.mark.parametrize("engine", ["openat2", "walk"])
def test_not_one_byte_outside_is_read_or_written_during_swaps(engine: Engine, tmp_path: Path) -> None:
    root, outside = tmp_path / "workspace", tmp_path / "outside"
    for directory, text in ((root / "d", "inside"), (outside, "SECRET")):
        directory.mkdir(parents=True)
        (directory / "f.txt").write_text(text)
    (root / "link").symlink_to(outside)
    assert (root / "link/f.txt").read_text() == "SECRET"  # the attack works for anybody who follows it

    workspace = Workspace(root, engine=engine)
    registry = ToolRegistry()
    for plugin in BUILTIN_PLUGINS:
        registry.register_plugin(plugin, only={"read", "write"} if plugin.name == "builtin" else None)
    store = ChangeStore(str(tmp_path / "state"), workspace)
    swapped, enough, turn = 0, threading.Event(), threading.Semaphore(0)

    def swap() -> None:
        nonlocal swapped
        one, other = os.fsencode(root / "d"), os.fsencode(root / "link")
        while swapped < SWAPS:
            exchange(one, other)
            swapped += 1
        # Where swaps are quick, no whole write falls between two of them: from here on, one for each pair of calls.
        while turn.acquire() and not enough.is_set():
            exchange(one, other)

    swapper = threading.Thread(target=swap)
    read_inside = refused = written = number = 0
    with store, ToolExecutor(registry, workspace=workspace, approver=AlwaysApprove(), changes=store) as executor:
        swapper.start()
        try:
            while swapped < SWAPS or (number < 5_000 and not (read_inside and refused and written)):
                number += 1
                if swapped >= SWAPS:
                    turn.release()
                outcome = executor.execute_sync("read", {"path": "d/f.txt"})
                assert "SECRET" not in outcome.text
                read_inside += outcome.status == "ok"
                refused += outcome.status == "error"
                outcome = executor.execute_sync("write", {"path": "d/f.txt", "content": f"inside {number}"})
                written += outcome.status == "ok"
        finally:
            enough.set()
            turn.release()
            swapper.join()
    assert swapped >= SWAPS
    assert [entry.name for entry in outside.iterdir()] == ["f.txt"]
    assert (outside / "f.txt").read_text() == "SECRET"
    assert min(read_inside, refused, written) > 0, (read_inside, refused, written, number)
