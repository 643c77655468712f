"""InlineToolExecutor: Python code given as text, run in a cell beneath a context's directory.

The order of one execution, which :meth:`InlineToolExecutor.execute` and its async twin share:

1. the tool is validated (:meth:`InlineToolExecutor.validate_tool`) and the input is strict JSON;
2. the write guard: a tool that declares writes never starts in a read-only context;
3. paths in the input are resolved beneath the context's directory, all of them or the call fails;
4. the code runs in a cell of its own; a tool that did not declare writes finds the directory read-only in the kernel;
5. the invocation is recorded in the context's change tracker, whether it succeeded or not.

The code sees ``input_data`` and may bind ``result`` to a JSON value. Nothing of the host's is there: no environment
beyond what the executor was given, no descriptors beyond 0, 1 and 2, no bytes of an earlier call.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, cast

import anyio
from anyio import to_thread
from pydantic import BaseModel, ConfigDict

from handrail.bounds import MOST_SECONDS, require_seconds, require_whole
from handrail.call import new_call_id
from handrail.changes.changeset import ChangeSet
from handrail.changes.keeper import ChangeKeeper
from handrail.errors import ChangeError, OverlayRefused, PathEscape, PathUnusable, SandboxError, WriteRefused
from handrail.guard import FilesystemGuard
from handrail.sandbox.bodies import how_it_ended
from handrail.sandbox.profile import SandboxProfile, profile_for, require_limits
from handrail.sandbox.staging import Stage, Staging
from handrail.sandbox.supervisor import CellResult, InlineCode, Supervisor
from handrail.schema import ArgumentsInvalid, Schema, decode_arguments, decode_json, json_text
from handrail.tool import Capability
from handrail.workspace import AnyPath, Workspace
from handrail_cell.wire import EnforcementReport, LimitName, Limits

PATH_NAMES = ("path",)
PATH_ENDINGS = ("_path", "_file")


class ToolSource(StrEnum):
    """Where a tool comes from. Only ``custom`` tools carry code of their own that can run here."""

    CUSTOM = "custom"
    MCP = "mcp"
    AGENT_SKILL = "agent_skill"
    BUILTIN = "builtin"
    WRAPPED = "wrapped"


@dataclass(frozen=True, slots=True, kw_only=True)
class InlineTool:
    """A tool given as text. ``parameters`` is a JSON Schema of the input; ``None`` accepts any object.

    ``path_args`` names further keys of the input that are paths, besides ``path``, ``*_path`` and ``*_file``.
    ``limits`` hold instead of the executor's, which stay the upper bound for time and output. ``preload`` names imports
    for a warm parent of their own.
    """

    name: str
    code: str
    source: str = ToolSource.CUSTOM
    description: str = ""
    capability: Capability = field(default_factory=Capability)
    parameters: Mapping[str, Any] | None = None
    path_args: tuple[str, ...] = ()
    limits: Limits | None = None
    preload: tuple[str, ...] = ()


class InlineToolResult(BaseModel):
    """What one execution came to.

    ``output`` is what was printed (stdout and stderr, in order), at most ``max_output_bytes`` of it; ``truncated`` says
    that there was more. ``value`` is what the code bound to ``result``, as plain JSON. ``error_message`` is ``None`` on
    success. ``limit`` names the limit that was met. ``duration_ms`` is wall time in milliseconds. ``enforcement`` says
    which walls stood; ``None`` when nothing was run.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    success: bool
    output: str = ""
    error_message: str | None = None
    duration_ms: float = 0.0
    truncated: bool = False
    value: Any = None
    limit: LimitName | None = None
    enforcement: EnforcementReport | None = None


@dataclass(frozen=True, slots=True)
class Invocation:
    """One execution, as a change tracker keeps it.

    ``started_at`` is in seconds since the epoch. ``changes`` is what really changed in the directory; ``None`` where
    the context keeps no changes and the tool wrote directly, so that nobody looked.
    """

    tool: str
    input_data: Mapping[str, Any]
    success: bool
    error_message: str | None
    duration_ms: float
    started_at: float
    changes: ChangeSet | None


@dataclass(slots=True)
class ChangeTracker:
    """Every invocation of a context, in order."""

    invocations: list[Invocation] = field(default_factory=list[Invocation])

    def record(self, invocation: Invocation) -> None:
        """Keep one more."""
        self.invocations.append(invocation)


