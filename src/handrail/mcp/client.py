"""One connection to one MCP server, and its tools as a :class:`~handrail.tool.Plugin`.

What a call through here promises:

1. A tool runs only while its definition is the one that was pinned; else the call ends ``quarantined``, unsent.
2. It is sent once. Neither we nor the library send it again: not after a broken stream, a timeout or a dead server
   (``unknown``), not after a mismatch of headers. Where the server asks for input, each further leg is the same call,
   made by us, after our approver answered.
3. An answer that breaks the output schema is a completed call with a mark.

A connection is opened when it is first needed and again, for the next call, after it was lost: then the tools are
listed and compared with their pins anew.
"""

import asyncio
import importlib.metadata
import logging
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, cast

import anyio
import mcp_types as types
from mcp import Client, MCPError
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from handrail.approval.decision import Approver
from handrail.errors import SandboxError, ServerUnavailable
from handrail.mcp.approvals import CURRENT, Ask
from handrail.mcp.catalog import ServerSpec
from handrail.mcp.definitions import Definition, Malformed, read_definitions, tool_def
from handrail.mcp.direct import ConnectionEnded, DirectCalls
from handrail.mcp.elicit import answer_elicitation
from handrail.mcp.launch import Launcher
from handrail.mcp.pins import Listing, PinStore, ServerIdentity, Standing, compare
from handrail.mcp.results import answer_of, lost, outcome_of, outcome_of_error, unreadable
from handrail.mcp.transport import http_transport, pipe_transport
from handrail.mcp.wire import Intake, Undecodable
from handrail.names import model_name
from handrail.outcome import Reason, ToolOutcome
from handrail.schema import JsonObject, digest_of
from handrail.tool import Effect, Job, Plugin, RiskLevel, Tool

log = logging.getLogger("handrail.mcp")

PLUGIN = "mcp"
MAX_LEGS = 10
MAX_PAGES = 100
MAX_STARTS = 5  # within START_WINDOW_S; a server that keeps dying is left alone for a while
START_WINDOW_S = 60.0
_T = TypeVar("_T")


@dataclass(slots=True)
class _Live:
    """An open connection."""

    client: Client
    intake: Intake
    pages: list[Any]
    direct: DirectCalls
    gone: asyncio.Event  # set once the server does not know our session any more


@dataclass(slots=True, eq=False)
class _Running:
    """A call in flight: its name for questions, and the scope whose deadline stands still while a person thinks.

    ``ask`` reaches the person at the client that made the call, where it came from one that can be asked.
    """

    call_id: str
    tool: str
    risk: RiskLevel
    ask: Ask | None
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)


