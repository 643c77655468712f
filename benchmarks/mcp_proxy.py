"""What the proxy adds to one call over stdio, beside a direct call to the same server, in the same run.

Usage: ``python benchmarks/mcp_proxy.py [--calls N] [--json]``. The server is a small program without the protocol
library, so that nearly all of what is measured is the proxy. Direct and proxied calls take turns in small batches, so
that whatever else the machine does meets both. The journal is off: its flush is measured elsewhere. ``nominal`` is what
was measured, divided by how many times slower than nominal the machine was meanwhile (``machine.py``).
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from machine import slowness
from mcp import Client, StdioServerParameters

VICTIM = Path(__file__).resolve().parent.parent / "tests" / "victims" / "mcp_server.py"
BATCH = 50


def parameters(directory: str) -> tuple[StdioServerParameters, StdioServerParameters]:
    """The server itself, and the same server behind the proxy."""
    workspace = Path(directory) / "workspace"
    workspace.mkdir()
    script = workspace / "script.json"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    script.write_text(json.dumps({"tools": [{"name": "echo", "inputSchema": schema}]}))
    server = [sys.executable, "-I", "-S", str(VICTIM), str(script)]
    environment = {"XDG_STATE_HOME": directory, "XDG_CONFIG_HOME": directory}
    options = ["--no-journal", "--approve", "never", "--risk", "echo=read_only", "-w", str(workspace)]
    options += ["--access", "read", "--read", sys.base_prefix, "--read", sys.prefix, "--read", str(VICTIM.parent)]
    proxy = ["-m", "handrail", "proxy", *options, "--", *server]
    return (
        StdioServerParameters(command=server[0], args=server[1:]),
        StdioServerParameters(command=sys.executable, args=proxy, env=environment),
    )


async def batch(client: Client, calls: int) -> list[float]:
    """Milliseconds of each call."""
    took: list[float] = []
    for number in range(calls):
        began = time.perf_counter()
        result = await client.call_tool("echo", {"n": number})
        took.append((time.perf_counter() - began) * 1000)
        assert result.content[0].text == json.dumps({"n": number})
    return took


async def measured(calls: int) -> dict[str, float]:
    """Both clients at once, in turns."""
    with tempfile.TemporaryDirectory() as directory:
        direct_parameters, proxy_parameters = parameters(directory)
        async with (
            Client(direct_parameters, mode="legacy") as direct,
            Client(proxy_parameters, mode="legacy") as proxied,
        ):
            for client in (direct, proxied):
                await client.list_tools()
                await batch(client, BATCH)
            plain: list[float] = []
            through: list[float] = []
            slow: list[float] = []
            while len(plain) < calls:
                plain += await batch(direct, BATCH)
                through += await batch(proxied, BATCH)
                slow.append(slowness())
    added = statistics.median(through) - statistics.median(plain)
    return {
        "calls": len(plain),
        "direct_median_ms": statistics.median(plain),
        "proxy_median_ms": statistics.median(through),
        "added_median_ms": added,
        "added_median_nominal_ms": added / statistics.median(slow),
        "direct_p99_ms": statistics.quantiles(plain, n=100)[98],
        "proxy_p99_ms": statistics.quantiles(through, n=100)[98],
        "slowness": statistics.median(slow),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = asyncio.run(measured(options.calls))
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:20} {value:10.3f}")


if __name__ == "__main__":
    main()
