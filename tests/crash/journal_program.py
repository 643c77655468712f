"""Kill a program at its first, second, third … fault point until a run survives; recover after each; say what was seen.

Started by the test as a program, because each run is a fork of it: so it is warm, and has one thread. Prints one JSON
object for each run: where it died, how often each effect happened, and what the journal then says.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from crash.faulty_vfs import FaultyVFS
from handrail import faults
from handrail.approval.decision import Park
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.executor import ToolExecutor
from handrail.journal import audit
from handrail.journal.postgres import PostgresJournal
from handrail.journal.sqlite import SqliteJournal
from handrail.outcome import ToolOutcome
from handrail.parked import Answer
from handrail.registry import ToolRegistry
from handrail.restart import recover
from handrail.tool import Effect, RiskLevel, ToolDef

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


def tools(directory: Path) -> ToolRegistry:
    registry = ToolRegistry()

    def add(name: str, handler, risk: RiskLevel, **more) -> None:
        staged = more.pop("staged", False)
        registry.register_from_def(ToolDef(name, risk_level=risk, **more), handler, staged=staged)

    changed = ChangeSet((Change(b"f", None, FileState("file", 0o644, 0, "0" * 64)),))
    add("never", lambda args: effect(directory, "never"), RiskLevel.SAFE)
    add("safe", lambda args: effect(directory, "safe"), RiskLevel.SAFE, replay="safe", replay_key="test:safe:v1")
    add("asked", lambda args: effect(directory, "asked"), RiskLevel.DANGEROUS)
    add("staged", lambda args: Effect(ToolOutcome.ok("staged"), changed), RiskLevel.SAFE, staged=True)
    return registry


def opened(store: str, directory: Path, vfs: str | None):
    if store == "sqlite":
        return SqliteJournal(str(directory / "journal.sqlite"), vfs=vfs)
    return PostgresJournal(store, name=directory.name, lease_seconds=0.3)


async def scenario(store: str, directory: Path, *, every_write: bool) -> None:
    """One call of each kind, the asked one parked, answered and resumed; or, watching every write, the first only."""
    vfs = FaultyVFS() if every_write else None
    journal = opened(store, directory, vfs and vfs.vfs_name)
    try:
        executor = ToolExecutor(
            tools(directory),
            journal=journal,
            changes=Keeper(directory),
            approver=Parking(),
            spill_directory=str(directory),
        )
        for name in ("never",) if every_write else ("never", "safe", "staged"):
            await executor.execute(name, {}, call_id=CALLS[name])
        if every_write:
            return
        pending = await executor.execute("asked", {}, call_id=CALLS["asked"])
        if pending.approval_id is not None:
            await journal.answer(pending.approval_id, Answer(verdict="approve", by="test", at=1.0))
            await executor.resume(pending.approval_id)
    finally:
        journal.close()


async def recovered(store: str, directory: Path) -> dict:
    journal = opened(store, directory, None)
    keeper = Keeper(directory)
    executor = ToolExecutor(
        tools(directory), journal=journal, changes=keeper, approver=Parking(), spill_directory=str(directory)
    )
    deadline = asyncio.get_running_loop().time() + 20
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


def forked(work) -> int:
    """Run ``work`` in a fork; returns the exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"in the fork: {error!r}", file=sys.stderr, flush=True)
            os._exit(70)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(number: int, trace: Path, work) -> None:
    reached = 0

    def hook(name: str) -> None:
        nonlocal reached
        reached += 1
        if reached == number:
            trace.write_text(name)
            os.kill(os.getpid(), signal.SIGKILL)

    with faults.armed(hook):
        work()


def one_run(store: str, directory: Path, number: int, *, every_write: bool) -> tuple[int, int]:
    """The scenario, killed at the ``number``-th point, and a look at what it left; both exit statuses."""
    directory.mkdir()

    def run() -> None:
        killed_at(
            number, directory / "died-at", lambda: asyncio.run(scenario(store, directory, every_write=every_write))
        )

    def look() -> None:
        (directory / "result").write_text(json.dumps(asyncio.run(recovered(store, directory))))

    return forked(run), forked(look)


def main(store: str, root: str, *, every_write: bool) -> None:
    number, survived = 1, False
    while not survived:
        directory = Path(root) / f"at-{number}"
        status, looked = one_run(store, directory, number, every_write=every_write)
        survived = status == 0
        trace, result = directory / "died-at", directory / "result"
        effects = (directory / "effects").read_text().split() if (directory / "effects").exists() else []
        print(
            json.dumps(
                {
                    "number": number,
                    "status": status,
                    "died_at": trace.read_text() if trace.exists() else None,
                    "looked": looked,
                    "effects": Counter(effects),
                    "real": (directory / "changes-are-real").exists(),
                    **(json.loads(result.read_text()) if result.exists() else {}),
                }
            ),
            flush=True,
        )
        number += 1


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], every_write=sys.argv[3] == "every-write")
