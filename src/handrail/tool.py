"""Declarations only: what a tool is, what it may touch, and the door by which its code is entered.

A :class:`ToolDef` says what a tool takes and what it may do. A :class:`Tool` joins it with a *body*: the code that
carries one job out. Bodies come in kinds that the corridor does not tell apart: a host handler (here), code and
commands in a cell (``sandbox``), a remote tool (``mcp``). A :class:`Plugin` is a named set of tools.
"""

import asyncio
import inspect
import json
import math
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Protocol, cast, runtime_checkable

from msgspec import Struct

from handrail import threads
from handrail.changes.changeset import ChangeSet
from handrail.changes.keeper import Contents
from handrail.errors import ToolDefinitionError
from handrail.names import model_name
from handrail.outcome import Reason, ToolOutcome
from handrail.schema import JsonObject, Schema, digest_of, is_unicode
from handrail.workspace import Workspace


class RiskLevel(StrEnum):
    """How much a call can hurt. Members are ordered: ``RiskLevel.SAFE < RiskLevel.DANGEROUS``."""

    SAFE = "safe"
    READ_ONLY = "read_only"
    MUTATION = "mutation"
    DESTRUCTIVE = "destructive"
    DANGEROUS = "dangerous"

    @property
    def rank(self) -> int:
        """0 for ``safe`` up to 4 for ``dangerous``."""
        return _RANKS[self]

    def __lt__(self, other: str) -> bool:
        return _RANKS[self] < _RANKS[other]

    def __le__(self, other: str) -> bool:
        return _RANKS[self] <= _RANKS[other]

    def __gt__(self, other: str) -> bool:
        return _RANKS[self] > _RANKS[other]

    def __ge__(self, other: str) -> bool:
        return _RANKS[self] >= _RANKS[other]


_RANKS: dict[str, int] = {risk: rank for rank, risk in enumerate(RiskLevel)}


class Replay(StrEnum):
    """What may be done with an interrupted call after a crash."""

    SAFE = "safe"  # may run again, if nothing about it changed
    NEVER = "never"  # is never run again; its outcome is unknown


@dataclass(frozen=True, slots=True)
class Capability:
    """What a tool needs. The cell compiles this into walls; everything not named is closed.

    ``reads``: the workspace is visible. ``writes``: the workspace may be changed. ``network``: sockets.
    ``exec``: may start other programs.
    """

    _: KW_ONLY
    reads: bool = True
    writes: bool = False
    network: bool = False
    exec: bool = False


CUSTOMARY_PATH_ARGS = ("path", "source", "destination", "cwd")
CUSTOMARY_PATH_ENDINGS = ("_path", "_file")


