"""Agent: asks a model, carries its calls through the corridor, records both, until there is a reason to stop.

The order of a turn is :meth:`_Drive.turns`. What holds whatever happens (an error, a cancellation, a kill):

1. An answer is durable before any of its calls runs; every call ends with exactly one result, durable in the journal
   before the model reads it.
2. Nothing here runs a tool but :class:`~handrail.executor.ToolExecutor`; nothing here asks twice for one answer once
   a part of it has arrived.
3. A call that waits for a person ends the turn. :meth:`Agent.resume` goes on after the answer, after a crash, or
   elsewhere, and repeats no effect: calls keep their ids, and the journal answers for those that were settled.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio

from handrail.agent.carry import Carrier
from handrail.agent.compaction import cut_before, summary_request
from handrail.agent.config import AgentConfig
from handrail.agent.context import SkillText, load_notes, open_skill_tool, standing_instructions
from handrail.agent.conversation import Conversation
from handrail.agent.events import (
    AgentEvent,
    AnswerComplete,
    Compacted,
    ModelRetry,
    NotesLoaded,
    RunEnded,
    RunStarted,
    TextArrived,
)
from handrail.agent.transcript import (
    Answered,
    Asked,
    ContextLoaded,
    Ended,
    FileTranscripts,
    Started,
    Summarised,
    Transcript,
    TranscriptStore,
    started,
)
from handrail.agent.valves import Stopped, StopReason, Valves
from handrail.call import new_call_id
from handrail.errors import ModelError, TranscriptError
from handrail.executor import ToolExecutor
from handrail.journal.protocol import CallJournal, NoJournal
from handrail.models.client import Message, ModelClient, ModelRequest, Reply, ToolSpec, utf8_text
from handrail.models.retry import stream_with_retries
from handrail.registry import ToolRegistry
from handrail.tool import Plugin, Signal

T = TypeVar("T")
Listener = Callable[[AgentEvent], None]


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run stopped. ``text`` is the model's last text. ``approvals`` are the ids it waits for."""

    run_id: str
    stop: StopReason
    detail: str
    text: str
    ended: RunEnded = field(repr=False)

    @property
    def approvals(self) -> tuple[str, ...]:
        """The approval ids the run waits for."""
        return self.ended.approvals


