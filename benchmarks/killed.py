"""The same crash, with Handrail's journal and with LangGraph's SQLite checkpointer. A part of ``journal.py``.

One tool charges a card (appends a line to a file and flushes it). Its process is killed with SIGKILL just before or
just after that; a new process then goes on as each project's documents say. Counted: how often the card was charged,
and what the second process was told.

``python benchmarks/killed.py PEER DIRECTORY first|second POINT`` is one of those processes.
"""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

from peers import prepared

POINTS = ("before the effect", "after the effect", "not at all")


def charge(directory: Path, kill_at: str) -> None:
    """The effect, once more than it should be if this is entered twice."""
    if kill_at == POINTS[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    fd = os.open(directory / "charges", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, b"charged\n")
    os.fsync(fd)
    os.close(fd)
    if kill_at == POINTS[1]:
        os.kill(os.getpid(), signal.SIGKILL)


def handrail(directory: Path, kill_at: str, *, second: bool) -> Any:
    """One call with the journal, declared as what it is: never to be run twice."""
    from handrail.executor import ToolExecutor
    from handrail.journal.sqlite import SqliteJournal
    from handrail.registry import ToolRegistry
    from handrail.restart import recover
    from handrail.tool import RiskLevel, ToolDef

    def body(arguments: Any) -> str:
        charge(directory, kill_at)
        return "charged"

    async def go() -> Any:
        tools = ToolRegistry()
        tools.register_from_def(ToolDef("charge", risk_level=RiskLevel.SAFE), body)
        journal = SqliteJournal(str(directory / "journal.sqlite"))
        executor = ToolExecutor(tools, journal=journal)
        if second:
            await recover(executor, journal)
        outcome = await executor.execute("charge", {}, call_id="the-charge")
        journal.close()
        return outcome.status

    return asyncio.run(go())


def langgraph(directory: Path, kill_at: str, *, second: bool) -> Any:
    """A graph with one node, its checkpoints in SQLite and written at once (``durability="sync"``)."""
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict, total=False):
        said: str

    def node(state: State) -> State:
        charge(directory, kill_at)
        return {"said": "charged"}

    builder: Any = StateGraph(State)
    builder.add_node("charge", node)
    builder.add_edge(START, "charge")
    builder.add_edge("charge", END)
    saver = SqliteSaver(sqlite3.connect(directory / "checkpoints.sqlite", check_same_thread=False))
    graph = builder.compile(checkpointer=saver)
    given = None if second else {"said": ""}
    return graph.invoke(given, {"configurable": {"thread_id": "1"}}, durability="sync")["said"]


PEERS: dict[str, Callable[..., Any]] = {"handrail": handrail, "langgraph": langgraph}


def beside_langgraph(directory: Path) -> dict[str, Any]:
    """For each peer and each place of death: charges, and what the second process was told."""
    python = prepared()
    found: dict[str, Any] = {}
    for peer in PEERS:
        for point in POINTS:
            place = directory / f"{peer}-{POINTS.index(point)}"
            place.mkdir()
            said = [_process(python, peer, place, which, point) for which in ("first", "second")]
            charges = (place / "charges").read_text().splitlines() if (place / "charges").exists() else []
            died = said[0] is None
            assert died is (point != POINTS[2]), f"{peer} was to die {point}"
            found.setdefault(peer, {})[f"killed {point}"] = {"charges": len(charges), "told": said[1]}
        found[peer]["version"] = _version(python, peer)
    return found


def _process(python: str, peer: str, place: Path, which: str, point: str) -> Any:
    """What one process printed; ``None`` where it was killed."""
    command = [python, __file__, peer, str(place), which, point]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGKILL:
        return None
    if done.returncode != 0:
        raise RuntimeError(f"{peer}, {which} process: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _version(python: str, peer: str) -> str:
    code = f"from importlib.metadata import version; print(version({peer!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    wanted, where, turn, at = sys.argv[1:]
    again = turn == "second"
    print(json.dumps(PEERS[wanted](Path(where), POINTS[2] if again else at, second=again)))
