"""Questions that wait and answers that last, as plain data: what approval decides and the journal keeps.

Both rooms know these types and not each other. :class:`ApprovalStore` is what a journal offers to whoever answers:
the command line, another process, another machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedCall:
    """A call that waits for an answer, as plain data.

    ``question`` is the request as JSON, for showing. ``arguments`` are the effective ones. ``change_digest`` is set
    where the call already ran staged: then the answer decides about committing what lies in the private store under
    ``call_id``, and nothing runs again.
    """

    approval_id: str
    call_id: str
    tool: str
    arguments: Mapping[str, Any]
    binding: str
    question: Mapping[str, Any]
    asked_at: float
    expires_at: float
    run_id: str = ""
    change_digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What somebody said about a parked call. ``arguments`` for ``modify``, ``why`` for ``reject``."""

    verdict: Literal["approve", "reject", "modify"]
    by: str
    at: float
    arguments: Mapping[str, Any] | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldIntent:
    """The durable intent of a call that ran staged and waits for its commit: what a ``Recorded`` is made of again.

    ``epoch`` is the one that its next owner will have; of two who go on with the call at once, one is fenced off.
    """

    idempotency_key: str
    sequence: int
    epoch: int


@dataclass(frozen=True, slots=True)
class GrantPattern:
    """What a lasting yes covers: one tool, and for each argument what it is limited to.

    ``equals``: exactly this value. ``beneath``: a path at or below this directory, as requested and as it resolves.
    ``any``: any value. The pattern is closed: a call with an argument that it does not name is not covered.
    """

    tool: str
    equals: Mapping[str, Any] = field(default_factory=dict[str, Any])
    beneath: Mapping[str, str] = field(default_factory=dict[str, str])
    any: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "tool": self.tool,
            "equals": dict(self.equals),
            "beneath": dict(self.beneath),
            "any": list(self.any),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "GrantPattern":
        """The inverse of :meth:`to_json`."""
        return cls(data["tool"], data["equals"], data["beneath"], tuple(cast("list[str]", data["any"])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A lasting yes, with everything it is bound to: any of it changes, and it covers nothing.

    ``session`` and ``agent`` say whose calls; ``definition`` and ``configuration`` are the tool's digests,
    ``workspace`` and ``policy`` what they were when it was given. ``by`` gave it ``at`` (seconds since the epoch).
    """

    grant_id: str
    session: str
    agent: str
    pattern: GrantPattern
    definition: str
    configuration: str
    workspace: str
    policy: str
    by: str
    at: float
    revoked_at: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "grant_id": self.grant_id,
            "session": self.session,
            "agent": self.agent,
            "pattern": self.pattern.to_json(),
            "definition": self.definition,
            "configuration": self.configuration,
            "workspace": self.workspace,
            "policy": self.policy,
            "by": self.by,
            "at": self.at,
            "revoked_at": self.revoked_at,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Grant":
        """The inverse of :meth:`to_json`."""
        fields: dict[str, Any] = {**data, "pattern": GrantPattern.from_json(data["pattern"])}
        return cls(**fields)


class GrantStore(Protocol):
    """Where grants are kept. Adding and revoking are durable when they return."""

    async def add_grant(self, grant: Grant) -> None: ...

    async def grants(self, session: str | None = None) -> list[Grant]:
        """The grants of one session, or all; revoked ones too, oldest first."""
        ...

    async def revoke_grant(self, grant_id: str, at: float) -> Grant:
        """End a grant. Raises :class:`~handrail.errors.ApprovalError` for an unknown id or one that was ended."""
        ...


class ApprovalStore(GrantStore, Protocol):
    """What whoever answers needs of a journal."""

    async def list_parked(self) -> list[tuple[ParkedCall, Answer | None]]:
        """Every call that waits, oldest first, with its answer if it has one that was not used yet."""
        ...

    async def parked(self, approval_id: str) -> tuple[ParkedCall, Answer | None, HeldIntent | None]:
        """A waiting call, its answer if there is one, and its intent where it ran staged already.

        Raises :class:`~handrail.errors.ApprovalError` for an unknown, expired or consumed id.
        """
        ...

    async def answer(self, approval_id: str, answer: Answer) -> None:
        """Record the one answer of a waiting call; it is durable when this returns.

        Raises :class:`~handrail.errors.ApprovalError` for an unknown, expired, answered or consumed id. Of two
        answers at once one is recorded and the other raises.
        """
        ...
