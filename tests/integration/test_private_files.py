"""What Handrail keeps for itself is closed to others and open to its owner, whatever the umask says."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, os, sys
os.umask(int(sys.argv[1], 8))
from handrail.agent.transcript import FileTranscripts
from handrail.approval.inbox import _secret
from handrail.output import spill
from handrail.wiring import Settings, open_house

with open_house(Settings(workspace="work", plugins=("write", "read"), approve="park", door="cli")) as house:
    held = asyncio.run(house.executor.execute("write", {"path": "new/a.txt", "content": "hello"}))
    assert held.status == "pending", held
with open_house(Settings(workspace="work", plugins=("write", "bash"), approve="always", door="cli")) as house:
    done = asyncio.run(house.executor.execute("write", {"path": "new/b.txt", "content": "hello"}))
    assert done.status == "ok", done
    said = asyncio.run(house.executor.execute("bash", {"command": "echo hi > c.txt && cat new/b.txt"}))
    assert (said.status, said.text.strip()) == ("ok", "hello"), said
FileTranscripts("state/deep/below/runs").create("a" * 32).close()
_secret("state/deep/secret")
spill("state/deep/other/outputs", b"whole")
"""


@pytest.mark.parametrize("umask", ["0777", "0", "022"])
def test_what_is_kept_is_for_its_owner_alone_whatever_the_umask_says(tmp_path: Path, umask: str) -> None:
    (tmp_path / "work").mkdir()
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    environment |= {name: str(state / "not" / "there") for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, umask], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kept = [path for path in state.rglob("*") if not path.is_symlink()]
    assert len(kept) > 15, kept
    for path in kept:
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert (tmp_path / "work" / "new" / "b.txt").read_text() == "hello"
    assert (tmp_path / "work" / "c.txt").read_text() == "hi\n"
