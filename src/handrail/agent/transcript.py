"""The transcript: what the model has seen, as records that are only ever appended.

Rules:

1. A record is durable before what follows from it happens: calls run after the answer that holds them is on disk.
2. One record is one line of JSON. A last line without its end is a crash in mid-write: it is cut off before the next
   append, and what it would have said had no consequence yet (rule 1). Damage anywhere else is refused by place.
3. A result belongs to exactly one call, and a call has at most one result.
4. One process writes a run at a time (``flock``).
5. What nothing follows from that could not be had again may be flushed later, with the next record that must be: a
   result that the journal holds is asked for again under its call's id.

The transcript is what the model reads, and ``conversation`` says how; what really happened to a call is the journal's
to say.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, cast

import platformdirs

from handrail import private
from handrail.errors import TranscriptError
from handrail.models.client import ModelCall, Usage
from handrail.outcome import Status, ToolOutcome
from handrail.output import open_private_directory

VERSION = 1
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_RUN_ID = re.compile(r"[A-Za-z0-9-]{1,64}")


@dataclass(frozen=True, slots=True)
class Started:
    """The first record. ``boundary`` marks untrusted text in this run. ``at``: seconds since the epoch."""

    kind: ClassVar[str] = "run"
    run_id: str
    workspace: str
    model: str
    boundary: str
    at: float
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class ContextLoaded:
    """Untrusted text that was read from the workspace and shown to the model. ``bytes`` is the file's own size."""

    kind: ClassVar[str] = "context"
    source: str
    text: str
    sha256: str
    bytes: int
    cut: bool


@dataclass(frozen=True, slots=True)
class Asked:
    """What the person said."""

    kind: ClassVar[str] = "user"
    text: str


@dataclass(frozen=True, slots=True)
class Answered:
    """What the model said, and the calls it proposed, each under an id of ours."""

    kind: ClassVar[str] = "assistant"
    text: str
    calls: tuple[ModelCall, ...]
    stop: str
    usage: Usage
    model: str


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call waits for the answer to ``approval_id``."""

    kind: ClassVar[str] = "waiting"
    call_id: str
    approval_id: str


@dataclass(frozen=True, slots=True)
class Resulted:
    """The result of a call. ``note`` is the loop's word to the model; ``changed``: it may have changed the world."""

    kind: ClassVar[str] = "result"
    call_id: str
    status: Status
    reason: str | None
    text: str
    tool: str
    duration_ms: float
    changed: bool
    edited_arguments: Mapping[str, Any] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Summarised:
    """Records before number ``until`` (0 is the first) are shown to the model as ``text`` from here on."""

    kind: ClassVar[str] = "summary"
    text: str
    until: int
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ended:
    """The run stopped; another prompt, or an answer, may go on with it."""

    kind: ClassVar[str] = "end"
    stop: str
    detail: str


Record: TypeAlias = Started | ContextLoaded | Asked | Answered | Waiting | Resulted | Summarised | Ended
_KINDS: dict[str, type[Any]] = {
    kind.kind: kind for kind in (Started, ContextLoaded, Asked, Answered, Waiting, Resulted, Summarised, Ended)
}


def resulted(call_id: str, outcome: ToolOutcome, *, changed: bool) -> Resulted:
    """The record of an outcome."""
    return Resulted(
        call_id,
        outcome.status,
        None if outcome.reason is None else outcome.reason.value,
        outcome.text,
        outcome.tool,
        outcome.duration_ms,
        changed,
        outcome.edited_arguments,
    )


# ── records and JSON ─────────────────────────────────────────────────────────────────────────────────────────────


def record_to_json(record: Record) -> dict[str, Any]:
    """One record as plain JSON data."""
    data = {name: getattr(record, name) for name in record.__dataclass_fields__ if name != "kind"}
    if isinstance(record, (Answered, Summarised)):
        data["usage"] = record.usage.to_json()
    if isinstance(record, Answered):
        data["calls"] = [
            {"call_id": call.call_id, "name": call.name, "arguments": call.arguments, "provider_id": call.provider_id}
            for call in record.calls
        ]
    return {"record": record.kind, **data}


