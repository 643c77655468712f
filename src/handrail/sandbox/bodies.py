"""Bodies whose code runs in a cell: inline Python and commands, with their result as the outcome of a tool call.

A body compiles its tool's capability and limits into a profile, runs the program, and says what came of it. What the
program printed, returned or left behind is data; how it ended is what the kernel says.

Staging: a tool that writes works on a layer above the workspace, and what it changed arrives as the
:class:`~handrail.tool.Effect`'s changes, to be looked at and committed by the corridor. A call that failed changes
nothing: its layer is dropped. Where the host keeps no changes it may let such a tool write directly; then it is asked
about before it runs.
"""

import functools
import hashlib
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from anyio import to_thread

from handrail import private
from handrail.errors import ChangeError, OverlayRefused
from handrail.outcome import FullOutput, Reason, ToolOutcome
from handrail.output import open_private_directory
from handrail.sandbox.profile import SandboxProfile, profile_for, require_limits
from handrail.sandbox.staging import Stage, Staging, staged_effect
from handrail.sandbox.supervisor import CellResult, Program, Supervisor
from handrail.schema import ArgumentsInvalid, JsonObject, decode_json
from handrail.tool import Capability, Effect, Job
from handrail_cell.wire import LimitName, Limits

MAX_VALUE_BYTES = 4 * 1024 * 1024
MAX_SPILL_BYTES = 64 * 1024 * 1024

REASONS: Mapping[LimitName, Reason] = {
    "wall": Reason.TIMED_OUT,
    "cpu": Reason.CPU_LIMIT,
    "memory": Reason.MEMORY_LIMIT,
    "processes": Reason.PROCESS_LIMIT,
    "disk": Reason.DISK_LIMIT,
    "file_size": Reason.FILE_SIZE_LIMIT,
    "open_files": Reason.OPEN_FILES_LIMIT,
    "output": Reason.OUTPUT_LIMIT,
}
"""Each limit's own reason."""


@dataclass(frozen=True, slots=True)
class Cells:
    """Where bodies run, and what only the trusted host may say about it.

    ``read_only_dirs``: absolute host directories that cells may read besides the interpreter and the workspace.
    ``environment``: variables that programs see. ``minimum_tier``: the weakest walls that are accepted.
    ``direct_writes``: tools that write do so in the workspace itself, for hosts that keep no changes.
    ``spill_directory``: a private directory for whole outputs. ``staging``: on what calls that write are staged.
    """

    supervisor: Supervisor
    direct_writes: bool = False
    read_only_dirs: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    minimum_tier: Literal["full", "reduced"] = "full"
    spill_directory: str = ""
    staging: Staging = field(default_factory=Staging)


@dataclass(frozen=True, slots=True)
class Tail:
    """How much of the end of an output the model reads; the whole of a longer one goes to a private file."""

    lines: int
    bytes: int


