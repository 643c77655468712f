"""What the loop adds to a turn: an instant model, an empty tool, the real journal and the real transcript.

``python benchmarks/loop.py [--json] [--turns N]``. A turn is one answer with one call, its run, and both records. The
settings are interleaved in one run: everything on; the same call through the same executor and journal without the
loop; without the journal; and in memory. The loop's overhead is the difference of the first two. ``wall_ms`` is what a
clock shows; ``cpu_ms`` is what the process computed in that time, all threads; the rest of a turn waits for the disk.
``fdatasync`` is one append of 1 KiB, flushed, in the same run: what one durable write costs here. A turn has three: its
answer, and the call's intent and outcome in the journal.

``slowness`` is how much slower this machine runs Python now than a quiet one of 2020 (``sum(range(1000))`` in 10 µs).
``at_nominal_speed_ms`` divides what was computed by it and leaves what was waited as it is; the verdict is given for
both. ``growth`` compares the first hundred turns of a long run with its last hundred.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from machine import slowness

from handrail.agent.config import AgentConfig
from handrail.agent.loop import Agent
from handrail.agent.transcript import FileTranscripts, MemoryTranscripts, TranscriptStore
from handrail.agent.valves import Limits
from handrail.executor import ToolExecutor
from handrail.journal.protocol import CallJournal
from handrail.journal.sqlite import SqliteJournal
from handrail.models.client import Reply
from handrail.models.scripted import ScriptedModel, call, calls
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef

TARGET_MS = 2.0
NO_LIMITS = Limits(turns=10**9, cycles=10**6, identical_failures=10**6)
Moment = tuple[float, float]
"""Seconds on the wall clock, and seconds computed by this process."""


def executor_with(journal: CallJournal | None) -> ToolExecutor:
    """One empty tool."""
    registry = ToolRegistry()

    async def nothing(arguments: Any) -> str:
        return "ok"

    registry.register_from_def(ToolDef(name="nothing", risk_level=RiskLevel.READ_ONLY), nothing)
    return ToolExecutor(registry, journal=journal)


def now() -> Moment:
    return time.perf_counter(), time.process_time()


async def turns_of(turns: int, journal: CallJournal | None, transcripts: TranscriptStore) -> list[Moment]:
    """Each turn, from one request of the model's to the next."""
    asked: list[Moment] = []

    def step(_: Any) -> Reply | str:
        asked.append(now())
        return calls(call("nothing")) if len(asked) <= turns else "done"

    executor = executor_with(journal)
    config = AgentConfig(
        model=ScriptedModel([step] * (turns + 1)),
        executor=executor,
        journal=journal,
        transcripts=transcripts,
        limits=NO_LIMITS,
        context_tokens=10**9,
    )
    await Agent(config).run("go")
    executor.close()
    return between(asked)


async def calls_alone(count: int, journal: CallJournal) -> list[Moment]:
    """The same calls, without a loop around them."""
    executor = executor_with(journal)
    moments = [now()]
    for _ in range(count):
        await executor.execute("nothing", "{}")
        moments.append(now())
    executor.close()
    return between(moments)


def between(moments: Sequence[Moment]) -> list[Moment]:
    """Milliseconds from each moment to the next."""
    return [
        ((after[0] - before[0]) * 1000, (after[1] - before[1]) * 1000) for before, after in itertools.pairwise(moments)
    ]


def flushed_append(directory: str) -> Moment:
    """One durable write."""
    fd = os.open(os.path.join(directory, "plain"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = now()
    os.write(fd, b"x" * 1024)
    os.fdatasync(fd)
    after = now()
    os.close(fd)
    return between([before, after])[0]


def figures(times: Sequence[Moment], slower: float) -> dict[str, float]:
    """Medians, and what the slowest of a hundred take."""
    wall = sorted(item[0] for item in times)
    cpu = statistics.median(item[1] for item in times)
    p50 = statistics.median(wall)
    found = {"wall_ms": p50, "wall_p99_ms": wall[int((len(wall) - 1) * 0.99)], "cpu_ms": cpu}
    return found | {"at_nominal_speed_ms": max(0.0, p50 - cpu) + cpu / slower}


async def measure(turns: int, rounds: int, long: int) -> dict[str, Any]:
    times: dict[str, list[Moment]] = {
        name: [] for name in ("turn", "the call alone", "without a journal", "in memory", "fdatasync")
    }
    slower: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        files = FileTranscripts(os.path.join(directory, "runs"))
        journal = SqliteJournal(os.path.join(directory, "journal.sqlite"))
        for _ in range(rounds):
            slower.append(max(1.0, slowness()))
            times["turn"] += await turns_of(turns, journal, files)
            times["the call alone"] += await calls_alone(turns, journal)
            times["without a journal"] += await turns_of(turns, None, files)
            times["in memory"] += await turns_of(turns, None, MemoryTranscripts())
            times["fdatasync"] += [flushed_append(directory) for _ in range(turns)]
        journal.close()
    grown = await turns_of(long, None, MemoryTranscripts())
    by = statistics.median(slower)
    results = {name: figures(found, by) for name, found in times.items()}
    overhead = {name: results["turn"][name] - results["the call alone"][name] for name in ("wall_ms", "cpu_ms")}
    overhead["at_nominal_speed_ms"] = max(0.0, overhead["wall_ms"] - overhead["cpu_ms"]) + overhead["cpu_ms"] / by
    return {
        "benchmark": "loop",
        "turns": turns * rounds,
        "slowness": by,
        "results": results,
        "overhead": overhead,
        "growth": {
            "turns": long,
            "first_hundred_cpu_ms": statistics.median(item[1] for item in grown[:100]),
            "last_hundred_cpu_ms": statistics.median(item[1] for item in grown[-100:]),
        },
        "target_ms": TARGET_MS,
        "met_here": overhead["wall_ms"] < TARGET_MS,
        "met_at_nominal_speed": overhead["at_nominal_speed_ms"] < TARGET_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--long", type=int, default=1000, help="turns of the run that growth is looked for in")
    options = parser.parse_args()
    result = asyncio.run(measure(options.turns, options.rounds, options.long))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"slowness {result['slowness']:.1f}; milliseconds, medians of {result['turns']}")
    for name, found in {**result["results"], "overhead of the loop": result["overhead"]}.items():
        print(
            f"{name:<22} wall {found['wall_ms']:7.3f}   computed {found['cpu_ms']:7.3f}   "
            f"at nominal speed {found['at_nominal_speed_ms']:7.3f}"
        )
    growth = result["growth"]
    print(
        f"computed a turn, in memory: turns 1 to 100 {growth['first_hundred_cpu_ms']:.3f}, "
        f"the last 100 of {growth['turns']} {growth['last_hundred_cpu_ms']:.3f}"
    )
    here, nominal = ("yes" if result[name] else "NO" for name in ("met_here", "met_at_nominal_speed"))
    print(f"overhead under {TARGET_MS:g} ms a turn: here {here}, at nominal speed {nominal}")


if __name__ == "__main__":
    main()
