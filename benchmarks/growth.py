"""How cost grows: with calls at once, and with registered tools.

    python benchmarks/growth.py [--json] [--repeats N]

``at once``: milliseconds of each of N read-only calls that were started together, all of them divided by N.
``tools``: microseconds of one call with N tools registered, and of listing them. ``ratio`` is to the smallest of its
kind in the same run; the sizes take turns.
"""

import argparse
import asyncio
import json
import statistics
import time
from typing import Any

from handrail import ToolCall, ToolDef, ToolExecutor, ToolRegistry

AT_ONCE = (1, 4, 16, 64, 256)
TOOLS = (10, 100, 1000, 10_000)
WARM_UP = 3
"""Rounds that are not counted."""
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


async def at_once(repeats: int) -> dict[int, list[float]]:
    """Milliseconds a call."""
    executor = ToolExecutor(_registry(1))
    times: dict[int, list[float]] = {count: [] for count in AT_ONCE}
    for number in range(-WARM_UP, repeats):
        for count in AT_ONCE:
            calls = [ToolCall(name="tool0", arguments='{"key": "a"}') for _ in range(count)]
            started = time.perf_counter()
            outcomes = await executor.execute_many(calls)
            took = (time.perf_counter() - started) * 1000 / count
            assert all(outcome.succeeded for outcome in outcomes)
            if number >= 0:
                times[count].append(took)
    return times


async def with_tools(repeats: int) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Microseconds of a call, and of listing the tools."""
    executors = {count: ToolExecutor(_registry(count)) for count in TOOLS}
    called: dict[int, list[float]] = {count: [] for count in TOOLS}
    listed: dict[int, list[float]] = {count: [] for count in TOOLS}
    for number in range(-WARM_UP, repeats):
        for count, executor in executors.items():
            for _ in range(10):
                started = time.perf_counter()
                outcome = await executor.execute(f"tool{count // 2}", '{"key": "a"}')
                took = (time.perf_counter() - started) * 1e6
                assert outcome.succeeded
                if number >= 0:
                    called[count].append(took)
            started = time.perf_counter()
            names = sorted(executor.registry.names)
            took = (time.perf_counter() - started) * 1e6
            assert len(names) == count
            if number >= 0:
                listed[count].append(took)
    return called, listed


def figures(times: dict[int, list[float]]) -> dict[str, dict[str, float]]:
    base = statistics.median(next(iter(times.values())))
    found: dict[str, dict[str, float]] = {}
    for count, values in times.items():
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        found[str(count)] = {
            "p50": round(cuts[49], 4),
            "p90": round(cuts[89], 4),
            "p99": round(cuts[98], 4),
            "ratio": round(cuts[49] / base, 2),
        }
    return found


async def measure(repeats: int) -> dict[str, Any]:
    together = await at_once(repeats)
    called, listed = await with_tools(repeats)
    return {
        "benchmark": "growth",
        "repeats": repeats,
        "ms_per_call_at_once": figures(together),
        "us_per_call_with_tools": figures(called),
        "us_to_list_tools": figures(listed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=40)
    options = parser.parse_args()
    result = asyncio.run(measure(options.repeats))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name in ("ms_per_call_at_once", "us_per_call_with_tools", "us_to_list_tools"):
        print(name.replace("_", " "))
        for count, found in result[name].items():
            print(f"{count:>8}  " + "  ".join(f"{key} {value:10.3f}" for key, value in found.items()))


if __name__ == "__main__":
    main()
