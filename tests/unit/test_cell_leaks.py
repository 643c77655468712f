"""A thousand calls, some of them crashing, leave everything where it was."""

import os
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import InlineCode, ShellCommand, Supervisor
from handrail_cell.wire import Limits
from handrail_cell.zygote import REHEARSALS

POOL = 2  # and never more, so that as many are parked afterwards as before
FEW = 16

CALLS = (
    InlineCode("result = 1"),
    InlineCode("import ctypes; ctypes.string_at(0)"),
    InlineCode("import os; os._exit(3)"),
    InlineCode("raise SystemExit('x' * 100)"),
    InlineCode("1 / 0"),
    InlineCode("open('/tmp/f', 'wb').write(bytes(100000)); print('x' * 10000)"),
)
COMMAND = ShellCommand(("/bin/sh", "-c", "sleep 1000 & (setsid sleep 1000 &) ; kill -9 $$"))


@pytest.fixture
def own_temporary_directory(tmp_path, monkeypatch) -> Path:
    """Temporary files of this test's own process go where no test beside it makes any."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


def standing(supervisor: Supervisor) -> dict[str, int]:
    """What could leak: descriptors of host, keeper and zygote; their children and zombies; mounts; temporary files."""
    with open("/proc/self/mountinfo", "rb") as file:
        found = {"host": len(os.listdir("/proc/self/fd")), "mounts": len(file.readlines())}
    children = psutil.Process().children(recursive=True)
    found["zombies"] = sum(child.status() == psutil.STATUS_ZOMBIE for child in children)
    keepers = [child for child in children if child.ppid() == os.getpid()]
    for keeper in keepers:
        found["keeper"] = _descriptors(keeper)
        (zygote,) = keeper.children()
        found["zygote"] = _descriptors(zygote)
    found["processes"] = len(children)
    found["temporary files"] = len(os.listdir(tempfile.gettempdir()))
    return found


def _descriptors(process: psutil.Process) -> int:
    """How many are open, but for the namespaces that a warm parent keeps to lend to its next cells: those are few,
    however many calls there were. None counted where an ordinary user may not look into a process that gave up its
    rights.
    """
    try:
        names = os.listdir(f"/proc/{process.pid}/fd")
    except PermissionError:
        assert os.geteuid() != 0
        return 0
    kept = sum(_target(f"/proc/{process.pid}/fd/{name}").startswith(("net:", "ipc:")) for name in names)
    assert kept <= 2 * FEW
    return len(names) - kept


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""


def settled(supervisor: Supervisor, profile: SandboxProfile, like: dict[str, int] | None = None) -> dict[str, int]:
    """Wait until the pool is full again and what was used is closed, then count."""
    deadline = time.monotonic() + 60
    while True:
        now = standing(supervisor) if supervisor.idle(profile) else None
        if now is not None and (like is None or now == like):
            return now
        if time.monotonic() > deadline:
            return now or standing(supervisor)
        time.sleep(0.02)


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may not look into a process that gave up its rights")
@pytest.mark.parametrize("access", ["none", "read"])
def test_a_warm_parent_keeps_nothing_of_its_rehearsals(tmp_path, access):
    profile = SandboxProfile(workspace=str(tmp_path) if access == "read" else None, access=access)
    with Supervisor(pool_size=POOL, pool_most=POOL) as supervisor:
        others = psutil.Process().children()
        supervisor.warm(profile)
        (keeper,) = (child for child in psutil.Process().children() if child not in others)
        (zygote,) = keeper.children()
        with open(f"/proc/{zygote.pid}/mountinfo", encoding="ascii") as file:
            places = [line.split()[4] for line in file]
        held = [_target(f"/proc/{zygote.pid}/fd/{name}") for name in os.listdir(f"/proc/{zygote.pid}/fd")]
        with open(f"/proc/{zygote.pid}/status", encoding="ascii") as file:
            status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        where = os.readlink(f"/proc/{zygote.pid}/cwd")
    assert (places.count("/proc"), places.count("/tmp")) == (1, 0)
    assert where == "/"
    assert len(held) < FEW + REHEARSALS // 2, held
    assert int(status["CapEff"], 16) != 0  # it goes on to build cells
    assert status["Seccomp_filters"].strip() == "1"


@pytest.mark.walls
@pytest.mark.slow
@pytest.mark.promise("cell:leaks:thousand-calls-leave-nothing")
def test_a_thousand_calls_leave_descriptors_zombies_mounts_files_and_memory_where_they_were(
    tmp_path, own_temporary_directory
):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with Supervisor(pool_size=POOL, pool_most=POOL) as supervisor:
        profile = SandboxProfile(workspace=str(workspace), access="stage", limits=Limits(wall_s=60))
        for call in CALLS:
            supervisor.run_sync(call, profile)
        before = settled(supervisor, profile)
        memory = psutil.Process().memory_info().rss
        for number in range(1000):
            result = supervisor.run_sync(COMMAND if number % 50 == 0 else CALLS[number % len(CALLS)], profile)
            if result.staged is not None:
                result.staged.close()
        assert settled(supervisor, profile, before) == before
        assert psutil.Process().memory_info().rss - memory < 4 << 20
        assert os.listdir(workspace) == []
