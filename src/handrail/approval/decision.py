"""The question a person or a program is asked, and the answers there are.

An approver gets a copy: whatever it does to the request, the call that runs is the one whose ``binding`` it saw.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from handrail.changes.changeset import ChangeSet
from handrail.parked import GrantPattern
from handrail.tool import RiskLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """Exactly what will run, for somebody to decide about.

    ``arguments`` are final: after every default, resolution and rewrite. ``binding`` is the digest that the answer
    counts for. ``changes`` and ``diff`` are what the call really did, where it was run staged; then the answer
    decides about making them real. ``can_grant``: whether a lasting yes may be given, and ``offer`` what it would
    cover. ``requested_paths`` and ``resolved_paths`` say, by argument, what was asked for and where that leads through
    links. Times are seconds since the epoch.
    """

    approval_id: str
    call_id: str
    tool: str
    title: str
    risk: RiskLevel
    source: str
    arguments: Mapping[str, Any]
    binding: str
    why: str
    asked_at: float
    expires_at: float
    description: str = ""
    changes: ChangeSet | None = None
    diff: str = ""
    staged: bool = False
    can_grant: bool = False
    offer: GrantPattern | None = None
    enforcement: str = ""
    run_id: str = ""
    agent: str = ""
    session: str = ""
    workspace: str = ""
    requested_paths: Mapping[str, str] = field(default_factory=dict[str, str])
    resolved_paths: Mapping[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """Everything in it, as plain JSON: what a question that waits is kept as."""
        return {
            "approval_id": self.approval_id,
            "call_id": self.call_id,
            "tool": self.tool,
            "title": self.title,
            "risk": self.risk.value,
            "source": self.source,
            "arguments": dict(self.arguments),
            "binding": self.binding,
            "why": self.why,
            "asked_at": self.asked_at,
            "expires_at": self.expires_at,
            "description": self.description,
            "changes": None if self.changes is None else self.changes.to_json(),
            "diff": self.diff,
            "staged": self.staged,
            "can_grant": self.can_grant,
            "offer": None if self.offer is None else self.offer.to_json(),
            "enforcement": self.enforcement,
            "run_id": self.run_id,
            "agent": self.agent,
            "session": self.session,
            "workspace": self.workspace,
            "requested_paths": dict(self.requested_paths),
            "resolved_paths": dict(self.resolved_paths),
        }


@dataclass(frozen=True, slots=True)
class Approve:
    """Yes, to exactly this, once. ``grant``: also yes to later calls that match it, until the session ends."""

    by: str = "host"
    grant: GrantPattern | None = None


@dataclass(frozen=True, slots=True)
class Modify:
    """Run it with these arguments instead. They start again at the very beginning of the corridor."""

    arguments: Mapping[str, Any]
    by: str = "host"


@dataclass(frozen=True, slots=True)
class Reject:
    """No. The model reads ``why``."""

    why: str = "The approver said no."
    by: str = "host"


@dataclass(frozen=True, slots=True)
class Park:
    """Nobody has answered yet; keep the question, and end the call as pending."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """There is nobody to ask, or the channel to them is dead. This means no."""

    why: str


@dataclass(frozen=True, slots=True)
class Escalate:
    """Not for me to decide; the next in the chain is asked. At the end of the chain this means no."""

    why: str = ""


Decision = Approve | Modify | Reject | Park | Unavailable | Escalate


@runtime_checkable
class Approver(Protocol):
    """Somebody who decides. ``decide`` is called once per question and may take its time; it must not raise.

    Whatever it raises counts as ``Unavailable``: a broken approver refuses.
    """

    async def decide(self, request: ApprovalRequest) -> Decision: ...


class AlwaysApprove:
    """Says yes to everything that policy asks about. For hosts that decided already, and for tests."""

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Yes."""
        return Approve(by="always-approve")


class NeverApprove:
    """Says no to everything that policy asks about."""

    def __init__(self, why: str = "This host approves no calls of this risk.") -> None:
        self._why = why

    async def decide(self, request: ApprovalRequest) -> Decision:
        """No."""
        return Reject(self._why, by="never-approve")


class CallbackApprover:
    """Asks a function of the host's, sync or async, that returns a :data:`Decision` or a plain ``bool``."""

    def __init__(self, callback: Callable[[ApprovalRequest], Decision | bool | Awaitable[Decision | bool]]) -> None:
        self._callback = callback

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Ask the function."""
        answer = self._callback(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, bool):
            return Approve(by="callback") if answer else Reject(by="callback")
        return answer
