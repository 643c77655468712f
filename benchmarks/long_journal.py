"""A journal of any length, written quickly, and what recovering it takes. A part of ``journal.py``.

Every record, hash and row is what the journal itself would have written for so many calls; only the way is shorter: one
real call is made, and its two records are repeated under other ids, with the chain computed over them. Recovery checks
that whole chain.

``python benchmarks/long_journal.py FILE`` recovers FILE and prints what that took; so each recovery has a process, and
a highest memory, of its own.
"""

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from handrail.executor import ToolExecutor
from handrail.journal.records import DOMAIN, Head
from handrail.journal.recovering import Host, recover
from handrail.journal.sqlite import SqliteJournal
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef

INTERRUPTED = 10
PATTERN_ID = "019a0000-0000-7000-8000-000000000000"


async def _one_call(path: Path) -> None:
    tools = ToolRegistry()
    tools.register_from_def(
        ToolDef("nothing", risk_level=RiskLevel.SAFE, parameters={"type": "object"}, path_args=()), lambda args: "ok"
    )
    journal = SqliteJournal(str(path))
    outcome = await ToolExecutor(tools, journal=journal).execute("nothing", {"path": "a/b.py"}, call_id=PATTERN_ID)
    if outcome.status != "ok":
        raise RuntimeError(outcome.text)
    journal.close()


def written(path: Path, records: int) -> None:
    """A journal of ``records`` records, at least; its last ten calls have no end, and their process is dead."""
    asyncio.run(_one_call(path))
    connection: Any = apsw.Connection(str(path))
    connection.execute("PRAGMA synchronous=OFF").fetchall()
    intent, settled = (
        row[0] for row in connection.execute("SELECT body FROM record ORDER BY sequence LIMIT -1 OFFSET 1")
    )
    head = Head(*connection.execute("SELECT sequence, hash FROM head").fetchone())
    first = head.sequence + 1
    dead = "00000000-0000-4000-8000-000000000000"
    rows: list[tuple[Any, ...]] = []

    def links() -> Iterator[tuple[int, str, bytes, bytes]]:
        digest = head.hash
        sequence = first
        number = 0
        while sequence <= records:
            call_id = f"019b0000-0000-7000-8000-{number:012x}"
            number += 1
            ends = sequence < records - INTERRUPTED
            for pattern in (intent, settled)[: 2 if ends else 1]:
                body = pattern.replace(PATTERN_ID.encode(), call_id.encode())
                if pattern is settled:  # it names the place of its intent
                    body = body.replace(b'"of":%d' % (first - 2), b'"of":%d' % (sequence - 1))
                digest = hashlib.sha256(b"".join((DOMAIN, digest, sequence.to_bytes(8, "big"), body))).digest()
                yield sequence, call_id, body, digest
                sequence += 1
            where = (sequence - 2, sequence - 1, "ok") if ends else (sequence - 1, 0, "")
            state = "settled" if ends else "open"
            rows.append((call_id, state, dead, 1, *where, "", "", 0))
        rows.append((sequence - 1, digest))

    with connection:
        connection.executemany("INSERT INTO record VALUES (?,?,?,?)", links())
        connection.execute("UPDATE head SET sequence = ?, hash = ?", rows.pop())
        connection.executemany("INSERT INTO call VALUES (?,?,?,?,?,?,?,?,?,?)", rows)
    connection.close()


def recoveries(directory: Path, lengths: list[int]) -> list[dict[str, Any]]:
    """Recovering journals of these lengths; each twice, the second time with nothing left to do."""
    found = []
    for length in lengths:
        path = directory / f"long-{length}.sqlite"
        began = time.perf_counter()
        written(path, length)
        making = time.perf_counter() - began
        done = subprocess.run([sys.executable, __file__, str(path)], check=True, capture_output=True, text=True)
        found.append({**json.loads(done.stdout), "seconds_to_make_it": round(making, 1)})
        path.unlink()
    return found


def highest_memory() -> int:
    """The most memory this program has held, in KiB. (``ru_maxrss`` would count that of whoever started it.)"""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def recovered(path: str) -> dict[str, Any]:
    """Recover one journal: seconds, and how much the process grew."""
    journal = SqliteJournal(path)
    records = journal.reader.head().sequence
    before = highest_memory()
    began = time.perf_counter()
    done = asyncio.run(recover(journal, Host()))
    took = time.perf_counter() - began
    began = time.perf_counter()
    again = asyncio.run(recover(journal, Host(), check_chain=False))
    quick = time.perf_counter() - began
    grown = highest_memory() - before
    journal.close()
    assert [item.outcome.status for item in done if item.outcome] == ["unknown"] * len(done), done
    assert not again
    return {
        "records": records,
        "settled": len(done),
        "seconds": round(took, 3),
        "microseconds_per_record": round(took / records * 1e6, 2),
        "seconds_without_reading_the_chain": round(quick, 4),
        "memory_grown_kib": grown,
    }


if __name__ == "__main__":
    print(json.dumps(recovered(sys.argv[1])))
