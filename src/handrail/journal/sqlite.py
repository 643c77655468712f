"""The journal in one SQLite file: the embedded default, for one machine and any number of processes.

1. The file lies in the user's private state directory, never in the workspace; one file for each workspace.
2. WAL with ``synchronous=FULL``: a commit returns after its frames were flushed. A torn tail of the WAL is cut by
   SQLite; damage elsewhere is :class:`~handrail.errors.JournalCorrupt`.
3. Writers of all processes take turns at a lock file, in order of arrival, so that none waits for more than the
   commits of those before it; readers wait for nobody.
4. The SQLite inside ``apsw`` is 3.51.3 or newer: older ones can corrupt a WAL that is reset between two connections.
"""

import fcntl
import hashlib
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import apsw
import platformdirs

from handrail import faults, private
from handrail.errors import ConfigurationError, JournalCorrupt, JournalError, JournalPoisoned
from handrail.journal import leases
from handrail.journal.ledger import ApprovalRow, CallRow, GrantRow, Operation, Page
from handrail.journal.records import Head, Record, encode, extended, opening_data
from handrail.journal.stored import StoredJournal
from handrail.outcome import ToolOutcome

SCHEMA_VERSION = 1
APPLICATION_ID = 0x48524A31  # "HRJ1"
OLDEST_SQLITE = (3, 51, 3)
CHUNK = 2_000

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE head (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    sequence INTEGER NOT NULL, hash BLOB NOT NULL,
    base_sequence INTEGER NOT NULL, base_hash BLOB NOT NULL
) STRICT;
CREATE TABLE record (
    sequence INTEGER PRIMARY KEY, call_id TEXT NOT NULL, body BLOB NOT NULL, hash BLOB NOT NULL
) STRICT;
CREATE INDEX record_of_call ON record (call_id) WHERE call_id <> '';
CREATE TABLE call (
    call_id TEXT PRIMARY KEY, state TEXT NOT NULL, executor TEXT NOT NULL, epoch INTEGER NOT NULL,
    intent INTEGER NOT NULL, ended INTEGER NOT NULL, status TEXT NOT NULL, approval_id TEXT NOT NULL,
    commit_state TEXT NOT NULL, resolved INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX call_not_over ON call (state) WHERE ended = 0;
CREATE TABLE approval (
    approval_id TEXT PRIMARY KEY, call_id TEXT NOT NULL, parked INTEGER NOT NULL, answered INTEGER NOT NULL,
    verdict TEXT NOT NULL, used INTEGER NOT NULL, expires_at REAL NOT NULL, binding TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX approval_waiting ON approval (parked) WHERE used = 0;
CREATE TABLE grant_given (
    grant_id TEXT PRIMARY KEY, session TEXT NOT NULL, granted INTEGER NOT NULL, revoked_at REAL
) STRICT, WITHOUT ROWID;
"""

_CALL = "call_id, state, executor, epoch, intent, ended, status, approval_id, commit_state, resolved"
_APPROVAL = "approval_id, call_id, parked, answered, verdict, used, expires_at, binding"

_FIND_HEAD = "SELECT sequence, hash FROM head"
_FIND_CALL = f"SELECT {_CALL} FROM call WHERE call_id = ?"  # noqa: S608 - constants, as below
_FIND_APPROVAL = f"SELECT {_APPROVAL} FROM approval WHERE approval_id = ?"  # noqa: S608
_FIND_GRANT = "SELECT grant_id, session, granted, revoked_at FROM grant_given WHERE grant_id = ?"
_PUT_RECORD = "INSERT INTO record VALUES (?,?,?,?)"
_PUT_CALL = f"REPLACE INTO call ({_CALL}) VALUES (?,?,?,?,?,?,?,?,?,?)"  # noqa: S608
_PUT_APPROVAL = f"REPLACE INTO approval ({_APPROVAL}) VALUES (?,?,?,?,?,?,?,?)"  # noqa: S608
_PUT_GRANT = "REPLACE INTO grant_given VALUES (?,?,?,?)"
_PUT_HEAD = "UPDATE head SET sequence = ?, hash = ?"

_NEEDED = """
SELECT min(place) FROM (
    SELECT min(r.sequence) AS place FROM call c JOIN record r ON r.call_id = c.call_id AND r.call_id <> ''
        WHERE (c.ended = 0 OR c.ended > ? OR c.resolved > ?) AND r.sequence <= ?
    UNION ALL SELECT min(parked) FROM approval WHERE used = 0 AND parked <= ?
)
"""


def default_path(workspace: str) -> str:
    """Where the journal of a workspace lies (see the module's rule 1)."""
    name = hashlib.sha256(os.fsencode(os.path.realpath(workspace))).hexdigest()[:16]
    return os.path.join(platformdirs.user_state_dir("handrail"), "journal", f"{name}.sqlite")


class Understood:
    """Turns SQLite's errors into ours. Keeps nothing, so one may be entered again and again (each call enters six)."""

    __slots__ = ("_doing",)

    def __init__(self, doing: str) -> None:
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            return
        if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
            raise JournalCorrupt(f"the journal file is damaged ({self._doing}): {error}") from error
        if isinstance(error, apsw.Error):
            raise JournalError(f"the journal file cannot be used ({self._doing}): {error}") from error
        if isinstance(error, (TypeError, ValueError, OverflowError)):  # a damaged file can hold any type anywhere
            raise JournalCorrupt(f"the journal file is damaged ({self._doing}): {error}") from error


_OPENING, _READING, _WRITING, _FLUSHING = (Understood(doing) for doing in ("opening", "reading", "writing", "flushing"))


def connected(path: str, *, vfs: str | None = None) -> Any:
    """An ``apsw.Connection`` with the settings of rule 2 (``Any``: its stubs leave the values of a row unknown)."""
    if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < OLDEST_SQLITE:
        raise ConfigurationError(f"SQLite {apsw.sqlite_lib_version()} can corrupt a journal; install a newer apsw")
    connection: Any = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE, vfs=vfs)
    connection.set_busy_timeout(10_000)
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "cell_size_check=ON", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    return connection


class SqliteStore:
    """The writing side. Its methods are called by one thread, the writer's."""

    beat_every = None

    def __init__(self, path: str, *, vfs: str | None = None) -> None:
        self.path = path
        self.executor = str(uuid.uuid4())
        _make_private(path)
        with ExitStack() as undone:  # what fails on the way leaves nothing open
            self._turn = _Turn(path)
            undone.callback(self._turn.close)
            with _OPENING, self._turn:
                self._connection = connected(path, vfs=vfs)
                undone.callback(self._connection.close)
                self.journal_id, self.salt = _prepared(self._connection, path)
                # A lease is made and swept in turn only: one that is not locked yet must not be taken for a dead one.
                leases.sweep(lease_directory(path), _owners(self._connection))
                self._lease = leases.Lease(lease_directory(path), self.executor)
                undone.callback(self._lease.release)
            _sync_directory(path)
            undone.pop_all()

    def load(self, operations: list[Operation]) -> Page:
        """Begin a transaction and read what the operations name."""
        self._turn.take()
        with _READING:
            self._connection.execute("BEGIN IMMEDIATE")
            page = Page(_head(self._connection))
            for operation in operations:
                self._load_one(page, operation)
            return page

    def _load_one(self, page: Page, operation: Operation) -> None:
        for call_id in operation.calls:
            row = page.calls.get(call_id) or _call(self._connection, call_id)
            if row is not None:
                page.calls[call_id] = row
                self._load_approval(page, row.approval_id)
        for approval_id in operation.approvals:
            self._load_approval(page, approval_id)
        for grant_id in operation.grants:
            found = self._connection.execute(_FIND_GRANT, (grant_id,)).fetchone()
            if found is not None:
                page.grants[grant_id] = _grant_row(found)

    def _load_approval(self, page: Page, approval_id: str) -> None:
        if approval_id and approval_id not in page.approvals:
            row = _approval(self._connection, approval_id)
            if row is not None:
                page.approvals[approval_id] = row

    def commit(self, page: Page) -> None:
        """Write the page and flush it."""
        run = self._connection.execute
        with _WRITING:
            for record, call_id in page.added:
                run(_PUT_RECORD, (record.sequence, call_id, record.body, record.hash))
            for call_id in page.changed_calls:
                run(_PUT_CALL, page.calls[call_id])
            for approval_id in page.changed_approvals:
                run(_PUT_APPROVAL, page.approvals[approval_id])
            for grant_id in page.changed_grants:
                run(_PUT_GRANT, page.grants[grant_id])
            run(_PUT_HEAD, (page.head.sequence, page.head.hash))
            if page.cut is not None:
                cut = page.cut.sequence
                run("DELETE FROM record WHERE sequence <= ?", (cut,))
                run("DELETE FROM call WHERE ended BETWEEN 1 AND ? AND resolved <= ?", (cut, cut))
                run(
                    "DELETE FROM approval WHERE used = 1 AND parked <= ? AND call_id NOT IN (SELECT call_id FROM call)",
                    (cut,),
                )
                run("DELETE FROM grant_given WHERE revoked_at IS NOT NULL AND granted <= ?", (cut,))
                run("UPDATE head SET base_sequence = ?, base_hash = ?", (cut, page.cut.hash))
        faults.point("journal.flush.before")
        try:
            with _FLUSHING:
                run("COMMIT")
        except JournalError as error:
            if isinstance(error.__cause__, (apsw.IOError, apsw.CorruptError)):
                raise JournalPoisoned(f"a flush failed, and nobody knows what is on the disk: {error}") from error
            raise
        self._turn.leave()

    def rollback(self) -> None:
        """Leave the transaction."""
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except apsw.Error:  # SQLite has rolled back by itself, or cannot; the next BEGIN will say so
            pass
        finally:
            self._turn.leave()

    def beat(self) -> None:
        """The kernel knows who lives."""

    def close(self) -> None:
        """Close the file and the sign of life."""
        self._turn.leave()
        try:
            self._connection.close()
        except apsw.Error:  # nothing is lost: what was committed is in the file
            pass
        self._lease.release()
        self._turn.close()


class SqliteReader:
    """The reading side, on a connection of its own. One caller at a time; a lock sees to it."""

    def __init__(self, path: str, *, vfs: str | None = None) -> None:
        if not os.path.exists(path):
            raise JournalError(f"there is no journal at {path}")
        self.path = path
        self._lock = threading.Lock()
        with ExitStack() as undone, _OPENING:
            self._connection = connected(path, vfs=vfs)
            undone.callback(self._connection.close)
            _check_version(self._connection, path)
            self._connection.execute("PRAGMA query_only=1").fetchall()
            undone.pop_all()

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with self._lock, _READING:
            return self._connection.execute(sql, values).fetchall()

    def meta(self) -> dict[str, str]:
        """The journal's id and salt."""
        return dict(self._rows("SELECT key, value FROM meta"))

    def head(self) -> Head:
        """The last record's place and hash, as the file says."""
        with self._lock, _READING:
            return _head(self._connection)

    def base(self) -> Head:
        """Where the kept records begin: the last that retention dropped."""
        found = self._rows("SELECT base_sequence, base_hash FROM head")
        if not found:
            raise JournalCorrupt("the journal file has no head")
        return Head(*_typed(found[0], (int, bytes), "the head"))

    def call(self, call_id: str) -> CallRow | None:
        """Where a call stands."""
        with self._lock, _READING:
            return _call(self._connection, call_id)

    def is_surely_new(self, call_id: str) -> bool:
        """Whether no call has this id. ``False`` too where the answer would have to be waited for.

        One look at an index, and a SQLite reader waits for no writer: short enough for an event loop's own thread.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            with _READING:
                return _call(self._connection, call_id) is None
        finally:
            self._lock.release()

    def calls_not_over(self) -> list[CallRow]:
        """Every call without an end."""
        return [_call_row(row) for row in self._rows(f"SELECT {_CALL} FROM call WHERE ended = 0")]  # noqa: S608 - a constant

    def approval(self, approval_id: str) -> ApprovalRow | None:
        """Where an approval stands."""
        with self._lock, _READING:
            return _approval(self._connection, approval_id)

    def approvals_unused(self) -> list[ApprovalRow]:
        """Every approval that was not used, oldest first."""
        rows = self._rows(f"SELECT {_APPROVAL} FROM approval WHERE used = 0 ORDER BY parked")  # noqa: S608 - a constant
        return [_approval_row(row) for row in rows]

    def grants(self) -> list[GrantRow]:
        """Every grant, oldest first."""
        rows = self._rows("SELECT grant_id, session, granted, revoked_at FROM grant_given ORDER BY granted")
        return [_grant_row(row) for row in rows]

    def record(self, sequence: int) -> Record | None:
        """One record."""
        found = self._rows("SELECT sequence, body, hash FROM record WHERE sequence = ?", (sequence,))
        return _record(found[0]) if found else None

    def records_of(self, call_id: str) -> list[Record]:
        """The records of one call."""
        sql = "SELECT sequence, body, hash FROM record WHERE call_id = ? AND call_id <> '' ORDER BY sequence"
        return [_record(row) for row in self._rows(sql, (call_id,))]

    def records(self, after: int = 0) -> Iterator[Record]:
        """The records behind a place, in order. Reads piecewise, so that it holds up no checkpoint."""
        while True:
            sql = "SELECT sequence, body, hash FROM record WHERE sequence > ? ORDER BY sequence LIMIT ?"
            rows = self._rows(sql, (after, CHUNK))
            yield from map(_record, rows)
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def rows_of_calls(self) -> Iterator[CallRow]:
        """Every call's row, by id, piecewise."""
        return map(_call_row, self._by_id(f"SELECT {_CALL} FROM call WHERE call_id > ? ORDER BY call_id LIMIT ?"))  # noqa: S608 - a constant

    def rows_of_approvals(self) -> Iterator[ApprovalRow]:
        """Every approval's row, by id, piecewise."""
        sql = f"SELECT {_APPROVAL} FROM approval WHERE approval_id > ? ORDER BY approval_id LIMIT ?"  # noqa: S608 - a constant
        return map(_approval_row, self._by_id(sql))

    def _by_id(self, sql: str) -> Iterator[Any]:
        after = ""
        while True:
            rows = self._rows(sql, (after, CHUNK))
            yield from rows
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def needed_before(self, cut: int) -> int | None:
        """The first record at or before ``cut`` that a call or question which goes on behind it still needs."""
        found = self._rows(_NEEDED, (cut, cut, cut, cut))
        return found[0][0]

    def is_alive(self, executor: str) -> bool:
        """Whether the process behind an executor's id runs."""
        return leases.is_alive(lease_directory(self.path), executor)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()


class SqliteJournal(StoredJournal):
    """The journal at ``path``, made if it is not there; :func:`default_path` says where one belongs.

    ``secret_names`` and ``clock`` as for :class:`~handrail.journal.stored.StoredJournal`; ``vfs`` names a registered
    SQLite VFS, for tests. Raises :class:`~handrail.errors.JournalError` where it cannot be used.
    """

    def __init__(
        self,
        path: str,
        *,
        secret_names: Collection[str] = (),
        clock: Callable[[], float] = time.time,
        vfs: str | None = None,
    ) -> None:
        self.path = path
        store = SqliteStore(path, vfs=vfs)
        try:
            self._sqlite = SqliteReader(path, vfs=vfs)
        except BaseException:
            store.close()
            raise
        super().__init__(store, self._sqlite, secret_names=secret_names, clock=clock)

    async def recorded_outcome(self, call_id: str) -> ToolOutcome | None:
        """The outcome a call was settled or refused with; a call that is new costs no way through another thread."""
        if self._sqlite.is_surely_new(call_id):
            return None
        return await super().recorded_outcome(call_id)


class _Turn:
    """The right to write, between processes, in order of arrival.

    Two locks: who holds ``next`` is the next to write, and gives it up when the turn comes. So a process that has just
    written cannot write again before one that already waits.
    """

    def __init__(self, path: str) -> None:
        self._next = private.open_file(path + ".next", os.O_RDWR)
        self._now = private.open_file(path + ".lock", os.O_RDWR)
        self._taken = False

    def take(self) -> None:
        fcntl.flock(self._next, fcntl.LOCK_EX)
        fcntl.flock(self._now, fcntl.LOCK_EX)
        fcntl.flock(self._next, fcntl.LOCK_UN)
        self._taken = True

    def leave(self) -> None:
        if self._taken:
            self._taken = False
            fcntl.flock(self._now, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._next)
        os.close(self._now)

    def __enter__(self) -> None:
        self.take()

    def __exit__(self, *_: object) -> None:
        self.leave()


def lease_directory(path: str) -> str:
    """Where the processes that write to this journal show that they live."""
    return path + ".live"


def _make_private(path: str) -> None:
    """The file, readable by its owner only, in a directory that is."""
    directory = os.path.dirname(os.path.abspath(path))
    try:
        private.make_directories(directory)
        os.close(private.open_file(path, os.O_RDWR))
    except OSError as error:
        raise JournalError(f"the journal cannot be made at {path}: {error}") from error


def _sync_directory(path: str) -> None:
    fd = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _prepared(connection: Any, path: str) -> tuple[str, str]:
    """Make the tables and the first record if there are none; returns the journal's id and its salt."""
    if (
        _scalar(connection, "PRAGMA user_version") == 0
        and _scalar(connection, "SELECT count(*) FROM sqlite_schema") == 0
    ):
        journal_id, salt = str(uuid.uuid4()), os.urandom(16).hex()
        first = extended(Head(), encode(opening_data(journal_id)))
        with connection:
            connection.execute(_SCHEMA).fetchall()
            connection.execute("INSERT INTO meta VALUES ('id', ?), ('salt', ?)", (journal_id, salt))
            connection.execute("INSERT INTO record VALUES (1, '', ?, ?)", (first.body, first.hash))
            connection.execute("INSERT INTO head VALUES (1, 1, ?, 0, ?)", (first.hash, Head().hash))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}").fetchall()
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}").fetchall()
    _check_version(connection, path)
    meta = dict(connection.execute("SELECT key, value FROM meta").fetchall())
    if not {"id", "salt"} <= meta.keys():
        raise JournalCorrupt("the journal file does not say which journal it is")
    return meta["id"], meta["salt"]


