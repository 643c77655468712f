"""The stages of one tool call. Each is frozen; each step of the corridor takes one and returns the next.

::

    Proposed   decoded: a tool that exists, arguments that are a JSON object
    Checked    schema and guard passed; ``arguments`` is now the one object that everyone after sees
    Approved   policy, and a person where policy asked, said yes to exactly this
    Recorded   the intent is durable; only now may a body be entered
    Reviewed   what it staged may become real

A function that enters a body asks for a ``Recorded``: leaving a step out is a type error, not a forgotten call.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

from msgspec import Struct, field

from handrail.schema import JsonObject, canonical_bytes, digest_of
from handrail.tool import Tool

Review = Literal["before", "changes"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Who proposed the call: the run and step of an agent, and the provider's own id, which is not unique.

    ``agent`` tells the agents of one session apart: what a person granted to one of them is not granted to another.
    """

    run_id: str = ""
    step: int = 0
    tool_index: int = 0
    provider_call_id: str = ""
    door: str = "library"
    agent: str = ""


@dataclass(frozen=True)
class RegisteredTool:
    """A tool as the registry holds it.

    ``canonical_id`` (``builtin:read``, ``mcp:sentry/get_issue``) is what policy, journal and people see; ``model_name``
    is what the model sees. ``source`` says in words where the tool came from.
    """

    tool: Tool
    canonical_id: str
    model_name: str
    source: str

    @cached_property
    def configuration_digest(self) -> str:
        """Digest of what the tool's behaviour depends on besides its definition."""
        return digest_of(self.tool.body.configuration)


class Proposed(Struct, frozen=True):
    """A call for a tool that exists, with arguments that decoded to a JSON object."""

    call_id: str
    registered: RegisteredTool
    arguments: dict[str, Any]
    origin: Origin
    edited_by: str | None = None


class Checked(Struct, frozen=True, dict=True):
    """A call whose arguments passed the schema and the guard.

    ``arguments`` hold absolute paths for every guarded argument; ``requested_paths`` keep what was asked for and
    ``resolved_paths`` where that leads through links, both by argument name (policy looks at both).
    """

    proposed: Proposed
    arguments: JsonObject
    workspace_id: str = ""
    requested_paths: Mapping[str, str] = field(default_factory=dict[str, str])
    resolved_paths: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def registered(self) -> RegisteredTool:
        """The tool."""
        return self.proposed.registered

    @cached_property
    def arguments_bytes(self) -> bytes:
        """The canonical bytes of the effective arguments."""
        return canonical_bytes(self.arguments)

    def binding(self, policy_version: str) -> str:
        """Digest of everything an approval binds: arguments, definition, configuration, workspace, policy version."""
        return digest_of(
            {
                "tool": self.registered.canonical_id,
                "definition": self.registered.tool.definition.digest,
                "configuration": self.registered.configuration_digest,
                "arguments": self.arguments,
                "workspace": self.workspace_id,
                "policy": policy_version,
            }
        )


class Approved(Struct, frozen=True):
    """A call that may run. ``review`` says whether its staged changes are still to be shown before they are real.

    ``rule`` names what decided. ``approval_id`` is the approval to consume with the intent, if a person was asked;
    then ``asked_at`` and ``answered_at`` say when (seconds since the epoch).
    """

    checked: Checked
    review: Review
    rule: str
    approval_id: str | None = None
    approved_by: str | None = None
    binding: str | None = None
    asked_at: float | None = None
    answered_at: float | None = None


class Recorded(Struct, frozen=True):
    """A call whose intent is durable. ``sequence`` is its place in the journal (0 where the host keeps none)."""

    approved: Approved
    idempotency_key: str
    sequence: int = 0
    epoch: int = 0

    @property
    def checked(self) -> Checked:
        """The checked call."""
        return self.approved.checked

    @property
    def call_id(self) -> str:
        """The call's id."""
        return self.approved.checked.proposed.call_id


class Reviewed(Struct, frozen=True):
    """A call whose staged changes may become real: ``by`` whom, and under which approval if a person saw them.

    A commit asks for one of these, as entering a body asks for a ``Recorded``.
    """

    recorded: Recorded
    by: str
    approval_id: str | None = None


def new_call_id() -> str:
    """A UUIDv7 (RFC 9562 section 5.7): sorts by time of creation in milliseconds, 74 random bits."""
    try:
        drawn = _drawn.pop()
    except IndexError:
        drawn, *more = _random_halves(64)
        _drawn.extend(more)
    return _first_half(time.time_ns() // 1_000_000) + drawn


@lru_cache(maxsize=1)
def _first_half(milliseconds: int) -> str:
    moment = f"{milliseconds:012x}"
    return f"{moment[:8]}-{moment[8:]}-"


def _random_halves(count: int) -> list[str]:
    """The random halves of ``count`` ids, drawn at once: asking the system costs more than all else here."""
    digits = os.urandom(10 * count).hex()
    each = (digits[at : at + 20] for at in range(0, len(digits), 20))
    return [f"7{drawn[:3]}-{_VARIANT[drawn[3]]}{drawn[4:7]}-{drawn[7:19]}" for drawn in each]


_VARIANT = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}  # the two bits 10, and two random ones
_drawn: list[str] = []
os.register_at_fork(after_in_child=_drawn.clear)  # two processes must not hand out the same ids