class SkillContext:
    """Where inline tools work: one directory, whether it may be written, and what was done there.

    ``directory`` is the only part of the host's files that a tool can reach. With ``changes``, a store for this very
    directory, a writing tool works on a layer above it; its changes are made when it succeeded, all or none, and are
    recorded. Without, it writes directly.
    Raises :class:`~handrail.errors.WorkspaceError` when the directory cannot be opened.
    """

    def __init__(
        self,
        directory: AnyPath | Workspace,
        *,
        read_only: bool = False,
        tracker: ChangeTracker | None = None,
        changes: ChangeKeeper | None = None,
    ) -> None:
        self.workspace = directory if isinstance(directory, Workspace) else Workspace(directory)
        self.read_only = read_only
        self.change_tracker = tracker if tracker is not None else ChangeTracker()
        self.changes = changes

    def enforce_write_guard(self) -> None:
        """Raise :class:`~handrail.errors.WriteRefused` when nothing may be written here."""
        if self.read_only:
            raise WriteRefused(f"{self.workspace.path!r} is read-only here, and the tool declares that it writes")

    def get_sandbox_path(self) -> Path:
        """The absolute path of the directory; inside the walls it has the same name."""
        return Path(self.workspace.path)

    def close(self) -> None:
        """Let go of the directory. Closing twice is harmless."""
        self.workspace.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class InlineLike(Protocol):
    """What a tool must at least have to be looked at; :class:`InlineTool` has it."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Prepared:
    """An execution that may start."""

    program: InlineCode
    profile: SandboxProfile
    stage: Stage | None = None

    def on(self, stage: Stage) -> "_Prepared":
        """The same execution on a stage."""
        return _Prepared(self.program, stage.profile(self.profile), stage)


class InlineToolExecutor:
    """Runs inline tools in cells.

    ``max_runtime_seconds`` is wall time by the host's clock; ``max_output_bytes`` is how much of the output is kept.
    ``limits`` are the other limits of each call. ``supervisor`` keeps the cells; without one, the executor starts its
    own at the first call and ends it in :meth:`close`. ``allow_reduced`` accepts the second tier of walls.
    ``read_only_dirs`` and ``environment`` are what cells may see of the host besides the interpreter. ``staging`` says
    on what tools that write are staged. Raises :class:`~handrail.errors.ConfigurationError` for a number that cannot
    work.
    """

    def __init__(
        self,
        max_runtime_seconds: float = 30.0,
        max_output_bytes: int = 1_048_576,
        *,
        limits: Limits | None = None,
        supervisor: Supervisor | None = None,
        allow_reduced: bool = False,
        read_only_dirs: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        staging: Staging | None = None,
    ) -> None:
        require_seconds("max_runtime_seconds", max_runtime_seconds)
        require_whole("max_output_bytes", max_output_bytes)
        self.max_runtime_seconds = max_runtime_seconds
        self.max_output_bytes = max_output_bytes
        self._limits = limits if limits is not None else Limits(cpu_s=min(max_runtime_seconds + 1, MOST_SECONDS))
        require_limits(self._limits)
        self._allow_reduced = allow_reduced
        self._given = supervisor
        self._own: Supervisor | None = None
        self._read_only_dirs = read_only_dirs
        self._environment = dict(environment or {})
        self._staging = staging if staging is not None else Staging()

    # ── doors ────────────────────────────────────────────────────────────────────────────────────────────────

    def validate_tool(self, tool: InlineLike) -> list[str]:
        """Why this is not an inline tool; empty when it is one."""
        problems: list[str] = []
        source = str(getattr(tool, "source", ""))
        if source != ToolSource.CUSTOM:
            problems.append(f"tool {tool.name!r} is not inline: its source is {source!r}, not 'custom'")
        code = getattr(tool, "code", None)
        if not isinstance(code, str) or not code.strip():
            problems.append(f"tool {tool.name!r} has no code")
        return problems

    def execute(
        self,
        tool: InlineLike,
        context: SkillContext,
        input_data: Mapping[str, Any],
        *,
        on_output: Callable[[bytes], None] | None = None,
    ) -> InlineToolResult:
        """Run ``tool`` in ``context`` with ``input_data`` (a JSON object) and wait for its end.

        Never raises for anything that the tool or the input did. ``on_output`` hears the output while it comes.
        """
        attempt = _Attempt(tool, context, input_data)
        prepared = self._prepare(attempt)
        if isinstance(prepared, InlineToolResult):
            return attempt.recorded(prepared, ChangeSet())
        try:
            try:
                result = self._supervisor().run_sync(prepared.program, prepared.profile, on_output=on_output)
            except OverlayRefused as refusal:  # before anything ran
                prepared = prepared.on(self._staging.instead(refusal, context.workspace))
                result = self._supervisor().run_sync(prepared.program, prepared.profile, on_output=on_output)
        except (SandboxError, ChangeError) as error:
            return attempt.recorded(_failed(str(error)), ChangeSet())
        if prepared.stage is None:
            return attempt.recorded(*attempt.concluded(result, prepared))
        with ThreadPoolExecutor(1) as beside:  # a loop of its own: the caller's thread may have one running
            return attempt.recorded(*beside.submit(anyio.run, attempt.committed, result, prepared).result())

    async def execute_async(
        self,
        tool: InlineLike,
        context: SkillContext,
        input_data: Mapping[str, Any],
        *,
        on_output: Callable[[bytes], None] | None = None,
    ) -> InlineToolResult:
        """:meth:`execute` without blocking the event loop. Cancelling it kills the cell."""
        attempt = _Attempt(tool, context, input_data)
        prepared = self._prepare(attempt)
        if isinstance(prepared, InlineToolResult):
            return attempt.recorded(prepared, ChangeSet())
        try:
            try:
                result = await self._supervisor().run(prepared.program, prepared.profile, on_output=on_output)
            except OverlayRefused as refusal:  # before anything ran
                prepared = prepared.on(await to_thread.run_sync(self._staging.instead, refusal, context.workspace))
                result = await self._supervisor().run(prepared.program, prepared.profile, on_output=on_output)
        except (SandboxError, ChangeError) as error:
            return attempt.recorded(_failed(str(error)), ChangeSet())
        if prepared.stage is None:
            return attempt.recorded(*attempt.concluded(result, prepared))
        return attempt.recorded(*await attempt.committed(result, prepared))

    def close(self) -> None:
        """End the executor's own supervisor, if it started one. Closing twice is harmless."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ── before the walls ─────────────────────────────────────────────────────────────────────────────────────

    def _prepare(self, attempt: "_Attempt") -> _Prepared | InlineToolResult:
        """Steps 1 to 3; a result when the tool must not start."""
        tool, context = attempt.tool, attempt.context
        problems = self.validate_tool(tool)
        if problems:
            return _failed("; ".join(problems))
        capability: Capability = getattr(tool, "capability", Capability())
        try:
            arguments = _checked_input(tool, attempt.input_data)
            attempt.input_data = arguments
            if capability.writes:
                context.enforce_write_guard()
            arguments = _with_paths_beneath(context.workspace, arguments, getattr(tool, "path_args", ()))
            program = InlineCode(getattr(tool, "code"), tool.name, json_text(arguments).encode(errors="surrogatepass"))  # noqa: B009
            prepared = _Prepared(program, self._profile(tool, capability, context))
            staged = prepared.profile.access == "stage"
            return prepared.on(self._staging.begin(context.workspace)) if staged else prepared
        except (ArgumentsInvalid, WriteRefused, PathEscape, PathUnusable, ChangeError) as error:
            return _failed(str(error))

    def _profile(self, tool: InlineLike, capability: Capability, context: SkillContext) -> SandboxProfile:
        own: Limits | None = getattr(tool, "limits", None)
        limits = own if own is not None else self._limits
        return profile_for(
            capability,
            context.workspace.path,
            stage=context.changes is not None,
            limits=limits.with_(
                wall_s=self.max_runtime_seconds if own is None else min(own.wall_s, self.max_runtime_seconds),
                output_bytes=self.max_output_bytes if own is None else min(own.output_bytes, self.max_output_bytes),
            ),
            environment=self._environment,
            read_only_dirs=self._read_only_dirs,
            preload=tuple(getattr(tool, "preload", ())),
            minimum_tier="reduced" if self._allow_reduced else "full",
        )

    def _supervisor(self) -> Supervisor:
        if self._given is not None:
            return self._given
        if self._own is None:
            self._own = Supervisor(allow_reduced=self._allow_reduced)
        return self._own


