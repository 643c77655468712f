"""Plain data that crosses the wall: limits, what was enforced, and the frames between host and cell.

Standard library only. Nothing here is ever unpickled; frames are length-prefixed JSON or raw bytes.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

State = Literal["active", "degraded", "disabled", "unavailable"]
Tier = Literal["full", "reduced", "none"]
LimitName = Literal["wall", "cpu", "memory", "processes", "disk", "file_size", "open_files", "output"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one cell may use. Seconds, bytes and counts.

    ``wall_s`` is measured by the host's clock; ``memory_bytes`` covers anonymous memory, memfd, shared memory and
    tmpfs together where the kernel lets us; ``disk_bytes`` is the total written (workspace layer and /tmp).
    """

    wall_s: float = 30.0
    cpu_s: float = 30.0
    memory_bytes: int = 1024 * 1024 * 1024
    processes: int = 64
    disk_bytes: int = 256 * 1024 * 1024
    file_bytes: int = 128 * 1024 * 1024
    open_files: int = 256
    output_bytes: int = 1_048_576

    def with_(self, **changes: Any) -> "Limits":
        """A copy with some limits changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Protection:
    """One wall and its state, with the evidence for it (what was probed or what the kernel answered)."""

    name: str
    state: State
    evidence: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class EnforcementReport:
    """What was really enforced around one call. Never what was wished for."""

    tier: Tier = "none"
    protections: tuple[Protection, ...] = field(default=())

    def state_of(self, name: str) -> State:
        """The state of one protection; ``unavailable`` when it was never mentioned."""
        for item in self.protections:
            if item.name == name:
                return item.state
        return "unavailable"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data, for outcomes and the journal."""
        return {"tier": self.tier, "protections": [asdict(item) for item in self.protections]}
