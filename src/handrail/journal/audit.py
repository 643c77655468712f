"""Is the journal what it was? Verification, a signed head kept elsewhere, and retention that can still be verified.

What each finds:

- an edited, removed, exchanged or inserted record: the chain, which names the first bad place;
- records cut off at the end: the head that the file keeps, or, if that was edited too, a signed head kept elsewhere;
- a changed row beside the chain (where a call, a question or a grant stands): the records, which say what it must be;
- everything rewritten from some place on by somebody who can write the file: only a signed head kept elsewhere.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from handrail.errors import ConfigurationError, JournalCorrupt
from handrail.journal.ledger import ApprovalRow, CallRow, GrantRow
from handrail.journal.records import Head, Record, checked
from handrail.journal.standing import SOMEBODY, Standing, standing
from handrail.journal.stored import Reader

_MIN_KEY = 16


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A journal's head at some moment, signed with a key that the journal's machine need not keep (HMAC-SHA256)."""

    journal_id: str
    sequence: int
    hash: str
    at: float
    signature: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "journal": self.journal_id,
            "sequence": self.sequence,
            "hash": self.hash,
            "at": self.at,
            "signature": self.signature,
        }


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification saw: ``records`` good ones, up to ``head``; the kept part begins behind ``base``."""

    journal_id: str
    records: int
    base: Head
    head: Head
    signed: SignedHead | None


def sign(journal_id: str, head: Head, key: bytes, at: float | None = None) -> SignedHead:
    """Sign a head. Raises :class:`ConfigurationError` for a key under 16 bytes."""
    moment = time.time() if at is None else at
    return SignedHead(
        journal_id,
        head.sequence,
        head.hash.hex(),
        moment,
        _signature(journal_id, head.sequence, head.hash.hex(), moment, key),
    )


def read_signed(text: str, key: bytes) -> SignedHead:
    """A signed head from its JSON text. Raises :class:`JournalCorrupt` where it is none, or the key does not fit."""
    try:
        data = cast("dict[str, Any]", json.loads(text))
        found = SignedHead(
            str(data["journal"]), int(data["sequence"]), str(data["hash"]), float(data["at"]), str(data["signature"])
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise JournalCorrupt(f"this is no signed head: {error!r}") from None
    expected = _signature(found.journal_id, found.sequence, found.hash, found.at, key)
    if not hmac.compare_digest(expected.encode(), found.signature.encode()):
        raise JournalCorrupt("the signature of the signed head does not fit the key")
    return found


def _signature(journal_id: str, sequence: int, digest: str, at: float, key: bytes) -> str:
    if len(key) < _MIN_KEY:
        raise ConfigurationError(f"a signing key has at least {_MIN_KEY} bytes, not {len(key)}")
    text = json.dumps(["handrail-head-v1", journal_id, sequence, digest, at], separators=(",", ":"))
    return base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()


def verify(reader: Reader, signed: SignedHead | None = None) -> Verified:
    """Go through the whole journal, one record at a time.

    Raises :class:`JournalCorrupt` at the first thing that is not as it must be; ``sequence`` names the place.
    """
    journal_id = reader.meta().get("id", "")
    if signed is not None and signed.journal_id != journal_id:
        raise JournalCorrupt(f"the signed head is of the journal {signed.journal_id}, not of {journal_id}")
    base, head = reader.base(), reader.head()
    last = base
    pruned = base.sequence == 0
    grants = _Grants()
    of_calls = 0
    for record in checked(reader.records(base.sequence), base):
        last = Head(record.sequence, record.hash)
        data = record.data
        of_calls += _is_of_a_call(data)
        grants.hear(data, record.sequence)
        if base.sequence == 0 and record.sequence == 1 and (data["kind"], data.get("id")) != ("journal", journal_id):
            raise JournalCorrupt("record 1 does not open this journal", sequence=1)
        pruned = pruned or _names_base(data, base)
        if signed is not None and record.sequence == signed.sequence and record.hash.hex() != signed.hash:
            raise JournalCorrupt(f"record {record.sequence} is not the one that was signed", sequence=record.sequence)
    if not pruned:
        raise JournalCorrupt(
            f"records up to {base.sequence} are gone, and no retention says so", sequence=base.sequence
        )
    if last != head:
        place = min(last.sequence, head.sequence) + 1
        raise JournalCorrupt(
            f"record {place} is missing: the last one is {last.sequence}, and the head says {head.sequence}",
            sequence=place,
        )
    if signed is not None and signed.sequence > last.sequence:
        raise JournalCorrupt(
            f"record {last.sequence + 1} is missing: a head was signed at {signed.sequence}", sequence=last.sequence + 1
        )
    _verify_rows(reader, base, of_calls)
    _verify_grants(reader, base, grants)
    return Verified(journal_id, last.sequence - base.sequence, base, last, signed)


def _names_base(data: Mapping[str, Any], base: Head) -> bool:
    return data["kind"] == "pruned" and (data.get("sequence"), data.get("hash")) == (base.sequence, base.hash.hex())


def _is_of_a_call(data: Mapping[str, Any]) -> bool:
    """Whether the record belongs to a call that has a row: evidence that came too late may be of none."""
    return data["call_id"] != "" and data["kind"] != "stale"


def _verify_rows(reader: Reader, base: Head, of_calls: int) -> None:
    """Each call's row, and those of its questions, say what its records say; no row is missing and none is of nothing.

    Retention drops the records of a call all together, and its rows with them.
    """
    records_seen = approvals_seen = 0
    for row in reader.rows_of_calls():
        records = reader.records_of(row.call_id)
        must = standing(row.call_id, records)
        _verify_call(row, must, records)
        for approval in must.approvals.values():
            _verify_approval(reader, approval, records)
        records_seen += must.told
        approvals_seen += len(must.approvals)
    if records_seen != of_calls:
        raise _call_without_row(reader, base)
    if approvals_seen != sum(1 for _ in reader.rows_of_approvals()):
        raise _approval_without_record(reader)


def _verify_call(row: CallRow, must: Standing, records: list[Record]) -> None:
    if must.call is None:
        raise JournalCorrupt(f"there is no record of the call {row.call_id}")
    executor = row.executor if must.call.executor == SOMEBODY else must.call.executor
    if row != must.call._replace(executor=executor):
        place = max(record.sequence for record in records if record.data["kind"] != "stale")
        raise JournalCorrupt(f"the state of call {row.call_id} is not what record {place} says", sequence=place)


def _verify_approval(reader: Reader, must: ApprovalRow, records: list[Record]) -> None:
    if reader.approval(must.approval_id) != must:
        place = must.answered or must.parked or records[0].sequence
        raise JournalCorrupt(
            f"the state of approval {must.approval_id} is not what record {place} says", sequence=place
        )


def _call_without_row(reader: Reader, base: Head) -> JournalCorrupt:
    for record in reader.records(base.sequence):
        data = record.data
        if _is_of_a_call(data) and reader.call(data["call_id"]) is None:
            place = record.sequence
            return JournalCorrupt(f"the state of call {data['call_id']} of record {place} was removed", sequence=place)
    return JournalCorrupt("there are more records of calls than calls")


def _approval_without_record(reader: Reader) -> JournalCorrupt:
    for row in reader.rows_of_approvals():
        if row.approval_id not in standing(row.call_id, reader.records_of(row.call_id)).approvals:
            return JournalCorrupt(f"there is no record of the approval {row.approval_id}")
    return JournalCorrupt("there are more approvals than records of them")


@dataclass(slots=True)
class _Grants:
    """What the records say of grants."""

    given: dict[str, GrantRow] = field(default_factory=dict[str, GrantRow])
    ended: dict[str, float] = field(default_factory=dict[str, float])

    def hear(self, data: Mapping[str, Any], sequence: int) -> None:
        try:
            if data["kind"] == "grant":
                grant = data["grant"]
                self.given[grant["grant_id"]] = GrantRow(grant["grant_id"], grant["session"], sequence)
            elif data["kind"] == "revoked":
                self.ended[data["grant_id"]] = float(data["at"])
        except (KeyError, TypeError) as error:
            raise JournalCorrupt(f"record {sequence} is no record of a grant: {error!r}", sequence=sequence) from None


def _verify_grants(reader: Reader, base: Head, grants: _Grants) -> None:
    """Each grant's row says what its records say, as far as they are kept; and no row is missing."""
    rows = {row.grant_id: row for row in reader.grants()}
    for grant_id, given in grants.given.items():
        if rows.get(grant_id) != given._replace(revoked_at=grants.ended.get(grant_id)):
            place = given.granted
            raise JournalCorrupt(f"the state of grant {grant_id} is not what record {place} says", sequence=place)
    for row in rows.values():
        if row.grant_id in grants.given:
            continue
        if row.granted > base.sequence or (row.revoked_at is None and row.grant_id in grants.ended):
            raise JournalCorrupt(f"there is no record of the grant {row.grant_id} as it stands")


def exported(reader: Reader) -> Iterator[str]:
    """The kept records as JSON lines, each with its place and hash, so that the chain can be checked elsewhere."""
    base = reader.base()
    for record in checked(reader.records(base.sequence), base):
        yield json.dumps(
            {"sequence": record.sequence, "hash": record.hash.hex(), "body": record.body.decode("ascii")},
            separators=(",", ":"),
        )
