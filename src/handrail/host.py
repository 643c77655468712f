"""A Python function of the host's as a tool's body: entered in the loop or in a thread, told when its time is over."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from handrail import threads
from handrail.body import Effect, Handler, Job
from handrail.definition import ToolDef
from handrail.errors import ToolDefinitionError
from handrail.outcome import Reason, ToolOutcome
from handrail.schema import JsonObject

GRACE = 0.2  # seconds that a sync handler has to end after it was told to


class HostBody:
    """A Python function of the host's. It can reach whatever the host can: nothing holds it but its own code.

    An async handler is cancelled at its timeout, or when the signal is set. A sync one runs in a worker thread, which
    nothing can stop: it is told by its signal and given ``GRACE`` seconds to end; then the caller gets control back and
    the outcome is ``unknown``, because the handler may still be running.
    """

    __slots__ = ("_extra", "_function", "_is_async", "_takes_signal", "configuration", "staged")

    def __init__(self, function: Handler, definition: ToolDef, *, staged: bool = False) -> None:
        refuse_generator(function, f"tool {definition.name!r}")
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler too
        )
        self._extra, self._takes_signal = _requested(function, definition)
        self.staged = staged
        name = getattr(function, "__qualname__", type(function).__qualname__)
        self.configuration: JsonObject = {"handler": f"{getattr(function, '__module__', '')}:{name}"}

    @property
    def walls(self) -> str:
        """What will hold a call, in words, for whoever is asked about it."""
        return f"none: it is the host's own code{'; its changes are staged' if self.staged else ''}"

    def run(self, job: Job) -> Coroutine[Any, Any, Effect]:
        """Enter the handler with the job's arguments. Exceptions of the handler's propagate to the corridor."""
        return _awaited(job, self._call(job)) if self._is_async else self._run_in_thread(job)

    async def _run_in_thread(self, job: Job) -> Effect:
        loop = asyncio.get_running_loop()
        done = threads.start(lambda: self._call(job))

        def stop() -> None:
            loop.call_soon_threadsafe(loop.call_later, GRACE, _give_up, done)

        job.signal.on_set(stop)
        timer = loop.call_later(job.timeout, job.signal.set, "timeout")
        try:
            finished = await done
        finally:
            timer.cancel()
            job.signal.forget(stop)
        if finished is None:
            return Effect(_given_up(job))
        if finished.error is not None:
            raise _handlers_own(finished.error)
        if job.signal.is_set():
            return Effect(_stopped(job))
        result = finished.value
        return await _awaited(job, result) if inspect.isawaitable(result) else as_effect(result)

    def _call(self, job: Job) -> Any:
        if not self._extra and not self._takes_signal:
            return self._function(job.arguments)
        extra = {name: _EXTRAS[name](job) for name in self._extra}
        if self._takes_signal:
            return self._function(job.arguments, job.signal, **extra)
        return self._function(job.arguments, **extra)


async def _awaited(job: Job, result: Awaitable[Any]) -> Effect:
    """What a handler promised. A timer costs more than everything else here, and nothing can stop a handler before it
    first waits for something: one that ends without waiting gets none.
    """
    steps = result.__await__()
    try:
        waiting = next(steps)
    except StopIteration as ended:
        return as_effect(ended.value)
    return await _in_time(job, _Rest(steps, waiting))


async def _in_time(job: Job, rest: "_Rest") -> Effect:
    """The rest of a handler that waits, no longer than the job's timeout; it is stopped when the signal is set."""
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(job.timeout)

    def stop() -> None:
        loop.call_soon_threadsafe(_expire, limit)

    try:
        async with limit:
            job.signal.on_set(stop)
            return as_effect(await rest)
    except TimeoutError:
        if not limit.expired():  # the handler's own
            raise
        return Effect(_stopped(job))
    finally:
        job.signal.forget(stop)


class _Rest:
    """The rest of an awaitable that was begun and waits for ``waiting`` now."""

    __slots__ = ("_steps", "_waiting")

    def __init__(self, steps: Generator[Any, Any, Any], waiting: Any) -> None:
        self._steps = steps
        self._waiting = waiting

    def __await__(self) -> Generator[Any, Any, Any]:
        steps, waiting = self._steps, self._waiting
        try:
            while True:
                try:
                    sent = yield waiting
                except BaseException as error:  # noqa: BLE001 - a cancellation above all: the handler decides about it
                    waiting = steps.throw(error)
                else:
                    waiting = steps.send(sent)
        except StopIteration as ended:
            return ended.value


