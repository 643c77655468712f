"""Attack: a directory in the workspace is swapped for a link to outside, again and again, while tools work in it."""

import ctypes
import os
import threading
from pathlib import Path

import pytest

from handrail import AlwaysApprove, ToolExecutor, ToolRegistry, Workspace
from handrail.builtins import BUILTIN_PLUGINS
from handrail.workspace import Engine
from small_keeper import SmallKeeper

SWAPS = 10_000
AT_FDCWD = -100
RENAME_EXCHANGE = 2


def exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) != 0:
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
    keeper = SmallKeeper(workspace, tmp_path / "store")
    swapped, stop = 0, threading.Event()

    def swap() -> None:
        nonlocal swapped
        while swapped < SWAPS and not stop.is_set():
            exchange(root / "d", root / "link")
            swapped += 1

    swapper = threading.Thread(target=swap)
    read_inside = refused = 0
    with ToolExecutor(registry, workspace=workspace, approver=AlwaysApprove(), changes=keeper) as executor:
        swapper.start()
        try:
            number = 0
            while swapper.is_alive():
                number += 1
                outcome = executor.execute_sync("read", {"path": "d/f.txt"})
                assert "SECRET" not in outcome.text
                read_inside += outcome.status == "ok"
                refused += outcome.status == "error"
                assert executor.execute_sync("write", {"path": "d/f.txt", "content": f"inside {number}"}).text
        finally:
            stop.set()
            swapper.join()
    assert swapped == SWAPS
    assert [entry.name for entry in outside.iterdir()] == ["f.txt"]
    assert (outside / "f.txt").read_text() == "SECRET"
    assert read_inside + refused > 0