class CellBody:
    """Code or a command behind a tool, run in a cell: a :class:`~handrail.tool.Body`.

    ``program`` makes what runs from a job. ``limits`` hold for one call; the job's timeout is its wall time.
    ``identity`` is what the behaviour depends on besides the definition, for the journal. ``tail`` keeps only the end
    of the output for the model, and spills the whole. ``wall`` reads a call's own wall time (seconds) from its job.
    """

    __slots__ = ("_capability", "_cells", "_identity", "_limits", "_preload", "_program", "_tail", "_wall")

    def __init__(
        self,
        cells: Cells,
        program: Callable[[Job], Program],
        *,
        capability: Capability,
        limits: Limits,
        preload: tuple[str, ...] = (),
        identity: JsonObject | None = None,
        tail: Tail | None = None,
        wall: Callable[[Job], float] | None = None,
    ) -> None:
        self._cells = cells
        self._program = program
        self._capability = capability
        require_limits(limits)
        self._limits = limits
        self._preload = preload
        self._identity = dict(identity or {})
        self._tail = tail
        self._wall = wall or _timeout_of

    @property
    def staged(self) -> bool:
        """Whether the call works on a layer, which then is all it can touch: a cell has no network."""
        return self._capability.writes and not self._cells.direct_writes

    @property
    def walls(self) -> str:
        """What will hold a call, in words, for whoever is asked about it."""
        writes = "its changes are staged" if self.staged else "it writes in the workspace itself"
        return (
            f"a cell: no network, nothing but the workspace; {writes if self._capability.writes else 'it only reads'}"
        )

    @property
    def configuration(self) -> JsonObject:
        """The code's identity, the limits and the host's configuration."""
        return {
            **self._identity,
            "limits": {name: getattr(self._limits, name) for name in Limits.__slots__},
            "preload": list(self._preload),
            "readOnlyDirs": list(self._cells.read_only_dirs),
            "environment": dict(self._cells.environment),
            "minimumTier": self._cells.minimum_tier,
            "staged": self.staged,
        }

    async def run(self, job: Job) -> Effect:
        """Run the job's program and return what it came to. Raises
        :class:`~handrail.errors.SandboxUnavailable` when the machine cannot give the walls."""
        stages = self.staged and job.workspace is not None
        if stages and job.contents is None:
            text = "This host keeps no store for changes, so nothing ran."
            return Effect(ToolOutcome.error(text, Reason.CANNOT_STAGE))
        profile = self._profile(job, stages=stages)
        spill = _Spill(self._cells.spill_directory, self._tail.bytes if self._tail else 0)
        on_output = _both(job.on_output, spill if self._tail else None)
        try:
            result, stage = await self._result(job, profile, on_output)
            outcome = outcome_of(result, profile.limits, tail=self._tail, kept=spill.kept(result.output, self._tail))
            return await self._effect(job, result, outcome, stage)
        except ChangeError as error:
            text = f"The call cannot be staged, so nothing ran: {error}."
            return Effect(ToolOutcome.error(text, Reason.CANNOT_STAGE))
        finally:
            spill.close()

    async def _result(
        self, job: Job, profile: SandboxProfile, on_output: Callable[[bytes], None] | None
    ) -> tuple[CellResult, Stage | None]:
        """Run the program, on a stage if it is staged: on a copy where a cell could have no overlay."""
        run = functools.partial(self._cells.supervisor.run, self._program(job), on_output=on_output, cancel=job.signal)
        if profile.access != "stage" or job.workspace is None:
            return await run(profile), None
        staging = self._cells.staging
        stage = await staging.begun(job.workspace)
        try:
            return await run(stage.profile(profile)), stage
        except OverlayRefused as refusal:  # before anything ran
            stage = await to_thread.run_sync(staging.instead, refusal, job.workspace)
            return await run(stage.profile(profile)), stage

    async def _effect(self, job: Job, result: CellResult, outcome: ToolOutcome, stage: Stage | None) -> Effect:
        """The outcome, with what the layer holds if it succeeded; the layer itself is let go of."""
        if result.staged is None or job.workspace is None or stage is None:
            return Effect(outcome)
        with result.staged as layer:
            if not outcome.succeeded:
                return Effect(outcome.with_(text=_joined(outcome.text, "Nothing in the workspace was changed.")))
            return await to_thread.run_sync(
                staged_effect, outcome, stage, layer.upper_fd, job.workspace.fd, job.contents
            )

    def _profile(self, job: Job, *, stages: bool) -> SandboxProfile:
        return profile_for(
            self._capability,
            None if job.workspace is None else job.workspace.path,
            self._limits.with_(wall_s=self._wall(job)),
            stage=stages,
            environment=self._cells.environment,
            read_only_dirs=self._cells.read_only_dirs,
            preload=self._preload,
            minimum_tier=self._cells.minimum_tier,
        )


def _timeout_of(job: Job) -> float:
    return job.timeout


# ── what a result says, pure ─────────────────────────────────────────────────────────────────────────────────────


def outcome_of(
    result: CellResult, limits: Limits, *, tail: Tail | None = None, kept: FullOutput | None = None
) -> ToolOutcome:
    """The outcome of a finished cell. A failure's text always ends with how it ended."""
    details: dict[str, Any] = {"limit": result.limit, "enforcement": result.report, "truncated": result.truncated}
    output = result.output.decode("utf-8", "replace")
    ending = how_it_ended(result, limits)
    if tail is not None:
        output, was_cut = tail_of(output, tail, kept)
        details |= {"truncated": was_cut or result.truncated, "full_output": kept if was_cut else None}
    if ending is not None:
        reason, text = ending
        return ToolOutcome.error(_joined(output, text), reason, **details)
    return _with_value(result, output, details)


