"""The reasons to stop a run that goes nowhere. Decided from outcomes and counted calls, never from anybody's text.

===================== ==========================================================================================
stop                  when
===================== ==========================================================================================
max_turns             the model was asked ``turns`` times since the last prompt
errors                ``errors`` calls since the last prompt failed, or nobody knows what they did
consecutive_errors    that many in a row
repeated_call         the same call (tool and arguments) failed ``identical_failures`` times and nothing was changed
                      in between
cycle                 the last calls are one pattern of 1 to 4 calls, with the same results, over and over
tokens, wall_time     used up
===================== ==========================================================================================

The step before a repetition ends the run, the model is told what it repeats.
"""

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from handrail.agent.transcript import Answered, Asked, Ended, Record, Resulted, Summarised
from handrail.bounds import require_seconds, require_whole
from handrail.models.client import ModelCall, Usage
from handrail.schema import ArgumentsInvalid, canonical_bytes, decode_arguments

MAX_PERIOD = 4


class StopReason(StrEnum):
    """Why a run stopped. A closed list: adding one is an API decision (a test pins it)."""

    DONE = "done"
    AWAITING_APPROVAL = "awaiting_approval"
    CANCELLED = "cancelled"
    TRUNCATED = "truncated"  # the answer met the model's output bound and proposed nothing to do
    REFUSED = "refused"  # the provider, or the model, declined to answer
    MODEL_FAILED = "model_failed"
    MAX_TURNS = "max_turns"
    ERRORS = "errors"
    CONSECUTIVE_ERRORS = "consecutive_errors"
    REPEATED_CALL = "repeated_call"
    CYCLE = "cycle"
    TOKENS = "tokens"
    WALL_TIME = "wall_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a run may go. ``None``: no limit. ``tokens`` are input and output of the whole run; ``seconds`` are wall
    time of one ``run`` or ``resume``. Raises :class:`~handrail.errors.ConfigurationError` for a limit that cannot work.
    """

    turns: int = 50
    errors: int = 30
    consecutive_errors: int = 8
    identical_failures: int = 3
    cycles: int = 3
    tokens: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("turns", "errors", "consecutive_errors", "identical_failures", "cycles"):
            require_whole(name, getattr(self, name))
        if self.tokens is not None:
            require_whole("tokens", self.tokens)
        if self.seconds is not None:
            require_seconds("seconds", self.seconds)


_BY_COUNT = (
    StopReason.MAX_TURNS,
    StopReason.ERRORS,
    StopReason.CONSECUTIVE_ERRORS,
    StopReason.REPEATED_CALL,
    StopReason.CYCLE,
)


@dataclass(frozen=True, slots=True)
class Stopped:
    """Why the run stops now, and what about it a person should read."""

    stop: StopReason
    detail: str = ""


@dataclass(slots=True)
class Valves:
    """Counts what happened since the last prompt. Fold a transcript's records through :meth:`see` to rebuild it.

    A person who resumes a run that was stopped by a count starts the counts again; tokens are counted for good.
    """

    limits: Limits
    turns: int = 0
    errors: int = 0
    consecutive: int = 0
    usage: Usage = field(default_factory=Usage)
    _failures: dict[str, int] = field(default_factory=dict[str, int])
    _steps: deque[str] = field(default_factory=deque[str])
    _calls: dict[str, "_Counted"] = field(default_factory=dict[str, "_Counted"])
    _stuck: Stopped | None = None

    def see(self, records: Iterable[Record]) -> None:
        """Take records of the transcript into account."""
        for record in records:
            if isinstance(record, Asked):
                self._start_again()
            elif isinstance(record, Answered):
                self.turns += 1
                self.usage += record.usage
                self._calls.update((call.call_id, _Counted(call.name, _key(call))) for call in record.calls)
            elif isinstance(record, Summarised):
                self.usage += record.usage  # the largest request of all; no turn of the task
            elif isinstance(record, Resulted):
                self._count(self._calls.pop(record.call_id), record)
            elif isinstance(record, Ended) and record.stop in _BY_COUNT:
                self._start_again()

    def note_for(self, result: Resulted) -> str:
        """What the model should be told with this result, before it is recorded: that it is about to repeat itself."""
        key = self._calls[result.call_id].key
        if result.status != "ok" and self._failures.get(key, 0) + 2 == self.limits.identical_failures:
            return (
                f"Note: you have now made exactly this call {self.limits.identical_failures - 1} times and it failed "
                "each time. Do something else; the same failure once more ends the run."
            )
        period = _period([*self._steps, _step(key, result)], self.limits.cycles - 1)
        if period is not None and _period(self._steps, self.limits.cycles - 1) is None:
            what = "this same call" if period == 1 else f"the same {period} calls"
            return (
                f"Note: you are repeating {what} with the same results. Do something else; "
                "going round once more ends the run."
            )
        return ""

    def stop_after_calls(self) -> Stopped | None:
        """Whether the results so far end the run."""
        if self._stuck is not None:
            return self._stuck
        if self.errors >= self.limits.errors:
            return Stopped(StopReason.ERRORS, f"{self.errors} calls failed since the last prompt")
        if self.consecutive >= self.limits.consecutive_errors:
            return Stopped(StopReason.CONSECUTIVE_ERRORS, f"{self.consecutive} calls in a row failed")
        return None

    def stop_before_asking(self) -> Stopped | None:
        """Whether the model may be asked once more."""
        if self.turns >= self.limits.turns:
            return Stopped(StopReason.MAX_TURNS, f"the model was asked {self.turns} times since the last prompt")
        if self.limits.tokens is not None and self.usage.total >= self.limits.tokens:
            return Stopped(StopReason.TOKENS, f"{self.usage.total} tokens were used of {self.limits.tokens}")
        return None

    def _start_again(self) -> None:
        self.turns = self.errors = self.consecutive = 0
        self._stuck = None
        self._failures.clear()
        self._steps.clear()

    def _count(self, call: "_Counted", result: Resulted) -> None:
        key = call.key
        if result.status == "ok":
            self.consecutive = 0
            self._failures.pop(key, None)
            if result.changed:
                self._failures.clear()
        else:
            self.errors += 1
            self.consecutive += 1
            self._failures[key] = self._failures.get(key, 0) + 1
            if self._failures[key] >= self.limits.identical_failures:
                detail = f"{call.name} failed {self._failures[key]} times with the same arguments"
                self._stuck = self._stuck or Stopped(StopReason.REPEATED_CALL, detail)
        self._steps.append(_step(key, result))
        while len(self._steps) > MAX_PERIOD * max(2, self.limits.cycles) * 2:
            self._steps.popleft()
        period = _period(self._steps, self.limits.cycles)
        if period is not None:
            detail = f"the last {period} calls were repeated with the same results, ending with {call.name}"
            self._stuck = self._stuck or Stopped(StopReason.CYCLE, detail)


@dataclass(frozen=True, slots=True)
class _Counted:
    """A call that has no result yet: its tool's name, and what makes it the same as another."""

    name: str
    key: str


def _key(call: ModelCall) -> str:
    """Tool and arguments, however the JSON was written."""
    try:
        arguments = canonical_bytes(decode_arguments(call.arguments))
    except (ArgumentsInvalid, ValueError):
        arguments = call.arguments.encode("utf-8", "replace")
    return hashlib.sha256(call.name.encode("utf-8", "replace") + b"\0" + arguments).hexdigest()


def _step(key: str, result: Resulted) -> str:
    said = hashlib.sha256(result.text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{key} {result.status} {result.reason} {said}"


def _period(steps: Sequence[str], times: int) -> int | None:
    """The length of the pattern that the steps end with ``times`` times over (one call alone: twice as often)."""
    for period in range(1, MAX_PERIOD + 1):
        needed = period * (times * 2 if period == 1 else times)
        if needed < 2 * period or len(steps) < needed:
            continue
        first = len(steps) - needed
        if all(steps[index] == steps[index + period] for index in range(first, len(steps) - period)):
            return period
    return None
