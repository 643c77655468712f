"""A kernel that really refuses an overlay: the call works on a copy, or is refused with both reasons."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from changes_kit.places import quick_directory

PROGRAM = Path(__file__).parent.parent / "changes_kit" / "refused_overlay.py"
APART = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-mc", "--keep-caps"]


@pytest.mark.walls
@pytest.mark.promise("changes:copy:where-no-overlay")
@pytest.mark.promise("changes:copy:limited")
def test_where_the_kernel_refuses_an_overlay_a_call_is_copied_or_refused_and_never_runs_unstaged():
    with quick_directory(for_cells=True) as base:
        done = subprocess.run([*APART, sys.executable, str(PROGRAM), str(base)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    assert answer["refused"]["status"] == "error"
    assert "there can be no overlay here (" in answer["refused"]["text"]
    assert "more than 1 names, too many to be copied" in answer["refused"]["text"]
    assert answer["copied"]["status"] == "ok", answer
    assert answer["left"] == {"a": "a and more"}
