"""Fault points: silent unless armed, counted over the whole process."""

import os
import signal
import subprocess
import sys

from handrail import faults

PROGRAM = "from handrail import faults\nfor name in 'abc':\n    faults.point(name)\nprint('survived')\n"


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_an_unarmed_point_does_nothing():
    faults.point("nobody.listens")


def test_a_hook_hears_points_only_within_its_block():
    heard: list[str] = []
    with faults.armed(heard.append):
        faults.point("inside")
    faults.point("outside")
    assert heard == ["inside"]


def test_the_process_is_killed_at_the_counted_point(tmp_path):
    trace = tmp_path / "trace"
    assert run(HANDRAIL_FAULT_KILL_AT="2", HANDRAIL_FAULT_TRACE=str(trace)).returncode == -signal.SIGKILL
    assert trace.read_text().split() == ["a", "b"]


def test_the_process_is_killed_at_the_named_point_and_survives_a_number_never_reached():
    assert run(HANDRAIL_FAULT_KILL_AT="c").returncode == -signal.SIGKILL
    assert run(HANDRAIL_FAULT_KILL_AT="4").stdout == "survived\n"
