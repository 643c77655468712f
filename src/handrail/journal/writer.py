"""One thread that writes: many calls in, few commits out (group commit).

Calls that are ready in one turn of an event loop are handed over together; while one commit is being flushed, the next
batch gathers. Each caller is woken in its own loop, after its operation is durable and not before.

After a failed flush nothing is known about what reached the disk, so the writer refuses everything from then on
(:class:`~handrail.errors.JournalPoisoned`); opening the journal again reads what is really there.
"""

import asyncio
import os
import queue
import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol

from handrail import faults
from handrail.errors import HandrailError, JournalCorrupt, JournalError, JournalPoisoned
from handrail.journal.ledger import Failed, Operation, Page

MAX_BATCH = 512


class CommitInDoubt(JournalError):
    """The commit failed in a way that leaves open whether it counts."""


class Store(Protocol):
    """What a writer asks of the storage beneath it. Used by the writer's thread only."""

    @property
    def beat_every(self) -> float | None:
        """Seconds between two signs of life, or ``None`` where the kernel knows who lives."""
        ...

    def load(self, operations: list[Operation]) -> Page:
        """Open a transaction that excludes other writers, and read the rows that the operations name."""
        ...

    def commit(self, page: Page) -> None:
        """Make the page durable.

        Raises :class:`~handrail.errors.JournalPoisoned` where nobody can know any more what is durable.
        """
        ...

    def rollback(self) -> None:
        """Leave the transaction; never raises."""
        ...

    def beat(self) -> None:
        """Give a sign of life; never raises."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Job:
    operation: Operation
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    result: Any = None
    error: BaseException | None = None


class Writer:
    """Takes operations from any number of event loops and commits them in order of arrival.

    ``commits`` counts transactions and ``written`` operations, for whoever measures.
    """

    def __init__(self, store: Store, *, name: str = "handrail-journal") -> None:
        self._store = store
        self._queue: queue.SimpleQueue[list[_Job] | None] = queue.SimpleQueue()
        self._gathering: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        self._poison: str | None = None
        self._closed = False
        self._process = os.getpid()
        self._beaten = time.monotonic()
        self.commits = 0
        self.written = 0
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def write(self, operation: Operation) -> Any:
        """Carry out one operation; returns what it decided after it is durable, or raises what it raised.

        A caller that is cancelled while it waits does not take the operation back.
        """
        self._refuse_if_unusable()
        loop = asyncio.get_running_loop()
        job = _Job(operation, loop, loop.create_future())
        gathering = self._gathering.get(loop)
        if gathering is None:
            self._gathering[loop] = [job]
            loop.call_soon(self._hand_over, loop)
        else:
            gathering.append(job)
        return await job.future

    def close(self) -> None:
        """Commit what was handed over, then end the thread and close the store. Closing twice is harmless."""
        if not self._closed and os.getpid() == self._process:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _refuse_if_unusable(self) -> None:
        if self._poison is not None:
            raise JournalPoisoned(self._poison)
        if self._closed:
            raise JournalError("the journal is closed")
        if os.getpid() != self._process:
            raise JournalError("the journal was opened by another process; open it again after a fork")

    def _hand_over(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs = self._gathering.pop(loop)
        if self._closed:
            _finish(jobs, JournalError("the journal was closed"))
        else:
            self._queue.put(jobs)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        try:
            while (jobs := self._next_batch()) is not None:
                self._commit(jobs)
        finally:
            self._store.close()

    def _next_batch(self) -> list[_Job] | None:
        """Everything that waits, or ``None`` at the end. Gives signs of life while nothing comes."""
        while True:
            try:
                jobs = self._queue.get(timeout=self._store.beat_every)
                break
            except queue.Empty:
                self._beat_if_due()
        self._beat_if_due()
        if jobs is None:
            return None
        while len(jobs) < MAX_BATCH and not self._queue.empty():
            more = self._queue.get()
            if more is None:
                self._queue.put(None)  # the end comes after this batch
                break
            jobs += more
        return jobs

    def _beat_if_due(self) -> None:
        """Also under load, when the queue is never empty."""
        every = self._store.beat_every
        if every is not None and time.monotonic() - self._beaten >= every:
            self._store.beat()
            self._beaten = time.monotonic()

    def _commit(self, jobs: list[_Job]) -> None:
        if self._poison is not None:
            _finish(jobs, JournalPoisoned(self._poison))
            return
        try:
            page = self._store.load([job.operation for job in jobs])
            faults.point("journal.loaded")
            for job in jobs:
                _decide(job, page)
            if page.added:
                faults.point("journal.commit.before")
                self._store.commit(page)
                faults.point("journal.commit.after")
                self.commits += 1
            else:
                self._store.rollback()
        except JournalPoisoned as error:
            self._poison = str(error)
            self._store.rollback()  # other processes may be able to go on, and wait for their turn
            _finish(jobs, error)
            return
        except Exception as error:  # noqa: BLE001 - whatever it was, every waiting caller must hear of it
            self._store.rollback()
            in_doubt = CommitInDoubt(f"the journal cannot be written: {error}")
            _finish(jobs, error if isinstance(error, JournalCorrupt) else in_doubt)
            return
        self.written += len(jobs)
        _finish(jobs)


def _decide(job: _Job, page: Page) -> None:
    """One operation's decision. Its own refusal is its caller's; the others of the batch go on."""
    try:
        faults.point(f"journal.decide.{job.operation.name}")
        result = job.operation.decide(page)
    except HandrailError as error:
        job.error = error
        return
    except (TypeError, ValueError, RecursionError) as error:  # what it was to record is not JSON
        job.error = JournalError(f"this cannot be recorded: {error}")
        return
    if isinstance(result, Failed):
        job.error = result.error
    else:
        job.result = result


def _finish(jobs: list[_Job], error: BaseException | None = None) -> None:
    """Wake the callers, each in its own loop, with one wake-up a loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
    for job in jobs:
        if error is not None:
            job.error = error
        by_loop.setdefault(job.loop, []).append(job)
    for loop, waiting in by_loop.items():
        try:
            loop.call_soon_threadsafe(_wake, waiting)
        except RuntimeError:  # the loop was closed; nobody waits any more
            continue


def _wake(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)
