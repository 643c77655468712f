"""ORDER: the confinement steps of a cell, top to bottom. Each does one thing and says what it enforced.

A cell is confined in two parts. :data:`PARK` is done ahead of time and knows nothing of any call. :data:`CONFINE` is
done when the call's header has arrived, before a byte of the tool's code is looked at. A cell for calls that need no
workspace and start no program is *sealed*: all of its walls stand before it waits, and only numbers are left to set. A
step that cannot do its work raises, and the cell ends without running anything: a wall is never skipped in silence.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

from handrail_cell import _libc, landlock, limits, namespaces, seccomp


class Ground:
    """What the steps stand on: the zygote's facts, and once it has come, the call's.

    ``facts`` is shared by all cells of a zygote and never changes. ``job`` is the header's metadata (trusted,
    written by the host). ``scratch`` is where temporary files go. ``upper`` is the descriptor of the layer of staged
    changes, if any. ``farewell`` is the listener that shows the host how the cell ends, -1 where there is none.
    """

    __slots__ = ("facts", "farewell", "job", "ruleset", "scratch", "tree", "upper")

    def __init__(self, facts: "Facts") -> None:
        self.facts = facts
        self.job: dict[str, Any] = {}
        self.tree = -1
        self.scratch = "/tmp"
        self.ruleset = -1
        self.farewell = -1
        self.upper: int | None = None


class Facts:
    """What a zygote knows for all its cells."""

    __slots__ = (
        "below",
        "column",
        "farewell",
        "filters",
        "ids",
        "landlock_abi",
        "network",
        "procfs",
        "readable",
        "reduced",
        "scratch",
        "scratch_base",
        "sealed",
        "sealing",
    )

    def __init__(
        self, *, ids: tuple[int, int], network: bool, reduced: bool, sealed: bool = False, scratch: int
    ) -> None:
        column = _libc.COLUMN
        if column is None:
            raise OSError(38, f"no system call table for {_libc.MACHINE}")
        self.column = column
        self.ids = ids
        self.network = network
        self.reduced = reduced
        self.sealed = sealed
        self.scratch = scratch
        self.procfs = -1
        self.readable: list[str] = []
        self.scratch_base = ""
        self.below: dict[str, list[str]] = {}
        self.landlock_abi = landlock.abi()
        self.farewell = seccomp.prepare(seccomp.farewell_policy(column), column)
        scoped = self.landlock_abi >= landlock.SCOPES_FROM
        policies = {
            may_exec: seccomp.final_policy(
                column, may_exec=may_exec, network=network, reduced=reduced, scoped_signals=scoped
            )
            for may_exec in (False, True)
        }
        self.filters = {may_exec: seccomp.prepare(policy, column) for may_exec, policy in policies.items()}
        self.sealing = seccomp.prepare(policies[False] | seccomp.farewell_policy(column), column)


Steps = list[tuple[str, Callable[[Ground], str]]]
"""Names of walls and what builds them, in order."""


def identity(ground: Ground) -> str:
    """One user and one group, the zygote's own, and no way to make further user namespaces."""
    facts = ground.facts
    _libc.prctl(_libc.PR_SET_DUMPABLE, 1)  # the maps of a process that may not be dumped belong to root
    namespaces.write_maps("self", facts.procfs, *facts.ids, inside=facts.ids, deny_groups=True)
    namespaces.write_at(facts.procfs, "sys/user/max_user_namespaces", b"0")
    return "own user namespace, one user mapped, nested ones limited to 0"


def hidden_memory(_: Ground) -> str:
    """No other process may read this one's memory or take its descriptors."""
    _libc.prctl(_libc.PR_SET_DUMPABLE, 0)
    return "not dumpable"


def process_view(ground: Ground) -> str:
    """A ``/proc`` of this cell alone, without the user's keys."""
    namespaces.mount_proc("/proc")
    if ground.facts.ids[0] != namespaces.UNOWNED_ID:
        namespaces.hide_key_lists()
    return "fresh /proc, read-only"


def scratch(ground: Ground) -> str:
    """A private ``/tmp`` and ``/dev/shm`` of bounded size."""
    namespaces.mount_scratch(ground.facts.scratch, ground.facts.below)
    return "private tmpfs, bounded"


def prepare_landlock(ground: Ground) -> str:
    """The part of the Landlock ruleset that is the same for every call."""
    facts = ground.facts
    if facts.landlock_abi == 0:
        return ""
    ground.ruleset = _usual_rules(facts.landlock_abi, ports_open=facts.network)
    return ""


def _usual_rules(version: int, *, ports_open: bool) -> int:
    ruleset = landlock.create(version, network=ports_open)
    landlock.allow(ruleset, version, b"/", landlock.READ)
    landlock.allow(ruleset, version, b"/tmp", landlock.WRITE)
    landlock.allow(ruleset, version, b"/dev", landlock.DEVICE)
    return ruleset