class _Attempt:
    """One execution from its start to its record."""

    def __init__(self, tool: InlineLike, context: SkillContext, input_data: Mapping[str, Any]) -> None:
        self.tool = tool
        self.context = context
        self.input_data = input_data
        self._started_at = time.time()
        self._clock = time.perf_counter()

    def concluded(self, result: CellResult, prepared: _Prepared) -> tuple[InlineToolResult, ChangeSet | None]:
        """The result, and what it can have changed where nothing was staged."""
        read_only = prepared.profile.access != "write"
        return _result_of(result, prepared.profile.limits), ChangeSet() if read_only else None

    async def committed(self, result: CellResult, prepared: _Prepared) -> tuple[InlineToolResult, ChangeSet]:
        """The result, after its staged changes were made. A call that failed, or was never staged, changes nothing."""
        shown = _result_of(result, prepared.profile.limits)
        context = self.context
        if result.staged is None or context.changes is None or prepared.stage is None:
            return shown, ChangeSet()
        with result.staged as layer:
            if not shown.success:
                return shown, ChangeSet()
            try:
                changes = await to_thread.run_sync(
                    prepared.stage.changes, layer.upper_fd, context.workspace.fd, context.changes.contents
                )
                await context.changes.commit(new_call_id(), changes, begun=_nothing, ended=_nothing)
            except ChangeError as error:
                return _as_failure(shown, f"Nothing was changed: {error}"), ChangeSet()
        return shown, changes

    def recorded(self, result: InlineToolResult, changes: ChangeSet | None) -> InlineToolResult:
        """The result, with its duration, after the tracker has it."""
        final = result.model_copy(update={"duration_ms": (time.perf_counter() - self._clock) * 1000})
        self.context.change_tracker.record(
            Invocation(
                self.tool.name,
                self.input_data,
                final.success,
                final.error_message,
                final.duration_ms,
                self._started_at,
                changes,
            )
        )
        return final


