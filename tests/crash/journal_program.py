"""Kill a program at each fault point that a run of it reaches; recover after each; say what was seen.

A point is a name and which time it is reached: two threads may reach theirs in another order, or not, in another run.

Started by the test as a program, because each run is a fork of it: so it is warm, and has one thread. Prints one JSON
object for each run: where it died, how often each effect happened, and what the journal then says. The last is of the
run that told the points, and was not killed. What is killed:

- ``calls``: the process that runs one call of each kind;
- ``every-write``: the same with one call, at each write and flush of SQLite's files too;
- ``server``: the database server, at each point that the process reaches; it is started again and the process goes on;
- ``recovery``: the process that recovers what an earlier one left: three calls, each interrupted where it hurts.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import NamedTuple

from crash.faulty_vfs import FaultyVFS
from handrail import faults
from handrail.approval.decision import Park
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.errors import JournalError
from handrail.executor import ToolExecutor
from handrail.journal import audit
from handrail.journal.postgres import PostgresJournal
from handrail.journal.sqlite import SqliteJournal
from handrail.outcome import ToolOutcome
from handrail.parked import Answer
from handrail.registry import ToolRegistry
from handrail.restart import recover
from handrail.tool import Effect, RiskLevel, ToolDef
from postgres_server import PostgresServer

CALLS = {"never": "call-never", "safe": "call-safe", "asked": "call-asked", "staged": "call-staged"}


class Keeper:
    """The smallest store of changes: makes them real by one idempotent file, and can do so again after a crash."""

    contents = None

    def __init__(self, directory: Path) -> None:
        self.real = directory / "changes-are-real"

    def diff(self, changes):
        return ""

    async def commit(self, call_id, changes, *, begun, ended):
        await begun()
        await self.roll_forward(call_id)
        await ended()

    async def roll_forward(self, call_id):
        faults.point("keeper.change.before")
        self.real.touch()
        faults.point("keeper.change.after")
        return True


class Parking:
    async def decide(self, request):
        return Park()


def effect(directory: Path, name: str) -> str:
    """One line appended: what cannot be taken back."""
    fd = os.open(directory / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{name}\n".encode())
    os.close(fd)
    return name


async def nothing_more() -> None:
    """What most effects are followed by."""


def tools(directory: Path, after_effect: Callable[[], Awaitable[None]] = nothing_more) -> ToolRegistry:
    registry = ToolRegistry()

    def add(name: str, handler, risk: RiskLevel, **more) -> None:
        staged = more.pop("staged", False)
        registry.register_from_def(ToolDef(name, risk_level=risk, **more), handler, staged=staged)

    changed = ChangeSet((Change(b"f", None, FileState("file", 0o644, 0, "0" * 64)),))

    def handler(name: str):
        async def happen(args):
            done = effect(directory, name)
            await after_effect()
            return done

        return happen

    add("never", handler("never"), RiskLevel.SAFE)
    add("safe", handler("safe"), RiskLevel.SAFE, replay="safe", replay_key="test:safe:v1")
    add("asked", handler("asked"), RiskLevel.DANGEROUS)
    add("staged", lambda args: Effect(ToolOutcome.ok("staged"), changed), RiskLevel.SAFE, staged=True)
    return registry


def opened(store: str, directory: Path, vfs: str | None):
    if store == "sqlite":
        return SqliteJournal(str(directory / "journal.sqlite"), vfs=vfs)
    return PostgresJournal(store, name=directory.name, lease_seconds=0.3)


def executor_over(journal, directory: Path, after_effect: Callable[[], Awaitable[None]] = nothing_more) -> ToolExecutor:
    return ToolExecutor(
        tools(directory, after_effect),
        journal=journal,
        changes=Keeper(directory),
        approver=Parking(),
        spill_directory=str(directory),
    )


async def scenario(store: str, directory: Path, what: str) -> None:
    """One call of each kind, the asked one parked, answered and resumed; or, watching every write, the first only."""
    vfs = FaultyVFS() if what == "every-write" else None
    journal = opened(store, directory, vfs and vfs.vfs_name)
    try:
        executor = executor_over(journal, directory)
        for name in ("never",) if what == "every-write" else ("never", "safe", "staged"):
            await executor.execute(name, {}, call_id=CALLS[name])
        if what == "every-write":
            return
        pending = await executor.execute("asked", {}, call_id=CALLS["asked"])
        if pending.approval_id is not None:
            try:
                await journal.answer(pending.approval_id, Answer(verdict="approve", by="test", at=1.0))
            except JournalError:  # the server is gone; whoever answered would be told so
                return
            await executor.resume(pending.approval_id)
    finally:
        journal.close()


async def left_behind(store: str, directory: Path) -> None:
    """Die with three calls under way: two whose effect has just happened, and one in the middle of its commit."""
    happened = [asyncio.Event(), asyncio.Event()]

    async def hang() -> None:
        next(event for event in happened if not event.is_set()).set()
        await asyncio.Event().wait()

    def die(name: str) -> None:
        if name == "keeper.change.before":
            os.kill(os.getpid(), signal.SIGKILL)

    journal = opened(store, directory, None)
    executor = executor_over(journal, directory, hang)
    calls = [asyncio.create_task(executor.execute(name, {}, call_id=CALLS[name])) for name in ("never", "safe")]
    for event in happened:
        await event.wait()
    with faults.armed(die):
        await executor.execute("staged", {}, call_id=CALLS["staged"])
    await asyncio.gather(*calls)


async def recovered(store: str, directory: Path) -> dict:
    journal = opened(store, directory, None)
    executor, keeper = executor_over(journal, directory), Keeper(directory)
    deadline = asyncio.get_running_loop().time() + 60
    while any(row.executor and journal.reader.is_alive(row.executor) for row in journal.reader.calls_not_over()):
        assert asyncio.get_running_loop().time() < deadline, "the dead process is taken for a living one"
        await asyncio.sleep(0.05)  # a lease of the dead process still runs
    done = await recover(executor, journal, roll_forward=keeper.roll_forward)
    again = await recover(executor, journal, roll_forward=keeper.roll_forward)
    audit.verify(journal.reader)
    kinds: dict[str, list[str]] = {}
    for record in journal.reader.records():
        kinds.setdefault(record.data["call_id"], []).append(record.data["kind"])
    outcomes = {}
    for name, call_id in CALLS.items():
        outcome = await journal.recorded_outcome(call_id)
        outcomes[name] = None if outcome is None else outcome.status
    journal.close()
    return {
        "recovered": len([item for item in done if item.outcome is not None]),
        "recovered_again": len([item for item in again if item.outcome is not None]),
        "intents": {call: kinds[call].count("intent") for call in kinds if call},
        "settlements": {call: kinds[call].count("settled") for call in kinds if call},
        "outcomes": outcomes,
    }


def forked(work: Callable[[socket.socket], object], server: PostgresServer | None = None) -> int:
    """Run ``work`` in a fork; returns its exit status, negative for a signal.

    Whenever the fork sends a byte, the server is killed and started again, and the fork gets a byte back.
    """
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        ours.close()
        try:
            work(theirs)
        except BaseException as error:
            print(f"in the fork: {error!r}", file=sys.stderr, flush=True)
            os._exit(70)
        os._exit(0)
    theirs.close()
    while ours.recv(1):
        assert server is not None
        server.kill()
        server.start()
        ours.send(b".")
    ours.close()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Point(NamedTuple):
    """The ``time``-th reaching of the fault point ``name``."""

    name: str
    time: int


def struck_at(
    point: Point | None,
    trace: Path,
    strike: Callable[[], object],
    work: Coroutine[None, None, object],
    passing_by: str = "-",
) -> None:
    """``strike`` at one point that ``work`` reaches. With none, write down the names of all, but for those that begin
    with ``passing_by``.
    """
    reached: list[str] = []
    one_by_one = threading.Lock()

    def hook(name: str) -> None:
        with one_by_one:
            reached.append(name)
            here = point is not None and point == (name, reached.count(name))
        if here:
            trace.write_text(name)
            strike()

    with faults.armed(hook):
        asyncio.run(work)
    if point is None:
        trace.write_text("\n".join(name for name in reached if not name.startswith(passing_by)))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def one_run(
    store: str, directory: Path, point: Point | None, what: str, server: PostgresServer | None
) -> tuple[int, int]:
    """What is to be killed, killed at a point, and a look at what it left; both exit statuses."""
    directory.mkdir()
    trace = directory / "points"

    def struck(asking: socket.socket) -> None:
        work = recovered(store, directory) if what == "recovery" else scenario(store, directory, what)
        if server is None:
            struck_at(point, trace, die, work)
        else:  # a decision is pure: between the points around it the server has nothing to do
            struck_at(point, trace, lambda: asking.send(b"k") and asking.recv(1), work, "journal.decide.")

    def look(_: socket.socket) -> None:
        (directory / "result").write_text(json.dumps(asyncio.run(recovered(store, directory))))

    if what == "recovery":
        assert forked(lambda _: asyncio.run(left_behind(store, directory))) == -signal.SIGKILL
    return forked(struck, server), forked(look)


def points_in(directory: Path) -> list[Point]:
    """What a run reached, or where it was struck."""
    trace, met = directory / "points", Counter()
    names = trace.read_text().split() if trace.exists() else []
    found = []
    for name in names:
        met[name] += 1
        found.append(Point(name, met[name]))
    return found


ATTEMPTS = 5
"""A point that one run reached may be missing in another: a thread was ready sooner, and had less to wait for."""


def main(store: str, root: Path, what: str) -> None:
    server = PostgresServer(root) if what == "server" else None
    numbers = itertools.count(1)

    def tried(point: Point | None) -> tuple[dict, list[Point]]:
        number = next(numbers)
        directory = root / f"at-{number}"
        status, looked = one_run(store if server is None else server.dsn, directory, point, what, server)
        result, effects = directory / "result", directory / "effects"
        points = points_in(directory)
        return {
            "number": number,
            "status": status,
            "died_at": points[0].name if point and points else None,
            "looked": looked,
            "effects": Counter(effects.read_text().split() if effects.exists() else []),
            "real": (directory / "changes-are-real").exists(),
            **(json.loads(result.read_text()) if result.exists() else {}),
        }, points

    try:
        survivor, points = tried(None)
        for point in points:
            for _ in range(ATTEMPTS):
                seen, struck = tried(point)
                print(json.dumps(seen), flush=True)
                if struck:
                    break
            else:
                raise RuntimeError(f"{point} was reached once, and then not again in {ATTEMPTS} runs")
        print(json.dumps(survivor), flush=True)
    finally:
        if server is not None:
            server.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