def _owners(connection: Any) -> frozenset[str]:
    """The executors that own a call which is not over."""
    rows = connection.execute("SELECT DISTINCT executor FROM call WHERE ended = 0").fetchall()
    return frozenset(str(row[0]) for row in rows)


def _check_version(connection: Any, path: str) -> None:
    marks = _scalar(connection, "PRAGMA application_id"), _scalar(connection, "PRAGMA user_version")
    if marks[0] != APPLICATION_ID:
        raise JournalError(f"{path} is no journal of Handrail")
    if marks[1] != SCHEMA_VERSION:
        raise JournalError(
            f"{path} was written by another version of Handrail (format {marks[1]}; this one reads {SCHEMA_VERSION})"
        )


def _scalar(connection: Any, sql: str) -> Any:
    return connection.execute(sql).fetchone()[0]


def _head(connection: Any) -> Head:
    found = connection.execute(_FIND_HEAD).fetchone()
    if found is None:
        raise JournalCorrupt("the journal file has no head")
    return Head(*_typed(found, (int, bytes), "the head"))


def _call(connection: Any, call_id: str) -> CallRow | None:
    found = connection.execute(_FIND_CALL, (call_id,)).fetchone()
    return None if found is None else _call_row(found)


def _approval(connection: Any, approval_id: str) -> ApprovalRow | None:
    found = connection.execute(_FIND_APPROVAL, (approval_id,)).fetchone()
    return None if found is None else _approval_row(found)