async def _nothing() -> None:
    """No journal stands behind a context."""


# ── decisions, pure ──────────────────────────────────────────────────────────────────────────────────────────────


def _checked_input(tool: InlineLike, input_data: Mapping[str, Any]) -> dict[str, Any]:
    arguments = decode_arguments(input_data)
    parameters = getattr(tool, "parameters", None)
    if parameters is not None:
        wrong = Schema(parameters, where=f"tool {tool.name!r}: parameters").errors(arguments)
        if wrong:
            raise ArgumentsInvalid(f"Invalid input for {tool.name}: " + "; ".join(wrong))
    return arguments


def _with_paths_beneath(workspace: Workspace, arguments: dict[str, Any], declared: tuple[str, ...]) -> dict[str, Any]:
    guard = FilesystemGuard(workspace)
    placed: dict[str, Any] = {}
    for name, value in arguments.items():
        if not (name in PATH_NAMES or name.endswith(PATH_ENDINGS) or name in declared):
            continue
        if isinstance(value, str):
            placed[name] = guard.place(name, value)[0]
        elif isinstance(value, list):
            items = cast("list[Any]", value)
            placed[name] = [guard.place(name, item)[0] if isinstance(item, str) else item for item in items]
    return {**arguments, **placed}


def _failed(message: str) -> InlineToolResult:
    return InlineToolResult(success=False, error_message=message)


def _as_failure(result: InlineToolResult, message: str) -> InlineToolResult:
    return result.model_copy(update={"success": False, "error_message": message, "value": None})


def _result_of(result: CellResult, limits: Limits) -> InlineToolResult:
    shown = InlineToolResult(
        success=True,
        output=result.output.decode("utf-8", "replace"),
        truncated=result.truncated,
        limit=result.limit,
        enforcement=result.report,
    )
    ending = how_it_ended(result, limits)
    if ending is not None:
        return _as_failure(shown, ending[1].rstrip("\n"))
    if result.value is None:
        return shown
    try:
        return shown.model_copy(update={"value": decode_json(result.value, max_bytes=4 * 1024 * 1024)})
    except ArgumentsInvalid as error:
        return _as_failure(shown, f"`result` is not JSON: {error}")