def _expire(limit: asyncio.Timeout) -> None:
    try:
        limit.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:  # the handler ended meanwhile
        pass


def _give_up(done: "asyncio.Future[threads.Finished | None]") -> None:
    if not done.done():
        done.set_result(None)


def _handlers_own(error: BaseException) -> BaseException:
    """What a handler raised in its thread. There, these two are not the caller's cancellation or Ctrl-C."""
    if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
        mistaken = RuntimeError(f"the handler raised {type(error).__name__}")
        mistaken.__cause__ = error
        return mistaken
    return error


def _stopped(job: Job) -> ToolOutcome:
    """A handler that ended because it was told to, or was cancelled."""
    if (job.signal.reason or "timeout") == "timeout":
        job.signal.set("timeout")
        return ToolOutcome.error(
            f"Timed out after {job.timeout:g} s and was stopped; what it did before that is not undone.",
            Reason.TIMED_OUT,
            limit="wall",
        )
    return ToolOutcome.unknown(
        f"Cancelled while it ran ({job.signal.reason}); it was stopped and may or may not have had its effect.",
        Reason.CANCELLED,
    )


def _given_up(job: Job) -> ToolOutcome:
    """A handler in a thread that did not end when it was told to."""
    said = f"Timed out after {job.timeout:g} s" if job.signal.reason == "timeout" else "Cancelled while it ran"
    return ToolOutcome.unknown(
        f"{said}. The handler was told, but runs in a thread that cannot be stopped: it may still be running, and its "
        "effect may still happen.",
        Reason.MAYBE_RUNNING,
        limit="wall" if job.signal.reason == "timeout" else None,
    )


_EXTRAS: dict[str, Callable[[Job], Any]] = {
    "signal": lambda job: job.signal,
    "workspace": lambda job: job.workspace,
    "job": lambda job: job,
}


def refuse_generator(function: Callable[..., Any], where: str) -> None:
    """Raise :class:`~handrail.errors.ToolDefinitionError` for a function with ``yield``, sync or async.

    Called, it runs nothing; and one call has one result, so nobody would take what it yields.
    """
    for entered in (function, getattr(function, "__call__", None)):  # noqa: B004 - an object may be a handler too
        if inspect.isgeneratorfunction(entered) or inspect.isasyncgenfunction(entered):
            raise ToolDefinitionError(f"{where}: a generator cannot be a tool; return one value, and yield nothing")


def _requested(function: Handler, definition: ToolDef) -> tuple[tuple[str, ...], bool]:
    """Which extras the handler asks for by name, and whether its second positional parameter is the signal."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a C function without a signature: it takes the arguments alone
        return (), False
    positional = [item for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    if not positional and not any(item.kind is item.VAR_POSITIONAL for item in parameters):
        raise ToolDefinitionError(
            f"tool {definition.name!r}: the handler must take the arguments as its first parameter"
        )
    rest = [item for item in positional[1:] if item.name not in _EXTRAS]
    keywords = tuple(item.name for item in parameters[1:] if item.name in _EXTRAS)
    unmet = [item.name for item in rest if item.default is item.empty]
    if len(unmet) > 1:
        raise ToolDefinitionError(f"tool {definition.name!r}: nobody can supply the handler's parameter {unmet[1]!r}")
    return keywords, bool(unmet)


def as_effect(result: Any) -> Effect:
    """What a handler returned, as an :class:`Effect`. A string succeeded, whatever the text says."""
    if isinstance(result, str):
        return Effect(ToolOutcome(status="ok", text=result))
    if isinstance(result, Effect):
        return result
    if isinstance(result, ToolOutcome):
        return Effect(result)
    return Effect(_from_value(result))


def _from_value(result: Any) -> ToolOutcome:
    text = "" if result is None else _as_json_text(result)
    return ToolOutcome.ok(text, value=result)


def _as_json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the handler returned a value that is not JSON: {error}") from None