@dataclass(frozen=True, slots=True)
class ToolDef:
    """A tool's declaration, checked when it is made.

    ``parameters`` is a JSON Schema whose root is an object. ``path_args`` names the string properties that are paths
    in the workspace; ``None`` means the customary ones (``path``, ``source``, ``destination``, ``cwd``, and names
    ending in ``_path`` or ``_file``), also where the schema admits them without naming them. ``replay`` is ``never``
    unless ``safe`` is declared with a ``replay_key``. ``timeout`` is in seconds; ``None`` means the executor's.

    Raises :class:`~handrail.errors.ToolDefinitionError`, naming the offending place.
    """

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    risk_level: RiskLevel = RiskLevel.MUTATION
    path_args: tuple[str, ...] | None = None
    replay: Replay = Replay.NEVER
    replay_key: str | None = None
    capability: Capability = Capability()
    timeout: float | None = None
    output_schema: Mapping[str, Any] | None = None
    schema: Schema = field(init=False, repr=False, compare=False)
    output: Schema | None = field(init=False, repr=False, compare=False)
    guarded_args: tuple[str, ...] = field(init=False, repr=False, compare=False)
    guards_unnamed: bool = field(init=False, repr=False, compare=False)
    has_effects: bool = field(init=False, repr=False, compare=False)
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_kinds(self)
        model_name(self.name)
        where = f"tool {self.name!r}"
        put = object.__setattr__
        put(self, "risk_level", _member(RiskLevel, self.risk_level, f"{where}: risk_level"))
        put(self, "has_effects", self.risk_level > RiskLevel.READ_ONLY)
        put(self, "replay", _member(Replay, self.replay, f"{where}: replay"))
        _check_replay(self, where)
        if self.timeout is not None and not is_duration(self.timeout):
            raise ToolDefinitionError(f"{where}: timeout must be a positive number of seconds, not {self.timeout!r}")
        put(self, "schema", Schema(self.parameters, where=f"{where}: parameters"))
        put(self, "parameters", self.schema.document)
        put(self, "output", _output_schema(self.output_schema, where))
        put(self, "path_args", None if self.path_args is None else tuple(self.path_args))
        put(self, "guarded_args", _guarded_args(self, where))
        put(self, "guards_unnamed", self.path_args is None and self.parameters.get("additionalProperties") is not False)
        put(self, "digest", digest_of(self.to_json()))

    def paths_in(self, arguments: Mapping[str, Any]) -> list[str]:
        """Which of a call's arguments are guarded as paths: the declared ones, or the customary ones."""
        if self.guards_unnamed:
            return [name for name in arguments if is_customary_path(name)]
        return [name for name in self.guarded_args if name in arguments]

    def to_json(self) -> dict[str, Any]:
        """Everything that a reader of the declaration relies on, as plain JSON: what ``digest`` covers."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.schema.document,
            "riskLevel": self.risk_level.value,
            "pathArgs": None if self.path_args is None else list(self.path_args),
            "replay": self.replay.value,
            "replayKey": self.replay_key,
            "capability": {
                "reads": self.capability.reads,
                "writes": self.capability.writes,
                "network": self.capability.network,
                "exec": self.capability.exec,
            },
            "timeout": self.timeout,
            "outputSchema": None if self.output is None else self.output.document,
        }

    def with_(self, **changes: Any) -> "ToolDef":
        """A copy with some fields changed, checked again."""
        return replace(self, **changes)


def is_duration(seconds: object) -> bool:
    """Whether this is a number of seconds that something may take: more than none, and not for ever."""
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf


def _check_kinds(definition: ToolDef) -> None:
    """A definition is written by hand, and read by models, journals and people: what is no text there is said here."""
    given: dict[str, Any] = {field.name: getattr(definition, field.name) for field in fields(definition) if field.init}
    where = f"tool {given['name']!r}"
    for name in ("name", "description", "replay_key"):
        if not (isinstance(given[name], str) or (name == "replay_key" and given[name] is None)):
            raise ToolDefinitionError(f"{where}: {name} must be text, not {given[name]!r}")
        if given[name] and not is_unicode(given[name]):
            raise ToolDefinitionError(f"{where}: {name} holds a lone surrogate, which is not valid Unicode text")
    if isinstance(given["path_args"], str) or not isinstance(given["path_args"], Iterable | None):
        raise ToolDefinitionError(f"{where}: path_args must be a tuple of names, not {given['path_args']!r}")
    if not isinstance(given["capability"], Capability):
        raise ToolDefinitionError(f"{where}: capability must be a Capability, not {given['capability']!r}")


def _member(kind: Any, value: Any, where: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(kind)
        raise ToolDefinitionError(f"{where} is {value!r}; it must be one of: {words}") from None


def _check_replay(definition: ToolDef, where: str) -> None:
    if definition.replay is Replay.SAFE and not definition.replay_key:
        raise ToolDefinitionError(f"{where}: replay 'safe' needs a replay_key, such as 'builtin:read:v1'")
    if definition.replay is Replay.NEVER and definition.replay_key is not None:
        raise ToolDefinitionError(f"{where}: replay_key is given, but replay is 'never'; say replay='safe' or drop it")


def _output_schema(document: Mapping[str, Any] | None, where: str) -> Schema | None:
    return None if document is None else Schema(document, where=f"{where}: output_schema", root_object=False)


def _guarded_args(definition: ToolDef, where: str) -> tuple[str, ...]:
    properties = cast("Mapping[str, Any]", definition.parameters.get("properties", {}))
    if definition.path_args is None:
        customary = tuple(name for name in properties if is_customary_path(name))
        for name in customary:
            if isinstance(properties[name], Mapping) and properties[name].get("type") in ("array", "object"):
                raise ToolDefinitionError(
                    f"{where}: the argument {name!r} is named like a path, and paths in an {properties[name]['type']} "
                    "cannot be guarded; rename it, or say path_args=() if it holds no paths"
                )
        return customary
    for name in definition.path_args:
        if name not in properties:
            raise ToolDefinitionError(f"{where}: path_args names {name!r}, which is no property of the parameters")
        kind = properties[name].get("type") if isinstance(properties[name], Mapping) else None
        if kind != "string":
            raise ToolDefinitionError(f"{where}: the path argument {name!r} must be of type string, not {kind!r}")
    return definition.path_args


def is_customary_path(name: str) -> bool:
    """Whether an argument of this name is guarded as a path where a definition names no path arguments."""
    return name in CUSTOMARY_PATH_ARGS or name.endswith(CUSTOMARY_PATH_ENDINGS)


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
GRACE = 0.2  # seconds that a sync handler has to end after it was told to


class Tool:
    """A declaration joined with its body.

    ``Tool(definition, execute)`` makes a host tool from ``execute(args)`` or ``execute(args, signal)``, sync or
    async. A handler may also ask, by parameter name, for ``signal``, ``workspace`` or ``job``. With ``body=`` any
    other kind of body is joined. ``staged`` promises that ``execute`` returns an :class:`Effect` and touches nothing.
    """

    __slots__ = ("body", "definition", "execute")

    def __init__(
        self, definition: ToolDef, execute: Handler | None = None, *, body: Body | None = None, staged: bool = False
    ) -> None:
        if (execute is None) == (body is None):
            raise ToolDefinitionError(f"tool {definition.name!r} needs either an execute function or a body")
        self.definition = definition
        self.body: Body = body if body is not None else HostBody(cast("Handler", execute), definition, staged=staged)
        self.execute: Handler = execute if execute is not None else cast("Body", body).run

    @property
    def name(self) -> str:
        """The declared name."""
        return self.definition.name

    @property
    def description(self) -> str:
        """What the model is told."""
        return self.definition.description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments."""
        return self.definition.parameters

    @property
    def replay(self) -> Replay:
        """``safe`` or ``never``."""
        return self.definition.replay

    @property
    def replay_key(self) -> str | None:
        """What identifies this behaviour across versions, e.g. ``builtin:read:v1``."""
        return self.definition.replay_key

    def __repr__(self) -> str:
        return f"Tool({self.definition.name!r})"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A named set of tools, as ``--plugin NAME`` selects it. ``source`` says where it came from, for people.

    ``alias`` is set where the tools are an MCP server's: they are then ``name:alias/tool``.
    """

    name: str
    tools: tuple[Tool, ...]
    source: str = "host"
    alias: str = ""


class HostBody:
    """A Python function of the host's. It can reach whatever the host can: nothing holds it but its own code.

    An async handler is cancelled at its timeout, or when the signal is set. A sync one runs in a worker thread, which
    nothing can stop: it is told by its signal and given ``GRACE`` seconds to end; then the caller gets control back and
    the outcome is ``unknown``, because the handler may still be running.
    """

    __slots__ = ("_extra", "_function", "_is_async", "_takes_signal", "configuration", "staged")

    def __init__(self, function: Handler, definition: ToolDef, *, staged: bool = False) -> None:
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
