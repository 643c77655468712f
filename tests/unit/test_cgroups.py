"""A control group around a cell, where one is delegated: found by rules, bounded by the kernel, gone afterwards."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from handrail.sandbox import cgroups
from handrail.sandbox.cgroups import Absence, Delegation, find_delegation, is_delegated, path_of_group
from handrail.sandbox.ending import Leavings, Verdict, Watched, limit_met
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import ShellCommand, Supervisor
from handrail_cell.wire import Limits

WHOLE = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
PART = "30 24 0:26 /docker/x /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n"
OLD = "31 24 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n"


@pytest.mark.parametrize(
    ("membership", "mounts", "path"),
    [
        ("0::/user.slice/app.scope\n", WHOLE, "/sys/fs/cgroup/user.slice/app.scope"),
        ("4:pids:/x\n0::/\n", OLD + WHOLE, "/sys/fs/cgroup"),
        ("0::/docker/x/y\n", PART, "/sys/fs/cgroup/y"),
        ("0::/docker/x\n", PART, "/sys/fs/cgroup"),
        ("0::/elsewhere\n", PART, None),
        ("0::/docker/xylophone\n", PART, None),
        ("0::/a\n", OLD, None),
        ("4:pids:/x\n", WHOLE, None),
        ("0::/../outside\n", OLD, None),
    ],
)
def test_the_directory_of_a_group_is_found_through_the_mount_that_shows_it(membership, mounts, path):
    assert path_of_group(membership, mounts) == path


def test_root_divides_only_what_is_marked_as_delegated(tmp_path: Path):
    (tmp_path / "cgroup.procs").touch()
    assert not is_delegated(str(tmp_path), root=True)
    assert is_delegated(str(tmp_path), root=False)
    os.setxattr(tmp_path, "user.delegate", b"1")
    assert is_delegated(str(tmp_path), root=True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that behave as a group's: a new directory has its files, and is removed with them."""
    really_make, really_remove = os.mkdir, os.rmdir

    def make(name: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        really_make(name, mode, dir_fd=dir_fd)
        inside = os.open(name, os.O_RDONLY, dir_fd=dir_fd)
        files = {"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "pids.max": "max"}
        files |= {"cgroup.procs": "", "cgroup.kill": "", "cgroup.events": "populated 0\nfrozen 0\n"}
        files |= {"cpu.stat": "usage_usec 2500000\nuser_usec 1\n", "memory.events": "max 3\noom 1\noom_kill 0\n"}
        files |= {"pids.events": "max 0\n"}
        for file, text in files.items():
            with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=inside), "w") as opened:
                opened.write(text)
        os.close(inside)

    def remove(name: str, *, dir_fd: int | None = None) -> None:
        inside = os.open(name, os.O_RDONLY, dir_fd=dir_fd)
        for file in os.listdir(inside):
            os.unlink(file, dir_fd=inside)
        os.close(inside)
        really_remove(name, dir_fd=dir_fd)

    monkeypatch.setattr(cgroups.os, "mkdir", make)
    monkeypatch.setattr(cgroups.os, "rmdir", remove)
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids\n")
    return tmp_path


@pytest.mark.promise("cell:cgroup:bounds-the-whole-cell")
def test_a_cage_has_the_limits_of_its_call_and_tells_which_was_met(tree: Path):
    delegation = Delegation.take(str(tree))
    assert delegation.controllers == ("memory", "pids")
    cage = delegation.cage(Limits(memory_bytes=5_000_000, processes=7))
    (group,) = (entry for entry in tree.iterdir() if entry.is_dir())
    written = {
        name: (group / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max")
    }
    assert written == {
        "memory.max": "5000000",
        "memory.swap.max": "0ax",  # the kernel replaces, this file is overwritten from its start
        "memory.oom.group": "1",
        "pids.max": "7ax",
    }
    cage.admit(4711)
    assert (group / "cgroup.procs").read_text() == "4711"
    assert (cage.cpu_s(), cage.memory_met(), cage.processes_met()) == (2.5, False, False)
    (group / "memory.events").write_text("oom 2\noom_kill 1\n")
    (group / "pids.events").write_text("max 9\n")
    assert (cage.memory_met(), cage.processes_met()) == (True, True)
    assert cage.evidence == "memory.max, memory.swap.max, pids.max, cgroup.kill at the end"
    cage.close()
    cage.close()
    delegation.close()
    assert not group.exists()


def test_what_a_dead_host_left_behind_is_removed_and_what_a_living_one_uses_is_not(tree: Path):
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    for pid in (gone.pid, os.getpid()):
        cgroups.os.mkdir(str(tree / f"handrail-{pid}-0"))
    Delegation.take(str(tree)).close()
    assert [entry.name for entry in tree.iterdir() if entry.is_dir()] == [f"handrail-{os.getpid()}-0"]


def test_a_directory_that_is_no_group_is_said_to_be_none(tmp_path: Path):
    found = find_delegation(str(tmp_path / "missing"))
    assert isinstance(found, Absence)
    assert "No such file" in found.reason


def test_a_cell_that_its_group_ended_for_memory_met_its_memory_limit():
    ended = Verdict(9, 0.1)
    assert limit_met(Limits(), ended, Leavings(), Watched(memory_met=True)) == "memory"
    assert limit_met(Limits(), ended, Leavings(), Watched()) is None


# -- in the kernel's own tree


@pytest.fixture
def real() -> str:
    """A group of our own beneath ours. The few things that every group can do are enough here."""
    own = cgroups.own_group()
    if own is None or os.geteuid() != 0 or not os.access(own, os.W_OK):
        pytest.skip("needs root and the tree of control groups of version 2")
    path = f"{own}/test-{os.getpid()}"
    os.mkdir(path)
    yield path
    os.rmdir(path)  # fails while any cell's group is left in it


def in_group(path: str) -> list[str]:
    """Processes in the groups beneath a group."""
    found: list[str] = []
    for name in os.listdir(path):
        if name.startswith("handrail-"):
            found += Path(path, name, "cgroup.procs").read_text().split()
    return found


@pytest.mark.promise("cell:cgroup:gone-with-its-cell")
def test_a_command_lives_in_a_group_of_its_own_which_is_gone_with_it(real: str):
    profile = SandboxProfile(exec=True, limits=Limits(wall_s=120))
    members: list[str] = []
    with Supervisor(cgroup=real) as supervisor:

        def look(_: bytes) -> None:
            members.extend(in_group(real))
            gate = os.open(f"/proc/{members[0]}/root/tmp/gate", os.O_WRONLY)
            os.write(gate, b"go on\n")
            os.close(gate)

        line = "mkfifo /tmp/gate; setsid sleep 1000 & sleep 1000 & echo started; read word < /tmp/gate"
        result = supervisor.run_sync(ShellCommand(("/bin/sh", "-c", line)), profile, on_output=look)
        assert result.exit_code == 0
        assert len(members) >= 4  # init, the shell, and what it started
        assert result.report.state_of("cgroup") == "active"
        ended = time.monotonic() + 60
        while os.listdir(real) and any(name.startswith("handrail-") for name in os.listdir(real)):
            assert time.monotonic() < ended
            select.select([], [], [], 0.01)


def test_a_call_goes_on_where_its_group_cannot_be_made(real: str):
    profile = SandboxProfile(exec=True)
    with Supervisor(cgroup=real) as supervisor:
        Path(real, "cgroup.max.descendants").write_text("0")
        result = supervisor.run_sync(ShellCommand(("/bin/echo", "on")), profile)
    assert (result.output, result.report.state_of("cgroup")) == (b"on\n", "unavailable")
