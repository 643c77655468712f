"""What the journal costs, beside what the disk itself costs in the same run.

    python benchmarks/journal.py [--json] [--quick] [--full] [--postgres DSN]

- ``sqlite``: what it adds to a call that does nothing, alone and with 8 and 64 calls at once, beside two bare
  ``fdatasync`` appends of the same bytes (an intent and a settlement). The three are measured in turns, call by call.
  Flushes are counted in a run of their own, by a SQLite VFS that passes every flush on and counts it.
- ``postgres``: the same with a server of this machine (or the one that DSN names).
- ``recovery``: settling ten interrupted calls at the end of a long journal, each length in a process of its own.
  ``--full`` goes up to 1,000,000 records.
- ``crash``: effects after a kill around the effect, beside LangGraph with its SQLite checkpointer (``killed.py``).

``slowness``: how many times longer this machine took for ``sum(range(1000))`` than the usual 10 µs. A disk does not
slow down with the processor, so on a slow one the ratio to a bare append is worse than it is elsewhere.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import apsw
import psycopg
from killed import beside_langgraph
from long_journal import recoveries
from machine import slowness

from handrail.executor import ToolExecutor
from handrail.journal.postgres import PostgresJournal
from handrail.journal.protocol import CallJournal, NoJournal
from handrail.journal.sqlite import SqliteJournal
from handrail.journal.stored import StoredJournal
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from postgres_server import PostgresServer

AT_ONCE = (1, 8, 64)
ARGUMENTS = {"path": "src/app/main.py", "pattern": "def main", "limit": 20}
MOST_OVER_BARE = 2.0
LEAST_CALLS_PER_FLUSH = 10.0


class CountingVFS(apsw.VFS):
    """SQLite's own file system layer, which also counts flushes."""

    def __init__(self) -> None:
        self.flushes = 0
        super().__init__("counting", "")

    def xOpen(self, name: Any, flags: Any) -> "CountingFile":  # noqa: N802 - SQLite's name
        return CountingFile(self, name, flags)


class CountingFile(apsw.VFSFile):
    def __init__(self, vfs: CountingVFS, name: Any, flags: Any) -> None:
        self._vfs = vfs
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite's name
        self._vfs.flushes += 1
        super().xSync(flags)


def executor_over(journal: CallJournal) -> ToolExecutor:
    async def nothing(arguments: Any) -> str:
        return "ok"

    tools = ToolRegistry()
    parameters = {"type": "object"}
    definition = ToolDef("nothing", risk_level=RiskLevel.SAFE, parameters=parameters, path_args=())
    tools.register_from_def(definition, nothing)
    return ToolExecutor(tools, journal=journal, max_parallel=max(AT_ONCE))


async def one_call(executor: ToolExecutor) -> None:
    outcome = await executor.execute("nothing", ARGUMENTS)
    assert outcome.status == "ok", outcome.text


async def many_calls(executor: ToolExecutor, at_once: int, each: int) -> float:
    """Seconds for each call, while ``at_once`` callers make ``each`` calls one after the other."""

    async def caller() -> None:
        for _ in range(each):
            await one_call(executor)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return (time.perf_counter() - began) / (at_once * each)


