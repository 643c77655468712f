"""The warm parents of one host process, and the cells that wait parked in them.

A call borrows a parent, takes a cell and gives both back. Everything slow happens in one thread of its own: closing
what was used, parking new cells, ending parents that nobody needs. That thread sleeps while there is nothing to do.
"""

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Protocol

from handrail.errors import SandboxError
from handrail.sandbox.pool import Target, is_worn, to_let_go
from handrail.sandbox.zygotes import ParkedCell, Zygote, ZygoteKey, finish_park

PARK_SECONDS = 30.0
PARKED_AT_ONCE = 3
JOIN_SECONDS = 10.0


class Used(Protocol):
    """What a call leaves behind."""

    @property
    def zygote(self) -> Zygote: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Chores:
    used: list[Used] = field(default_factory=list["Used"])
    unsettled: list[Zygote] = field(default_factory=list[Zygote])
    leaving: list[Zygote] = field(default_factory=list[Zygote])

    def __bool__(self) -> bool:
        return bool(self.used or self.unsettled or self.leaving)


class Parking:
    """Thread-safe. ``least`` and ``most`` cells wait in each parent, as :class:`~handrail.sandbox.pool.Target` says."""

    def __init__(self, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self._closed = False
        self._start_over()

    def _start_over(self) -> None:
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._parents: dict[ZygoteKey, Zygote] = {}
        self._leaving: list[Zygote] = []
        self._gates: dict[ZygoteKey, threading.Lock] = {}
        self._used: list[Used] = []
        self._unsettled: dict[Zygote, None] = {}
        self._busy = False
        self._thread: threading.Thread | None = None

    # -- for calls

    def borrow(self, key: ZygoteKey) -> Zygote:
        """The warm parent of this kind, started if there is none. It stays until :meth:`give_back`."""
        if self._pid != os.getpid():
            self._start_over()  # in a forked child of the host the cells are the parent's
        if self._closed:
            raise SandboxError("the supervisor is closed")
        with self._change:
            found = self._lend(key)
            if found is not None:
                return found
            gate = self._gates.setdefault(key, threading.Lock())
        with gate:  # those who want this kind wait for it; the others do not
            with self._change:
                found = self._lend(key)
            return found or self._start(key)

    def _lend(self, key: ZygoteKey) -> Zygote | None:
        zygote = self._parents.get(key)
        if zygote is None or zygote.dead:
            return None
        zygote.running += 1
        zygote.used = time.monotonic()
        return zygote

    def _start(self, key: ZygoteKey) -> Zygote:
        zygote = Zygote(key, Target(self._least, self._most, time.monotonic()))
        with self._change:
            if not self._closed:
                self._install(zygote)
                zygote.running += 1
                return zygote
        zygote.close()
        raise SandboxError("the supervisor is closed")

    def _install(self, zygote: Zygote) -> None:
        before = self._parents.pop(zygote.key, None)
        zygote.used = time.monotonic()
        self._parents[zygote.key] = zygote
        if before is not None:
            self._leaving.append(before)
        for one in to_let_go(self._parents.values(), zygote):
            del self._parents[one.key]
            self._leaving.append(one)

    def give_back(self, zygote: Zygote, used: Used | None = None) -> None:
        """A call is done with its parent, and with what it used: that is closed when nobody waits for it."""
        with self._change:
            zygote.running -= 1
            closed = self._closed
            if used is not None and not closed:
                self._used.append(used)
            self._wake(zygote)
        if used is not None and closed:  # nobody else will any more
            used.close()

    def _wake(self, zygote: Zygote) -> None:
        if self._closed:
            return
        if not zygote.dead:
            self._unsettled[zygote] = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="handrail-cells", daemon=True)
            self._thread.start()
        self._change.notify()

    # -- for measuring and tests

    def warm(self, zygote: Zygote) -> None:
        """Park as many cells as are wanted, here and now."""
        while len(zygote.ready) < zygote.target.at(time.monotonic()):
            zygote.ready.append(finish_park(zygote.begin_park(), PARK_SECONDS))

    def idle(self, zygote: Zygote) -> bool:
        """Whether nothing is being done: what was used is closed, and as many cells are parked as are wanted."""
        with self._change:
            wanted = zygote.target.at(time.monotonic())
            return not self._used and not self._busy and not self._leaving and len(zygote.ready) >= wanted

    # -- the thread

    def _work(self) -> None:
        while (chores := self._next()) is not None:
            for used in chores.used:
                used.close()
            for zygote in chores.leaving:
                zygote.close()
            for zygote in chores.unsettled:
                with contextlib.suppress(SandboxError, OSError):  # the next call that needs it will say what is wrong
                    self._settle(zygote)

    def _next(self) -> _Chores | None:
        with self._change:
            self._busy = False
            while not (chores := self._gather()):
                if self._closed:
                    return None
                self._change.wait(self._patience())
            self._busy = True
            return chores

    def _gather(self) -> _Chores:
        now = time.monotonic()
        shrinking = [one for one in self._parents.values() if len(one.ready) > one.target.at(now)]
        chores = _Chores(
            self._used,
            list(dict.fromkeys([*self._unsettled, *shrinking])),
            [one for one in self._leaving if one.running == 0],
        )
        self._used, self._unsettled = [], {}
        self._leaving = [one for one in self._leaving if one.running]
        return chores

    def _patience(self) -> float | None:
        times = [one.target.next_change() for one in self._parents.values()]
        soonest = min((when for when in times if when is not None), default=None)
        return None if soonest is None else max(soonest - time.monotonic(), 0.001)

    def _settle(self, zygote: Zygote) -> None:
        """Park what is missing, a few at once, or let go of what is too much. What remains to be done comes again."""
        if is_worn(zygote) and self._parents.get(zygote.key) is zygote:
            zygote = self._replace(zygote)
        wanted = zygote.target.at(time.monotonic())
        while len(zygote.ready) > wanted:
            with contextlib.suppress(IndexError):  # a call took it meanwhile
                zygote.ready.pop().close()
        missing = wanted - len(zygote.ready)
        if missing <= 0 or zygote.dead or self._closed:
            return
        begun = [zygote.begin_park() for _ in range(min(missing, PARKED_AT_ONCE))]
        zygote.ready.extend(_finished(begun))
        if missing > len(begun):
            with self._change:
                self._wake(zygote)

    def _replace(self, worn: Zygote) -> Zygote:
        """A fresh parent instead of one that has forked often. Calls go on in the old one until the new one is up."""
        fresh = Zygote(worn.key, Target(self._least, self._most, time.monotonic()))
        with self._change:
            if not self._closed:
                self._install(fresh)
                return fresh
        fresh.close()
        return worn

    def close(self) -> None:
        """End every parent, and by the kernel every cell, and wait for them. Safe to call again."""
        with self._change:
            self._closed = True
            zygotes = [*self._parents.values(), *self._leaving]
            self._parents, self._leaving, self._unsettled = {}, [], {}
            self._change.notify_all()
        if self._pid != os.getpid():
            return
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=JOIN_SECONDS)
        for zygote in zygotes:
            zygote.close()


def _finished(begun: list[ParkedCell]) -> list[ParkedCell]:
    """Wait for cells that were asked for. When one fails, none of them is kept."""
    try:
        return [finish_park(cell, PARK_SECONDS) for cell in begun]
    except BaseException:
        for cell in begun:
            cell.close()
        raise
