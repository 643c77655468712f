"""Outcomes as records keep them, and back. Pure."""

from collections.abc import Mapping
from typing import Any

from handrail.errors import JournalCorrupt
from handrail.journal.records import encode
from handrail.outcome import ChangesReport, FullOutput, Reason, ToolOutcome
from handrail_cell.wire import EnforcementReport, Protection


def outcome_to_json(outcome: ToolOutcome) -> dict[str, Any]:
    """An outcome as JSON that can surely be written: a value that is not JSON is left out, and the record says so."""
    data = outcome.to_json()
    data["value_dropped"] = False
    if outcome.value is None and not outcome.content:  # everything else is text and numbers of ours
        return data
    try:
        encode({"value": data["value"], "content": data["content"]})
    except (TypeError, ValueError, RecursionError):
        data |= {"value": None, "content": [], "value_dropped": True}
    return data


def outcome_from_json(data: Any, sequence: int) -> ToolOutcome:
    """The inverse of :func:`outcome_to_json`. Raises :class:`JournalCorrupt` naming ``sequence`` for anything else."""
    try:
        return _outcome(data)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise JournalCorrupt(f"record {sequence} holds no outcome: {error!r}", sequence=sequence) from None


def _outcome(data: Mapping[str, Any]) -> ToolOutcome:
    if data["status"] not in ("ok", "error", "unknown"):
        raise ValueError(f"a settled call cannot be {data['status']!r}")
    full, changes, enforcement = data["full_output"], data["changes"], data["enforcement"]
    return ToolOutcome(
        status=data["status"],
        text=str(data["text"]),
        reason=None if data["reason"] is None else Reason(data["reason"]),
        truncated=bool(data["truncated"]),
        full_output=None if full is None else FullOutput(full["path"], full["bytes"], full["sha256"]),
        duration_ms=float(data["duration_ms"]),
        call_id=str(data["call_id"]),
        tool=str(data["tool"]),
        value=data["value"],
        content=tuple(data["content"]),
        limit=data["limit"],
        approval_id=data["approval_id"],
        edited_arguments=data["edited_arguments"],
        invalid_output=bool(data["invalid_output"]),
        changes=None
        if changes is None
        else ChangesReport(changes["digest"], tuple(changes["paths"]), changes["diff"], changes["committed"]),
        enforcement=None
        if enforcement is None
        else EnforcementReport(
            enforcement["tier"], tuple(Protection(**protection) for protection in enforcement["protections"])
        ),
    )


def unanswered(tool: str) -> ToolOutcome:
    """A call that waited before it ran, and with which nobody went on in time."""
    return ToolOutcome.error(
        f"Nobody answered in time whether {tool} may run, or nobody went on with it. It did not run.",
        Reason.APPROVAL_EXPIRED,
        tool=tool,
    )


def resolved_outcome(outcome: ToolOutcome, resolution: Mapping[str, Any]) -> ToolOutcome:
    """An unknown outcome after somebody said what became of it."""
    by = resolution.get("by", "somebody")
    if resolution.get("verdict") == "happened":
        return outcome.with_(
            status="ok", reason=None, text=f"It happened: {by} settled it. Its own output was not kept."
        )
    return outcome.with_(
        status="error", reason=Reason.INTERRUPTED, text=f"It did not happen: {by} settled it. It was not run again."
    )
