"""What the journal costs: a call's added time, calls for each flush, recovery of a long journal.

``python benchmarks/journal.py [--json] [--full] [--postgres DSN]``. Each figure stands beside a bare ``fdatasync``
append of the same bytes, in the same run. ``--full`` recovers 1,000,000 records instead of 20,000.
"""

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from pathlib import Path

from handrail.executor import ToolExecutor
from handrail.journal.protocol import NoJournal
from handrail.journal.records import Head, encode, extended
from handrail.journal.recovering import interrupted
from handrail.journal.sqlite import SqliteJournal
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef


async def handler(args):
    return "ok"


async def calls(journal, at_once: int, count: int) -> dict:
    """Median added time cannot be seen in one call alone, so whole calls are timed, with and without a journal."""
    tools = ToolRegistry()
    tools.register_from_def(ToolDef("noop", risk_level=RiskLevel.SAFE), handler)
    executor = ToolExecutor(tools, journal=journal, max_parallel=at_once)
    times: list[float] = []

    async def worker(share: int) -> None:
        for _ in range(share):
            began = time.perf_counter()
            outcome = await executor.execute("noop", {})
            times.append(time.perf_counter() - began)
            assert outcome.status == "ok", outcome.text

    await worker(5)
    times.clear()
    commits = getattr(getattr(journal, "writer", None), "commits", 0)
    began = time.perf_counter()
    await asyncio.gather(*(worker(count // at_once) for _ in range(at_once)))
    took = time.perf_counter() - began
    flushes = getattr(getattr(journal, "writer", None), "commits", 0) - commits
    return {
        "at_once": at_once,
        "calls": len(times),
        "median_us": round(statistics.median(times) * 1e6, 1),
        "p99_us": round(sorted(times)[int(len(times) * 0.99)] * 1e6, 1),
        "calls_per_second": round(len(times) / took, 1),
        "calls_per_commit": round(len(times) / flushes, 2) if flushes else None,
    }


def appended(directory: Path, size: int, count: int) -> float:
    """Median microseconds of a bare append of ``size`` bytes with ``fdatasync``."""
    fd = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        os.write(fd, b"x" * size)
        os.fdatasync(fd)
        times.append(time.perf_counter() - began)
    os.close(fd)
    return round(statistics.median(times) * 1e6, 1)


async def recovery(directory: Path, records: int) -> dict:
    """Time and memory of looking through a chain of ``records`` records for interrupted calls."""
    journal = SqliteJournal(str(directory / f"long-{records}.sqlite"))
    head = journal.reader.head()
    connection = journal.reader._connection
    connection.execute("PRAGMA query_only=0").fetchall()
    with connection:
        for number in range(records):
            record = extended(head, encode({"kind": "stale", "call_id": f"c{number}", "at": 1.0, "pad": "x" * 600}))
            head = Head(record.sequence, record.hash)
            connection.execute(
                "INSERT INTO record VALUES (?,?,?,?)", (record.sequence, f"c{number}", record.body, record.hash)
            )
        connection.execute("UPDATE head SET sequence = ?, hash = ?", (head.sequence, head.hash))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    assert await interrupted(journal) == []
    took = time.perf_counter() - began
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    journal.close()
    return {"records": records, "seconds": round(took, 3), "memory_grown_kib": grown}


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--postgres", metavar="DSN")
    parser.add_argument("--calls", type=int, default=640)
    options = parser.parse_args()
    result: dict = {"machine": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
    with tempfile.TemporaryDirectory(dir=".") as name:
        directory = Path(name)
        journal = SqliteJournal(str(directory / "j.sqlite"))
        for at_once in (1, 8, 64):
            bare = await calls(NoJournal(), at_once, options.calls)
            with_journal = await calls(journal, at_once, options.calls)
            with_journal["added_us"] = round(with_journal["median_us"] - bare["median_us"], 1)
            result[f"sqlite_{at_once}"] = with_journal
        sizes = [len(record.body) for record in journal.reader.records(1)]
        journal.close()
        result["bare_fdatasync_us"] = appended(directory, sum(sizes) // len(sizes), 300)
        result["added_over_two_bare_appends"] = round(
            result["sqlite_1"]["added_us"] / (2 * result["bare_fdatasync_us"]), 2
        )
        total = 1_000_000 if options.full else 20_000
        result["recovery"] = [await recovery(directory, total // 10), await recovery(directory, total)]
    if options.postgres:
        from handrail.journal.postgres import PostgresJournal

        journal = PostgresJournal(options.postgres, name=f"bench-{time.time_ns()}")
        for at_once in (1, 8, 64):
            result[f"postgres_{at_once}"] = await calls(journal, at_once, options.calls)
        journal.close()
    print(json.dumps(result, indent=None if options.json else 2))


if __name__ == "__main__":
    asyncio.run(main())
