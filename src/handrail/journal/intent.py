"""The intent: everything about a call that the next start may need to know, from the stage to plain data and back.

Pure. ``Declaration`` is the part that recovery compares with what is registered today.
"""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, cast

from handrail.call import Approved, RegisteredTool
from handrail.errors import JournalCorrupt
from handrail.schema import digest_of


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a replay depends on, as digests and words.

    ``surroundings`` and ``configuration_parts`` (by name, a short digest each) are for naming what differs; the digests
    decide.
    """

    tool: str
    source: str
    replay: str
    replay_key: str | None
    definition: str
    configuration: str
    environment: str
    staged: bool
    surroundings: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    configuration_parts: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)

    @classmethod
    def of(
        cls, registered: RegisteredTool, environment: str, surroundings: Mapping[str, str], parts: Mapping[str, str]
    ) -> "Declaration":
        """The declaration of a registered tool in this environment; ``parts`` are :func:`configuration_parts`."""
        tool = registered.tool
        return cls(
            tool=registered.canonical_id,
            source=registered.source,
            replay=tool.replay.value,
            replay_key=tool.replay_key,
            definition=tool.definition.digest,
            configuration=registered.configuration_digest,
            environment=environment,
            staged=tool.body.staged,
            surroundings=surroundings,
            configuration_parts=parts,
        )


def configuration_parts(registered: RegisteredTool) -> dict[str, str]:
    """The names in a tool's configuration, each with a short digest: enough to say which one differs."""
    return {name: digest_of(value)[7:23] for name, value in registered.tool.body.configuration.items()}


@dataclass(frozen=True, slots=True)
class Intent:
    """A recorded intent, read back."""

    call_id: str
    sequence: int
    declaration: Declaration
    arguments: Mapping[str, Any]
    has_secrets: bool
    idempotency_key: str
    run_id: str
    step: int
    tool_index: int
    provider_call_id: str
    workspace: str
    deadline: float
    at: float

    @classmethod
    def from_data(cls, data: Mapping[str, Any], sequence: int) -> "Intent":
        """From a record's body. Raises :class:`~handrail.errors.JournalCorrupt` for anything else."""
        try:
            origin, declared = data["origin"], data["declaration"]
            return cls(
                call_id=_text(data["call_id"]),
                sequence=sequence,
                declaration=Declaration(
                    tool=_text(data["tool"]),
                    source=_text(declared["source"]),
                    replay=_text(declared["replay"]),
                    replay_key=None if declared["replayKey"] is None else _text(declared["replayKey"]),
                    definition=_text(declared["definition"]),
                    configuration=_text(declared["configuration"]),
                    environment=_text(declared["environment"]),
                    staged=declared["staged"] is True,
                    surroundings=_mapping(data["environment"]),
                    configuration_parts=_mapping(declared["configuration_parts"]),
                ),
                arguments=_mapping(data["arguments"]),
                has_secrets=data["has_secrets"] is not False,
                idempotency_key=_text(data["idempotency_key"]),
                run_id=_text(origin["run_id"]),
                step=int(origin["step"]),
                tool_index=int(origin["tool_index"]),
                provider_call_id=_text(origin["provider_call_id"]),
                workspace=_text(data["workspace"]),
                deadline=float(data["deadline"]),
                at=float(data["at"]),
            )
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise JournalCorrupt(f"record {sequence} is not an intent: {error!r}", sequence=sequence) from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError("not an object")
    return cast("Mapping[str, Any]", value)


def environment_of(workspace: str) -> dict[str, str]:
    """What identifies the place a call ran in; a replay elsewhere is another call."""
    return {
        "handrail": metadata.version("handrail"),
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": f"{platform.system()}-{platform.machine()}",
        "workspace": workspace,
    }


def _arguments_digest(approved: Approved, redacted: Mapping[str, Any], has_secrets: bool) -> str:
    if has_secrets:
        return digest_of(redacted)
    return "sha256:" + hashlib.sha256(approved.checked.arguments_bytes).hexdigest()


def intent_data(
    approved: Approved,
    declaration: Declaration,
    *,
    arguments: Mapping[str, Any],
    has_secrets: bool,
    deadline: float,
    executor: str,
    at: float,
) -> dict[str, Any]:
    """The body of an intent. ``arguments`` are the redacted ones; digests that would betray a secret are left out.

    ``arguments_digest`` is over the canonical bytes (RFC 8785) of the effective arguments as recorded.
    """
    checked = approved.checked
    proposed = checked.proposed
    origin = proposed.origin
    return {
        "kind": "intent",
        "call_id": proposed.call_id,
        "at": at,
        "tool": checked.registered.canonical_id,
        "model_name": checked.registered.model_name,
        "risk": checked.registered.tool.definition.risk_level.value,
        "arguments": arguments,
        "arguments_digest": _arguments_digest(approved, arguments, has_secrets),
        "has_secrets": has_secrets,
        "declaration": {
            "source": declaration.source,
            "replay": declaration.replay,
            "replayKey": declaration.replay_key,
            "definition": declaration.definition,
            "configuration": declaration.configuration,
            "configuration_parts": declaration.configuration_parts,
            "environment": declaration.environment,
            "staged": declaration.staged,
        },
        "origin": {
            "run_id": origin.run_id,
            "step": origin.step,
            "tool_index": origin.tool_index,
            "provider_call_id": origin.provider_call_id,
            "door": origin.door,
        },
        "workspace": checked.workspace_id,
        "environment": declaration.surroundings,
        "idempotency_key": proposed.call_id,
        "attempt": 1,
        "deadline": deadline,
        "executor": executor,
        "epoch": 1,
        "review": approved.review,
        "rule": approved.rule,
        "edited_by": proposed.edited_by,
        "approval": None
        if approved.approval_id is None
        else {
            "id": approved.approval_id,
            "by": approved.approved_by,
            "asked_at": approved.asked_at,
            "answered_at": approved.answered_at,
            "binding": None if has_secrets else approved.binding,
        },
    }
