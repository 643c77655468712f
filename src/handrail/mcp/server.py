"""Our registry and executor as an MCP server, in both protocol eras. A door: every call enters the corridor.

What a client sees of an outcome: ``ok`` is a result; ``error``, ``unknown`` and ``pending`` are results with
``isError`` and a text that says which. The outcome's own fields stand in ``_meta`` under ``handrail/outcome``.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any, Protocol, cast

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter

from handrail.call import Origin, RegisteredTool, new_call_id
from handrail.executor import Listeners, ToolExecutor
from handrail.mcp.approvals import CURRENT, Ask, Exchange, JsonDocument
from handrail.outcome import Reason, ToolOutcome
from handrail.parked import ParkedCall
from handrail.schema import digest_of
from handrail.tool import RiskLevel

log = logging.getLogger("handrail.mcp")

DOOR = "mcp"
META_KEY = "handrail/outcome"
MAX_WAITING = 1000
MAX_TOLD = 256
MAX_VALUE_BYTES = 4 * 1024 * 1024
_BLOCK: TypeAdapter[types.ContentBlock] = TypeAdapter(types.ContentBlock)
_CAN_ELICIT = types.ClientCapabilities(elicitation=types.ElicitationCapability())

Context = ServerRequestContext[Any, Any]
Answer = JsonDocument | types.InputRequiredResult


class Naming(Protocol):
    """Under which name a tool is offered."""

    def __call__(self, registered: RegisteredTool) -> str: ...


def model_names(registered: RegisteredTool) -> str:
    """The name that every model provider accepts."""
    return registered.model_name


class CorridorServer:
    """Offers an executor's tools.

    ``naming`` decides under which names tools are offered; ``hidden`` ones are not listed, and a call of one is told
    why by its outcome. ``ask_client``: whether approvals are asked for at a client that can elicit (the executor's
    approver is then a :class:`~handrail.mcp.approvals.ClientApprover`).
    Requests for tools wait until ``ready`` is set; ``on_request`` hears of each that came by the library.
    """

    def __init__(
        self,
        executor: ToolExecutor,
        *,
        name: str = "handrail",
        naming: Naming = model_names,
        hidden: Callable[[RegisteredTool], bool] = lambda _: False,
        ask_client: bool = True,
    ) -> None:
        self._executor = executor
        self._naming = naming
        self._hidden = hidden
        self.ready = anyio.Event()
        self.on_request: Callable[[Context], None] | None = None
        self._ask_client = ask_client
        self._waiting: dict[str, Exchange] = {}
        self._parked: dict[str, str] = {}  # the approval that a call waits for, by the digest of what was called
        self._tasks: set[asyncio.Task[None]] = set()
        self._bus = InMemorySubscriptionBus()
        self._told: dict[str, ServerSession] = {}  # who is told of new tools, by its session; the latest stands last
        self.server: Server[Any] = Server(
            name,
            version=version("handrail"),
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self._bus),
            get_tool_input_schema=self._input_schema,
            lifespan=self._lifespan,
        )

    def options(self) -> InitializationOptions:
        """What a client of the handshake era is told."""
        return self.server.create_initialization_options(NotificationOptions(tools_changed=True))

    async def tools_changed(self) -> None:
        """Tell every client that listens."""
        await self._bus.publish(ToolsListChanged())
        for session in list(self._told.values()):
            try:
                await session.send_tool_list_changed()
            except Exception as error:  # noqa: BLE001 - a client that left is no reason to keep the news from others
                log.debug("a client could not be told of new tools: %s", error)

    @asynccontextmanager
    async def _lifespan(self, server: Server[Any]) -> AsyncGenerator[dict[str, Any]]:
        try:
            yield {}
        finally:
            for task in list(self._tasks):
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    # ── listing ──────────────────────────────────────────────────────────────────────────────────────────────

    def _offered(self) -> dict[str, RegisteredTool]:
        return {self._naming(item): item for item in self._executor.registry}

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        found = self._find(name)
        return None if found is None else found.tool.parameters

    def _find(self, name: str) -> RegisteredTool | None:
        found = self._executor.registry.find(name)
        if found is not None and self._naming(found) == name:
            return found
        return self._offered().get(name)

    async def _list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        self._heard(context)
        await self.ready.wait()
        modern = context.protocol_version in MODERN_PROTOCOL_VERSIONS
        if not modern:
            self._tell(context)
        shown = [(name, item) for name, item in sorted(self._offered().items()) if not self._hidden(item)]
        tools = [_declared(name, item, modern=modern) for name, item in shown]
        return types.ListToolsResult(tools=tools)

    def _tell(self, context: Context) -> None:
        """A client of the handshake era listed the tools: it is told when they change. The library says of none that it
        left, so of very many the ones that listed longest ago are let go.
        """
        session = context.request.headers.get(MCP_SESSION_ID_HEADER, "") if context.request is not None else ""
        self._told.pop(session, None)
        self._told[session] = context.session
        if len(self._told) > MAX_TOLD:
            del self._told[next(iter(self._told))]

    # ── calling ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        self._heard(context)
        answer = await self.call(context, params)
        if isinstance(answer, types.InputRequiredResult):
            return answer
        return types.CallToolResult.model_validate(answer, by_name=False)

    def _heard(self, context: Context) -> None:
        if self.on_request is not None:
            self.on_request(context)

    async def call(self, context: Context, params: types.CallToolRequestParams) -> Answer:
        """Answer one ``tools/call``. Of ``context``, the client's abilities, its era and the request's id count."""
        if not self.ready.is_set():
            await self.ready.wait()
        if params.request_state is not None:
            return await self._go_on(params)
        if not self._ask_client or not context.session.check_client_capability(_CAN_ELICIT):
            return await self._carry_out(context, params, None)
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            return await self._carry_out(context, params, _asking(context))
        return await self._begin(context, params)

    async def _carry_out(self, context: Context, params: types.CallToolRequestParams, ask: Ask | None) -> JsonDocument:
        """One call through the corridor."""
        found = self._find(params.name)
        token = CURRENT.set(ask)
        listeners, report = _progress(context)
        origin = Origin(door=DOOR, provider_call_id=str(context.request_id))
        try:
            outcome = await self._executed(
                found.canonical_id if found is not None else params.name, params.arguments or {}, origin, listeners
            )
        finally:
            CURRENT.reset(token)
            if report is not None:
                await report()
        if outcome.reason is Reason.UNKNOWN_TOOL:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown tool: {params.name}")
        return result_of(outcome, found, modern=context.protocol_version in MODERN_PROTOCOL_VERSIONS)

    async def _executed(
        self, name: str, arguments: Mapping[str, Any], origin: Origin, listeners: Listeners
    ) -> ToolOutcome:
        """Through the corridor; the same call as one that waits for an answer goes on with that one, and is not new."""
        approval = self._parked.pop(_what(name, arguments), None) if self._parked else None
        if approval is not None:
            outcome = await self._executor.resume(approval)
        else:
            outcome = await self._executor.execute(
                name, arguments, call_id=new_call_id(), origin=origin, listeners=listeners
            )
        if outcome.status == "pending" and outcome.approval_id is not None:
            self._parked[_what(name, arguments)] = outcome.approval_id
            if len(self._parked) > MAX_WAITING:
                del self._parked[next(iter(self._parked))]  # asked for again, it is a new call, and asked about anew
        return outcome

    def remember(self, parked: Iterable[ParkedCall]) -> None:
        """Calls that an earlier process of this door left waiting: the same call again goes on with them."""
        for call in parked:
            if _door_of(call) == DOOR:
                requested = cast("Mapping[str, Any]", call.question.get("requested_paths") or {})
                self._parked[_what(call.tool, {**call.arguments, **requested})] = call.approval_id

    async def _begin(self, context: Context, params: types.CallToolRequestParams) -> Answer:
        """A call that may ask: it runs in a task of its own, which outlives the request that began it."""
        exchange = Exchange(_fingerprint(params))

        async def run() -> None:
            try:
                exchange.finish(await self._carry_out(context, params, exchange.ask))
            except asyncio.CancelledError:
                exchange.finish(None, MCPError(code=types.INTERNAL_ERROR, message="The call was cancelled"))
                raise
            except Exception as error:  # noqa: BLE001 - raised again in the request that waits
                exchange.finish(None, error)
            finally:
                self._waiting.pop(exchange.state, None)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return self._held(exchange, await exchange.moved())
        except asyncio.CancelledError:
            task.cancel()
            raise

    async def _go_on(self, params: types.CallToolRequestParams) -> Answer:
        """The client's reply to a question. Each state is good for one reply, to its own call."""
        exchange = self._waiting.pop(params.request_state or "", None)
        if exchange is None or exchange.fingerprint != _fingerprint(params):
            if exchange is not None:
                exchange.reply(None)
            raise MCPError(code=types.INVALID_PARAMS, message="This request state is unknown, used or another call's")
        exchange.reply(params.input_responses)
        return self._held(exchange, await exchange.moved())

    def _held(self, exchange: Exchange, moved: Answer) -> Answer:
        if isinstance(moved, types.InputRequiredResult):
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.pop(next(iter(self._waiting))).reply(None)
            self._waiting[exchange.state] = exchange
        return moved


