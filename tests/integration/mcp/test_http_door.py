"""The HTTP door: who gets a request as far as a tool, and who does not. Plus many clients at once."""

import gc
import os
import socket
from contextlib import asynccontextmanager

import anyio
import httpx2
import psutil
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from handrail import AlwaysApprove, Tool, ToolDef, ToolExecutor, ToolRegistry
from handrail.mcp.http import PATH, Guarded, listening, serve_http
from handrail.mcp.server import CorridorServer

pytestmark = pytest.mark.anyio
TOKEN = "a-token-for-the-tests"
CALLS = int(os.environ.get("HANDRAIL_LOAD_CALLS", "256"))
CLIENTS = 64


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
            yield counted, bound.getsockname()[1]
            tasks.cancel_scope.cancel()


def body(method="tools/call"):
    params = {"name": "count", "arguments": {"n": 1}}
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


GOOD = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {TOKEN}"}


@pytest.mark.promise("mcp:http:wrong-host-origin-or-token-runs-nothing")
async def test_wrong_host_origin_or_token_is_refused_and_nothing_runs(tmp_path):
    async with door(tmp_path) as (counted, port), httpx2.AsyncClient(trust_env=False) as http:
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


# The server's library leaves the last connection to the collector when it is told to stop.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.promise("mcp:http:many-clients-flat-memory")
async def test_sixty_four_clients_and_flat_memory(tmp_path):
    """``HANDRAIL_LOAD_CALLS=10000`` runs the full count; the suite runs fewer."""
    memory: list[int] = []
    async with door(tmp_path) as (counted, port):
        url = f"http://127.0.0.1:{port}{PATH}"
        each = CALLS // CLIENTS
        warm = max(1, each // 4)
        process = psutil.Process()
        reached = {warm: 0, each: 0}

        async def one(index):
            mode = "legacy" if index % 2 else "auto"
            async with (
                httpx2.AsyncClient(headers=GOOD, trust_env=False, timeout=300) as http,
                Client(streamable_http_client(url, http_client=http), mode=mode) as client,
            ):
                for n in range(1, each + 1):
                    result = await client.call_tool("count", {"n": n})
                    assert result.content[0].text == str(n)
                    if n in reached:
                        reached[n] += 1
                        if reached[n] == CLIENTS:
                            memory.append(process.memory_info().rss)

        async with anyio.create_task_group() as tasks:
            for index in range(CLIENTS):
                tasks.start_soon(one, index)
        assert counted.calls == each * CLIENTS
    gc.collect()
    growth = memory[-1] - memory[0]
    print(f"{counted.calls} calls, {CLIENTS} clients: resident {memory[0] >> 20} → {memory[-1] >> 20} MiB")
    assert growth < 24 * 1024 * 1024
