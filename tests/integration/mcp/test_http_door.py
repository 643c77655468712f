"""The HTTP door: who gets a request as far as a tool, and who does not. Plus many clients at once."""

import gc
import json
import os
import socket
import struct
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from anyio.abc import SocketAttribute
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ToolListChangedNotification

from handrail import AlwaysApprove, Tool, ToolDef, ToolExecutor, ToolRegistry
from handrail.mcp.http import PATH, Connection, Guarded, listening, serve_http
from handrail.mcp.server import CorridorServer
from mcp_kit import until

pytestmark = pytest.mark.anyio
TOKEN = "a-token-for-the-tests"
CALLS = int(os.environ.get("HANDRAIL_LOAD_CALLS", "256"))
CLIENTS = 64
LOAD = Path(__file__).resolve().parents[3] / "benchmarks" / "mcp_load.py"


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, arguments):
        self.calls += 1
        return str(arguments["n"])


@asynccontextmanager
async def door(tmp_path):
    counted = Counted()
    registry = ToolRegistry()
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def count(arguments):
        return counted(arguments)

    registry.register(Tool(ToolDef("count", "Counts.", parameters), count))
    executor = ToolExecutor(
        registry, approver=AlwaysApprove(), spill_directory=str(tmp_path / "spill"), max_parallel=16
    )
    served = CorridorServer(executor)
    served.ready.set()
    with listening(0) as bound:
        async with anyio.create_task_group() as tasks:

            async def serve():
                await serve_http(served, token=TOKEN, bound=bound)

            tasks.start_soon(serve)
            yield counted, bound.getsockname()[1], served
            tasks.cancel_scope.cancel()


def body(method="tools/call"):
    params = {"name": "count", "arguments": {"n": 1}}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


GOOD = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {TOKEN}"}


@pytest.mark.promise("mcp:http:wrong-host-origin-or-token-runs-nothing")
async def test_wrong_host_origin_or_token_is_refused_and_nothing_runs(tmp_path):
    async with door(tmp_path) as (counted, port, _), httpx2.AsyncClient(trust_env=False) as http:
        url = f"http://127.0.0.1:{port}{PATH}"

        async def status(**changed):
            headers = {name: value for name, value in (GOOD | changed).items() if value is not None}
            return (await http.post(url, json=body(), headers=headers)).status_code

        assert await status(Host="evil.test") == 403
        assert await status(Host=f"evil.test:{port}") == 403
        assert await status(Host=f"127.0.0.1.evil.test:{port}") == 403
        assert await status(Host="127.0.0.1") == 403
        for origin in (
            "http://evil.test",
            "null",
            f"http://127.0.0.1:{port}.evil.test",
            f"https://127.0.0.1:{port + 1}",
        ):
            assert await status(Origin=origin) == 403
        for token in (
            None,
            "Bearer wrong",
            "Basic " + TOKEN,
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN[:-1]}",
            TOKEN,
            "Bearer x",
        ):
            assert await status(Authorization=token) == 401
        for method in ("GET", "DELETE", "OPTIONS", "PUT"):
            assert (await http.request(method, url, headers={"Host": "evil.test"})).status_code == 403
            assert (await http.request(method, url)).status_code == 401
        assert counted.calls == 0
        theirs = streamable_http_client(url, http_client=httpx2.AsyncClient(headers=GOOD, trust_env=False))
        async with Client(theirs) as client:  # the positive control
            assert (await client.call_tool("count", {"n": 7})).content[0].text == "7"
        assert counted.calls == 1


def test_a_header_given_twice_counts_as_wrong():
    guarded = Guarded(None, token=TOKEN, hosts=["127.0.0.1:1"])
    host, good = (b"host", b"127.0.0.1:1"), (b"authorization", f"Bearer {TOKEN}".encode())
    assert guarded.refusal([host, good]) is None
    assert guarded.refusal([host, host, good])[0] == 403
    assert guarded.refusal([host, good, good])[0] == 401
    assert guarded.refusal([good])[0] == 403
    assert guarded.refusal([host, (b"origin", b"http://127.0.0.1:1"), good]) is None
    assert guarded.refusal([host, (b"origin", b"http://127.0.0.1:1"), (b"origin", b"http://evil.test"), good])[0] == 403


async def test_only_loopback_listens():
    with listening(0) as bound:
        assert bound.getsockname()[0] == "127.0.0.1"
        assert bound.family == socket.AF_INET


@asynccontextmanager
async def connected(port, **options):
    """A client of the library's, with the token."""
    http = httpx2.AsyncClient(headers=GOOD, trust_env=False)
    transport = streamable_http_client(f"http://127.0.0.1:{port}{PATH}", http_client=http)
    async with http, Client(transport, **options) as client:
        yield client


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_every_client_is_told_of_a_change_and_one_that_left_keeps_it_from_nobody(tmp_path):
    heard = {name: anyio.Event() for name in ("first", "second", "gone")}

    def listening_as(name):
        async def hear(message):
            if isinstance(message, ToolListChangedNotification):
                heard[name].set()

        return hear

    async with door(tmp_path) as (_, port, served):
        async with connected(port, mode="legacy", message_handler=listening_as("gone")) as gone:
            await gone.list_tools()
        async with (
            connected(port, mode="legacy", message_handler=listening_as("first")) as first,
            connected(port, mode="legacy", message_handler=listening_as("second")) as second,
        ):
            await first.list_tools()
            await second.list_tools()
            with anyio.fail_after(60):
                while not (heard["first"].is_set() and heard["second"].is_set()):
                    await served.tools_changed()  # again and again: a client's own stream may not be open yet
                    await anyio.sleep(0.05)
    assert not heard["gone"].is_set()


def raw_request(port: int) -> bytes:
    text = json.dumps(body("tools/list"))
    lines = ["POST /mcp HTTP/1.1", f"Host: 127.0.0.1:{port}", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in GOOD.items()] + [f"Content-Length: {len(text)}", "", text]
    return "\r\n".join(lines).encode()


# What the server's library leaves to the collector when another test's server stops is met by this one's collections.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.promise("mcp:http:many-clients-flat-memory")
async def test_a_connection_that_the_client_reset_leaves_nothing_behind(tmp_path):
    async with door(tmp_path) as (_, port, _):

        def left() -> int:
            gc.collect()
            return sum(isinstance(item, Connection) for item in gc.get_objects())

        before = left()  # another test's
        for _ in range(20):
            stream = await anyio.connect_tcp("127.0.0.1", port)
            await stream.send(raw_request(port))
            assert (await stream.receive()).startswith(b"HTTP/1.1 ")
            reset = struct.pack(
                "ii", 1, 0
            )  # linger for no time: what is unread is thrown away, and the peer is told so
            stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            await stream.aclose()
        await until(lambda: left() <= before)


@pytest.mark.walls
@pytest.mark.promise("mcp:http:many-clients-flat-memory")
def test_sixty_four_clients_and_flat_memory():
    """``HANDRAIL_LOAD_CALLS=10000`` runs the full count; the suite runs fewer."""
    command = [sys.executable, str(LOAD), "--clients", str(CLIENTS), "--calls", str(CALLS), "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    print(found)
    assert found["calls"] == CALLS // CLIENTS * CLIENTS
    assert found["failures"] == {}
    first, *_, last = found["resident_mib"].values()
    assert last - first < 8
