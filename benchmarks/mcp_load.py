"""Many clients at one HTTP door, and what the door's process weighs meanwhile.

Usage: ``python benchmarks/mcp_load.py [--clients N] [--calls N] [--json]``. The door is ``handrail proxy --http`` in a
process of its own, with its journal, in front of a small server; the clients are the protocol library's, half of each
era, in this process. The door's resident memory is read after every tenth of the calls, from the kernel.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
from machine import slowness
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

VICTIM = Path(__file__).resolve().parent.parent / "tests" / "victims" / "mcp_server.py"
TOKEN = "a-token-for-the-benchmark"
READINGS = 10


@contextmanager
def door(directory: str) -> Iterator[tuple[int, str]]:
    """The door's process id and its URL."""
    workspace = Path(directory) / "workspace"
    workspace.mkdir()
    script = workspace / "script.json"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    script.write_text(json.dumps({"tools": [{"name": "echo", "inputSchema": schema}]}))
    environment = os.environ | {"XDG_STATE_HOME": directory, "XDG_CONFIG_HOME": directory, "LOAD_TOKEN": TOKEN}
    options = ["--http", "0", "--token-env", "LOAD_TOKEN", "--approve", "never", "--risk", "echo=read_only"]
    options += ["-w", str(workspace), "--access", "read", "--read", str(VICTIM.parent)]
    options += ["--read", sys.base_prefix, "--read", sys.prefix]
    server = [sys.executable, "-I", "-S", str(VICTIM), str(script)]
    command = [sys.executable, "-m", "handrail", "proxy", *options, "--", *server]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        try:
            said = next(line for line in started.stderr if "listening on" in line)
            yield started.pid, said.split()[-1]
        finally:
            started.terminate()


def resident(pid: int) -> float:
    """What one process holds in memory, in MiB."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Load:
    """``clients`` at once make ``calls`` between them."""

    def __init__(self, pid: int, url: str, *, clients: int, calls: int) -> None:
        self._pid = pid
        self._url = url
        self._clients = clients
        self._each = calls // clients
        self.done = 0
        self.failures: Counter[str] = Counter()
        self.memory: dict[int, float] = {}

    async def run(self) -> None:
        """Every client makes its calls, one after the other; none waits for another."""
        async with anyio.create_task_group() as tasks:
            for number in range(self._clients):
                tasks.start_soon(self._client, "legacy" if number % 2 else "auto")

    async def _client(self, mode: str) -> None:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=300) as http,
            Client(streamable_http_client(self._url, http_client=http), mode=mode) as client,
        ):
            for number in range(self._each):
                try:
                    result = await client.call_tool("echo", {"n": number})
                    if result.content[0].text != json.dumps({"n": number}):
                        self.failures["another call's answer"] += 1
                except Exception as error:
                    self.failures[_chain(error)] += 1
                self._count()

    def _count(self) -> None:
        self.done += 1
        if self.done % max(1, self._each * self._clients // READINGS) == 0:
            self.memory[self.done] = round(resident(self._pid), 1)


def _chain(error: BaseException | None) -> str:
    names: list[str] = []
    while error is not None:
        names.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return " ← ".join(names)


def measured(clients: int, calls: int) -> dict[str, Any]:
    """One run."""
    with tempfile.TemporaryDirectory() as directory, door(directory) as (pid, url):
        load = Load(pid, url, clients=clients, calls=calls)
        began = time.perf_counter()
        anyio.run(load.run)
        took = time.perf_counter() - began
    return {
        "clients": clients,
        "calls": load.done,
        "failures": dict(load.failures),
        "seconds": round(took, 1),
        "calls_per_second": round(load.done / took, 1),
        "resident_mib": load.memory,
        "slowness": slowness(),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measured(options.clients, options.calls)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20} {value}")


if __name__ == "__main__":
    main()
