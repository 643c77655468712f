"""Journal records: what a record is, how its bytes are written and read, and the chain that joins them. No I/O.

1. A record's body is one JSON object as ASCII text with sorted keys; the bytes that are stored are the bytes that are
   hashed, so reading never has to reproduce what writing did.
2. ``hash = SHA-256("handrail-journal-v1" ‖ 0 ‖ previous hash ‖ sequence as 8 bytes ‖ body)``. Sequences count from 1
   without gaps; before the first record the hash is 32 zero bytes.
3. Every body says ``kind``, ``call_id`` ("" where none is meant) and ``at`` (seconds since the epoch).
4. The reader believes nothing: a body that is not such an object is :class:`~handrail.errors.JournalCorrupt`.
"""

import hashlib
import hmac
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, cast

from handrail.errors import JournalCorrupt

DOMAIN = b"handrail-journal-v1\0"
ZERO = bytes(32)

KINDS = (
    "journal",  # the first record: which journal this is
    "intent",  # about to act
    "attempt",  # an interrupted safe call is about to act again
    "settled",  # what came of an intent; exactly one for each
    "refused",  # a call that ended before it had an intent
    "parked",  # a question waits
    "answered",  # somebody answered it
    "commit_begin",  # staged changes are about to become real
    "commit_end",  # they are
    "claimed",  # an interrupted call has a new owner
    "stale",  # a result that came too late: evidence, never applied
    "resolved",  # somebody said what became of an unknown one
    "grant",  # a lasting yes
    "revoked",  # its end
    "pruned",  # everything before this place was dropped by retention
)


class Record(NamedTuple):
    """One link: its place, its exact bytes, and the hash that covers it and everything before."""

    sequence: int
    body: bytes
    hash: bytes

    @property
    def data(self) -> dict[str, Any]:
        """The body, decoded anew. Raises :class:`JournalCorrupt`."""
        return decode(self.body, self.sequence)


@dataclass(frozen=True, slots=True)
class Head:
    """The last record's place and hash; sequence 0 before the first."""

    sequence: int = 0
    hash: bytes = ZERO


def opening_data(journal_id: str) -> dict[str, Any]:
    """The body of a journal's first record."""
    return {"kind": "journal", "call_id": "", "at": time.time(), "id": journal_id, "format": 1}


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def encode(data: Mapping[str, Any]) -> bytes:
    """The bytes of a body. A value that is not JSON is a :class:`TypeError` or :class:`ValueError`."""
    return _ENCODER.encode(data).encode("ascii")


def decode(body: bytes, sequence: int | None = None) -> dict[str, Any]:
    """The inverse of :func:`encode`, believing nothing. Raises :class:`JournalCorrupt` naming ``sequence``."""
    try:
        value = _DECODER.decode(body.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise JournalCorrupt(f"record {sequence} is not a JSON body: {error}", sequence=sequence) from None
    if not isinstance(value, dict):
        raise JournalCorrupt(f"record {sequence} is not a JSON object", sequence=sequence)
    data = cast("dict[str, Any]", value)
    at = data.get("at")
    if data.get("kind") not in KINDS or not isinstance(data.get("call_id"), str):
        raise JournalCorrupt(f"record {sequence} has no kind or no call id", sequence=sequence)
    if not _is_time(at):
        raise JournalCorrupt(f"record {sequence} has no time", sequence=sequence)
    return data


def _is_time(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def chained(previous: bytes, sequence: int, body: bytes) -> bytes:
    """The hash of a record (rule 2)."""
    return hashlib.sha256(b"".join((DOMAIN, previous, sequence.to_bytes(8, "big"), body))).digest()


def extended(head: Head, body: bytes) -> Record:
    """The next record after ``head``."""
    sequence = head.sequence + 1
    return Record(sequence, body, chained(head.hash, sequence, body))


def checked(records: Iterable[Record], after: Head) -> Iterator[Record]:
    """The same records, each checked to be the next link.

    Raises :class:`JournalCorrupt` at the first that is not, naming its place. Holds one record at a time.
    """
    sequence, digest = after.sequence, after.hash
    for record in records:
        sequence += 1
        if record.sequence != sequence:
            found = f"record {record.sequence} stands where {sequence} is due"
            raise JournalCorrupt(f"record {sequence} is missing: {found}", sequence=sequence)
        digest = chained(digest, sequence, record.body)
        if not hmac.compare_digest(digest, record.hash):
            raise JournalCorrupt(
                f"record {sequence} does not follow from what stands before it: it was edited, moved or replaced",
                sequence=sequence,
            )
        yield record