def _what(tool: str, arguments: Mapping[str, Any]) -> str:
    """What was called. Arguments that no digest can be made of are refused by the corridor, and wait for nothing."""
    try:
        return digest_of({"tool": tool, "arguments": dict(arguments)})
    except (TypeError, ValueError):
        return ""


def _door_of(parked: ParkedCall) -> str:
    return str(cast("Mapping[str, Any]", parked.question.get("origin") or {}).get("door", ""))


def _fingerprint(params: types.CallToolRequestParams) -> str:
    return digest_of({"name": params.name, "arguments": params.arguments or {}})


def _asking(context: Context) -> Ask:
    """Before 2026-07-28: a request of ours, while the client's own is open. Over HTTP it rides on that one's stream."""
    related = context.request_id if context.request is not None else None

    async def ask(question: types.ElicitRequestFormParams, _key: str) -> types.ElicitResult:
        return await context.session.elicit_form(
            question.message, question.requested_schema, related_request_id=related
        )

    return ask


def _progress(context: Context) -> tuple[Listeners, Callable[[], Any] | None]:
    """Pass progress on to a client that asked for it, in order, from whatever thread it comes."""
    if context.meta is None or context.meta.get("progress_token") is None:
        return Listeners(), None
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, float | None, str] | None] = asyncio.Queue()

    def hear(done: float, total: float | None, message: str) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, (done, total, message))

    async def send() -> None:
        while (step := await queue.get()) is not None:
            await context.session.report_progress(step[0], step[1], step[2] or None)

    task = asyncio.create_task(send())

    async def finish() -> None:
        loop.call_soon(queue.put_nowait, None)
        await asyncio.wait([task])

    return Listeners(on_progress=hear), finish


