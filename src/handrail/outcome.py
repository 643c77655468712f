"""What a tool call came to: the one thing the model, the journal and the caller all read."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from handrail_cell.wire import EnforcementReport, LimitName

Status = Literal["ok", "error", "unknown", "pending"]


class Reason(StrEnum):
    """Why a call did not simply succeed. A closed list: adding one is an API decision (a test pins it)."""

    # Never entered the handler: the call itself
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    PATH_REFUSED = "path_refused"
    # Never entered the handler: somebody, or nobody, decided
    DENIED = "denied"  # a policy rule says no
    REJECTED = "rejected"  # an approver said no
    NO_APPROVER = "no_approver"  # needs a yes and nobody is there to give it
    APPROVAL_EXPIRED = "approval_expired"
    AWAITING_APPROVAL = "awaiting_approval"  # parked; status is pending
    # Never entered the handler: something we need is missing
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    JOURNAL_UNAVAILABLE = "journal_unavailable"
    CANNOT_STAGE = "cannot_stage"
    WRITE_REFUSED = "write_refused"  # a writing tool in a read-only context
    QUARANTINED = "quarantined"  # an MCP definition changed and nobody has looked yet
    # The handler ran and failed
    TOOL_ERROR = "tool_error"
    EXIT_STATUS = "exit_status"  # a command ended with a status other than 0
    CRASHED = "crashed"  # killed by a signal that we did not send
    INVALID_OUTPUT = "invalid_output"  # it completed, but its result breaks its own output schema
    # A limit was met; `limit` says which
    TIMED_OUT = "timed_out"
    CPU_LIMIT = "cpu_limit"
    MEMORY_LIMIT = "memory_limit"
    PROCESS_LIMIT = "process_limit"
    DISK_LIMIT = "disk_limit"
    FILE_SIZE_LIMIT = "file_size_limit"
    OPEN_FILES_LIMIT = "open_files_limit"
    OUTPUT_LIMIT = "output_limit"
    # The change was not made real
    CHANGES_REJECTED = "changes_rejected"
    CONFLICT = "conflict"
    COMMIT_FAILED = "commit_failed"
    # Ended from outside
    CANCELLED = "cancelled"
    NOT_RUN = "not_run"  # never started (truncated answer, batch stopped)
    # Nobody can know; status is unknown
    MAYBE_RUNNING = "maybe_running"  # a thread was abandoned at its timeout
    CONNECTION_LOST = "connection_lost"  # sent, and no answer can come any more
    INTERRUPTED = "interrupted"  # the process died between intent and outcome
    # A bug of ours
    INTERNAL = "internal"


@dataclass(frozen=True, slots=True)
class FullOutput:
    """The whole text of a cut output, in a private file outside the workspace."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ChangesReport:
    """What the call changed in the workspace, for people and the model. The ChangeSet itself stays in the store."""

    digest: str
    paths: tuple[str, ...]
    diff: str
    committed: bool


class ToolOutcome(Struct, frozen=True, kw_only=True):
    """What happened to one tool call.

    Make one with :meth:`ok`, :meth:`error`, :meth:`unknown` or :meth:`pending`.

    ``status``: ``ok`` it happened; ``error`` it did not, or failed as said; ``unknown`` nobody can know;
    ``pending`` it waits for a person. ``text`` is what the model reads. ``duration_ms`` is wall time in
    milliseconds from entering the corridor to leaving it. ``edited_arguments`` are the arguments that really ran
    when an approver changed them. ``content`` are non-text blocks (MCP content objects).
    """

    status: Status
    text: str
    reason: Reason | None = None
    truncated: bool = False
    full_output: FullOutput | None = None
    duration_ms: float = 0.0
    call_id: str = ""
    tool: str = ""
    value: Any = None
    content: tuple[Mapping[str, Any], ...] = ()
    limit: LimitName | None = None
    approval_id: str | None = None
    edited_arguments: Mapping[str, Any] | None = None
    invalid_output: bool = False
    changes: ChangesReport | None = None
    enforcement: EnforcementReport | None = None

    @classmethod
    def ok(cls, text: str, **details: Any) -> "ToolOutcome":
        """It happened, and ``text`` is what it said."""
        return cls(status="ok", text=text, **details)

    @classmethod
    def error(cls, text: str, reason: Reason = Reason.TOOL_ERROR, **details: Any) -> "ToolOutcome":
        """It failed, or never ran, for ``reason``."""
        return cls(status="error", text=text, reason=reason, **details)

    @classmethod
    def unknown(cls, text: str, reason: Reason = Reason.INTERRUPTED, **details: Any) -> "ToolOutcome":
        """It may or may not have happened."""
        return cls(status="unknown", text=text, reason=reason, **details)

    @classmethod
    def pending(cls, text: str, approval_id: str, **details: Any) -> "ToolOutcome":
        """It waits for an answer to ``approval_id``."""
        return cls(status="pending", text=text, reason=Reason.AWAITING_APPROVAL, approval_id=approval_id, **details)

    @property
    def succeeded(self) -> bool:
        """Whether the status is ``ok``."""
        return self.status == "ok"

    def with_(self, **changes: Any) -> "ToolOutcome":
        """A copy with some fields changed."""
        return replace(self, **changes)

    def with_broken_output(self, wrong: str) -> "ToolOutcome":
        """Marked: the call completed, but its result breaks the tool's own output schema, as ``wrong`` says."""
        note = f"[The call completed, but its result breaks the tool's own output schema: {wrong}]"
        return self.with_(text=f"{note}\n{self.text}", reason=Reason.INVALID_OUTPUT, invalid_output=True)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data: what ``--json`` prints and the journal keeps. Every field, always."""
        return {
            "status": self.status,
            "reason": self.reason.value if self.reason else None,
            "text": self.text,
            "truncated": self.truncated,
            "full_output": None
            if self.full_output is None
            else {
                "path": self.full_output.path,
                "bytes": self.full_output.bytes,
                "sha256": self.full_output.sha256,
            },
            "duration_ms": self.duration_ms,
            "call_id": self.call_id,
            "tool": self.tool,
            "value": self.value,
            "content": [dict(block) for block in self.content],
            "limit": self.limit,
            "approval_id": self.approval_id,
            "edited_arguments": None if self.edited_arguments is None else dict(self.edited_arguments),
            "invalid_output": self.invalid_output,
            "changes": None
            if self.changes is None
            else {
                "digest": self.changes.digest,
                "paths": list(self.changes.paths),
                "diff": self.changes.diff,
                "committed": self.changes.committed,
            },
            "enforcement": None if self.enforcement is None else self.enforcement.to_json(),
        }
