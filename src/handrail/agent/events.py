"""What a run tells whoever listens, in order. The JSON forms are documented in docs/events.md and stable.

Rules of the JSON form: every event has ``event``, ``run`` and ``at`` (seconds since the epoch); fields are added and
never renamed or removed; a reader ignores fields and events that it does not know.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias, cast

from handrail.agent.valves import StopReason
from handrail.models.client import Usage
from handrail.outcome import ToolOutcome

JsonDict: TypeAlias = dict[str, Any]


class _Event:
    """What all events have: a name, and a JSON form that says each field as plain data."""

    __slots__ = ()
    name: ClassVar[str]

    def fields(self) -> JsonDict:
        """The event's own fields."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(cast("Any", self))}


def _plain(value: Any) -> Any:
    if isinstance(value, (Usage, ToolOutcome)):
        return value.to_json()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return value


@dataclass(frozen=True, slots=True)
class RunStarted(_Event):
    """A run begins, or goes on (``resumed``)."""

    name: ClassVar[str] = "run_started"
    run_id: str
    workspace: str
    model: str
    tools: tuple[str, ...]
    resumed: bool

    def fields(self) -> JsonDict:
        """All but the run's id, which stands in every event."""
        own = _Event.fields(self)
        del own["run_id"]
        return own


@dataclass(frozen=True, slots=True)
class NotesLoaded(_Event):
    """The workspace's notes were read, and are shown to the model as untrusted."""

    name: ClassVar[str] = "notes_loaded"
    source: str
    bytes: int
    sha256: str
    cut: bool


@dataclass(frozen=True, slots=True)
class TextArrived(_Event):
    """A piece of the model's text."""

    name: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True, slots=True)
class AnswerComplete(_Event):
    """The model finished an answer. ``calls``: how many it proposed."""

    name: ClassVar[str] = "answer"
    text: str
    calls: int
    stop: str
    usage: Usage
    model: str


@dataclass(frozen=True, slots=True)
class ModelRetry(_Event):
    """The model could not be asked; the same request is sent again after ``wait`` seconds."""

    name: ClassVar[str] = "model_retry"
    wait: float
    why: str


@dataclass(frozen=True, slots=True)
class CallStarted(_Event):
    """A call enters the corridor. ``arguments`` is the model's own text; ``tool`` and ``risk`` are empty for a tool
    that does not exist."""

    name: ClassVar[str] = "call_started"
    call_id: str
    title: str
    tool: str
    risk: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallRunning(_Event):
    """The call's intent is durable and its body is being entered, with these effective arguments."""

    name: ClassVar[str] = "call_running"
    call_id: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CallOutput(_Event):
    """Output of a running call, as it comes."""

    name: ClassVar[str] = "call_output"
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class CallProgress(_Event):
    """A running call says how far it is. ``total`` is ``None`` where nobody knows."""

    name: ClassVar[str] = "call_progress"
    call_id: str
    done: float
    total: float | None
    message: str


@dataclass(frozen=True, slots=True)
class CallFinished(_Event):
    """A call came to its outcome."""

    name: ClassVar[str] = "call_finished"
    call_id: str
    title: str
    outcome: ToolOutcome

    def fields(self) -> JsonDict:
        """The outcome under this call's id, also where an edit made it run under another."""
        own = _Event.fields(self)
        own["outcome"]["call_id"] = self.call_id
        return own


@dataclass(frozen=True, slots=True)
class ModelWarned(_Event):
    """The model is told, with this call's result, that it repeats itself."""

    name: ClassVar[str] = "model_warned"
    call_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Compacted(_Event):
    """The conversation was summarised. ``records`` is how many records of the transcript the summary stands for."""

    name: ClassVar[str] = "compacted"
    records: int
    summary: str


@dataclass(frozen=True, slots=True)
class RunEnded(_Event):
    """The run stopped. ``approvals`` are the ids it waits for; ``resumable`` says whether resuming can do anything."""

    name: ClassVar[str] = "run_ended"
    stop: StopReason
    detail: str
    text: str
    turns: int
    usage: Usage
    approvals: tuple[str, ...] = field(default=())
    resumable: bool = False


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
