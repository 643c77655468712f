"""What the loop adds to a turn: an instant model, an empty tool, the real journal and the real transcript.

``python benchmarks/loop.py [--json] [--turns N]``. A turn is one answer with one call, its run, and both records. Three
settings are interleaved in one run: everything on; without the journal; and without journal and transcript file. Times
in milliseconds a turn. ``fdatasync`` is one append of 1 KiB, flushed, in the same run: what a durable write costs here.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import tempfile
import time
from typing import Any

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


async def one_run(turns: int, journal: CallJournal | None, transcripts: TranscriptStore) -> list[float]:
    """Milliseconds of each turn: from one request of the model's to the next."""
    registry = ToolRegistry()

    async def nothing(arguments: Any) -> str:
        return "ok"

    registry.register_from_def(ToolDef(name="nothing", risk_level=RiskLevel.READ_ONLY), nothing)
    executor = ToolExecutor(registry, journal=journal)
    asked: list[float] = []

    def step(_: Any) -> Reply | str:
        asked.append(time.perf_counter())
        return calls(call("nothing")) if len(asked) <= turns else "done"

    model = ScriptedModel([step] * (turns + 1))
    config = AgentConfig(
        model=model, executor=executor, journal=journal, transcripts=transcripts, limits=NO_LIMITS, context_tokens=10**9
    )
    await Agent(config).run("go")
    executor.close()
    return [(after - before) * 1000 for before, after in itertools.pairwise(asked)]


def flushed_append(directory: str) -> float:
    fd = os.open(os.path.join(directory, "plain"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    before = time.perf_counter()
    os.write(fd, b"x" * 1024)
    os.fdatasync(fd)
    os.close(fd)
    return (time.perf_counter() - before) * 1000


def figures(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "p50": statistics.median(ordered),
        "p90": ordered[int(len(ordered) * 0.9)],
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }


async def measure(turns: int, rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {"journal and transcript": [], "transcript": [], "in memory": [], "fdatasync": []}
    with tempfile.TemporaryDirectory() as directory:
        for number in range(rounds):
            journal = SqliteJournal(os.path.join(directory, f"journal-{number}.sqlite"))
            files = FileTranscripts(os.path.join(directory, "runs"))
            times["journal and transcript"] += await one_run(turns, journal, files)
            journal.close()
            times["transcript"] += await one_run(turns, None, files)
            times["in memory"] += await one_run(turns, None, MemoryTranscripts())
            times["fdatasync"] += [flushed_append(directory) for _ in range(turns)]
    measured = {name: figures(found) for name, found in times.items()}
    return {
        "benchmark": "loop",
        "unit": "ms a turn",
        "turns": turns * rounds,
        "results": measured,
        "target_ms": TARGET_MS,
        "met": measured["journal and transcript"]["p50"] < TARGET_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    result = asyncio.run(measure(options.turns, options.rounds))
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, found in result["results"].items():
        print(f"{name:<24} p50 {found['p50']:7.3f}  p90 {found['p90']:7.3f}  p99 {found['p99']:7.3f}  ms")
    print(f"under {TARGET_MS:g} ms a turn: {'yes' if result['met'] else 'NO'}")


if __name__ == "__main__":
    main()