def how_it_ended(result: CellResult, limits: Limits) -> tuple[Reason, str] | None:
    """Why it did not succeed, as a reason and a sentence; ``None`` when it did."""
    if result.limit is not None:
        return REASONS[result.limit], limit_text(result.limit, limits)
    if result.cancelled:
        return Reason.CANCELLED, "Cancelled while it ran; it was stopped."
    if result.signal is not None:
        return Reason.CRASHED, f"It was killed by signal {result.signal}."
    if result.error is not None:
        return Reason.TOOL_ERROR, result.error
    if result.exit_code != 0:
        return Reason.EXIT_STATUS, f"Exit status {result.exit_code}."
    return None


def limit_text(limit: LimitName, limits: Limits) -> str:
    """Which limit was met, in words, with its amount."""
    if limit == "wall":
        return f"Execution timed out after {limits.wall_s}s"
    amounts = {
        "cpu": f"processor time of {limits.cpu_s:g} s",
        "memory": f"memory of {limits.memory_bytes} bytes",
        "processes": f"{limits.processes} processes",
        "disk": f"{limits.disk_bytes} bytes written",
        "file_size": f"{limits.file_bytes} bytes in one file",
        "open_files": f"{limits.open_files} open files",
        "output": f"{limits.output_bytes} bytes of output",
    }
    return f"Stopped at its limit: {amounts[limit]}."


def tail_of(output: str, tail: Tail, kept: FullOutput | None) -> tuple[str, bool]:
    """The end of ``output`` within ``tail``, headed by a note about what is missing, and whether something is."""
    raw = output.encode("utf-8", "replace")
    lines = raw.splitlines(keepends=True)
    if len(raw) <= tail.bytes and len(lines) <= tail.lines and kept is None:
        return output, False
    where = f"; the whole output ({kept.bytes} bytes) is in {kept.path}" if kept is not None else ""
    end = b"".join(lines[-tail.lines :])[-(tail.bytes - 400 - len(where.encode())) :]
    text = end.decode("utf-8", "ignore")
    total = kept.bytes if kept is not None else len(raw)
    return f"[… {total - len(end)} bytes left out before this{where} …]\n{text}", True


def _with_value(result: CellResult, output: str, details: dict[str, Any]) -> ToolOutcome:
    if result.value is None:
        return ToolOutcome.ok(output, **details)
    try:
        value = decode_json(result.value, max_bytes=MAX_VALUE_BYTES)
    except ArgumentsInvalid as error:
        return ToolOutcome.error(_joined(output, f"`result` is not JSON: {error}"), Reason.INVALID_OUTPUT, **details)
    return ToolOutcome.ok(_joined(output, result.value.decode("utf-8", "replace")), value=value, **details)


def _joined(output: str, last: str) -> str:
    if not output:
        return last
    return f"{output}{last}" if output.endswith("\n") else f"{output}\n{last}"


# ── whole outputs ────────────────────────────────────────────────────────────────────────────────────────────────


class _Spill:
    """Keeps an output that grows past ``threshold`` bytes in a private file, while it comes, up to a bound."""

    def __init__(self, directory: str, threshold: int) -> None:
        self._directory = directory
        self._threshold = threshold
        self._held = bytearray()
        self._digest = hashlib.sha256()
        self._fd = -1
        self._path = ""
        self._size = 0

    def __call__(self, data: bytes) -> None:
        data = data[: MAX_SPILL_BYTES - self._size]
        self._size += len(data)
        if self._fd < 0:
            self._held += data
            if len(self._held) <= self._threshold or not self._directory:
                del self._held[self._threshold + 1 :]
                return
            self._open()
            data = bytes(self._held)
            self._held.clear()
        self._write(data)

    def kept(self, output: bytes, tail: Tail | None) -> FullOutput | None:
        """The file, if there is one; made now for an output of many short lines that ``tail`` cuts."""
        if self._fd < 0 and self._directory and tail is not None and len(output.splitlines()) > tail.lines:
            self._open()
            self._write(bytes(self._held))
        return FullOutput(self._path, self._size, self._digest.hexdigest()) if self._fd >= 0 else None

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        while data:
            data = data[os.write(self._fd, data) :]

    def _open(self) -> None:
        parent = open_private_directory(self._directory)
        try:
            name = secrets.token_hex(16) + ".txt"
            self._fd = private.open_file(name, os.O_WRONLY | os.O_EXCL, directory=parent)
        finally:
            os.close(parent)
        self._path = os.path.join(self._directory, name)


def _both(
    first: Callable[[bytes], None] | None, second: Callable[[bytes], None] | None
) -> Callable[[bytes], None] | None:
    if first is None or second is None:
        return first or second

    def each(data: bytes) -> None:
        first(data)
        second(data)

    return each
