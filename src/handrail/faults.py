"""Named points where a test may stop the process. Silent unless armed; nothing in the product arms them.

Durable code says ``faults.point("journal.intent.durable")`` before and after each step whose order matters. A crash
test starts the same program again and again and kills it at the first, second, third point reached, until a run
survives: the number of crash points is counted by running, not by hand.

Armed by the environment of the process, read once at import::

    HANDRAIL_FAULT_KILL_AT=7            SIGKILL this process at the 7th point it reaches
    HANDRAIL_FAULT_KILL_AT=changes.x    … at the first point of that name
    HANDRAIL_FAULT_TRACE=/path          append each name reached, one per line

or, within one process, by :func:`armed`. Points are counted over all threads of the process.
"""

import itertools
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

Hook = Callable[[str], None]

_hook: Hook | None = None


def point(name: str) -> None:
    """Here the process may be stopped by a test. Does nothing unless armed."""
    if _hook is not None:
        _hook(name)


@contextmanager
def armed(hook: Hook) -> Generator[None]:
    """Within the block, call ``hook(name)`` at each point, in the thread that reached it. What it raises propagates."""
    global _hook  # noqa: PLW0603 - one process, one hook: a crash takes all of it
    before, _hook = _hook, hook
    try:
        yield
    finally:
        _hook = before


def _from_environment() -> Hook | None:
    kill_at, trace = os.environ.get("HANDRAIL_FAULT_KILL_AT"), os.environ.get("HANDRAIL_FAULT_TRACE")
    if not kill_at and not trace:
        return None
    reached = itertools.count(1)

    def hook(name: str) -> None:
        number = next(reached)
        if trace:
            with open(trace, "a", encoding="utf-8") as file:
                file.write(name + "\n")
        if kill_at in (str(number), name):
            os.kill(os.getpid(), signal.SIGKILL)

    return hook


_hook = _from_environment()
