"""CPython's own suites pass inside a cell that may start processes: the walls do not bend what they hold."""

import importlib.util
import sys
from pathlib import Path

import pytest

from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import ShellCommand, Supervisor
from handrail_cell.wire import Limits

pytestmark = [pytest.mark.walls, pytest.mark.slow]

ROOMY = Limits(
    wall_s=900,
    cpu_s=600,
    memory_bytes=2 << 30,
    processes=256,
    disk_bytes=512 << 20,
    file_bytes=512 << 20,
    open_files=1024,
)


@pytest.mark.parametrize("suite", ["test_json", "test_tempfile", "test_threading"])
def test_a_suite_of_cpython_passes(suite: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(f"test.{suite}") is None:
        pytest.skip("this Python comes without its own tests")
    command = ShellCommand((sys.executable, "-m", "test", suite))
    profile = SandboxProfile(workspace=str(tmp_path), access="write", exec=True, limits=ROOMY)
    with Supervisor() as supervisor:
        result = supervisor.run_sync(command, profile)
    text = result.output.decode("utf-8", "replace")
    assert result.exit_code == 0, text[-4000:]
    assert "result: success" in text.lower()
