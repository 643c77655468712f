"""Worker threads for sync handlers: kept for the next call, given up at a timeout, never waited for at exit.

A thread that is handed a job before it went to sleep starts at once; that makes this several times cheaper than a
pool that passes a future through a lock. There is no limit on threads here: the executor bounds how many calls run at
once, and a handler that was given up at its timeout must not take the place of the calls after it.
"""

import asyncio
import contextvars
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from msgspec import Struct

MAX_IDLE = 32


class Finished(Struct, frozen=True):
    """How a function ended: its value, or what it raised."""

    value: Any = None
    error: BaseException | None = None


_Work = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Finished | None]", contextvars.Context, Callable[[], Any]]

_idle: "list[SimpleQueue[_Work]]" = []


def start(function: Callable[[], Any]) -> "asyncio.Future[Finished | None]":
    """Run ``function`` in a thread, in a copy of the caller's context; call it in a running event loop.

    The future becomes :class:`Finished`. Setting it to ``None``, or cancelling it, gives the thread up: it runs on to
    its end, and nobody hears of it.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Finished | None] = loop.create_future()
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue[_Work]()
        threading.Thread(target=_work, args=(inbox,), name="handrail-handler", daemon=True).start()
    inbox.put((loop, future, contextvars.copy_context(), function))
    return future


def _work(inbox: "SimpleQueue[_Work]") -> None:
    while True:
        loop, future, context, function = inbox.get()
        try:
            finished = Finished(context.run(function))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller hears it in the loop's thread
            finished = Finished(error=error)
        keep = len(_idle) < MAX_IDLE
        if keep:
            _idle.append(inbox)
        try:
            loop.call_soon_threadsafe(_deliver, future, finished)
        except RuntimeError:  # the loop was closed: nobody is there to hear
            pass
        if not keep:
            return
        del loop, future, context, function, finished  # an idle thread keeps nothing alive


def _deliver(future: "asyncio.Future[Finished | None]", finished: Finished) -> None:
    if not future.done():
        future.set_result(finished)


os.register_at_fork(after_in_child=_idle.clear)  # threads do not survive a fork, so none of them is waiting there
