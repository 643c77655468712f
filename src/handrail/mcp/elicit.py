"""What a server asks a person for, in the middle of a call, goes to our approver: the same one that approves calls.

Where the call itself came from a client that can be asked, the question goes to the person there, with the server's own
form, and what they fill in is checked against it. Else the approver sees the question with every character visible, the
fields and their defaults. Yes means the defaults; values are given by editing (``Modify``) and are checked against the
server's own schema; anything else declines. A URL is shown and never opened.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import mcp_types as types
from mcp import MCPError

from handrail.approval.decision import ApprovalRequest, Approve, Approver, Modify, Reject
from handrail.call import new_call_id
from handrail.errors import ToolDefinitionError
from handrail.hidden import printable
from handrail.mcp.approvals import Ask
from handrail.schema import Schema, digest_of
from handrail.tool import RiskLevel

log = logging.getLogger("handrail.mcp")

ELICITATION_TTL_S = 3600.0
ELICITATION_KEY = "elicitation"
DECLINED = types.ElicitResult(action="decline")
CANCELLED = types.ElicitResult(action="cancel")


async def answer_elicitation(
    approver: Approver | None,
    params: types.ElicitRequestParams,
    *,
    tool: str,
    call_id: str,
    risk: RiskLevel,
    ask: Ask | None = None,
    clock: Callable[[], float] = time.time,
) -> types.ElicitResult:
    """Ask one question of a server's: at the client by ``ask``, where there is one and it is a form, else the approver.

    Never raises; nobody there, and a broken approver, cancel it.
    """
    schema = _schema_of(params)
    if schema is not None and ask is not None and isinstance(params, types.ElicitRequestFormParams):
        return await _passed_on(params, schema, ask, tool)
    if schema is None or approver is None:
        return CANCELLED if approver is None else DECLINED
    proposed = _proposed(params)
    request = _request(params, proposed, tool, call_id, risk=risk, now=clock())
    try:
        decision = await approver.decide(request)
    except Exception:
        log.exception("the approver failed on a question of %s", tool)
        return CANCELLED
    if isinstance(decision, Approve):
        return _accepted(params, schema, {key: value for key, value in proposed.items() if value is not None})
    if isinstance(decision, Modify):
        return _accepted(params, schema, decision.arguments)
    return DECLINED if isinstance(decision, Reject) else CANCELLED


async def _passed_on(params: types.ElicitRequestFormParams, schema: Schema, ask: Ask, tool: str) -> types.ElicitResult:
    """Ask the person at the client, saying who asks. No more than the server's own schema allows comes back."""
    shown = types.ElicitRequestFormParams(
        message=f"{tool} asks: {printable(params.message)}",
        requested_schema=_printable_words(params.requested_schema),
    )
    try:
        answer = await ask(shown, ELICITATION_KEY)
    except MCPError as error:
        log.warning("the client could not be asked a question of %s: %s", tool, error)
        return CANCELLED
    return _accepted(params, schema, answer.content or {}) if answer.action == "accept" else answer


def _printable_words(schema: Any) -> Any:
    """A schema whose titles and descriptions hide nothing; what decides about values stays as it is."""
    if isinstance(schema, list):
        return [_printable_words(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    return {
        key: printable(value) if key in ("title", "description") and isinstance(value, str) else _printable_words(value)
        for key, value in cast("dict[str, Any]", schema).items()
    }


def _schema_of(params: types.ElicitRequestParams) -> Schema | None:
    """The compiled schema of the answer; ``None`` when it cannot be used, so the question is declined."""
    if isinstance(params, types.ElicitRequestURLParams):
        return Schema({"type": "object"})
    try:
        return Schema(params.requested_schema, where="requestedSchema")
    except ToolDefinitionError as error:
        log.warning("a server's question was declined: %s", error)
        return None


def _proposed(params: types.ElicitRequestParams) -> dict[str, Any]:
    if isinstance(params, types.ElicitRequestURLParams):
        return {"url": params.url}
    properties = cast("Mapping[str, Any]", params.requested_schema.get("properties", {}))
    return {
        name: cast("Mapping[str, Any]", field).get("default") if isinstance(field, Mapping) else None
        for name, field in properties.items()
    }


def _request(
    params: types.ElicitRequestParams,
    proposed: dict[str, Any],
    tool: str,
    call_id: str,
    *,
    risk: RiskLevel,
    now: float,
) -> ApprovalRequest:
    message = printable(params.message)
    return ApprovalRequest(
        approval_id=new_call_id(),
        call_id=call_id,
        tool=tool,
        title=f"{tool} asks a question",
        risk=risk,
        source="an MCP server",
        arguments=proposed,
        binding=digest_of({"tool": tool, "call": call_id, "message": params.message, "fields": proposed}),
        why=f"the server asks: {message}",
        asked_at=now,
        expires_at=now + ELICITATION_TTL_S,
        description=message,
    )


def _accepted(params: types.ElicitRequestParams, schema: Schema, given: Mapping[str, Any]) -> types.ElicitResult:
    if isinstance(params, types.ElicitRequestURLParams):
        return types.ElicitResult(action="accept")
    content = dict(given)
    if schema.errors(content):
        log.warning("the answer to a server's question does not fit its schema; it was declined")
        return DECLINED
    return types.ElicitResult(action="accept", content=content)