class McpServer:
    """One server of the catalog.

    ``launcher`` starts stdio servers, ``pins`` remembers what was trusted, ``approver`` answers what the server asks.
    All methods but :meth:`call` belong to the event loop that :meth:`start` was awaited in.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        launcher: Launcher,
        pins: PinStore,
        approver: Approver | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.spec = spec
        self.standings: dict[str, Standing] = {}
        self.listing: Listing | None = None
        self.on_change: Callable[[], None] | None = None
        self._launcher = launcher
        self._pins = pins
        self._approver = approver
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._live: _Live | None = None
        self._over = asyncio.Event()
        self._why_lost = ""
        self._starts: list[float] = []
        self._opening = asyncio.Lock()
        self._listing_lock = asyncio.Lock()
        self._stale = False
        self._refused: dict[str, str] = {}
        self._running: set[_Running] = set()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Open the connection and look at the tools. Raises :class:`~handrail.errors.ServerUnavailable`."""
        self._loop = asyncio.get_running_loop()
        await self._connected()

    async def close(self) -> None:
        """Close the connection and end the server. Closing twice is harmless."""
        keeper, self._keeper = self._keeper, None
        self._over.set()
        if keeper is not None:
            await asyncio.wait([keeper])

    async def _connected(self) -> _Live:
        async with self._opening:
            if self._live is not None and not self._over.is_set():
                return self._live
            await self.close()
            self._admit_start()
            self._over = asyncio.Event()
            opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.create_task(self._keep(opened, self._over), name=f"mcp {self.spec.name}")
            await self._opened(opened, self._keeper)
            assert self._live is not None
            return self._live

    def _admit_start(self) -> None:
        now = time.monotonic()
        self._starts = [at for at in self._starts if now - at < START_WINDOW_S]
        if len(self._starts) >= MAX_STARTS:
            raise ServerUnavailable(
                f"the MCP server {self.spec.name!r} was lost {MAX_STARTS} times "
                f"within {START_WINDOW_S:g} s{self._words()}"
            )
        self._starts.append(now)

    async def _opened(self, opened: "asyncio.Future[None]", keeper: "asyncio.Task[None]") -> None:
        try:
            async with asyncio.timeout(self.spec.start_timeout):
                await asyncio.shield(opened)
        except TimeoutError:
            keeper.cancel()
            await asyncio.wait([keeper])
            opened.cancel()
            raise ServerUnavailable(
                f"the MCP server {self.spec.name!r} gave no answer within {self.spec.start_timeout:g} s{self._words()}"
            ) from None
        except asyncio.CancelledError:
            keeper.cancel()
            raise

    async def _keep(self, opened: "asyncio.Future[None]", over: asyncio.Event) -> None:
        """Hold one connection open until it is over. The one task that enters and leaves its contexts."""
        try:
            async with AsyncExitStack() as stack:
                self._live = await self._open(stack, over)
                await self._refresh(self._live)
                opened.set_result(None)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._hear_changes, self._live)
                    await over.wait()
                    tasks.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - whatever it was, the one who waits for the opening must learn it
            self._why_lost = self._why_lost or str(error)
            if not opened.done():
                opened.set_exception(self._cannot_open(error))
            else:
                log.warning("the connection to the MCP server %r ended: %s", self.spec.name, error)
        finally:
            self._live = None
            over.set()

    def _cannot_open(self, raised: Exception) -> Exception:
        error = first_of(raised)
        if isinstance(error, SandboxError):
            return error
        return ServerUnavailable(f"the MCP server {self.spec.name!r} cannot be used: {error}{self._words()}")

    def _words(self) -> str:
        return f" ({self._why_lost})" if self._why_lost else ""

    async def _open(self, stack: AsyncExitStack, over: asyncio.Event) -> _Live:
        pages: list[Any] = []
        intake = Intake(self.spec.max_message_bytes, pages.extend)
        direct = DirectCalls()
        gone = asyncio.Event()
        self._why_lost = ""

        def ended(why: str) -> None:
            self._why_lost = why
            over.set()

        if self.spec.url:
            transport = http_transport(
                self.spec.url,
                intake,
                headers=self._headers(),
                connect_timeout=self.spec.start_timeout,
                on_gone=gone.set,
            )
        else:
            transport = pipe_transport(await self._launcher.launch(self.spec), intake, direct, on_end=ended)
        client = Client(
            transport,
            cache=None,
            client_info=types.Implementation(name="handrail", version=importlib.metadata.version("handrail")),
            elicitation_callback=self._asked,
            message_handler=self._heard,
        )
        return _Live(await stack.enter_async_context(client), intake, pages, direct, gone)

    def _headers(self) -> dict[str, str]:
        if not self.spec.token_env:
            return dict(self.spec.headers)
        token = os.environ.get(self.spec.token_env, "")
        if not token:
            raise ServerUnavailable(f"the environment variable {self.spec.token_env} holds no token")
        return dict(self.spec.headers) | {"Authorization": f"Bearer {token}"}

    # ── tools ────────────────────────────────────────────────────────────────────────────────────────────────

    async def refresh(self) -> None:
        """List the tools again and compare them with their pins."""
        await self._refresh(await self._connected())

    async def _refresh(self, live: _Live) -> None:
        async with self._listing_lock:
            self._stale = False
            listing = await self._listed(live)
            pinned = await anyio.to_thread.run_sync(self._pins.pin_first, self.spec.name, listing)
            before = {name: (standing.state, _offered(standing)) for name, standing in self.standings.items()}
            self.listing = listing
            self.standings = compare(pinned, listing)
            for name, why in self._refused.items():
                if name in self.standings:
                    self.standings[name] = Standing(name, "refused", why, now=self.standings[name].now)
            after = {name: (standing.state, _offered(standing)) for name, standing in self.standings.items()}
        if before and before != after and self.on_change is not None:
            self.on_change()

    async def _listed(self, live: _Live) -> Listing:
        session = live.client.session
        live.pages.clear()
        kept: set[str] = set()
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
            page = await session.list_tools(params=params)
            kept.update(tool.name for tool in page.tools)
            cursor = page.next_cursor
            if cursor is None:
                break
        raws = [item for item in live.pages if not isinstance(item, Undecodable)]
        undecodable = [Malformed(item.name, item.reason) for item in live.pages if isinstance(item, Undecodable)]
        live.pages.clear()
        definitions, malformed = read_definitions(raws)
        dropped = [Malformed(name, "its x-mcp-header annotations are invalid") for name in definitions.keys() - kept]
        usable = {name: found for name, found in definitions.items() if name in kept}
        info = live.client.server_info
        identity = ServerIdentity(self.spec.identity(), info.name if info else "", info.version if info else "")
        return Listing(identity, usable, (*malformed, *undecodable, *dropped))

    def trust(self) -> None:
        """A person looked: pin what is offered now."""
        if self.listing is not None:
            self._pins.trust(self.spec.name, self.listing)

    def refuse(self, tool: str, why: str) -> None:
        """Keep one tool from being offered or called, for a reason of the host's."""
        self._refused[tool] = why
        if tool in self.standings:
            self.standings[tool] = Standing(tool, "refused", why, now=self.standings[tool].now)

    def offered(self) -> list[Standing]:
        """The standings of the tools that the catalog allows, by name."""
        allowed = self.spec.allowed
        return [self.standings[name] for name in sorted(self.standings) if allowed is None or name in allowed]

    def plugin(self) -> Plugin:
        """The tools, as they are now. A quarantined one is there under its pinned definition and refuses to run."""
        tools: list[Tool] = []
        for standing in self.offered():
            definition = standing.now if standing.usable else _pinned(standing)
            if definition is not None and standing.state != "refused":
                tools.append(Tool(tool_def(definition, self.spec), body=McpBody(self, definition)))
        where = self.spec.url or "the command " + " ".join(self.spec.command)
        return Plugin(PLUGIN, tuple(tools), f"MCP server {self.spec.name} ({where})", self.spec.name)

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self._stale = True
            if self._live is not None and self.on_change is not None:
                await self._refresh(self._live)

    async def _hear_changes(self, live: _Live) -> None:
        """Subscribe to list changes where that is done by a stream (2026-07-28); before, they come by themselves."""
        tools = live.client.server_capabilities.tools
        if live.client.protocol_version not in MODERN_PROTOCOL_VERSIONS or tools is None or not tools.list_changed:
            return
        try:
            async with live.client.listen(tools_list_changed=True) as events:
                async for _ in events:
                    self._stale = True
                    if self.on_change is not None:
                        await self._refresh(live)
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            log.info("the MCP server %r tells no list changes: %s", self.spec.name, error)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────

    async def call(self, definition: Definition, job: Job) -> ToolOutcome:
        """Carry one call out, from any event loop."""
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await self._call(definition, job, CURRENT.get())
        return await _elsewhere(self._loop, self._call(definition, job, None))

    async def _call(self, definition: Definition, job: Job, ask: Ask | None) -> ToolOutcome:
        try:
            live = await self._connected()
            if self._stale:
                await self._refresh(live)
        except (ServerUnavailable, MCPError, ValidationError) as error:
            return ToolOutcome.error(f"{error}. Nothing was sent.", Reason.NOT_RUN)
        refusal = self._refusal(definition)
        if refusal is not None:
            return ToolOutcome.error(refusal, Reason.QUARANTINED)
        name = f"{PLUGIN}:{self.spec.name}/{definition.name}"
        running = _Running(job.call_id, name, job.definition.risk_level, ask)
        self._running.add(running)
        try:
            return await self._bounded(live, running, definition, job)
        finally:
            self._running.discard(running)

    def _refusal(self, definition: Definition) -> str | None:
        name = definition.name
        standing = self.standings.get(name)
        look = f"`handrail mcp diff {self.spec.name}` shows it; `handrail mcp trust {self.spec.name}` accepts it"
        if standing is None:
            return f"{name} is quarantined: the server does not offer it any more. {look}."
        if not standing.usable or standing.now is None:
            return f"{name} is quarantined: {standing.why}. {look}."
        if standing.now.digest != definition.digest:
            return f"{name} is quarantined: its definition changed since this session began; start again to use it."
        return None

    async def _bounded(self, live: _Live, running: _Running, definition: Definition, job: Job) -> ToolOutcome:
        """Within the call's time, which stands still while a person is asked; cancelled when its signal is set."""
        loop = asyncio.get_running_loop()
        job.signal.on_set(lambda: _cancel_from_anywhere(loop, running.scope))
        running.scope.deadline = anyio.current_time() + job.timeout
        with running.scope:
            try:
                return await self._legs(live, running, definition, job)
            except MCPError as error:
                self._stale = self._stale or error.error.code == types.HEADER_MISMATCH
                over = error.error.code == types.CONNECTION_CLOSED or live.gone.is_set()
                if over and self._live is live:
                    self._over.set()  # so that the next call, which nobody has sent, opens a new one
                return outcome_of_error(error, self.spec.name)
            except ConnectionEnded as error:
                return lost(self.spec.name, str(error))
            except ValidationError as error:
                return unreadable(f"the server's answer is no tool result ({error.error_count()} faults)")
            except Exception as error:  # noqa: BLE001 - it was sent: whatever failed after that, nobody can know
                log.warning("the connection to %r failed in a call: %r", self.spec.name, error)
                return lost(self.spec.name, str(error) or type(error).__name__)
        if job.signal.is_set():
            return ToolOutcome.unknown(
                "Cancelled after it was sent; the server was told, and may or may not have done it.", Reason.CANCELLED
            )
        job.signal.set("timeout")
        return lost(self.spec.name, f"no answer within {job.timeout:g} s").with_(limit="wall")

    async def _legs(self, live: _Live, running: _Running, definition: Definition, job: Job) -> ToolOutcome:
        """Send the call; where the server answers with questions, answer them and send the next leg."""
        answers: types.InputResponses | None = None
        state: str | None = None
        result = await self._direct(live, definition, job) if job.on_progress is None else None

        async def told(progress: float, total: float | None, message: str | None) -> None:
            if job.on_progress is not None:
                job.on_progress(progress, total, message or "")

        for _ in range(MAX_LEGS):
            if result is None:
                result = await live.client.session.call_tool(
                    definition.name,
                    dict(job.arguments),
                    progress_callback=told if job.on_progress is not None else None,
                    input_responses=answers,
                    request_state=state,
                    allow_input_required=True,
                )
            if not isinstance(result, types.InputRequiredResult):
                return outcome_of(result, job.definition.output)
            answers, state, result = await self._answers(running, result), result.request_state, None
            if answers is None:
                return ToolOutcome.error(
                    "The server asked for something that this host does not give; the call ended there.",
                )
        return ToolOutcome.error(f"The server asked more than {MAX_LEGS} times; the call was ended.")

    async def _direct(
        self, live: _Live, definition: Definition, job: Job
    ) -> types.CallToolResult | types.InputRequiredResult | None:
        """The answer to a call that needs nothing of the library; ``None`` when it was not sent this way."""
        answer = await live.direct.call(definition.name, job.arguments)
        if answer is None:
            return None
        return answer_of(answer, modern=live.client.protocol_version in MODERN_PROTOCOL_VERSIONS)

    async def _answers(self, running: _Running, asked: types.InputRequiredResult) -> types.InputResponses | None:
        answers: types.InputResponses = {}
        for key, request in (asked.input_requests or {}).items():
            if not isinstance(request, types.ElicitRequest):
                return None
            answers[key] = await self._ask(request.params, running)
        return answers

    async def _asked(self, context: ClientRequestContext, params: types.ElicitRequestParams) -> types.ElicitResult:
        """A question in the middle of a call, as servers before 2026-07-28 ask: it does not say which call."""
        only = next(iter(self._running)) if len(self._running) == 1 else None
        return await self._ask(params, only)

    async def _ask(self, params: types.ElicitRequestParams, running: _Running | None) -> types.ElicitResult:
        with self._clocks_stopped():
            return await answer_elicitation(
                self._approver,
                params,
                tool=running.tool if running is not None else f"{PLUGIN}:{self.spec.name}",
                call_id=running.call_id if running is not None else "",
                risk=running.risk if running is not None else RiskLevel.MUTATION,
                ask=running.ask if running is not None else None,
                clock=self._clock,
            )

    @contextmanager
    def _clocks_stopped(self) -> Generator[None]:
        """A person's time is not the server's: the deadlines of calls in flight move by as long as the answer took."""
        waiting, began, pause = list(self._running), anyio.current_time(), 1e9
        for running in waiting:
            running.scope.deadline += pause
        try:
            yield
        finally:
            for running in waiting:
                running.scope.deadline += anyio.current_time() - began - pause


