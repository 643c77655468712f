"""What was really enforced, from what the trusted code inside said before any tool's byte ran."""

import functools

from handrail_cell.wire import EnforcementReport, Protection, State, Tier

BUILT_BEFORE = {
    "pid_namespace": "own process table; its end is the end of everything in it",
    "mount_namespace": "private root; the machine's file systems are not in it",
    "network_namespace": "own network namespace with nothing in it, and no socket to use it with",
    "ipc_namespace": "an IPC namespace that no other cell is in, and System V and POSIX queues are refused",
    "uts_namespace": "own host name",
    "cgroup_namespace": "own view of control groups",
    "no_new_privs": "set in the warm parent, cannot be unset",
}


WEAKER_WITHOUT_NAMESPACES = ("rlimits", "landlock", "scratch")
WITHOUT_NAMESPACES = ("user_namespace", "pid_namespace", "mount_namespace", "network_namespace", "ipc_namespace")
REMEDY = "user namespaces that give capabilities; `handrail doctor` says what stands in their way"


def _state(tier: Tier, name: str) -> State:
    return "degraded" if tier == "reduced" and name in WEAKER_WITHOUT_NAMESPACES else "active"


@functools.lru_cache(maxsize=256)
def report_of(tier: Tier, parked: bytes, confined: bytes, *, network: bool, cage: str = "") -> EnforcementReport:
    """Join what the clone itself gave with the steps' own lines (``name`` TAB ``evidence``).

    ``cage`` is the evidence of a control group, where the cell has one.
    """
    found = dict(BUILT_BEFORE) if tier == "full" else {"no_new_privs": BUILT_BEFORE["no_new_privs"]}
    if network:
        found.pop("network_namespace", None)
    for line in (parked + b"\n" + confined).decode("utf-8", "replace").splitlines():
        name, _, evidence = line.partition("\t")
        if name:
            found[name] = evidence
    protections = [Protection(name, _state(tier, name), evidence) for name, evidence in found.items()]
    if cage:
        protections.append(Protection("cgroup", "active", cage))
    if tier == "reduced":
        protections += [Protection(name, "unavailable", "reduced tier", REMEDY) for name in WITHOUT_NAMESPACES]
    if b"\nworkspace\twrite" in confined:
        protections.append(
            Protection("disk", "degraded", "the workspace is written directly; its total is watched, not bounded")
        )
    if network and tier == "full":
        protections.append(Protection("network_namespace", "disabled", "the host granted the network"))
    if "landlock" not in found:
        protections.append(
            Protection("landlock", "unavailable", "the kernel has none", "Linux 6.2 or later with Landlock switched on")
        )
    return EnforcementReport(tier, tuple(protections))
