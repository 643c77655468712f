"""Declarations only: what a tool is, what it may touch, and the door by which its code is entered.

A :class:`ToolDef` says what a tool takes and what it may do. A :class:`Tool` joins it with a *body*: the code that
carries one job out. Bodies come in kinds that the corridor does not tell apart: a host handler (here), code and
commands in a cell (``sandbox``), a remote tool (``mcp``). A :class:`Plugin` is a named set of tools.
"""

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol, cast, runtime_checkable

import anyio
from anyio import to_thread

from handrail.changes.changeset import ChangeSet
from handrail.changes.keeper import Contents
from handrail.errors import ToolDefinitionError
from handrail.names import model_name
from handrail.outcome import Reason, ToolOutcome
from handrail.schema import JsonObject, Schema, digest_of
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
        return list(RiskLevel).index(self)

    def __lt__(self, other: str) -> bool:
        return self.rank < RiskLevel(other).rank

    def __le__(self, other: str) -> bool:
        return self.rank <= RiskLevel(other).rank

    def __gt__(self, other: str) -> bool:
        return self.rank > RiskLevel(other).rank

    def __ge__(self, other: str) -> bool:
        return self.rank >= RiskLevel(other).rank


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
    ending in ``_path`` or ``_file``). ``replay`` is ``never`` unless ``safe`` is declared with a ``replay_key``.
    ``timeout`` is in seconds; ``None`` means the executor's.

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
    digest: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        model_name(self.name)
        where = f"tool {self.name!r}"
        put = object.__setattr__
        put(self, "risk_level", _member(RiskLevel, self.risk_level, f"{where}: risk_level"))
        put(self, "replay", _member(Replay, self.replay, f"{where}: replay"))
        _check_replay(self, where)
        if self.timeout is not None and not self.timeout > 0:
            raise ToolDefinitionError(f"{where}: timeout must be a positive number of seconds, not {self.timeout!r}")
        put(self, "schema", Schema(self.parameters, where=f"{where}: parameters"))
        put(self, "parameters", self.schema.document)
        put(self, "output", _output_schema(self.output_schema, where))
        put(self, "path_args", None if self.path_args is None else tuple(self.path_args))
        put(self, "guarded_args", _guarded_args(self, where))
        put(self, "digest", digest_of(self.to_json()))

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
        return tuple(name for name in properties if _is_customary(name))
    for name in definition.path_args:
        if name not in properties:
            raise ToolDefinitionError(f"{where}: path_args names {name!r}, which is no property of the parameters")
        kind = properties[name].get("type") if isinstance(properties[name], Mapping) else None
        if kind != "string":
            raise ToolDefinitionError(f"{where}: the path argument {name!r} must be of type string, not {kind!r}")
    return definition.path_args


def _is_customary(name: str) -> bool:
    return name in CUSTOMARY_PATH_ARGS or name.endswith(CUSTOMARY_PATH_ENDINGS)


class Signal:
    """Tells a running handler that nobody wants its result any more.

    ``is_set()`` may be asked from any thread; ``await wait()`` in async handlers; ``reason`` says why.
    """

    __slots__ = ("_callbacks", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self._callbacks: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether the call was cancelled or its time is over."""
        return self.reason is not None

    def set(self, reason: str) -> None:
        """Say so, once; later reasons are ignored."""
        if self.reason is None:
            self.reason = reason
            for callback in self._callbacks:
                callback()

    def on_set(self, callback: Callable[[], None]) -> None:
        """Call back when it is set, or at once if it is already. Called in the setting thread."""
        self._callbacks.append(callback)
        if self.is_set():
            callback()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
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


@dataclass(frozen=True, slots=True)
class Effect:
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
    """

    @property
    def staged(self) -> bool: ...

    @property
    def configuration(self) -> JsonObject: ...

    async def run(self, job: Job) -> Effect: ...


Handler = Callable[..., Any]


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
    """A named set of tools, as ``--plugin NAME`` selects it. ``source`` says where it came from, for people."""

    name: str
    tools: tuple[Tool, ...]
    source: str = "host"


class HostBody:
    """A Python function of the host's. It can reach whatever the host can: nothing holds it but its own code.

    An async handler is cancelled at its timeout. A sync one runs in a worker thread, which nothing can stop: at the
    timeout the caller gets control back and the outcome is ``unknown``, because the handler may still be running.
    """

    __slots__ = ("_extra", "_function", "_is_async", "_takes_signal", "staged")

    def __init__(self, function: Handler, definition: ToolDef, *, staged: bool = False) -> None:
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler too
        )
        self._extra, self._takes_signal = _requested(function, definition)
        self.staged = staged

    @property
    def configuration(self) -> JsonObject:
        """Where the function lives."""
        name = getattr(self._function, "__qualname__", type(self._function).__qualname__)
        return {"handler": f"{getattr(self._function, '__module__', '')}:{name}"}

    async def run(self, job: Job) -> Effect:
        """Enter the handler with the job's arguments. Exceptions of the handler's propagate to the corridor."""
        if not self._is_async:
            return await self._run_in_thread(job)
        try:
            with anyio.fail_after(job.timeout):
                return as_effect(await self._call(job))
        except TimeoutError:
            if not job.signal.is_set():
                job.signal.set("timeout")
            return Effect(
                ToolOutcome.error(
                    f"Timed out after {job.timeout:g} s; the handler was cancelled.", Reason.TIMED_OUT, limit="wall"
                )
            )

    async def _run_in_thread(self, job: Job) -> Effect:
        try:
            with anyio.fail_after(job.timeout):
                result = await to_thread.run_sync(self._call, job, abandon_on_cancel=True)
        except TimeoutError:
            job.signal.set("timeout")
            return Effect(
                ToolOutcome.unknown(
                    f"Timed out after {job.timeout:g} s. The handler was told, but runs in a thread that cannot be "
                    "stopped: it may still be running, and its effect may still happen.",
                    Reason.MAYBE_RUNNING,
                    limit="wall",
                )
            )
        return as_effect(await result if inspect.isawaitable(result) else result)

    def _call(self, job: Job) -> Any:
        extra = {name: _EXTRAS[name](job) for name in self._extra}
        if self._takes_signal:
            return self._function(job.arguments, job.signal, **extra)
        return self._function(job.arguments, **extra)


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
    if isinstance(result, Effect):
        return result
    if isinstance(result, ToolOutcome):
        return Effect(result)
    if isinstance(result, str):
        return Effect(ToolOutcome.ok(result))
    return Effect(_from_value(result))


def _from_value(result: Any) -> ToolOutcome:
    text = "" if result is None else _as_json_text(result)
    return ToolOutcome.ok(text, value=result)


def _as_json_text(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the handler returned a value that is not JSON: {error}") from None