class McpBody:
    """A remote tool. Nothing of it is staged: what it does, it does elsewhere, at once."""

    staged = False

    def __init__(self, server: McpServer, definition: Definition) -> None:
        self._server = server
        self._definition = definition

    @property
    def configuration(self) -> JsonObject:
        """The server, and the definition as the server wrote it."""
        return {"server": self._server.spec.identity(), "definition": self._definition.digest}

    async def run(self, job: Job) -> Effect:
        """Send the call."""
        return Effect(await self._server.call(self._definition, job))


def first_of(error: BaseException) -> BaseException:
    """What went wrong first, inside the groups that task groups make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _cancel_from_anywhere(loop: asyncio.AbstractEventLoop, scope: anyio.CancelScope) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(scope.cancel)


def _offered(standing: Standing) -> str:
    return standing.now.digest if standing.now is not None else ""


def _pinned(standing: Standing) -> Definition | None:
    """The definition that was trusted, for a tool that is quarantined now."""
    if standing.was is None:
        return None
    return Definition(standing.name, standing.was, digest_of(standing.was))


async def _elsewhere(loop: asyncio.AbstractEventLoop, steps: Coroutine[Any, Any, _T]) -> _T:
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(steps, loop))


# ── several servers ──────────────────────────────────────────────────────────────────────────────────────────────


class McpServers:
    """The servers of one run. ``async with`` starts them all and ends them all."""

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        *,
        launcher: Launcher,
        pins: PinStore | None = None,
        approver: Approver | None = None,
    ) -> None:
        store = pins if pins is not None else PinStore()
        self.servers = [McpServer(spec, launcher=launcher, pins=store, approver=approver) for spec in specs]

    async def __aenter__(self) -> Self:
        try:
            await self._start_all()
        except BaseException:
            await self._close()
            raise
        refuse_collisions(self.servers)
        return self

    async def _start_all(self) -> None:
        """All at once; every start has ended, well or not, before the first failure is raised."""
        started = await asyncio.gather(*(server.start() for server in self.servers), return_exceptions=True)
        for failure in started:
            if failure is not None:
                raise failure

    async def __aexit__(self, *about: object) -> None:
        await self._close()

    async def _close(self) -> None:
        with anyio.CancelScope(shield=True):
            for server in reversed(self.servers):
                await server.close()

    def plugins(self) -> list[Plugin]:
        """Each server's tools."""
        return [server.plugin() for server in self.servers]

    @contextmanager
    def in_thread(self) -> Generator[Self]:
        """For hosts without an event loop of their own: keep the connections in a loop in a thread.

        Their tools may be called from any loop, and by ``execute_sync``.
        """
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="handrail-mcp", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self.__aenter__(), loop).result()
            try:
                yield self
            finally:
                asyncio.run_coroutine_threadsafe(self.__aexit__(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def refuse_collisions(servers: Sequence[McpServer], others: Mapping[str, str] | None = None) -> None:
    """Two tools that would meet under one model-facing name are both refused, and each names the other.

    ``others``: names taken by the host's own tools, with their canonical ids.
    """
    taken: dict[str, list[tuple[McpServer, str]]] = {}
    for server in servers:
        for standing in server.offered():
            if standing.state != "malformed":
                taken.setdefault(model_name(standing.name, server.spec.name), []).append((server, standing.name))
    for name, holders in taken.items():
        ids = [f"{PLUGIN}:{server.spec.name}/{tool}" for server, tool in holders]
        ids += [others[name]] if others is not None and name in others else []
        if len(ids) > 1:
            for server, tool in holders:
                server.refuse(tool, f"{' and '.join(ids)} would both be offered as {name!r}")


@asynccontextmanager
async def opened(
    specs: Sequence[ServerSpec],
    *,
    launcher: Launcher,
    pins: PinStore | None = None,
    approver: Approver | None = None,
) -> AsyncGenerator[McpServers]:
    """Start the servers of ``specs`` in this event loop. Raises :class:`~handrail.errors.ServerUnavailable`."""
    async with McpServers(specs, launcher=launcher, pins=pins, approver=approver) as servers:
        yield servers
