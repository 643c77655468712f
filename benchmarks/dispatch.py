"""What one read-only tool call costs: through Handrail's corridor, and through each peer's own way of calling a tool.

    python benchmarks/dispatch.py [--json] [--rounds N]

Every contender gets the same handler and the same JSON text of arguments, and must return the same text. All are
measured in one process, interleaved in a new random order each round, awaited inside one running event loop, once with
an async and once with a sync handler. ``floor`` awaits the handler itself after ``json.loads``: Handrail's own cost is
its median less the floor's. The peers stand in ``peers.txt`` and are installed into an environment of their own, made
on the first run; one that cannot run is named with the reason, and never counted.

What is compared: Handrail decodes strictly, checks the schema without coercion, guards, decides and records; a peer
does what its public call path does. Peers run without tracing, as Handrail runs without a journal.
"""

import argparse
import asyncio
import json
import platform
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from peers import in_peers_environment

HERE = Path(__file__).resolve().parent
RAW = '{"key": "alpha", "count": 3}'
EXPECTED = "alpha x 3"
WARM_UP = 50

Call = Callable[[], Awaitable[str]]


async def async_handler(key: str, count: int) -> str:
    """Look a key up."""
    return f"{key} x {count}"


def sync_handler(key: str, count: int) -> str:
    """Look a key up."""
    return f"{key} x {count}"


def floor(*, is_async: bool) -> Call:
    async def call() -> str:
        arguments = json.loads(RAW)
        return await async_handler(**arguments) if is_async else sync_handler(**arguments)

    return call


def handrail(*, is_async: bool) -> Call:
    from handrail import ToolDef, ToolExecutor, ToolRegistry

    parameters = {
        "type": "object",
        "properties": {"key": {"type": "string"}, "count": {"type": "integer"}},
        "required": ["key", "count"],
        "additionalProperties": False,
    }

    async def in_loop(args: dict[str, Any]) -> str:
        return await async_handler(**args)

    def in_thread(args: dict[str, Any]) -> str:
        return sync_handler(**args)

    registry = ToolRegistry()
    definition = ToolDef("lookup", "Look a key up.", parameters, risk_level="read_only")
    registry.register_from_def(definition, in_loop if is_async else in_thread)
    executor = ToolExecutor(registry, workspace=str(HERE))

    async def call() -> str:
        return (await executor.execute("lookup", RAW)).text

    return call


def pydantic_ai(*, is_async: bool) -> Call:
    """Through ``ToolManager.handle_call``, which is how an agent's run calls a tool."""
    from pydantic_ai import RunContext
    from pydantic_ai.messages import ToolCallPart
    from pydantic_ai.models.test import TestModel
    from pydantic_ai.tool_manager import ToolManager
    from pydantic_ai.toolsets import FunctionToolset
    from pydantic_ai.usage import RunUsage

    toolset: Any = FunctionToolset()
    toolset.add_function(async_handler if is_async else sync_handler, takes_ctx=False, name="lookup")
    context: Any = RunContext(deps=None, model=TestModel(), usage=RunUsage())
    ready: list[Any] = []

    async def call() -> str:
        if not ready:
            ready.append(await ToolManager(toolset).for_run_step(context))
        return await ready[0].handle_call(ToolCallPart("lookup", RAW, tool_call_id="1"))

    return call


def openai_agents(*, is_async: bool) -> Call:
    from agents import function_tool, set_tracing_disabled
    from agents.tool_context import ToolContext

    set_tracing_disabled(True)
    made: Any = function_tool(async_handler if is_async else sync_handler, name_override="lookup")

    async def call() -> str:
        context: Any = ToolContext(context=None, tool_name="lookup", tool_call_id="1", tool_arguments=RAW)
        return await made.on_invoke_tool(context, RAW)

    return call


def langchain_core(*, is_async: bool) -> Call:
    from langchain_core.tools import StructuredTool

    how: dict[str, Any] = {"coroutine": async_handler} if is_async else {"func": sync_handler}
    made: Any = StructuredTool.from_function(name="lookup", description="Look a key up.", **how)

    async def call() -> str:
        request = {"name": "lookup", "args": json.loads(RAW), "id": "1", "type": "tool_call"}
        return (await made.ainvoke(request)).content

    return call


CONTENDERS: dict[str, Callable[..., Call]] = {
    "floor": floor,
    "handrail": handrail,
    "pydantic-ai": pydantic_ai,
    "openai-agents": openai_agents,
    "langchain-core": langchain_core,
}


async def measured(rounds: int, *, is_async: bool) -> dict[str, Any]:
    calls: dict[str, Call] = {}
    absent: dict[str, str] = {}
    for name, make in CONTENDERS.items():
        try:
            calls[name] = make(is_async=is_async)
            for _ in range(WARM_UP):
                require_expected(await calls[name]())
        except Exception as error:
            calls.pop(name, None)
            absent[name] = f"{type(error).__name__}: {error}"
    samples: dict[str, list[int]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            call = calls[name]
            for _ in range(5):
                began = time.perf_counter_ns()
                await call()
                samples[name].append(time.perf_counter_ns() - began)
    figures = {name: in_microseconds(values) for name, values in samples.items()}
    ours = figures["handrail"]["median"]
    return {
        "microseconds": figures,
        "own_cost": round(ours - figures["floor"]["median"], 1),
        "times_the_floor": round(ours / figures["floor"]["median"], 1),
        "peer_over_handrail": {
            name: round(figures[name]["median"] / ours, 2) for name in figures if name not in ("floor", "handrail")
        },
        "could_not_run": absent,
    }


def require_expected(answer: str) -> None:
    if answer != EXPECTED:
        raise RuntimeError(f"it answered {answer!r}")


def in_microseconds(values: list[int]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered) / 1000, 1),
        "p90": round(ordered[int(len(ordered) * 0.90)] / 1000, 1),
        "p99": round(ordered[int(len(ordered) * 0.99)] / 1000, 1),
        "calls": len(ordered),
    }


def versions() -> dict[str, str]:
    from importlib import metadata

    names = ("handrail", "pydantic-ai-slim", "openai-agents", "langchain-core")
    found = {name: metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


def inside(rounds: int, *, as_json: bool) -> None:
    """The measurement, in the environment that has the peers."""
    result = {
        "versions": versions(),
        "async_handler": asyncio.run(measured(rounds, is_async=True)),
        "sync_handler": asyncio.run(measured(rounds, is_async=False)),
    }
    if as_json:
        print(json.dumps(result))
        return
    print("versions:", ", ".join(f"{name} {version}" for name, version in result["versions"].items()))
    for kind in ("async_handler", "sync_handler"):
        part = result[kind]
        print(f"\n{kind.replace('_', ' ')}, microseconds a call (median / p90 / p99)")
        for name, figure in part["microseconds"].items():
            ratio = part["peer_over_handrail"].get(name)
            note = f"   {ratio}x handrail" if ratio is not None else ""
            print(f"  {name:16} {figure['median']:>9} {figure['p90']:>9} {figure['p99']:>9}{note}")
        print(f"  handrail's own cost: {part['own_cost']} microseconds, {part['times_the_floor']} times the floor")
        for name, why in part["could_not_run"].items():
            print(f"  {name} could not run: {why}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=400, help="rounds of five calls for each contender")
    options = parser.parse_args()
    in_peers_environment()
    inside(options.rounds, as_json=options.json)


if __name__ == "__main__":
    main()
