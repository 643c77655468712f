"""Is the journal what it was? Verification, a signed head kept elsewhere, and retention that can still be verified.

What each finds:

- an edited, removed, exchanged or inserted record: the chain, which names the first bad place;
- records cut off at the end: the head that the file keeps, or, if that was edited too, a signed head kept elsewhere;
- a changed row beside the chain (whose state a call is in): the records, which say what it must be;
- everything rewritten from some place on by somebody who can write the file: only a signed head kept elsewhere.
"""

import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from handrail.errors import ConfigurationError, JournalCorrupt
from handrail.journal.ledger import CallRow
from handrail.journal.records import Head, checked
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
    counted: Counter[str] = Counter()
    for record in checked(reader.records(base.sequence), base):
        last = Head(record.sequence, record.hash)
        data = record.data
        counted[data["kind"]] += 1
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
    _verify_rows(reader, base, counted)
    return Verified(journal_id, last.sequence - base.sequence, base, last, signed)


def _names_base(data: Mapping[str, Any], base: Head) -> bool:
    return data["kind"] == "pruned" and (data.get("sequence"), data.get("hash")) == (base.sequence, base.hash.hex())


def _verify_rows(reader: Reader, base: Head, counted: Counter[str]) -> None:
    """Each call's row says what its records say, and no row is missing."""
    intents_of_rows = ends_of_rows = 0
    for row in reader.rows_of_calls():
        intents_of_rows += row.intent > base.sequence
        ends_of_rows += row.end > base.sequence
        if 0 < row.intent <= base.sequence or 0 < row.end <= base.sequence:
            continue
        ends: list[tuple[int, str]] = []
        intents: list[int] = []
        for record in reader.records_of(row.call_id):
            data = record.data
            if data["call_id"] != row.call_id:
                raise JournalCorrupt(f"record {record.sequence} is filed under another call", sequence=record.sequence)
            if data["kind"] in ("settled", "refused"):
                ends.append((record.sequence, _status_in(data)))
            elif data["kind"] == "intent":
                intents.append(record.sequence)
        _verify_row(row, intents, ends)
    if (intents_of_rows, ends_of_rows) != (counted["intent"], counted["settled"] + counted["refused"]):
        raise JournalCorrupt("the state of a call was removed: there are more records than calls")


def _status_in(data: Mapping[str, Any]) -> str:
    outcome = data.get("outcome")
    return str(cast("Mapping[str, Any]", outcome).get("status")) if isinstance(outcome, Mapping) else "no outcome"


def _verify_row(row: CallRow, intents: list[int], ends: list[tuple[int, str]]) -> None:
    expected = [] if not row.is_over else [(row.end, row.status)]
    if ends != expected:
        place = ends[-1][0] if ends else row.end
        raise JournalCorrupt(f"the state of call {row.call_id} is not what record {place} says", sequence=place)
    if intents != ([row.intent] if row.intent else []):
        place = intents[0] if intents else row.intent
        raise JournalCorrupt(f"the intent of call {row.call_id} is not where its state says", sequence=place)


def exported(reader: Reader) -> Iterator[str]:
    """The kept records as JSON lines, each with its place and hash, so that the chain can be checked elsewhere."""
    base = reader.base()
    for record in checked(reader.records(base.sequence), base):
        yield json.dumps(
            {"sequence": record.sequence, "hash": record.hash.hex(), "body": record.body.decode("ascii")},
            separators=(",", ":"),
        )
