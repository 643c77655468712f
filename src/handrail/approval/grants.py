"""Lasting approvals: what may be granted, what a grant covers, and where grants live without a journal.

Rules:

1. Only where policy says so, and then only for ``mutation``: ``destructive`` and ``dangerous`` are asked about every
   time. Policy is asked first for every call, so a ``deny`` or a stricter ``ask`` beats any grant.
2. A grant is bound to session, agent, tool, definition, configuration, workspace and policy version. If any of them
   is another, it covers nothing.
3. Its pattern is closed: every argument of a call must be named in it (an exact value, beneath a directory, or any).
   What a person is shown is this pattern and no more; beneath holds for the path as requested and as it resolves.
4. A command is granted only word for word, only if it is read with certainty, and never a wrapper or interpreter.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from handrail.approval import shell
from handrail.approval.rules import Subject, is_at_or_below
from handrail.call import Checked, new_call_id
from handrail.errors import ApprovalError
from handrail.parked import Grant, GrantPattern
from handrail.schema import canonical_bytes
from handrail.tool import RiskLevel

COMMAND_ARGUMENTS = frozenset({"argv", "cmd", "code", "command", "script"})


def offer(checked: Checked) -> GrantPattern | None:
    """The pattern a person may be offered for calls like this one, or ``None`` where none may be.

    A guarded path widens to its directory, other texts beside one to any text; everything else stays as it is.
    """
    if why_not(checked) is not None:
        return None
    equals: dict[str, Any] = {}
    beneath: dict[str, str] = {}
    free: list[str] = []
    for name, value in checked.arguments.items():
        if name in checked.resolved_paths:
            beneath[name] = os.path.dirname(str(value))
        elif checked.resolved_paths and isinstance(value, str) and name not in COMMAND_ARGUMENTS:
            free.append(name)
        else:
            equals[name] = value
    pattern = GrantPattern(checked.registered.canonical_id, equals, beneath, tuple(sorted(free)))
    return pattern if pattern_covers(pattern, checked) else None


def why_not(checked: Checked) -> str | None:
    """Why calls like this one are never granted, or ``None`` if they may be."""
    definition = checked.registered.tool.definition
    if definition.risk_level > RiskLevel.MUTATION:
        return f"{definition.risk_level.value} calls are never granted"
    for name, value in checked.arguments.items():
        if name in COMMAND_ARGUMENTS and (why := _why_not_command(value)) is not None:
            return why
    return None


def _why_not_command(value: Any) -> str | None:
    if isinstance(value, list) and value and all(isinstance(word, str) for word in value):  # pyright: ignore[reportUnknownVariableType]
        argv = tuple(str(word) for word in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    elif isinstance(value, str):
        parsed = shell.parse(value)
        if isinstance(parsed, shell.Unclear):
            return f"the command cannot be read with certainty: {parsed.why}"
        argv = parsed.argv
    else:
        return "the command cannot be read"
    runs = shell.wrapper_of(argv) or shell.interpreter_of(argv)
    return None if runs is None else f"{runs!r} runs other commands, and is never granted"


def make_grant(
    pattern: GrantPattern, checked: Checked, *, allowed: bool, session: str, policy: str, by: str, at: float
) -> Grant:
    """A grant of ``pattern``, given while answering ``checked``. Raises :class:`ApprovalError` if it may not be.

    ``allowed``: whether policy and the question let this call be granted.
    """
    why = why_not(checked) or (None if allowed else "policy does not let this call be granted")
    if why is not None:
        raise ApprovalError(f"no grant: {why}")
    if pattern.tool != checked.registered.canonical_id or not pattern_covers(pattern, checked):
        raise ApprovalError("no grant: its pattern does not cover the call that was shown")
    loose = sorted(COMMAND_ARGUMENTS.intersection({*pattern.any, *pattern.beneath}))
    if loose:
        raise ApprovalError(f"no grant: {loose[0]!r} is a command, which is granted only word for word")
    return Grant(
        grant_id=new_call_id(),
        session=session,
        agent=checked.proposed.origin.agent,
        pattern=pattern,
        definition=checked.registered.tool.definition.digest,
        configuration=checked.registered.configuration_digest,
        workspace=checked.workspace_id,
        policy=policy,
        by=by,
        at=at,
    )


def covers(grant: Grant, checked: Checked, *, session: str, policy: str) -> bool:
    """Whether ``grant`` says yes to ``checked`` (rules 1 to 4; that policy allows grants is asked before)."""
    registered = checked.registered
    return (
        grant.revoked_at is None
        and grant.session == session
        and grant.agent == checked.proposed.origin.agent
        and grant.policy == policy
        and grant.workspace == checked.workspace_id
        and grant.definition == registered.tool.definition.digest
        and grant.configuration == registered.configuration_digest
        and why_not(checked) is None
        and pattern_covers(grant.pattern, checked)
    )


def pattern_covers(pattern: GrantPattern, checked: Checked) -> bool:
    """Whether every argument of the call is named by the pattern and fits it."""
    if pattern.tool != checked.registered.canonical_id:
        return False
    paths = Subject.of(checked).paths
    return all(_fits(pattern, name, value, paths) for name, value in checked.arguments.items()) and all(
        name in checked.arguments for name in pattern.equals
    )


def _fits(pattern: GrantPattern, name: str, value: Any, paths: Mapping[str, tuple[str, str]]) -> bool:
    if name in pattern.equals:
        return canonical_bytes(pattern.equals[name]) == canonical_bytes(value)
    if name in pattern.beneath:
        return name in paths and all(is_at_or_below(path, pattern.beneath[name]) for path in paths[name])
    return name in pattern.any


class MemoryGrants:
    """Grants that end with the process."""

    def __init__(self) -> None:
        self._grants: dict[str, Grant] = {}

    async def add_grant(self, grant: Grant) -> None:
        """Keep it."""
        self._grants[grant.grant_id] = grant

    async def grants(self, session: str | None = None) -> list[Grant]:
        """The grants of one session, or all, oldest first."""
        return [grant for grant in self._grants.values() if session in (None, grant.session)]

    async def revoke_grant(self, grant_id: str, at: float) -> Grant:
        """End it. Raises :class:`ApprovalError` for an unknown id or one that was ended."""
        grant = self._grants.get(grant_id)
        if grant is None or grant.revoked_at is not None:
            raise ApprovalError(f"no grant {grant_id!r} is in force")
        ended = replace(grant, revoked_at=at)
        self._grants[grant_id] = ended
        return ended
