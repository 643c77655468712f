"""ORDER: the confinement steps of a cell, top to bottom. Each does one thing and says what it enforced.

A cell is confined in two parts. :data:`PARK` is done ahead of time and knows nothing of any call. :data:`CONFINE` is
done when the call's header has arrived, before a byte of the tool's code is looked at. A cell for calls that need no
workspace and start no program is *sealed*: all of its walls stand before it waits, and only numbers are left to set. A
step that cannot do its work raises, and the cell ends without running anything: a wall is never skipped in silence.
"""

import contextlib
import ctypes
import os
from collections.abc import Callable
from typing import Any

from handrail_cell import _libc, frames, landlock, limits, namespaces, seccomp


class Ground:
    """What the steps stand on: the zygote's facts, and once it has come, the call's.

    ``facts`` is shared by all cells of a zygote and never changes. ``job`` is the header's metadata and ``limits`` its
    numbers (trusted, written by the host). ``scratch`` is where temporary files go. ``upper`` is the descriptor of the
    layer of staged changes, if any. ``gifts`` are the descriptors that the host gets with the ready frame, in the order
    of ``frames.GIFTS``.
    """

    __slots__ = ("facts", "gifts", "job", "limits", "ruleset", "scratch", "tree", "upper")

    def __init__(self, facts: "Facts") -> None:
        self.facts = facts
        self.job: dict[str, Any] = SEALED_JOB if facts.sealed else {}
        self.limits: frames.Numbers = NO_LIMITS
        self.tree = -1
        self.scratch = "/tmp"
        self.ruleset = -1
        self.gifts: list[int] = []
        self.upper: int | None = None


class Facts:
    """What a zygote knows for all its cells."""

    __slots__ = (
        "below",
        "column",
        "farewell",
        "filters",
        "granted",
        "ids",
        "interrupt",
        "landlock_abi",
        "maps",
        "network",
        "parking",
        "procfs",
        "readable",
        "reduced",
        "refused",
        "scratch",
        "scratch_base",
        "scratch_options",
        "scratch_rights",
        "sealed",
        "sealing",
        "stale",
        "steps_left",
        "trial",
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
        self.scratch_options = namespaces.scratch_options(scratch)
        self.maps = namespaces.own_maps(ids)
        self.procfs = -1
        self.granted: list[bytes] = []
        self.parking, self.steps_left = _walks(reduced=reduced, sealed=sealed)
        self.interrupt = ctypes.c_void_p(None)
        self.stale: list[Callable[[], object]] = []
        self.readable: list[str] = []
        self.scratch_base = ""
        self.below: dict[str, list[str]] = {}
        self.landlock_abi = landlock.abi()
        self.refused = landlock.refusal(self.landlock_abi, network=network)
        self.scratch_rights = landlock.WRITE & landlock.handled_files(self.landlock_abi)
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

    def open_granted(self) -> None:
        """Open what every cell may read, once, in the private root: the cells inherit the descriptors."""
        for path, rights in GRANTED:
            directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
            self.granted.append(landlock.grant(self.landlock_abi, directory, rights))

    def harmless(self) -> "Facts":
        """Facts to rehearse on: no maps to write, filters that the kernel refuses, and of what has no way back not a
        step.
        """
        trial = Facts.__new__(Facts)
        for name in set(Facts.__slots__) - {"trial"}:
            setattr(trial, name, getattr(self, name))
        trial.parking, trial.steps_left = PARK, CONFINE_SEALED
        trial.maps = (("/dev/null", b""),) * len(self.maps)
        trial.filters = dict.fromkeys(self.filters, seccomp.NO_FILTER)
        trial.farewell = trial.sealing = seccomp.NO_FILTER
        return trial


Steps = list[tuple[str, Callable[[Ground], str]]]
"""Names of walls and what builds them, in order."""


def identity(ground: Ground) -> str:
    """One user and one group, the zygote's own, and no way to make further user namespaces."""
    facts = ground.facts
    _libc.prctl(_libc.PR_SET_DUMPABLE, 1)  # the maps of a process that may not be dumped belong to root
    for path, text in facts.maps:
        namespaces.write_at(facts.procfs, path, text)
    return "own user namespace, one user mapped, nested ones limited to 0"


def hidden_memory(_: Ground) -> str:
    """No other process may read this one's memory or take its descriptors."""
    _libc.prctl(_libc.PR_SET_DUMPABLE, 0)
    return "not dumpable"


def process_view(ground: Ground) -> str:
    """A ``/proc`` of this cell alone, without the user's keys."""
    namespaces.mount_proc(b"/proc")
    if ground.facts.ids[0] != namespaces.UNOWNED_ID:
        namespaces.hide_key_lists()
    return "fresh /proc, read-only"


def scratch(ground: Ground) -> str:
    """A private ``/tmp`` and ``/dev/shm`` of bounded size."""
    facts = ground.facts
    if "tmp" in facts.below:
        namespaces.mount_scratch_around(facts.scratch_options, facts.below["tmp"])
    else:
        namespaces.mount_scratch(facts.scratch_options)
    return "private tmpfs, bounded"


def prepare_landlock(ground: Ground) -> str:
    """The part of the Landlock ruleset that is the same for every call."""
    facts = ground.facts
    if facts.landlock_abi == 0:
        return ""
    ground.ruleset = landlock.create(facts.refused)
    for granted in facts.granted:
        landlock.add(ground.ruleset, granted)
    landlock.add(ground.ruleset, landlock.GRANT.pack(facts.scratch_rights, ground.gifts[SCRATCH_GIFT]))
    return ""


GRANTED = ((b"/", landlock.READ), (b"/dev", landlock.DEVICE))
"""What every cell may do to files, besides writing in its own ``/tmp``."""


def _rules_with_ports(version: int) -> int:
    """The same rules, but for ports, which all are open."""
    ruleset = landlock.create(landlock.refusal(version, network=True))
    for path, rights in (*GRANTED, (b"/tmp", landlock.WRITE)):
        landlock.allow(ruleset, version, path, rights)
    return ruleset


LOOK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
SCRATCH_GIFT = 1


def windows(ground: Ground) -> str:
    """What lets the host look in from outside, and, held, keeps the cell's end from waiting for its mounts'."""
    ground.gifts = [
        os.pidfd_open(os.getpid()),
        os.open("/tmp", LOOK),
        os.open("/proc", LOOK),
        os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC),
    ]
    return ""


