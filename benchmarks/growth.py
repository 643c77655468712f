"""How cost grows: with calls at once, and with registered tools.

    python benchmarks/growth.py [--json]

``at once``: milliseconds until N read-only calls that were started together have all ended, divided by N.
``tools``: microseconds of one call, and of listing the tools, with N tools registered.
"""

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

from handrail import ToolCall, ToolDef, ToolExecutor, ToolRegistry

SCHEMA = {
    "type": "object",
    "properties": {"key": {"type": "string"}},
    "required": ["key"],
    "additionalProperties": False,
}


async def _handler(args: dict[str, Any]) -> str:
    return args["key"]


def _registry(count: int) -> ToolRegistry:
    registry = ToolRegistry()
    for number in range(count):
        registry.register_from_def(ToolDef(f"tool{number}", "Look.", SCHEMA, risk_level="read_only"), _handler)
    return registry


async def at_once(count: int, repeats: int = 20) -> float:
    executor = ToolExecutor(_registry(1))
    calls = [ToolCall(name="tool0", arguments='{"key": "a"}') for _ in range(count)]
    times: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        outcomes = await executor.execute_many(calls)
        times.append((time.perf_counter() - started) * 1000 / count)
        assert all(outcome.succeeded for outcome in outcomes)
    return statistics.median(times)


async def with_tools(count: int, repeats: int = 500) -> dict[str, float]:
    registry = _registry(count)
    executor = ToolExecutor(registry)
    times: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        await executor.execute(f"tool{count // 2}", '{"key": "a"}')
        times.append((time.perf_counter() - started) * 1e6)
    started = time.perf_counter()
    listed = sorted(registry.names)
    listing = (time.perf_counter() - started) * 1e6
    assert len(listed) == count
    return {"call_us": round(statistics.median(times), 1), "list_us": round(listing, 1)}


async def measure() -> dict[str, Any]:
    calls = {str(count): round(await at_once(count), 4) for count in (1, 4, 16, 64, 256)}
    tools = {str(count): await with_tools(count) for count in (10, 100, 1000, 10_000)}
    return {"benchmark": "growth", "ms_per_call_at_once": calls, "with_tools": tools}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure())
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for count, found in result["ms_per_call_at_once"].items():
        print(f"{count:>6} calls at once   {found:8.3f} ms a call")
    for count, found in result["with_tools"].items():
        print(f"{count:>6} tools           {found['call_us']:8.1f} µs a call, {found['list_us']:8.1f} µs to list")


if __name__ == "__main__":
    main()
