"""Where calls run: how many bodies at once in each event loop, and one loop for callers that have none."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary, ref

import anyio

from handrail.outcome import ToolOutcome

# The executors whose bodies this code runs in. A body that makes calls of its own is inside already: they run in its
# place, so that nobody waits for himself.
inside: ContextVar[tuple[int, ...]] = ContextVar("handrail_inside", default=())


def _no_loop() -> object:
    return None


class Slots:
    """Room for ``limit`` running bodies in each event loop."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, anyio.Semaphore] = WeakKeyDictionary()
        self._latest: tuple[Callable[[], object], anyio.Semaphore] = (_no_loop, anyio.Semaphore(limit))

    def room(self) -> anyio.Semaphore:
        """What to acquire before a body runs in this loop."""
        loop = asyncio.get_running_loop()
        latest, room = self._latest
        if latest() is loop:
            return room
        room = self._by_loop.get(loop)
        if room is None:
            room = self._by_loop[loop] = anyio.Semaphore(self._limit)
        self._latest = ref(loop), room
        return room


def comes_from_outside(error: BaseException) -> bool:
    """Whether what came out of a body ends the walk: Ctrl-C, and a cancellation that somebody asked for."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is None or task.cancelling() > 0  # else the body raised it itself, which is a failure like others
    return isinstance(error, (KeyboardInterrupt, GeneratorExit))


class SyncLoop:
    """One event loop in one thread, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, steps: Coroutine[Any, Any, ToolOutcome]) -> ToolOutcome:
        """Wait for ``steps``. Raises :class:`RuntimeError` in a thread whose own loop would be blocked meanwhile."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(steps, self._started()).result()
        steps.close()
        raise RuntimeError("execute_sync would block the running event loop; await execute instead")

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="handrail-sync", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End the thread. Closing twice is harmless; the next run starts another."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