def windows_reduced(ground: Ground) -> str:
    """What lets the host look in from outside."""
    ground.gifts = [os.pidfd_open(os.getpid()), os.open(ground.scratch, LOOK)]
    return ""


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
    ruleset = landlock.create(facts.refused)
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
    cpu_s, memory_bytes, processes, disk_bytes, file_bytes, open_files = ground.limits
    ground.limits = (cpu_s, memory_bytes, processes + _tasks_of_user(), disk_bytes, file_bytes, open_files)
    resources(ground)
    job = ground.job
    environment = {**job["environment"], "TMPDIR": ground.scratch, "HOME": ground.scratch}
    ground.job = {**job, "environment": environment, "cwd": ground.scratch if job["cwd"] == "/tmp" else job["cwd"]}
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
    ("windows", windows),
    ("landlock_prepared", prepare_landlock),
]

PARK_REDUCED: Steps = [
    ("process_group", own_group),
    ("memory_hidden", hidden_memory),
    ("scratch", scratch_directory),
    ("windows", windows_reduced),
]


def farewell(ground: Ground) -> str:
    """Let the host hear from the kernel, before anybody else does, that this cell ends."""
    listener = seccomp.listen(ground.facts.farewell)
    if listener >= 0:
        ground.gifts.append(listener)
    return ""


PARK_UNSEALED: Steps = [*PARK, ("farewell", farewell)]


def scratch_size(ground: Ground) -> str:
    """Bound ``/tmp`` as this call's limit says."""
    _, memory_bytes, _, disk_bytes, _, _ = ground.limits
    size = min(disk_bytes, memory_bytes)
    if size != ground.facts.scratch:
        namespaces.resize_scratch(size)
    return f"{size} bytes in /tmp"


def workspace(ground: Ground) -> str:
    """The workspace at its own path: absent, read-only, writable, or writable into a layer above it or a copy."""
    job = ground.job
    if ground.tree < 0:
        return "no workspace"
    _, _, _, disk_bytes, _, _ = ground.limits
    ground.upper = namespaces.place_workspace(
        ground.tree,
        job["workspace"],
        job["access"],
        may_exec=job["exec"],
        size=disk_bytes,
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
        ground.ruleset = _rules_with_ports(facts.landlock_abi)
    if job["access"] in ("write", "stage", "copy"):
        landlock.allow(ground.ruleset, facts.landlock_abi, os.fsencode(job["workspace"]), landlock.WRITE)
    landlock.restrict(ground.ruleset)
    return f"ABI {facts.landlock_abi}"


def resources(ground: Ground) -> str:
    """The limits that the kernel counts for each process."""
    limits.apply(limits.table(ground.limits, may_exec=ground.job["exec"]))
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
    listener = seccomp.listen(ground.facts.sealing)
    if listener >= 0:
        ground.gifts.append(listener)
    else:
        seccomp.install(ground.facts.filters[False])
    return "two filters, the stricter wins"


NO_LIMITS = (0, 0, 0, 0, 0, 0)
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


def _walks(*, reduced: bool, sealed: bool) -> tuple[Steps, Steps]:
    """What is done ahead of time, and what is left for the call's header."""
    if reduced:
        return PARK_REDUCED, CONFINE_REDUCED
    return ([*PARK, *SEAL], CONFINE_SEALED) if sealed else (PARK_UNSEALED, CONFINE)


def take_back_parking(ground: Ground) -> None:
    """After :data:`PARK` in the warm parent, on harmless facts: unmount what was mounted. What has no way back is then
    tried, so that the kernel refuses it: an empty filter, a ruleset that is none.
    """
    for mounted in (b"/tmp", b"/proc"):
        _libc.call("umount2", mounted, _libc.MNT_DETACH)
    if ground.ruleset >= 0:
        os.close(ground.ruleset)
    if ground.facts.sealed:
        _let_be_refused(system_calls_sealed, ground)
    else:
        farewell(ground)


def rehearse_confining(ground: Ground) -> None:
    """Call what the steps that are still to come call, on harmless facts: no right is lost, and the kernel refuses the
    rest. Code that ran once has made the memory that it writes to its process's own.
    """
    if ground.facts.sealed:
        return
    _libc.call("capget", CAPABILITY_VERSION, bytes(24))
    _let_be_refused(system_calls, ground)


def _let_be_refused(filtering: Callable[[Ground], str], ground: Ground) -> None:
    ground.ruleset = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)  # closed with the attempt
    for step in (files_and_ports, filtering):
        with contextlib.suppress(OSError):
            step(ground)


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