def own_group(_: Ground) -> str:
    """A session and process group of its own, which the filter lets nobody leave; and the parent's death is its own."""
    os.setsid()
    _libc.prctl(_libc.PR_SET_PDEATHSIG, 9)
    return "one process group, which nothing in it can leave"


def scratch_directory(ground: Ground) -> str:
    """A private directory for temporary files, emptied by the zygote afterwards."""
    ground.scratch = tempfile_name(ground.facts.scratch_base)
    os.mkdir(ground.scratch, 0o700)
    return ""


def tempfile_name(base: str) -> str:
    """The scratch directory of this process, told from its process id, so that the zygote knows it too."""
    return f"{base}/{os.getpid()}"


def visible_files(ground: Ground) -> str:
    """Landlock is the file wall: libraries and system directories to read, scratch and the workspace as granted."""
    facts, job = ground.facts, ground.job
    version = facts.landlock_abi
    if version < landlock.READ_ONLY_FROM:
        raise OSError(95, f"Landlock ABI {version} cannot promise read-only; {landlock.READ_ONLY_FROM} is needed")
    ruleset = landlock.create(version, network=facts.network)
    readable = [*facts.readable, *(f"/{name}" for name in ("usr", *namespaces.MERGED))]
    for path in (*readable, *REDUCED_ETC, f"/proc/{os.getpid()}"):
        if os.path.exists(path):
            _allow(ruleset, version, path, landlock.READ)
    for name in namespaces.DEVICES:
        _allow(ruleset, version, f"/dev/{name}", landlock.DEVICE)
    _allow(ruleset, version, ground.scratch, landlock.WRITE)
    if job["access"] in ("stage", "copy"):
        raise OSError(95, "changes cannot be staged without a mount namespace")
    if job["workspace"] is not None:
        _allow(ruleset, version, job["workspace"], landlock.READ if job["access"] == "read" else landlock.WRITE)
    landlock.restrict(ruleset)
    os.close(ruleset)
    _prove_landlock()
    return f"ABI {version}; names, sizes and times of other files can still be seen"


def _allow(ruleset: int, version: int, path: str, rights: int) -> None:
    landlock.allow(ruleset, version, os.fsencode(path), rights if os.path.isdir(path) else rights & landlock.FILE_ONLY)


def _prove_landlock() -> None:
    """A ruleset that was accepted but is not enforced would be the worst of all: try."""
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except PermissionError:
        return
    raise OSError(1, "Landlock accepted the rules and does not enforce them")


def resources_reduced(ground: Ground) -> str:
    """The same limits. Processes are counted for the user as a whole, so what the user already has is added."""
    job = ground.job
    job["processes"] += _tasks_of_user()
    resources(ground)
    job["environment"] = {**job["environment"], "TMPDIR": ground.scratch, "HOME": ground.scratch}
    if job["cwd"] == "/tmp":
        job["cwd"] = ground.scratch
    return "as in the full tier, but the total of processes is the user's"


def _tasks_of_user() -> int:
    total = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    total += len(os.listdir(f"/proc/{name}/task"))
            except OSError:  # it ended meanwhile
                continue
    return total


REDUCED_ETC = tuple(
    f"/etc/{name}" for name in (*namespaces.ETC_COPIES, "passwd", "group", "nsswitch.conf", "alternatives")
)

PARK: Steps = [
    ("user_namespace", identity),
    ("memory_hidden", hidden_memory),
    ("proc", process_view),
    ("scratch", scratch),
    ("landlock_prepared", prepare_landlock),
]

PARK_REDUCED: Steps = [
    ("process_group", own_group),
    ("memory_hidden", hidden_memory),
    ("scratch", scratch_directory),
]


def farewell(ground: Ground) -> str:
    """Let the host hear from the kernel, before anybody else does, that this cell ends."""
    ground.farewell = seccomp.listen(ground.facts.farewell)
    return ""


PARK_UNSEALED: Steps = [*PARK, ("farewell", farewell)]


def scratch_size(ground: Ground) -> str:
    """Bound ``/tmp`` as this call's limit says."""
    size = min(ground.job["disk_bytes"], ground.job["memory_bytes"])
    if size != ground.facts.scratch:
        namespaces.resize_scratch(size)
    return f"{size} bytes in /tmp"


def workspace(ground: Ground) -> str:
    """The workspace at its own path: absent, read-only, writable, or writable into a layer above it or a copy."""
    job = ground.job
    if ground.tree < 0:
        return "no workspace"
    ground.upper = namespaces.place_workspace(
        ground.tree,
        job["workspace"],
        job["access"],
        may_exec=job["exec"],
        size=job["disk_bytes"],
        copy=job["copy_bytes"],
        below=ground.facts.below,
    )
    ground.tree = -1
    return job["access"]


