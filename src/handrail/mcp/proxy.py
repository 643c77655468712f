"""One server behind the corridor, under its own names: what ``handrail proxy`` and ``handrail serve`` run."""

import hashlib
import os
import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import anyio
import platformdirs
from anyio.abc import TaskGroup

from handrail.approval.decision import Approver
from handrail.call import RegisteredTool
from handrail.mcp.approvals import ClientApprover
from handrail.mcp.catalog import ServerSpec
from handrail.mcp.client import McpServer, McpServers, first_of
from handrail.mcp.http import PATH, listening, serve_http
from handrail.mcp.joining import register_servers, servers_for
from handrail.mcp.server import CorridorServer, model_names
from handrail.mcp.shortcut import PlainCalls
from handrail.mcp.stdio import claimed_stdio, server_streams
from handrail.sandbox.supervisor import Supervisor
from handrail.wiring import House

_PLAIN = re.compile(r"[^A-Za-z0-9]+")


def name_of(command: Sequence[str]) -> str:
    """The name under which a command's pins are kept: its program, and a digest of the whole command."""
    program = _PLAIN.sub("-", os.path.basename(command[0])).strip("-")[:32] or "server"
    return f"{program}-{hashlib.sha256(chr(0).join(command).encode()).hexdigest()[:8]}"


@asynccontextmanager
async def joined(house: House, specs: Sequence[ServerSpec], *, approver: Approver) -> AsyncGenerator[McpServers, None]:
    """Start servers in this event loop and put their tools into the house's registry."""
    settings = house.settings
    with Supervisor(allow_reduced=settings.allow_weaker_walls) as supervisor:
        servers = servers_for(
            specs,
            supervisor=supervisor,
            workspace=house.workspace,
            approver=approver,
            state=platformdirs.user_state_dir("handrail"),
            weaker=settings.allow_weaker_walls,
        )
        async with servers:
            register_servers(house.registry, servers)
            yield servers


Front = Callable[[CorridorServer], Awaitable[None]]


async def run_door(
    house: House,
    specs: Sequence[ServerSpec],
    *,
    approver: Approver,
    own_names: bool,
    front: Front,
    say: Callable[[str], None],
) -> None:
    """Serve the house's tools and those of ``specs`` through ``front`` until it returns.

    The front answers at once; listing and calling wait until the servers behind it have started. ``own_names``: tools
    under the names their server gave them, for the proxy. ``say`` is told of quarantined tools.
    """
    by_alias: dict[str, McpServer] = {}

    def hidden(registered: RegisteredTool) -> bool:
        server = _server_of(registered, by_alias)
        standing = server.standings.get(registered.tool.name) if server is not None else None
        return server is not None and (standing is None or not standing.usable)

    door = CorridorServer(
        house.executor,
        naming=_own_name if own_names else model_names,
        hidden=hidden,
        ask_client=isinstance(approver, ClientApprover),
    )
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_serve, front, door, tasks.cancel_scope)
            async with joined(house, specs, approver=approver) as servers:
                for server in servers.servers:
                    by_alias[server.spec.name] = server
                    server.on_change = partial(_start, tasks, door)
                    for line in quarantine_lines(server):
                        say(line)
                if house.journal is not None:
                    door.remember(parked for parked, _ in await house.journal.list_parked())
                door.ready.set()
                await anyio.sleep_forever()
    except BaseExceptionGroup as group:
        raise first_of(group) from None


def _start(tasks: TaskGroup, door: CorridorServer) -> None:
    tasks.start_soon(door.tools_changed)


async def _serve(front: Front, door: CorridorServer, scope: anyio.CancelScope) -> None:
    await front(door)
    scope.cancel()


def _own_name(registered: RegisteredTool) -> str:
    return registered.tool.name


def _server_of(registered: RegisteredTool, by_alias: Mapping[str, McpServer]) -> McpServer | None:
    for alias, server in by_alias.items():
        if registered.canonical_id == f"mcp:{alias}/{registered.tool.name}":
            return server
    return None


def quarantine_lines(server: McpServer) -> list[str]:
    """What a person is told at the start, a line for each tool that may not be used."""
    return [
        f"mcp:{server.spec.name}/{standing.name} is quarantined ({standing.state}): {standing.why}"
        for standing in server.offered()
        if not standing.usable
    ]


async def stdio_front(door: CorridorServer) -> None:
    """Serve on standard input and output until the client leaves or the process is told to end."""
    with claimed_stdio() as (read_fd, write_fd):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_told, tasks.cancel_scope)
            async with server_streams(read_fd, write_fd, PlainCalls(door)) as (read_stream, write_stream):
                await door.server.run(read_stream, write_stream, door.options())
            tasks.cancel_scope.cancel()


def http_front(port: int, token: str, say: Callable[[str], None]) -> Front:
    """Serve Streamable HTTP on loopback. ``say`` is told where, once it listens."""

    async def front(door: CorridorServer) -> None:
        with listening(port) as bound:
            say(f"http://{bound.getsockname()[0]}:{bound.getsockname()[1]}{PATH}")
            await serve_http(door, token=token, bound=bound)

    return front


async def _until_told(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()
            return
