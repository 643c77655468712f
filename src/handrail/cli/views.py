"""How a run is shown: as JSON lines, as plain text for pipes and dumb terminals, or live on a terminal.

The model's text goes to standard output and everything about it to standard error, so that a pipe gets the text
alone. Text of a model, a tool or a file is untrusted: what could draw nothing or move the cursor is shown as an escape.
"""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO, cast

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markdown import Markdown
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from handrail.agent.events import (
    AgentEvent,
    AnswerComplete,
    CallFinished,
    CallOutput,
    CallProgress,
    CallRunning,
    CallStarted,
    Compacted,
    ModelRetry,
    ModelWarned,
    NotesLoaded,
    RunEnded,
    RunStarted,
    TextArrived,
    event_to_json,
)
from handrail.agent.valves import StopReason
from handrail.cli.show import diff_lines, json_line
from handrail.hidden import printable
from handrail.outcome import ToolOutcome
from handrail.schema import ArgumentsInvalid, decode_arguments

SLOW_SECONDS = 1.0
MAX_DIFF_LINES = 80
_STYLE = {"ok": "green", "error": "red", "unknown": "magenta", "pending": "yellow"}


def one_line(text: str, limit: int = 60) -> str:
    """Untrusted text as a short single line."""
    flat = printable(" ".join(text.split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def target_of(arguments: str | Mapping[str, Any]) -> str:
    """What a call is about, in a few words: its path or command, or its first text."""
    try:
        decoded = decode_arguments(arguments)
    except ArgumentsInvalid:
        return ""
    for name in ("path", "command", "pattern", "source", "name"):
        if isinstance(decoded.get(name), str):
            return one_line(cast("str", decoded[name]))
    return next((one_line(value) for value in decoded.values() if isinstance(value, str)), "")


class View(Protocol):
    """Somebody who shows events."""

    def show(self, event: AgentEvent) -> None: ...

    def tick(self) -> None:
        """Called several times a second while a run goes on."""
        ...

    def pause(self) -> None:
        """Give the terminal up, for a question."""
        ...

    def close(self) -> None: ...


class JsonView:
    """One event a line, flushed at once."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._run_id = ""
        self._out = out if out is not None else sys.stdout

    def show(self, event: AgentEvent) -> None:
        """Print it. The run's id, which its first event brings, stands in every line."""
        if isinstance(event, RunStarted):
            self._run_id = event.run_id
        line = json_line(event_to_json(event, self._run_id))
        print(line, file=self._out, flush=True)

    def tick(self) -> None:
        """Events alone are printed."""

    def pause(self) -> None:
        """Nothing to give up."""

    def close(self) -> None:
        """Nothing to close."""


@dataclass(slots=True)
class _Running:
    """A call on the screen."""

    title: str
    risk: str
    target: str
    since: float = field(default_factory=time.monotonic)
    told: bool = False
    doing: str = ""

    @property
    def label(self) -> str:
        words = [self.title, self.target, f"({self.risk or 'no such tool'})"]
        return " ".join(word for word in words if word)


@dataclass(slots=True)
class _Asked:
    """Whether the model is being waited for, and since when: from the beginning, and after an answer's last call."""

    since: float | None = None
    calls_left: int = 0
    told: bool = False

    def follow(self, event: AgentEvent) -> None:
        """Learn from an event."""
        if isinstance(event, RunStarted):
            self._now()
        elif isinstance(event, TextArrived):  # an answer may stop in its middle
            self.since = time.monotonic()
        elif isinstance(event, AnswerComplete):
            self.since, self.calls_left = None, event.calls
        elif isinstance(event, CallStarted):
            self.since = None
        elif isinstance(event, CallFinished):
            self.calls_left -= 1
            if self.calls_left <= 0:
                self._now()
        elif isinstance(event, RunEnded):
            self.since = None

    @property
    def seconds(self) -> float:
        """For how long; 0 where nobody waits."""
        return 0.0 if self.since is None else time.monotonic() - self.since

    def _now(self) -> None:
        self.since, self.told = time.monotonic(), False


class TextView:
    """For people. ``live``: redraw the answer and the running calls in place; else every line is printed once."""

    def __init__(self, out: Console, err: Console, *, live: bool, diffs: bool = True) -> None:
        self._out = out
        self._err = err
        self._is_live = live
        self._diffs = diffs
        self._text = ""
        self._calls: dict[str, _Running] = {}
        self._live: Live | None = None
        self._asked = _Asked()

    def show(self, event: AgentEvent) -> None:
        """Print or draw it."""
        self._asked.follow(event)
        if isinstance(event, TextArrived):
            self._add_text(event.text)
        elif isinstance(event, AnswerComplete):
            self._end_text()
        elif isinstance(event, CallStarted):
            self._calls[event.call_id] = _Running(one_line(event.title), event.risk, target_of(event.arguments))
        elif isinstance(event, CallRunning) and event.call_id in self._calls:
            self._calls[event.call_id].since = time.monotonic()
        elif isinstance(event, CallProgress) and event.call_id in self._calls:
            self._calls[event.call_id].doing = _progress(event)
        elif isinstance(event, CallOutput) and event.call_id in self._calls:
            self._calls[event.call_id].doing = one_line(event.text.rstrip().rpartition("\n")[2], 40)
        elif isinstance(event, CallFinished):
            self._finish(event)
        else:
            self._say_about(event)
        self._draw()

    def tick(self) -> None:
        """Redraw, or say once that something takes longer than a second."""
        if self._is_live:
            self._draw()
            return
        for call in self._calls.values():
            if not call.told and time.monotonic() - call.since > SLOW_SECONDS:
                call.told = True
                self._note(f"… {call.label} is running", "dim")
        if not self._asked.told and not self._text and self._asked.seconds > SLOW_SECONDS:
            self._asked.told = True
            self._note("… waiting for the model", "dim")

    def pause(self) -> None:
        """Take the moving part off the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        """End what is half drawn."""
        self._end_text()
        self._calls.clear()
        self.pause()

    # ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────

    def _add_text(self, text: str) -> None:
        self._text += text
        if not self._is_live:
            self._out.print(printable(text) if self._out.is_terminal else text, end="", markup=False, soft_wrap=True)

    def _end_text(self) -> None:
        text, self._text = self._text, ""
        if not text.strip():
            return
        if self._is_live:
            self.pause()
            self._out.print(Markdown(printable(text), hyperlinks=False))
        elif not text.endswith("\n"):
            self._out.print()

    def _finish(self, event: CallFinished) -> None:
        call = self._calls.pop(event.call_id, None) or _Running(one_line(event.title), "", "")
        outcome = event.outcome
        reason = f" ({outcome.reason.value})" if outcome.reason is not None else ""
        line = Text.assemble(
            ("● ", _STYLE[outcome.status]),
            call.label,
            (f" · {_duration(outcome.duration_ms)} · ", "dim"),
            (outcome.status + reason, _STYLE[outcome.status]),
        )
        self._print(line, prose=True)
        if outcome.status in ("error", "unknown") and outcome.text:
            self._note("  " + one_line(outcome.text, 200), "dim")
        if self._diffs:
            self._show_changes(outcome)

    def _show_changes(self, outcome: ToolOutcome) -> None:
        changes = outcome.changes
        if changes is None or not changes.committed:
            return
        lines = diff_lines(changes.diff)
        for line in lines[:MAX_DIFF_LINES]:
            self._print(Text("  ", style=line.style).append_text(line))
        if len(lines) > MAX_DIFF_LINES:
            self._note(f"  … {len(lines) - MAX_DIFF_LINES} more lines", "dim")

    def _say_about(self, event: AgentEvent) -> None:
        if isinstance(event, NotesLoaded):
            cut = ", cut" if event.cut else ""
            self._note(f"read {event.source} ({event.bytes} bytes{cut}) as untrusted notes", "dim")
        elif isinstance(event, ModelRetry):
            self._note(f"asking again in {event.wait:.1f} s: {one_line(event.why, 200)}", "yellow")
        elif isinstance(event, ModelWarned):
            self._note("  " + one_line(event.text, 200), "yellow")
        elif isinstance(event, Compacted):
            self._note("the earlier conversation was summarised", "dim")
        elif isinstance(event, RunEnded):
            self._end_text()
            if event.stop is not StopReason.DONE:
                detail = f": {one_line(event.detail, 200)}" if event.detail else ""
                self._note(f"stopped ({event.stop.value}){detail}", "yellow")

    def _note(self, text: str, style: str) -> None:
        self._print(Text(text, style=style), prose=True)

    def _print(self, line: Text, *, prose: bool = False) -> None:
        """Above the moving part, when there is one. ``prose`` is folded between words where a person reads it."""
        console = self._live.console if self._live is not None else self._err
        if prose and console.is_terminal:
            indent = len(line.plain) - len(line.plain.lstrip())
            console.print(Padding(line[indent:], (0, 0, 0, indent), expand=False))
        else:
            console.print(line, soft_wrap=True)

    # ── the moving part ──────────────────────────────────────────────────────────────────────────────────────

    def _draw(self) -> None:
        if not self._is_live:
            return
        moving = self._moving()
        if not moving:
            self.pause()
            return
        if self._live is None:
            self._live = Live(console=self._out, transient=True, auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        self._live.update(Group(*moving), refresh=True)

    def _moving(self) -> list[RenderableType]:
        moving: list[RenderableType] = []
        if self._text:
            room = max(4, self._out.size.height - 4 - len(self._calls))
            tail = "\n".join(self._text.split("\n")[-room:])
            moving.append(Markdown(printable(tail), hyperlinks=False))
        now = time.monotonic()
        for call in self._calls.values():
            for_seconds = now - call.since
            if for_seconds > SLOW_SECONDS:
                doing = f"{call.label} {for_seconds:.0f} s {call.doing}"
                moving.append(Spinner("line", Text(doing, overflow="ellipsis", no_wrap=True)))
        if self._asked.seconds > SLOW_SECONDS:
            moving.append(Spinner("line", Text(f"waiting for the model, {self._asked.seconds:.0f} s")))
        return moving


def _progress(event: CallProgress) -> str:
    amount = f"{event.done:g}" if event.total is None else f"{event.done:g}/{event.total:g}"
    return f"{amount} {one_line(event.message, 40)}".strip()


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def text_view() -> TextView:
    """The view that fits standard output and error: live only where the terminal can, and NO_COLOR is honoured."""
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    live = out.is_terminal and err.is_terminal and not out.is_dumb_terminal
    return TextView(out, err, live=live)
