"""Asking a person through the client that called us: an approver for calls that come over MCP.

A client that can elicit is asked; for one that cannot, the approver behind this one decides (parking, or no). How the
question travels depends on the era: before 2026-07-28 we send a request and wait; since then the answer to the call is
the question, and the client's next request carries the reply. :class:`Exchange` is that conversation.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import anyio
import mcp_types as types
from mcp import MCPError

from handrail.approval.decision import ApprovalRequest, Approve, Approver, Decision, Reject, Unavailable
from handrail.approval.render import arguments_lines, block_lines, escaped

QUESTION_KEY = "approval"
MAX_DIFF_LINES = 200
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "decision": {
            "type": "string",
            "title": "Decision",
            "description": "approve runs exactly this call, once; reject refuses it",
            "enum": ["approve", "reject"],
        },
        "reason": {"type": "string", "title": "Reason", "description": "What the model is told when you reject"},
    },
    "required": ["decision"],
}

JsonDocument = dict[str, Any]
Ask = Callable[[types.ElicitRequestFormParams, str], Awaitable[types.ElicitResult]]
CURRENT: ContextVar[Ask | None] = ContextVar("handrail_mcp_ask", default=None)


class ClientApprover:
    """Asks the client whose call this is, where it can be asked; else ``fallback`` decides."""

    def __init__(self, fallback: Approver) -> None:
        self._fallback = fallback

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Ask, and read the answer: only a clear yes is one."""
        ask = CURRENT.get()
        if ask is None:
            return await self._fallback.decide(request)
        try:
            answer = await ask(question_of(request), QUESTION_KEY)
        except MCPError as error:
            return Unavailable(f"the client cannot be asked: {error}")
        return decision_of(answer)


async def ask_client(message: str, schema: dict[str, Any], *, key: str = "question") -> types.ElicitResult:
    """For a host tool: ask the person at the client whose call this is for values of their own.

    ``schema`` is a flat object schema, as elicitation allows; ``key`` names the question where it travels as an answer.
    A call that did not come over MCP, and a client that cannot be asked, are answered ``cancel``.
    """
    ask = CURRENT.get()
    if ask is None:
        return types.ElicitResult(action="cancel")
    return await ask(types.ElicitRequestFormParams(message=message, requested_schema=schema), key)


def question_of(request: ApprovalRequest) -> types.ElicitRequestFormParams:
    """The question, every character of it visible."""
    lines, complete = arguments_lines(request.arguments)
    text = [
        f"Allow {escaped(request.tool)}? Risk: {request.risk.value}. From: {escaped(request.source)}.",
        f"Why you are asked: {escaped(request.why)}",
        *(f"  {line}" for line in lines),
    ]
    if not complete:
        text.append("  (some arguments are too long to be shown whole)")
    if request.diff:
        diff, whole = block_lines(request.diff, max_lines=MAX_DIFF_LINES)
        text += ["What it changed, not real yet:", *diff, *([] if whole else ["(the diff goes on)"])]
    return types.ElicitRequestFormParams(message="\n".join(text), requested_schema=SCHEMA)


def decision_of(answer: types.ElicitResult) -> Decision:
    """What a client's answer means."""
    if answer.action == "cancel":
        return Unavailable("the question was dismissed at the client")
    content = answer.content or {}
    if answer.action == "accept" and content.get("decision") == "approve":
        return Approve(by="mcp client")
    why = content.get("reason")
    return Reject(why if isinstance(why, str) and why else "The person at the client said no.", by="mcp client")


@dataclass(slots=True, eq=False)
class Exchange:
    """One call whose questions travel as answers (2026-07-28): the call waits here while the client is away.

    ``fingerprint`` binds it to its tool and arguments: another request's reply is not taken for this one's.
    """

    fingerprint: str
    state: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    question: types.ElicitRequestFormParams | None = None
    key: str = QUESTION_KEY
    result: JsonDocument | None = None
    failure: Exception | None = None
    _moved: anyio.Event = field(default_factory=anyio.Event)
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _answer: types.ElicitResult | None = None
    _turn: anyio.Lock = field(default_factory=anyio.Lock)

    async def ask(self, question: types.ElicitRequestFormParams, key: str) -> types.ElicitResult:
        """Called from inside the call: hand the question out, wait for the reply. One question at a time."""
        async with self._turn:
            self.state = secrets.token_urlsafe(32)
            self.question, self.key, self._answered = question, key, anyio.Event()
            self._moved.set()
            await self._answered.wait()
            assert self._answer is not None
            return self._answer

    def finish(self, result: JsonDocument | None, failure: Exception | None = None) -> None:
        """The call is over."""
        self.result, self.failure, self.question = result, failure, None
        self._moved.set()

    def reply(self, responses: Mapping[str, Any] | None) -> None:
        """The client's next request carries this; anything but a reply to the question dismisses it."""
        given = (responses or {}).get(self.key)
        self._answer = given if isinstance(given, types.ElicitResult) else types.ElicitResult(action="cancel")
        self.question, self._moved = None, anyio.Event()
        self._answered.set()

    async def moved(self) -> JsonDocument | types.InputRequiredResult:
        """Wait until the call asks or ends."""
        await self._moved.wait()
        if self.failure is not None:
            raise self.failure
        if self.question is None:
            assert self.result is not None
            return self.result
        asked: types.InputRequests = {self.key: types.ElicitRequest(params=self.question)}
        return types.InputRequiredResult(input_requests=asked, request_state=self.state)