def record_from_json(data: Mapping[str, Any]) -> Record:
    """The inverse of :func:`record_to_json`. Raises :class:`ValueError`, :class:`KeyError` or :class:`TypeError`."""
    fields = dict(data)
    kind = _KINDS[fields.pop("record")]
    if "usage" in fields:
        fields["usage"] = Usage.from_json(fields["usage"])
    if kind is Answered:
        fields["calls"] = tuple(ModelCall(**call) for call in fields["calls"])
    return cast("Record", kind(**fields))


def encode_line(record: Record) -> bytes:
    """One line of the file. Lone surrogates, which a broken provider can send, are replaced."""
    return _ENCODER.encode(record_to_json(record)).encode("utf-8", "replace") + b"\n"


def decode_lines(raw: bytes, where: str) -> tuple[list[Record], int]:
    """The records of a file, and how many of its bytes hold them; the rest is a torn tail (rule 2).

    Raises :class:`TranscriptError` naming the line for any other damage (rules 2 and 3).
    """
    whole = raw.rfind(b"\n") + 1
    records: list[Record] = []
    for number, line in enumerate(raw[:whole].splitlines(keepends=False), start=1):
        try:
            data = json.loads(line)
            other = data.get("version", VERSION)  # of a first record: another version may say anything beside it
            if other == VERSION:
                records.append(record_from_json(data))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise TranscriptError(f"{where}:{number}: damaged record: {error}") from None
        if other != VERSION:
            raise TranscriptError(
                f"{where} was written by another version of Handrail (format {other!r}; this one reads {VERSION})"
            )
    problem = what_is_wrong(records)
    if problem is not None:
        raise TranscriptError(f"{where}:{problem[0] + 1}: {problem[1]}")
    return records, whole


def what_is_wrong(records: Sequence[Record]) -> tuple[int, str] | None:
    """The first record (counted from 0) that breaks the rules, and why; ``None`` for a sound transcript."""
    open_calls: set[str] = set()
    known: set[str] = set()
    for index, record in enumerate(records):
        if (index == 0) != isinstance(record, Started):
            return index, "a transcript starts with one 'run' record"
        if isinstance(record, Answered):
            ids = [call.call_id for call in record.calls]
            if len(set(ids)) != len(ids) or known & set(ids) or "" in ids:
                return index, "a call id is used twice"
            known |= set(ids)
            open_calls |= set(ids)
        elif isinstance(record, (Resulted, Waiting)):
            if record.call_id not in open_calls:
                return index, f"the call {record.call_id!r} is not open here"
            if isinstance(record, Resulted):
                open_calls.discard(record.call_id)
        elif isinstance(record, Asked) and open_calls:
            return index, "a prompt stands between a call and its result"
    return None


# ── where transcripts are kept ───────────────────────────────────────────────────────────────────────────────────


class TranscriptStore(Protocol):
    """Where runs are kept. Raises :class:`TranscriptError`."""

    def create(self, run_id: str) -> "Transcript": ...

    def open(self, run_id: str) -> "Transcript":
        """A run to go on with, records and all."""
        ...


@dataclass(slots=True)
class Transcript:
    """One run's records, and the way to add one. Close it to let another process go on with the run."""

    records: list[Record]
    keep: Callable[[bytes, bool], None]
    close: Callable[[], None] = field(default=lambda: None)

    def append(self, *records: Record, durable: bool = True) -> None:
        """Add records, all in one write, and flush it; ``durable=False`` leaves that to the next flush (rule 5)."""
        if records:
            self.keep(b"".join(encode_line(record) for record in records), durable)
            self.records.extend(records)


class MemoryTranscripts:
    """Runs that live as long as this object. Nothing survives the process."""

    def __init__(self) -> None:
        self._kept: dict[str, bytearray] = {}

    def create(self, run_id: str) -> Transcript:
        """A new, empty run."""
        self._kept[run_id] = bytearray()
        return Transcript([], self._keep_in(run_id))

    def open(self, run_id: str) -> Transcript:
        """A run made here before."""
        if run_id not in self._kept:
            raise TranscriptError(f"there is no run {run_id!r}")
        records, _ = decode_lines(bytes(self._kept[run_id]), run_id)
        return Transcript(records, self._keep_in(run_id))

    def _keep_in(self, run_id: str) -> Callable[[bytes, bool], None]:
        return lambda data, _: self._kept[run_id].extend(data)