class Agent:
    """A model with tools, over one workspace.

    ``agent.tools`` is the registry: add tools before a run. ``skills`` are listed to the model and opened on demand;
    register their tools like any others.
    """

    def __init__(
        self, config: AgentConfig, *, plugins: Sequence[Plugin] = (), skills: Sequence[SkillText] = ()
    ) -> None:
        self.config = config
        self._owns_executor = config.executor is None
        self.executor: ToolExecutor = config.executor if config.executor is not None else _executor(config)
        self.journal: CallJournal = config.journal if config.journal is not None else NoJournal()
        self.transcripts: TranscriptStore = config.transcripts if config.transcripts is not None else FileTranscripts()
        self.skills = tuple(skills)
        for plugin in plugins:
            self.tools.register_plugin(plugin)
        if self.skills:
            self.tools.register(open_skill_tool(self.skills), plugin="builtin", source="built in")

    @property
    def tools(self) -> ToolRegistry:
        """The tools the model is offered."""
        return self.executor.registry

    async def run(
        self,
        prompt: str,
        *,
        run_id: str | None = None,
        signal: Signal | None = None,
        on_event: Listener | None = None,
    ) -> RunResult:
        """Work on ``prompt`` until there is a reason to stop; ``run_id`` goes on with an earlier conversation.

        ``signal`` stops the model and the cells; the result then says ``cancelled``, and the transcript is whole.
        Raises :class:`~handrail.errors.TranscriptError` when the run cannot be recorded, is unknown, or has calls that
        wait: those are answered and resumed first.
        """
        if run_id is None:
            return await self._new(prompt, on_event, signal).begin()
        return await self._opened(run_id, on_event, signal).run(prompt)

    async def resume(self, run_id: str, *, signal: Signal | None = None, on_event: Listener | None = None) -> RunResult:
        """Go on with a run where it stopped: calls without a result first, each at most once, then the model.

        Calls that still wait for an answer end it again, with ``awaiting_approval``.
        """
        if self.config.recover is not None:
            await self.config.recover()
        return await self._opened(run_id, on_event, signal).resume()

    async def compact(self, run_id: str, *, signal: Signal | None = None, on_event: Listener | None = None) -> bool:
        """Summarise the earlier part of a conversation now; ``False`` where there is nothing worth cutting.

        ``signal`` stops it; the conversation then stays as it is.
        """
        return await self._opened(run_id, on_event, signal).compact()

    async def stream(self, prompt: str, *, run_id: str | None = None) -> AsyncIterator[AgentEvent]:
        """:meth:`run`, event by event; the last is :class:`RunEnded`. Closing the iterator cancels the run."""
        async for event in _events(lambda on_event: self.run(prompt, run_id=run_id, on_event=on_event)):
            yield event

    async def stream_resume(self, run_id: str) -> AsyncIterator[AgentEvent]:
        """:meth:`resume`, event by event."""
        async for event in _events(lambda on_event: self.resume(run_id, on_event=on_event)):
            yield event

    def run_sync(self, prompt: str, *, run_id: str | None = None, on_event: Listener | None = None) -> RunResult:
        """:meth:`run` for callers without an event loop."""
        return asyncio.run(self._then_disconnected(self.run(prompt, run_id=run_id, on_event=on_event)))

    def resume_sync(self, run_id: str, *, on_event: Listener | None = None) -> RunResult:
        """:meth:`resume` for callers without an event loop."""
        return asyncio.run(self._then_disconnected(self.resume(run_id, on_event=on_event)))

    def stream_sync(self, prompt: str, *, run_id: str | None = None) -> Iterator[AgentEvent]:
        """:meth:`stream` for callers without an event loop. Closing the iterator cancels the run."""
        with asyncio.Runner() as runner:
            stream = self.stream(prompt, run_id=run_id)
            try:
                while (event := runner.run(_next(stream))) is not None:
                    yield event
            finally:
                runner.run(_closed(stream))
                runner.run(_disconnected(self.config.model))

    async def aclose(self) -> None:
        """Close the model's connections, and the executor if this agent made it."""
        await self.config.model.close()
        self.close()

    def close(self) -> None:
        """Close the executor, if this agent made it. The model's connections are closed by :meth:`aclose`."""
        if self._owns_executor:
            self.executor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _then_disconnected(self, driving: Coroutine[Any, Any, RunResult]) -> RunResult:
        """Connections belong to the event loop that made them, and that one is about to end."""
        try:
            return await driving
        finally:
            await self.config.model.close()

    def _new(self, prompt: str, on_event: Listener | None, signal: Signal | None) -> "_Drive":
        """A run that is there has its prompt: both are written at once."""
        run_id = new_call_id()
        transcript = self.transcripts.create(run_id)
        try:
            self._begin(transcript, run_id, prompt)
            return _Drive(self, transcript, on_event, signal, resumed=False)
        except BaseException:
            transcript.close()
            raise

    def _begin(self, transcript: Transcript, run_id: str, prompt: str) -> None:
        workspace = self.executor.workspace
        place = utf8_text(workspace.path) if workspace else ""  # its name need not be UTF-8
        first = started(run_id, place, self.config.model.name, secrets.token_hex(4))
        notes = load_notes(workspace, self.config.project_notes) if self.config.project_notes else None
        transcript.append(first, *([notes] if notes is not None else []), Asked(utf8_text(prompt)))

    def _opened(self, run_id: str, on_event: Listener | None, signal: Signal | None) -> "_Drive":
        transcript = self.transcripts.open(run_id)
        try:
            return _Drive(self, transcript, on_event, signal, resumed=True)
        except BaseException:
            transcript.close()
            raise


