"""The door by which a tool's code is entered: one job in, its effect out, and a signal that nobody waits any more."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, runtime_checkable

from msgspec import Struct

from handrail.changes.changeset import ChangeSet
from handrail.changes.keeper import Contents
from handrail.definition import ToolDef
from handrail.outcome import ToolOutcome
from handrail.schema import JsonObject
from handrail.workspace import Workspace

_signals = threading.Lock()  # one for all signals: it is held for a moment, and most signals are never set


class Signal:
    """Tells a running handler that nobody wants its result any more.

    ``is_set()`` and ``set()`` may be called from any thread; ``await wait()`` in async handlers; ``reason`` says why.
    """

    __slots__ = ("_callbacks", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self._callbacks: tuple[Callable[[], None], ...] = ()

    def is_set(self) -> bool:
        """Whether the call was cancelled or its time is over."""
        return self.reason is not None

    def set(self, reason: str) -> None:
        """Say so, once; later reasons are ignored."""
        with _signals:
            if self.reason is not None:
                return
            self.reason = reason
            callbacks, self._callbacks = self._callbacks, ()
        for callback in callbacks:
            callback()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call back once when it is set, in the setting thread, or at once if it is set already."""
        with _signals:
            if self.reason is None:
                self._callbacks = (*self._callbacks, callback)
                return
        callback()

    def forget(self, callback: Callable[[], None]) -> None:
        """Do not call back any more. Harmless when it was called, or never asked for."""
        with _signals:
            self._callbacks = tuple(other for other in self._callbacks if other != callback)

    async def wait(self) -> str:
        """Return the reason as soon as it is set."""
        loop = asyncio.get_running_loop()
        told = asyncio.Event()

        def tell() -> None:
            loop.call_soon_threadsafe(told.set)

        self.on_set(tell)
        try:
            await told.wait()
        finally:
            self.forget(tell)
        return self.reason or ""


class Job(Struct, frozen=True, kw_only=True):
    """One approved and recorded call, as a body sees it. Nothing in it came around a check.

    ``arguments`` passed schema, guard, policy and approval as this very object; declared paths in it are absolute.
    ``timeout`` is in seconds. ``on_output`` receives output bytes while they come, if the caller wants them.
    ``on_progress`` receives (done, total or None, message). ``contents`` is where staged file contents are put.
    """

    call_id: str
    definition: ToolDef
    arguments: JsonObject
    workspace: Workspace | None
    idempotency_key: str
    timeout: float
    signal: Signal
    contents: Contents | None = None
    on_output: Callable[[bytes], None] | None = None
    on_progress: Callable[[float, float | None, str], None] | None = None


class Effect(Struct, frozen=True):
    """What a body did: its outcome and, where it was staged, the changes that are not real yet.

    A handler may return one itself; its ``changes`` are then reviewed and committed by the corridor.
    """

    outcome: ToolOutcome
    changes: ChangeSet | None = None


@runtime_checkable
class Body(Protocol):
    """The code behind a tool.

    ``staged`` is a promise that everything the call can touch arrives as ``Effect.changes``, so that a person may be
    asked about the real diff afterwards instead of about the call before.
    ``run`` never raises for the tool's own failures: those are outcomes. It raises ``asyncio``/``anyio`` cancellation
    through. ``configuration`` is what the tool's behaviour depends on besides its definition (a digest is journaled).
    A body may say in a text ``walls`` what will hold it; whoever is asked about a call reads it.
    """

    @property
    def staged(self) -> bool: ...

    @property
    def configuration(self) -> JsonObject: ...

    def run(self, job: Job) -> Coroutine[Any, Any, Effect]: ...


Handler = Callable[..., Any]