def default_transcript_directory() -> str:
    """The user's private state directory: never the workspace."""
    return os.path.join(platformdirs.user_state_dir("handrail"), "runs")


class FileTranscripts:
    """Runs as ``RUN.jsonl`` in one private directory (0700; files 0600)."""

    def __init__(self, directory: str | None = None) -> None:
        self.directory = directory if directory is not None else default_transcript_directory()

    def create(self, run_id: str) -> Transcript:
        """A new run: its file and its name in the directory are durable when the first record is."""
        with self._usable(run_id), self._directory() as parent:
            fd = private.open_file(self._name(run_id), _WRITE | os.O_EXCL, directory=parent)
            os.fsync(parent)
        return self._locked(fd, run_id)

    def open(self, run_id: str) -> Transcript:
        """A run to go on with; a torn tail is cut off now."""
        with self._usable(run_id), self._directory() as parent:
            try:
                fd = os.open(self._name(run_id), _WRITE, dir_fd=parent)
            except FileNotFoundError:
                raise TranscriptError(f"there is no run {run_id!r} in {self.directory}") from None
        transcript = self._locked(fd, run_id)
        try:
            with self._usable(run_id):
                transcript.records.extend(_mended(fd, os.path.join(self.directory, self._name(run_id))))
        except BaseException:
            transcript.close()
            raise
        return transcript

    def latest(self) -> list[tuple[str, float]]:
        """Run ids and when each was last written (seconds since the epoch), newest first."""
        with self._usable("*"), self._directory() as parent:
            found = [
                (name.removesuffix(".jsonl"), os.stat(name, dir_fd=parent).st_mtime)
                for name in os.listdir(parent)
                if name.endswith(".jsonl")
            ]
        return sorted(found, key=lambda item: item[1], reverse=True)

    @contextmanager
    def _directory(self) -> Generator[int]:
        parent = open_private_directory(self.directory)
        try:
            yield parent
        finally:
            os.close(parent)

    @contextmanager
    def _usable(self, run_id: str) -> Generator[None]:
        """What the system refuses is said of the run, in one sentence."""
        try:
            yield
        except OSError as error:
            where = os.path.join(self.directory, f"{run_id}.jsonl")
            raise TranscriptError(f"{where}: {error.strerror or error}") from None

    @staticmethod
    def _name(run_id: str) -> str:
        if not _RUN_ID.fullmatch(run_id):
            raise TranscriptError(f"{run_id!r} is not a run id")
        return f"{run_id}.jsonl"

    @staticmethod
    def _locked(fd: int, run_id: str) -> Transcript:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise TranscriptError(f"the run {run_id!r} is in use by another process") from None
        file = _File(fd, run_id)
        return Transcript([], file.keep, file.close)


_WRITE = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(slots=True)
class _File:
    """An open run file. After one failed write or flush it takes no more: nothing after that could be trusted."""

    fd: int
    run_id: str
    failed: bool = False

    def keep(self, data: bytes, durable: bool) -> None:
        if self.fd < 0 or self.failed:
            raise TranscriptError(f"the transcript of run {self.run_id!r} is closed or failed before")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self.fd, rest) :]
            if durable:
                os.fdatasync(self.fd)
        except OSError as error:
            self.failed = True
            raise TranscriptError(f"the transcript of run {self.run_id!r}: {error.strerror}") from None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _mended(fd: int, where: str) -> list[Record]:
    """The records of an open file, its torn tail cut off."""
    raw = _read_all(fd)
    records, whole = decode_lines(raw, where)
    if not records:
        raise TranscriptError(f"{where}: the run stopped before its first record; there is nothing to resume")
    if whole != len(raw):
        os.ftruncate(fd, whole)
        os.fsync(fd)
    return records


def _read_all(fd: int) -> bytes:
    parts: list[bytes] = []
    while part := os.pread(fd, 1 << 20, sum(map(len, parts))):
        parts.append(part)
    return b"".join(parts)


def started(run_id: str, workspace: str, model: str, boundary: str) -> Started:
    """The first record, dated now."""
    return Started(run_id, workspace, model, boundary, time.time())