class Bare:
    """A file that is appended to and flushed: what a durable write costs here."""

    def __init__(self, directory: Path, sizes: list[int]) -> None:
        self._fd = os.open(directory / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._bytes = [b"x" * size for size in sizes]

    def pair(self) -> float:
        """Seconds for an intent and a settlement, each flushed."""
        began = time.perf_counter()
        for data in self._bytes:
            os.write(self._fd, data)
            os.fdatasync(self._fd)
        return time.perf_counter() - began


async def sizes_of_records(journal: StoredJournal) -> list[int]:
    """How long the intent and the settlement of a call are, in bytes."""
    await one_call(executor_over(journal))
    return [len(record.body) for record in journal.reader.records()][-2:]


async def costs(journal: StoredJournal, directory: Path, at_once: int, rounds: int) -> dict[str, Any]:
    """What a journal adds to a call, measured in turns with a bare append and a call without a journal."""
    bare = Bare(directory, await sizes_of_records(journal))
    with_journal, without = executor_over(journal), executor_over(NoJournal())
    added: list[float] = []
    appended: list[float] = []
    for _ in range(rounds):
        plain = await many_calls(without, at_once, 2)
        added.append(await many_calls(with_journal, at_once, 2) - plain)
        appended.append(bare.pair())
    return {
        "added_us": microseconds(added),
        "added_p95_us": round(statistics.quantiles(added, n=20)[-1] * 1e6, 1),
        "bare_appends_us": microseconds(appended),
        "over_bare": round(statistics.median(added) / statistics.median(appended), 2),
    }


def microseconds(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e6, 1)


async def sqlite(directory: Path, *, quick: bool) -> dict[str, Any]:
    journal = SqliteJournal(str(directory / "j.sqlite"))
    found: dict[str, Any] = {}
    for at_once in AT_ONCE:
        rounds = max(4, (160 if quick else 640) // at_once)
        found[str(at_once)] = await costs(journal, directory, at_once, rounds)
    journal.close()
    vfs = CountingVFS()
    for at_once in AT_ONCE:
        journal = SqliteJournal(str(directory / f"counted-{at_once}.sqlite"), vfs="counting")
        executor = executor_over(journal)
        before = vfs.flushes
        each = max(4, 320 // at_once)
        await many_calls(executor, at_once, each)
        flushes = vfs.flushes - before  # with those of checkpoints; the file's own opening is over
        journal.close()
        found[str(at_once)] |= {"flushes": flushes, "calls_per_flush": round(at_once * each / flushes, 2)}
    return found


async def postgres(directory: Path, dsn: str, *, quick: bool) -> dict[str, Any]:
    journal = PostgresJournal(dsn, name=f"benchmark-{time.time_ns()}")
    found: dict[str, Any] = {}
    with psycopg.connect(dsn, autocommit=True) as watching:
        found["version"] = str(watching.execute("SHOW server_version").fetchone()[0])
        for at_once in AT_ONCE:
            commits = journal.writer.commits
            rounds = max(4, (160 if quick else 320) // at_once)
            found[str(at_once)] = await costs(journal, directory, at_once, rounds)
            calls = rounds * at_once * 2 + 1
            found[str(at_once)]["calls_per_commit"] = round(calls / (journal.writer.commits - commits), 2)
    journal.close()
    return found


def with_postgres(directory: Path, dsn: str | None, *, quick: bool) -> dict[str, Any]:
    """The figures of the named server, or of one of our own for as long as they take."""
    if dsn is not None:
        return asyncio.run(postgres(directory, dsn, quick=quick))
    try:
        server = PostgresServer()
    except FileNotFoundError as error:
        return {"not_measured": str(error)}
    try:
        return asyncio.run(postgres(directory, server.dsn, quick=quick))
    finally:
        server.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, and no peer")
    parser.add_argument("--full", action="store_true", help="recover 1,000,000 records too")
    parser.add_argument("--only", choices=["sqlite", "postgres", "recovery", "crash"], nargs="*")
    parser.add_argument("--postgres", metavar="DSN")
    options = parser.parse_args()
    only = options.only or ["sqlite", "postgres", "recovery", *([] if options.quick else ["crash"])]
    result: dict[str, Any] = {
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "sqlite_version": apsw.sqlite_lib_version(),
        "slowness": slowness(),
    }
    with tempfile.TemporaryDirectory(dir=".", prefix="journal-benchmark-") as name:
        directory = Path(name)
        if "sqlite" in only:
            found = result["sqlite"] = asyncio.run(sqlite(directory, quick=options.quick))
            result["targets"] = {
                f"alone, at most {MOST_OVER_BARE:g} times two bare appends": found["1"]["over_bare"] <= MOST_OVER_BARE,
                f"64 at once, at least {LEAST_CALLS_PER_FLUSH:g} calls for each flush": found["64"]["calls_per_flush"]
                >= LEAST_CALLS_PER_FLUSH,
            }
        if "postgres" in only:
            result["postgres"] = with_postgres(directory, options.postgres, quick=options.quick)
        if "recovery" in only:
            lengths = [10_000] if options.quick else [10_000, 100_000, *([1_000_000] if options.full else [])]
            result["recovery"] = recoveries(directory, lengths)
        if "crash" in only:
            result["crash"] = beside_langgraph(directory)
    print(json.dumps(result, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
