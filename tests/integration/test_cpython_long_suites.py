"""The long ones of CPython's own suites pass inside a cell that may start processes and talk over its own loopback."""

import importlib.util
import sys
from pathlib import Path

import pytest

from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import ShellCommand, Supervisor
from handrail_cell.wire import Limits

pytestmark = [pytest.mark.walls, pytest.mark.slow]

ROOMY = Limits(
    wall_s=1800,
    cpu_s=1200,
    memory_bytes=2 << 30,
    processes=256,
    disk_bytes=512 << 20,
    file_bytes=512 << 20,
    open_files=1024,
)

NOT_FOR_A_CELL = {
    "test_user": "started by root it becomes user 65534; in a cell's user namespace there is one user",
}

# Named Unix sockets are refused in a cell: a file of the workspace may lead to a process of the host. The suites ask
# this helper whether they can be made, and it would ask the kernel when it is imported.
WITHOUT_NAMED_SOCKETS = (
    "import sys, unittest\n"
    "from test.support import socket_helper\n"
    "socket_helper._bind_nix_socket_error = OSError('no named Unix sockets in a cell')\n"
    "all_names = unittest.TestLoader.getTestCaseNames\n"
    "wanted = lambda loader, case: [n for n in all_names(loader, case) if not any(map(n.__contains__, {out}))]\n"
    "unittest.TestLoader.getTestCaseNames = wanted\n"
    "unittest.main(module=None, argv=sys.argv)\n"
)
ASYNCIO_NOT_FOR_A_CELL = {
    "_pty": "a cell has no pseudo-terminal to open",
    "test_create_datagram_endpoint_sock_unix": "makes a named Unix socket without asking whether one can be made",
    "test_create_unix_connection_pathlib": "the same",
    "test_create_unix_server_existing_path_nonsock": "the same",
    "test_create_unix_server_path_dgram": "the same",
}


def run(tmp_path: Path, *arguments: str) -> str:
    command = ShellCommand((sys.executable, *arguments))
    profile = SandboxProfile(workspace=str(tmp_path), access="write", exec=True, limits=ROOMY)
    with Supervisor() as supervisor:
        result = supervisor.run_sync(command, profile)
    text = result.output.decode("utf-8", "replace")
    assert result.exit_code == 0, (result.limit, text[-4000:])
    return text


@pytest.mark.skipif(importlib.util.find_spec("test.test_subprocess") is None, reason="this Python lacks its own tests")
def test_the_suite_of_subprocess_passes(tmp_path: Path) -> None:
    left_out = [word for name in NOT_FOR_A_CELL for word in ("--ignore", name)]
    assert "result: success" in run(tmp_path, "-m", "test", *left_out, "test_subprocess").lower()


@pytest.mark.skipif(importlib.util.find_spec("test.test_asyncio") is None, reason="this Python lacks its own tests")
def test_the_whole_suite_of_asyncio_passes(tmp_path: Path) -> None:
    program = WITHOUT_NAMED_SOCKETS.format(out=tuple(ASYNCIO_NOT_FOR_A_CELL))
    assert "OK" in run(tmp_path, "-c", program, "test.test_asyncio")
