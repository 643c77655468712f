"""What this machine can give: found by trying, not by reading versions.

:func:`probe` builds a cell of each tier and lets code inside try to break out in simple ways. What it says is evidence
from this kernel, as this user, now.
"""

import functools
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from typing import Any

from handrail.errors import SandboxError
from handrail.sandbox.cgroups import Absence, Delegation, find_delegation
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.staging_probe import probe_staging
from handrail.sandbox.supervisor import CellResult, InlineCode, Supervisor
from handrail_cell import _libc, landlock
from handrail_cell.wire import Limits, Protection, State, Tier

TRIAL = r"""
import ctypes, errno, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(call):
    try:
        call()
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "allowed"
def raw(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), "")
def unshare(flag):
    if libc.unshare(flag) < 0:
        raise OSError(ctypes.get_errno(), "")
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
result = {
    "socket": tried(lambda: socket.socket().close()),
    "vsock": tried(lambda: socket.socket(40, socket.SOCK_STREAM).close()),
    "unshare": tried(lambda: unshare(0x10000000)),
    "write /": tried(lambda: os.mkdir("/probe")),
    "read /": tried(lambda: os.listdir("/")),
    "root": tried(lambda: os.listdir("/root/.ssh")),
    "fork": tried(os.fork),
    "kill host": tried(lambda: os.kill(input_data["host"], 0)),
    "uid": os.getuid(),
    "capabilities": status["CapEff"].strip(),
    "no_new_privs": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "filters": status.get("Seccomp_filters", "?").strip(),
    "descriptors": sorted(int(n) for n in os.listdir("/proc/self/fd"))[:-1],
}
"""

SETTINGS = (
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        (
            "AppArmor takes capabilities away in user namespaces: add an AppArmor profile with 'userns,' for this "
            "interpreter, or set kernel.apparmor_restrict_unprivileged_userns=0"
        ),
    ),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "set kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "set user.max_user_namespaces to some thousands"),
)
CONTAINER = (
    "a container's own filter forbids user namespaces: start it with a seccomp profile that allows clone, unshare, "
    "mount and pivot_root (Docker: --security-opt seccomp=FILE, and systempaths=unconfined for a fresh /proc)"
)


@dataclass(frozen=True, slots=True)
class MachineReport:
    """What cells on this machine get. ``tier`` is the best that was really built; ``none`` when no cell could be."""

    tier: Tier
    system: str
    protections: tuple[Protection, ...]

    def state_of(self, name: str) -> State:
        """The state of one protection; ``unavailable`` when it was never mentioned."""
        for item in self.protections:
            if item.name == name:
                return item.state
        return "unavailable"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data for ``handrail doctor --json``."""
        return {
            "tier": self.tier,
            "system": self.system,
            "protections": [asdict(item) for item in self.protections],
        }


@functools.cache
def probe() -> MachineReport:
    """Try everything once and remember the answer for this process."""
    system = f"{platform.system()} {platform.release()} {platform.machine()}, Python {platform.python_version()}"
    if not sys.platform.startswith("linux"):
        missing = Protection("cells", "unavailable", f"{platform.system()} has no Linux kernel", "run this on Linux")
        return MachineReport("none", system, (missing,))
    if _libc.COLUMN is None:
        missing = Protection("cells", "unavailable", f"no system call table for {_libc.MACHINE}", "x86-64 or aarch64")
        return MachineReport("none", system, (missing,))
    full = _attempt("full")
    if isinstance(full, CellResult):
        return MachineReport("full", system, (*_read(full), probe_staging(), _cgroups()))
    refusal = Protection("full_tier", "unavailable", full, remedy_for_full())
    reduced = _attempt("reduced")
    if isinstance(reduced, CellResult):
        return MachineReport("reduced", system, (refusal, *_read(reduced), probe_staging(), _cgroups()))
    weaker = Protection("reduced_tier", "unavailable", reduced, "Linux 6.2 or later with Landlock switched on")
    kernel = Protection("landlock", "active" if landlock.abi() else "unavailable", f"ABI {landlock.abi()}")
    return MachineReport("none", system, (refusal, weaker, kernel))


def _attempt(tier: Tier) -> CellResult | str:
    """The trial's result from a cell of this tier, or why there is none."""
    profile = SandboxProfile(minimum_tier="reduced" if tier == "reduced" else "full", limits=Limits(wall_s=20))
    trial = InlineCode(TRIAL, "probe.py", json.dumps({"host": os.getpid()}).encode())
    try:
        with Supervisor(pool_size=0, allow_reduced=tier == "reduced") as supervisor:
            result = supervisor.run_sync(trial, profile)
    except (SandboxError, OSError) as error:
        return str(error)
    return result if result.value is not None else (result.error or f"the trial ended with signal {result.signal}")


def _read(result: CellResult) -> list[Protection]:
    """The steps' own report, and what code inside found when it tried."""
    seen: dict[str, Any] = json.loads(result.value or b"{}")
    refused = {
        "no_sockets": ("socket", "vsock"),
        "no_new_namespaces": ("unshare",),
        "no_new_processes": ("fork",),
        "root_not_writable": ("write /",),
        "no_signals_out": ("kill host",),
    }
    found = list(result.report.protections)
    for name, trials in refused.items():
        answers = {trial: seen.get(trial) for trial in trials}
        state: State = "degraded" if "allowed" in answers.values() else "active"
        found.append(Protection(name, state, ", ".join(f"{trial}: {answer}" for trial, answer in answers.items())))
    found.append(
        Protection(
            "inside_view",
            "active",
            f"uid {seen.get('uid')}, capabilities {seen.get('capabilities')}, no_new_privs {seen.get('no_new_privs')}, "
            f"seccomp mode {seen.get('seccomp')} with {seen.get('filters')} filters, "
            f"descriptors {seen.get('descriptors')}",
        )
    )
    return found


def remedy_for_full() -> str:
    """What probably stands in the way of user namespaces here, and how to move it."""
    for path, bad, remedy in SETTINGS:
        try:
            with open(path, encoding="ascii") as file:
                if file.read().strip() == bad:
                    return remedy
        except OSError:
            continue
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        filtered = any(line.startswith("Seccomp:") and line.split()[1] != "0" for line in file)
    return CONTAINER if filtered else "a kernel with user namespaces, and a visible /proc"


def _cgroups() -> Protection:
    """Whether a control group is ours to divide, shown by making one. Cells do without: the host looks in instead."""
    found = find_delegation()
    reason = found.reason if isinstance(found, Absence) else ""
    if isinstance(found, Delegation):
        try:
            cage = found.cage(Limits())
            cage.close()
            return Protection("cgroup", "active", f"{found.path}: {cage.evidence}, for cells that may start processes")
        except OSError as error:
            reason = f"{found.path}: {error.strerror}"
        finally:
            found.close()
    return Protection(
        "cgroup", "unavailable", f"{reason}; totals are watched from outside instead",
        "optional: a service with Delegate=yes and DelegateSubgroup=main",
    )  # fmt: skip