def _call_row(row: Collection[Any]) -> CallRow:
    return CallRow(*_typed(row, (str, str, str, int, int, int, str, str, str, int), "a call"))


def _approval_row(row: Any) -> ApprovalRow:
    kinds = (str, str, int, int, str, int, float, str)
    approval_id, call_id, parked, answered, verdict, used, expires_at, binding = _typed(row, kinds, "an approval")
    if used not in (0, 1):
        raise JournalCorrupt("the journal file is damaged: an approval is neither used nor unused")
    return ApprovalRow(approval_id, call_id, parked, answered, verdict, bool(used), expires_at, binding)


def _grant_row(row: Any) -> GrantRow:
    revoked_at = row[-1]
    return GrantRow(*_typed(row, (str, str, int, float if revoked_at is not None else type(None)), "a grant"))


def _typed(row: Any, kinds: tuple[type, ...], what: str) -> Any:
    """The row, if its values are of these types: a damaged file can hold anything anywhere."""
    if tuple(map(type, row)) != kinds:
        raise JournalCorrupt(f"the journal file is damaged: a row holds {what} no more")
    return row


_RECORD_TYPES = (int, bytes, bytes)


def _record(row: Any) -> Record:
    return Record._make(_typed(row, _RECORD_TYPES, "a record"))