def network(ground: Ground) -> str:
    """For programs, which may talk among themselves: a network that no cell had before, with loopback and no more."""
    if ground.facts.network or not ground.job["exec"]:
        return ""
    _libc.call("unshare", _libc.CLONE_NEWNET)
    return f"own network namespace, {'loopback alone' if namespaces.raise_loopback() else 'nothing up in it'}"


def files_and_ports(ground: Ground) -> str:
    """Landlock: read the private root, write ``/tmp`` and, if the profile says so, the workspace; no signals out; no
    ports, but for programs, whose ports lead nowhere but to each other.
    """
    facts, job = ground.facts, ground.job
    if ground.ruleset < 0:
        return ""
    if job["exec"] and not facts.network:
        os.close(ground.ruleset)
        ground.ruleset = _usual_rules(facts.landlock_abi, ports_open=True)
    if job["access"] in ("write", "stage", "copy"):
        landlock.allow(ground.ruleset, facts.landlock_abi, os.fsencode(job["workspace"]), landlock.WRITE)
    landlock.restrict(ground.ruleset)
    os.close(ground.ruleset)
    return f"ABI {facts.landlock_abi}"


def resources(ground: Ground) -> str:
    """The limits that the kernel counts for each process."""
    job = ground.job
    limits.apply(
        limits.table(
            cpu_s=job["cpu_s"],
            memory_bytes=job["memory_bytes"],
            processes=job["processes"],
            file_bytes=job["file_bytes"],
            open_files=job["open_files"],
            may_exec=job["exec"],
        )
    )
    return "address space, data, cpu, file size, open files, processes, stack, no core, no locked memory"


def capabilities(_: Ground) -> str:
    """None left, and none can come back: the user is not root here and ``no_new_privs`` is set."""
    _libc.call("capset", CAPABILITY_VERSION, bytes(24))
    return "none"


CAPABILITY_VERSION = b"\x22\x05\x08\x20\0\0\0\0"
"""``struct __user_cap_header_struct``: version 3, this process."""


def system_calls(ground: Ground) -> str:
    """The final filter, on top of the permanent one that the zygote installed."""
    seccomp.install(ground.facts.filters[ground.job["exec"]])
    return "two filters, the stricter wins"


def system_calls_sealed(ground: Ground) -> str:
    """The same in one with the filter that lets the host hear the cell's end; without that where nobody can listen."""
    ground.farewell = seccomp.listen(ground.facts.sealing)
    if ground.farewell < 0:
        seccomp.install(ground.facts.filters[False])
    return "two filters, the stricter wins"


SEALED_JOB = {"access": "none", "exec": False}
"""What is known of every call that a sealed cell may get."""

SEAL: Steps = [
    ("landlock", files_and_ports),
    ("capabilities", capabilities),
    ("seccomp", system_calls_sealed),
]

CONFINE_SEALED: Steps = [("rlimits", resources)]

CONFINE: Steps = [
    ("scratch", scratch_size),
    ("workspace", workspace),
    ("network_namespace", network),
    ("landlock", files_and_ports),
    ("rlimits", resources),
    ("capabilities", capabilities),
    ("seccomp", system_calls),
]

CONFINE_REDUCED: Steps = [
    ("rlimits", resources_reduced),
    ("capabilities", capabilities),
    ("landlock", visible_files),
    ("seccomp", system_calls),
]

ORDER = {
    "full": [*PARK_UNSEALED, *CONFINE],
    "sealed": [*PARK, *SEAL, *CONFINE_SEALED],
    "reduced": [*PARK_REDUCED, *CONFINE_REDUCED],
}
"""The whole walk for each tier. The reduced tier has no namespaces: Landlock, a stricter filter, limits, one group.
Sealed cells are of the full tier, with more of the walk behind them when they wait.
"""


def rehearse(facts: Facts, job: dict[str, Any]) -> None:
    """Call what the steps that are still to come call, so that it changes nothing: no limit, no right, no filter.

    Code that ran once has made the memory that it writes to its process's own.
    """
    ground = Ground(facts)
    ground.job = job
    walk(CONFINE_SEALED, ground)  # with limits that lift what there is
    if facts.sealed:
        return
    _libc.call("capget", CAPABILITY_VERSION, bytes(24))
    refused: list[Callable[[], object]] = [
        lambda: landlock.restrict(-1),
        lambda: seccomp.install(facts.filters[False], seccomp.NO_SUCH_FLAG),
    ]
    for trial in refused:
        with contextlib.suppress(OSError):
            trial()


def walk(steps: Steps, ground: Ground) -> bytes:
    """Take the steps in order. Returns one line for each that enforced something: ``name`` TAB ``evidence``."""
    lines: list[str] = []
    for name, step in steps:
        try:
            evidence = step(ground)
        except OSError as error:
            raise OSError(error.errno, f"{name}: {error.strerror}") from error
        if evidence:
            lines.append(f"{name}\t{evidence}")
    return "\n".join(lines).encode()
