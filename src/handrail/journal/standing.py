"""Where a call and its questions stand, told from their records alone: what the rows beside the chain must say. Pure.

This says a second time, and backwards, what the rules in ``ledger`` do when they add a record and change a row: so a
row that somebody changed is found.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from handrail.errors import JournalCorrupt
from handrail.journal.ledger import ApprovalRow, CallRow
from handrail.journal.records import Record

SOMEBODY = "?"
"""An executor whose name the records do not hold: who ended a call that had waited for its commit."""


@dataclass(slots=True)
class Standing:
    """One call's row, ``None`` before its first record, and the row of each of its questions by approval id.

    ``told`` counts the records that tell of it; evidence that came too late is not among them, and may be of no call.
    """

    call_id: str
    call: CallRow | None = None
    told: int = 0
    approvals: dict[str, ApprovalRow] = field(default_factory=dict[str, ApprovalRow])

    def use(self, approval_id: str) -> None:
        """An approval is used up by what the record says."""
        row = self.approvals.get(approval_id)
        if row is not None:
            self.approvals[approval_id] = row._replace(used=True)

    def take(self, approval: Mapping[str, Any]) -> None:
        """An approval led to an intent or a commit; one that was given on the spot has no record of its own."""
        approval_id: str = approval["id"]
        given = ApprovalRow(approval_id, self.call_id, verdict="approve", binding=approval.get("binding") or "")
        self.approvals.setdefault(approval_id, given)
        self.use(approval_id)


def standing(call_id: str, records: Iterable[Record]) -> Standing:
    """Where the call stands after these records, which are its own in their order.

    Raises :class:`JournalCorrupt` at a record of another call, or one that holds not what its kind needs.
    """
    found = Standing(call_id)
    for record in records:
        data = record.data
        if data["call_id"] != call_id:
            raise JournalCorrupt(f"record {record.sequence} is filed under another call", sequence=record.sequence)
        found.told += data["kind"] != "stale"
        step = _STEPS.get(data["kind"])
        if step is None:
            continue
        try:
            step(found, data, record.sequence)
        except (KeyError, TypeError, AttributeError) as error:
            raise JournalCorrupt(
                f"record {record.sequence} is no record of its kind ({data['kind']}): {error!r}",
                sequence=record.sequence,
            ) from None
    return found


def _call(found: Standing) -> CallRow:
    if found.call is None:
        raise KeyError("the call's beginning")
    return found.call


def _intent(found: Standing, data: Mapping[str, Any], sequence: int) -> None:
    waited_for = "" if found.call is None else found.call.approval_id
    approval = cast("Mapping[str, Any] | None", data["approval"])
    if approval is not None:
        found.take(approval)
    found.use(waited_for)
    approval_id = waited_for if approval is None else approval["id"]
    found.call = CallRow(found.call_id, "open", data["executor"], 1, sequence, approval_id=approval_id)


def _attempt(found: Standing, _: Mapping[str, Any], __: int) -> None:
    found.call = _call(found)._replace(state="open")


def _claimed(found: Standing, data: Mapping[str, Any], _: int) -> None:
    found.call = _call(found)._replace(state="claimed", executor=data["executor"], epoch=data["epoch"])


def _parked(found: Standing, data: Mapping[str, Any], sequence: int) -> None:
    approval_id: str = data["approval_id"]
    row = found.call
    if row is None or row.state == "parked":
        after = CallRow(found.call_id, "parked", approval_id=approval_id)
    else:  # it ran staged; asked again, it has had an owner in between
        epoch = row.epoch + (row.state == "held")
        after = row._replace(state="held", executor="", approval_id=approval_id, epoch=epoch)
    if row is not None:
        found.use(row.approval_id)
    found.call = after
    expires_at = float(data["expires_at"])
    found.approvals[approval_id] = ApprovalRow(
        approval_id, found.call_id, parked=sequence, expires_at=expires_at, binding=data["binding"]
    )


def _answered(found: Standing, data: Mapping[str, Any], sequence: int) -> None:
    row = found.approvals[data["approval_id"]]
    found.approvals[row.approval_id] = row._replace(answered=sequence, verdict=data["verdict"])


def _commit_begin(found: Standing, data: Mapping[str, Any], _: int) -> None:
    if data["approval"]:
        found.take({"id": data["approval"]})
    owner: dict[str, Any] = {"executor": data["executor"], "epoch": data["epoch"]}
    found.call = _call(found)._replace(state="open", commit="begun", **owner)


def _commit_end(found: Standing, _: Mapping[str, Any], __: int) -> None:
    found.call = _call(found)._replace(commit="ended")


def _ended(found: Standing, data: Mapping[str, Any], sequence: int) -> None:
    row = found.call or CallRow(found.call_id, "refused")
    found.use(row.approval_id)
    owner: dict[str, Any] = {}
    if row.state == "held" and "epoch" in data:
        owner = {"executor": SOMEBODY, "epoch": data["epoch"]}
    found.call = row._replace(state=data["kind"], end=sequence, status=data["outcome"]["status"], **owner)


def _resolved(found: Standing, _: Mapping[str, Any], sequence: int) -> None:
    found.call = _call(found)._replace(resolved=sequence)


_STEPS = {
    "intent": _intent,
    "attempt": _attempt,
    "claimed": _claimed,
    "parked": _parked,
    "answered": _answered,
    "commit_begin": _commit_begin,
    "commit_end": _commit_end,
    "settled": _ended,
    "refused": _ended,
    "resolved": _resolved,
}
"""What each kind of record means for its call. Kinds that are not here change no row of a call."""
