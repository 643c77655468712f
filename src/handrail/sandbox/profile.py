"""What a cell may touch and use, as data: a tool's capability and the host's settings, compiled once per tool."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from handrail.bounds import require_seconds, require_whole
from handrail.errors import ConfigurationError
from handrail.tool import Capability
from handrail_cell.wire import Limits

Access = Literal["none", "read", "write", "stage", "copy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxProfile:
    """Everything a cell is built from. Nothing in it comes from the model.

    ``workspace`` is an absolute path, shown at its own place inside; ``access`` says how: ``none`` not at all, ``read``
    read-only, ``write`` directly, ``stage`` writable into a bounded layer that the host holds and the workspace
    never sees, ``copy`` the same on a copy of at most ``copy_bytes`` bytes, for kernels that refuse an overlay.
    ``network`` leaves the cell in the host's network with Internet sockets; for long-lived servers that
    the host granted, never a tool's own wish. ``exec`` allows new processes. ``environment`` is all the environment
    there is, besides a ``PATH``, ``HOME``, ``LANG`` and ``TMPDIR`` of the cell's own. ``read_only_dirs`` are further
    host directories, from trusted configuration. ``preload`` are modules imported once in a warm parent of their
    own. ``minimum_tier`` is the weakest wall that will do.
    """

    workspace: str | None = None
    access: Access = "none"
    network: bool = False
    exec: bool = False
    limits: Limits = field(default_factory=Limits)
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    read_only_dirs: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    minimum_tier: Literal["full", "reduced"] = "full"
    copy_bytes: int = 0

    def __post_init__(self) -> None:
        require_limits(self.limits)
        require_whole("copy_bytes", self.copy_bytes, least=0)
        if self.access != "none" and self.workspace is None:
            raise ConfigurationError(f"access {self.access!r} needs a workspace")
        for path in (*([self.workspace] if self.workspace else []), *self.read_only_dirs):
            if not path.startswith("/") or "\0" in path or ".." in path.split("/") or path.strip("/") == "":
                raise ConfigurationError(f"{path!r} must be an absolute path below / without '..'")

    def with_(self, **changes: Any) -> "SandboxProfile":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)


MOST_PROCESSES = 2**22
"""As many as one kernel ever has."""
MOST_OPEN_FILES = 2**20
"""As many as a kernel lets one process have, unless it was told otherwise."""


def require_limits(limits: Limits) -> None:
    """Limits that a kernel can hold. Raises :class:`~handrail.errors.ConfigurationError`, naming one that it cannot."""
    require_seconds("wall_s", limits.wall_s)
    require_seconds("cpu_s", limits.cpu_s)
    for name in ("memory_bytes", "disk_bytes", "file_bytes", "output_bytes"):
        require_whole(name, getattr(limits, name))
    require_whole("processes", limits.processes, most=MOST_PROCESSES)
    require_whole("open_files", limits.open_files, most=MOST_OPEN_FILES)


T = TypeVar("T")
PROFILES_REMEMBERED = 256


def remembered(make: Callable[[SandboxProfile], T]) -> Callable[[SandboxProfile], T]:
    """Make something of a profile once: tools keep theirs from call to call. Told apart by identity, which is quick."""
    known: dict[int, tuple[SandboxProfile, T]] = {}

    @functools.wraps(make)
    def recall(profile: SandboxProfile) -> T:
        found = known.get(id(profile))
        if found is not None and found[0] is profile:
            return found[1]
        if len(known) >= PROFILES_REMEMBERED:
            known.clear()
        value = make(profile)
        known[id(profile)] = (profile, value)
        return value

    return recall


def profile_for(
    capability: Capability,
    workspace: str | None,
    limits: Limits | None = None,
    *,
    stage: bool = False,
    environment: Mapping[str, str] | None = None,
    read_only_dirs: tuple[str, ...] = (),
    preload: tuple[str, ...] = (),
    minimum_tier: Literal["full", "reduced"] = "full",
) -> SandboxProfile:
    """The walls for what a tool declared. What it did not declare is closed.

    ``stage`` turns writing into writing to a layer. ``capability.network`` opens nothing: a cell that runs a tool's
    code never has sockets, whatever the tool declares; a server that needs them gets a profile from the host.
    """
    access: Access = "none"
    if workspace is not None and capability.writes:
        access = "stage" if stage else "write"
    elif workspace is not None and capability.reads:
        access = "read"
    return SandboxProfile(
        workspace=workspace,
        access=access,
        exec=capability.exec,
        limits=limits or Limits(),
        environment=environment or {},
        read_only_dirs=read_only_dirs,
        preload=preload,
        minimum_tier=minimum_tier,
    )
