"""What a run tells whoever listens, in order. The JSON forms are documented in docs/events.md and stable.

Rules of the JSON form: every event has ``event``, ``run`` and ``at`` (seconds since the epoch); fields are added and
never renamed or removed; a reader ignores fields and events that it does not know.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from handrail.agent.valves import StopReason
from handrail.models.client import Usage
from handrail.outcome import ToolOutcome

JsonDict: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """A run begins, or goes on (``resumed``)."""

    name: ClassVar[str] = "run_started"
    run_id: str
    workspace: str
    model: str
    tools: tuple[str, ...]
    resumed: bool

    def fields(self) -> JsonDict:
        return {"workspace": self.workspace, "model": self.model, "tools": list(self.tools), "resumed": self.resumed}


@dataclass(frozen=True, slots=True)
class NotesLoaded:
    """The workspace's notes were read, and are shown to the model as untrusted."""

    name: ClassVar[str] = "notes_loaded"
    source: str
    bytes: int
    sha256: str
    cut: bool

    def fields(self) -> JsonDict:
        return {"source": self.source, "bytes": self.bytes, "sha256": self.sha256, "cut": self.cut}


@dataclass(frozen=True, slots=True)
class TextArrived:
    """A piece of the model's text."""

    name: ClassVar[str] = "text"
    text: str

    def fields(self) -> JsonDict:
        return {"text": self.text}


@dataclass(frozen=True, slots=True)
class AnswerComplete:
    """The model finished an answer. ``calls``: how many it proposed."""

    name: ClassVar[str] = "answer"
    text: str
    calls: int
    stop: str
    usage: Usage
    model: str

    def fields(self) -> JsonDict:
        return {
            "text": self.text,
            "calls": self.calls,
            "stop": self.stop,
            "usage": self.usage.to_json(),
            "model": self.model,
        }


@dataclass(frozen=True, slots=True)
class ModelRetry:
    """The model could not be asked; the same request is sent again after ``wait`` seconds."""

    name: ClassVar[str] = "model_retry"
    wait: float
    why: str

    def fields(self) -> JsonDict:
        return {"wait": self.wait, "why": self.why}


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call enters the corridor. ``arguments`` is the model's own text; ``tool`` and ``risk`` are empty for a tool
    that does not exist."""

    name: ClassVar[str] = "call_started"
    call_id: str
    title: str
    tool: str
    risk: str
    arguments: str

    def fields(self) -> JsonDict:
        return {
            "call_id": self.call_id,
            "title": self.title,
            "tool": self.tool,
            "risk": self.risk,
            "arguments": self.arguments,
        }


@dataclass(frozen=True, slots=True)
class CallRunning:
    """The call's intent is durable and its body is being entered, with these effective arguments."""

    name: ClassVar[str] = "call_running"
    call_id: str
    arguments: Mapping[str, Any]

    def fields(self) -> JsonDict:
        return {"call_id": self.call_id, "arguments": dict(self.arguments)}


@dataclass(frozen=True, slots=True)
class CallOutput:
    """Output of a running call, as it comes."""

    name: ClassVar[str] = "call_output"
    call_id: str
    text: str

    def fields(self) -> JsonDict:
        return {"call_id": self.call_id, "text": self.text}


@dataclass(frozen=True, slots=True)
class CallProgress:
    """A running call says how far it is. ``total`` is ``None`` where nobody knows."""

    name: ClassVar[str] = "call_progress"
    call_id: str
    done: float
    total: float | None
    message: str

    def fields(self) -> JsonDict:
        return {"call_id": self.call_id, "done": self.done, "total": self.total, "message": self.message}


@dataclass(frozen=True, slots=True)
class CallFinished:
    """A call came to its outcome."""

    name: ClassVar[str] = "call_finished"
    call_id: str
    title: str
    outcome: ToolOutcome

    def fields(self) -> JsonDict:
        return {
            "call_id": self.call_id,
            "title": self.title,
            "outcome": {**self.outcome.to_json(), "call_id": self.call_id},
        }


@dataclass(frozen=True, slots=True)
class ModelWarned:
    """The model is told, with this call's result, that it repeats itself."""

    name: ClassVar[str] = "model_warned"
    call_id: str
    text: str

    def fields(self) -> JsonDict:
        return {"call_id": self.call_id, "text": self.text}


@dataclass(frozen=True, slots=True)
class Compacted:
    """The conversation was summarised. ``records`` is how many records of the transcript the summary stands for."""

    name: ClassVar[str] = "compacted"
    records: int
    summary: str

    def fields(self) -> JsonDict:
        return {"records": self.records, "summary": self.summary}


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run stopped. ``approvals`` are the ids it waits for; ``resumable`` says whether resuming can do anything."""

    name: ClassVar[str] = "run_ended"
    stop: StopReason
    detail: str
    text: str
    turns: int
    usage: Usage
    approvals: tuple[str, ...] = field(default=())
    resumable: bool = False

    def fields(self) -> JsonDict:
        return {
            "stop": self.stop.value,
            "detail": self.detail,
            "text": self.text,
            "turns": self.turns,
            "usage": self.usage.to_json(),
            "approvals": list(self.approvals),
            "resumable": self.resumable,
        }


AgentEvent: TypeAlias = (
    RunStarted
    | NotesLoaded
    | TextArrived
    | AnswerComplete
    | ModelRetry
    | CallStarted
    | CallRunning
    | CallOutput
    | CallProgress
    | CallFinished
    | ModelWarned
    | Compacted
    | RunEnded
)


def event_to_json(event: AgentEvent, run_id: str, at: float | None = None) -> JsonDict:
    """One event as ``--json`` prints it."""
    return {"event": event.name, "run": run_id, "at": time.time() if at is None else at, **event.fields()}
