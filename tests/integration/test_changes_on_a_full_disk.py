"""A full disk, in the workspace or in the private store, leaves the workspace as it was."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "changes_kit" / "small_disk.py"


def run(place: Path, small: str, kib: int) -> dict:
    done = subprocess.run(
        ["unshare", "-Urm", sys.executable, str(PROGRAM), str(place), small, str(kib)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.walls
@pytest.mark.promise("changes:disk-full:as-it-was")
@pytest.mark.parametrize("small", ["workspace", "state"])
def test_a_full_disk_leaves_the_workspace_as_it_was_and_a_smaller_change_still_fits(tmp_path, small):
    answer = run(tmp_path, small, 400)
    assert "No space left" in answer["raised"]
    assert answer["same"]
    assert answer["again"] == ("fits now" if small == "workspace" else None)


@pytest.mark.walls
def test_the_same_commit_succeeds_where_there_is_room(tmp_path):
    assert run(tmp_path, "workspace", 4000) == {"raised": None, "same": False, "again": None}