class _Drive:
    """One run being driven: from a prompt, or from where it stopped, to a reason to stop."""

    def __init__(
        self, agent: Agent, transcript: Transcript, on_event: Listener | None, signal: Signal | None, *, resumed: bool
    ) -> None:
        first = transcript.records[0]
        if not isinstance(first, Started):
            raise TranscriptError("a transcript starts with one 'run' record")
        self.config = agent.config
        self.tools = agent.tools
        self.transcript = transcript
        self.conversation = Conversation(transcript.records)
        self.run_id = first.run_id
        self.signal = signal if signal is not None else Signal()
        self.resumed = resumed
        self.workspace = first.workspace
        self.system = standing_instructions(first.boundary, first.workspace, agent.skills, agent.config.instructions)
        self.valves = Valves(agent.config.limits)
        self.valves.see(transcript.records)
        self.emit: Listener = on_event if on_event is not None else _nobody
        self.carrier = Carrier(
            agent.executor, agent.journal, self.run_id, transcript, self.valves, self.emit, self.signal
        )
        self.specs: dict[str, ToolSpec] = {}
        self.waiting: list[str] = []

    # ── doors ────────────────────────────────────────────────────────────────────────────────────────────────

    async def begin(self) -> RunResult:
        """A new run; its prompt is recorded."""
        try:
            return await self._until_stopped(self.turns())
        finally:
            self.transcript.close()

    async def run(self, prompt: str) -> RunResult:
        """A new prompt in an earlier run."""
        try:
            if self.conversation.open_calls:
                raise TranscriptError(f"run {self.run_id} has calls without a result: resume it first")
            self._record_prompt(prompt)
            return await self._until_stopped(self.turns())
        finally:
            self.transcript.close()

    async def resume(self) -> RunResult:
        """No new prompt: what was left open first."""
        try:
            if not any(isinstance(record, Asked) for record in self.transcript.records):
                raise TranscriptError(f"run {self.run_id} stopped before its prompt was recorded; give it one")
            return await self._until_stopped(self._resumed_turns())
        finally:
            self.transcript.close()

    async def compact(self) -> bool:
        """Summarise now."""
        try:
            with anyio.CancelScope() as scope, self._cancelled_by_signal(scope):
                return await self._compact()
            return False
        finally:
            self.transcript.close()

    # ── the order of everything ──────────────────────────────────────────────────────────────────────────────

    async def turns(self) -> Stopped:
        """Ask, record, carry out, record; until there is a reason to stop."""
        while True:
            stopped = self.valves.stop_before_asking()
            if stopped is not None:
                return stopped
            reply = await self._ask(await self._messages())
            if isinstance(reply, Stopped):
                return reply
            self._record_answer(reply)
            if not reply.calls and reply.stop != "refused":
                return Stopped(StopReason.TRUNCATED if reply.stop == "truncated" else StopReason.DONE)
            self.waiting = await self.carrier.carry_out(self.conversation.open_calls)
            if reply.stop == "refused":
                return Stopped(StopReason.REFUSED, "the model declined to answer")
            if self.waiting:
                return Stopped(StopReason.AWAITING_APPROVAL, f"{len(self.waiting)} calls wait for a person")
            stopped = self.valves.stop_after_calls()
            if stopped is not None:
                return stopped

    async def _resumed_turns(self) -> Stopped:
        left = self.conversation.open_calls
        if left:
            self.waiting = await self.carrier.settle_interrupted(left)
            if self.waiting:
                return Stopped(StopReason.AWAITING_APPROVAL, f"{len(self.waiting)} calls wait for a person")
        elif self._is_finished():
            return Stopped(StopReason.DONE)
        return self.valves.stop_after_calls() or await self.turns()

    async def _until_stopped(self, steps: Coroutine[Any, Any, Stopped]) -> RunResult:
        """Drive ``steps`` under the run's clock and signal; whatever ends it, the record says so."""
        self._announce()
        try:
            with anyio.CancelScope() as scope:
                if self.config.limits.seconds is not None:
                    scope.deadline = anyio.current_time() + self.config.limits.seconds
                with self._cancelled_by_signal(scope):
                    stopped = await steps
                return self._ended(stopped)
        except asyncio.CancelledError:
            self._ended(Stopped(StopReason.CANCELLED, "the caller cancelled the run"))
            raise
        if self.signal.is_set():
            return self._ended(Stopped(StopReason.CANCELLED, self.signal.reason or ""))
        return self._ended(Stopped(StopReason.WALL_TIME, f"{self.config.limits.seconds:g} s are over"))

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _ask(self, messages: tuple[Message, ...]) -> Reply | Stopped:
        """One answer of the model's, its text given out as it comes."""
        request = ModelRequest(self.system, messages, self._offered(), self.config.max_output_tokens)
        try:
            return await self._answer_to(request, show=True)
        except ModelError as error:
            return Stopped(StopReason.MODEL_FAILED, utf8_text(str(error)))

    async def _answer_to(self, request: ModelRequest, *, show: bool) -> Reply:
        stream = stream_with_retries(
            self.config.model,
            request,
            self.config.retry,
            on_retry=lambda wait, error: self.emit(ModelRetry(wait, utf8_text(str(error)))),
        )
        silent = True
        async with aclosing(stream):
            async for event in stream:
                if isinstance(event, Reply):
                    if show and silent and event.text:  # an answer that came whole is shown like any other
                        self.emit(TextArrived(event.text))
                    return event
                silent = False
                if show:
                    self.emit(TextArrived(event.text))
        raise ModelError("the answer ended before it was complete", received=True)

    def _offered(self) -> tuple[ToolSpec, ...]:
        """The tools as the model sees them; the same objects each turn, so that clients can project each once."""
        for item in self.tools:
            definition = item.tool.definition
            known = self.specs.get(item.model_name)
            if known is None or known.parameters is not definition.parameters:
                self.specs[item.model_name] = ToolSpec(item.model_name, definition.description, definition.parameters)
        return tuple(self.specs[name] for name in self.tools.names)

    def _record_prompt(self, prompt: str) -> None:
        record = Asked(utf8_text(prompt))
        self.transcript.append(record)
        self.valves.see([record])

    def _record_answer(self, reply: Reply) -> None:
        """Give every call an id of ours, and make the answer durable before anything of it runs."""
        calls = tuple(type(call)(call.name, call.arguments, call.provider_id, new_call_id()) for call in reply.calls)
        record = Answered(reply.text, calls, reply.stop, reply.usage, reply.model)
        self.transcript.append(record)
        self.valves.see([record])
        self.emit(AnswerComplete(reply.text, len(calls), reply.stop, reply.usage, reply.model))

    async def _messages(self) -> tuple[Message, ...]:
        """What the model is shown next, summarised first where it is long."""
        if self.conversation.estimated_tokens > self.config.context_tokens:
            await self._compact()
        return self.conversation.messages

    async def _compact(self) -> bool:
        cut = cut_before(self.transcript.records)
        if cut is None:
            return False
        request = summary_request(self.transcript.records, self.system, cut, self._offered())
        try:
            reply = await self._answer_to(request, show=False)
        except ModelError:
            return False  # the run goes on with the whole conversation
        if not reply.text.strip():
            return False
        record = Summarised(reply.text, cut, reply.usage)
        self.transcript.append(record)
        self.valves.see([record])
        self.emit(Compacted(cut, reply.text))
        return True

    # ── beginnings and ends ──────────────────────────────────────────────────────────────────────────────────

    def _announce(self) -> None:
        self.emit(
            RunStarted(self.run_id, self.workspace, self.config.model.name, tuple(self.tools.names), self.resumed)
        )
        if not self.resumed:
            for record in self.transcript.records:
                if isinstance(record, ContextLoaded):
                    self.emit(NotesLoaded(record.source, record.bytes, record.sha256, record.cut))

    @contextmanager
    def _cancelled_by_signal(self, scope: anyio.CancelScope) -> Generator[None, None, None]:
        """The signal may be set from any thread, and outlive the run and its event loop."""
        loop = asyncio.get_running_loop()

        def cancel() -> None:
            loop.call_soon_threadsafe(scope.cancel)

        self.signal.on_set(cancel)
        try:
            yield
        finally:
            self.signal.forget(cancel)

    def _is_finished(self) -> bool:
        """Whether the last thing that was said is a whole answer without calls."""
        for record in reversed(self.transcript.records):
            if isinstance(record, Answered):
                return not record.calls
            if isinstance(record, Asked):
                return False
        return True

    def _ended(self, stopped: Stopped) -> RunResult:
        self.transcript.append(Ended(stopped.stop.value, stopped.detail))
        ended = RunEnded(
            stopped.stop,
            stopped.detail,
            self._last_text(),
            self.valves.turns,
            self.valves.usage,
            tuple(self.waiting),
            resumable=not self._is_finished(),
        )
        self.emit(ended)
        return RunResult(self.run_id, stopped.stop, stopped.detail, ended.text, ended)

    def _last_text(self) -> str:
        texts = (record.text for record in reversed(self.transcript.records) if isinstance(record, Answered))
        return next((text for text in texts if text), "")


# ── small things ─────────────────────────────────────────────────────────────────────────────────────────────────


def _nobody(event: AgentEvent) -> None:
    """Nobody listens."""


def _executor(config: AgentConfig) -> ToolExecutor:
    return ToolExecutor(
        ToolRegistry(),
        workspace=config.workspace,
        approver=config.approver,
        policy=config.policy,
        journal=config.journal,
        changes=config.changes,
        timeout=config.timeout,
    )


async def _events(start: Callable[[Listener], Coroutine[Any, Any, RunResult]]) -> AsyncIterator[AgentEvent]:
    """Run in a task of its own and give its events out; leaving early cancels it and waits for its end."""
    queue: asyncio.Queue[AgentEvent | None] = asyncio.Queue()
    task = asyncio.create_task(start(queue.put_nowait))
    task.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        while (event := await queue.get()) is not None:
            yield event
        await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])


async def _next(stream: AsyncIterator[AgentEvent]) -> AgentEvent | None:
    return await anext(stream, None)


async def _disconnected(model: ModelClient) -> None:
    await model.close()


async def _closed(stream: Any) -> None:
    await stream.aclose()