# ── shapes, pure ─────────────────────────────────────────────────────────────────────────────────────────────────


def _declared(name: str, registered: RegisteredTool, *, modern: bool) -> types.Tool:
    definition = registered.tool.definition
    output = definition.output.document if definition.output is not None else None
    if output is not None and not modern and output.get("type") != "object":
        output = None  # before 2026-07-28 a structured result is an object
    risk = definition.risk_level
    return types.Tool(
        name=name,
        description=definition.description,
        input_schema=definition.schema.document,
        output_schema=output,
        annotations=types.ToolAnnotations(
            read_only_hint=risk <= RiskLevel.READ_ONLY, destructive_hint=risk >= RiskLevel.DESTRUCTIVE
        ),
    )


def result_of(outcome: ToolOutcome, registered: RegisteredTool | None, *, modern: bool) -> JsonDocument:
    """An outcome as a result of ``tools/call``. Only a call that happened, with a result that holds, is no error."""
    failed = outcome.status != "ok" or outcome.invalid_output
    content: list[Any] = [{"type": "text", "text": _worded(outcome)}, *map(_block, outcome.content)]
    structured = None if failed else _structured(outcome, registered, modern=modern)
    if structured is _TOO_LARGE:
        content.append({"type": "text", "text": "[The structured result is too large to be passed on.]"})
        structured, failed = None, True
    meta = {
        "status": outcome.status,
        "reason": outcome.reason.value if outcome.reason is not None else None,
        "callId": outcome.call_id,
        "approvalId": outcome.approval_id,
        "truncated": outcome.truncated,
    }
    result: JsonDocument = {"content": content, "isError": failed, "_meta": {META_KEY: meta}}
    return result if structured is None else result | {"structuredContent": structured}


def _block(block: Mapping[str, Any]) -> JsonDocument:
    """A content block that is one of the protocol's. Raises ``ValidationError`` for a host tool's odd one."""
    checked = _BLOCK.validate_python(dict(block), by_name=False)
    return _BLOCK.dump_python(checked, by_alias=True, mode="json", exclude_none=True)


_TOO_LARGE = object()


def _structured(outcome: ToolOutcome, registered: RegisteredTool | None, *, modern: bool) -> Any:
    """The value, where the tool declared its shape and the era can carry it."""
    if registered is None or registered.tool.definition.output is None:
        return None
    value: Any = outcome.value
    if not modern and not isinstance(cast("object", value), dict):
        return None
    if outcome.truncated and len(json.dumps(value)) > MAX_VALUE_BYTES:
        return _TOO_LARGE
    return value


def _worded(outcome: ToolOutcome) -> str:
    if outcome.status == "unknown":
        return f"[Outcome unknown: it may or may not have happened. Do not simply call again.]\n{outcome.text}"
    if outcome.status == "pending":
        return f"[Not done yet. Once it was answered, the same call again goes on with it.]\n{outcome.text}"
    return outcome.text
