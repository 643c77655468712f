"""The journal in PostgreSQL: many processes on many machines, the same rules (``ledger``) and records.

1. One chain for each journal name. A transaction locks the rows of the calls it names, in order of their ids, and then
   the chain's head; so two writers never wait for each other in a circle.
2. Who lives is told by leases that each writer renews; times are the server's. A lease that ran out is no proof of
   death: whoever takes a call over raises its epoch, and the former owner's late result is kept as evidence only.
3. Interrupted calls are claimed with ``FOR UPDATE SKIP LOCKED``: of several who recover, each gets other calls.
4. A server that does not flush (``fsync = off``) is refused; ``synchronous_commit`` is on in every session.
"""

import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg

from handrail import faults
from handrail.bounds import require_seconds
from handrail.errors import JournalCorrupt, JournalError
from handrail.journal.ledger import ApprovalRow, CallRow, GrantRow, Operation, Page
from handrail.journal.records import Head, Record, encode, extended, opening_data
from handrail.journal.stored import StoredJournal

LEASE_SECONDS = 30.0
CHUNK = 2_000
FORMAT = 1
"""Of the tables and records of one journal."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS handrail_head (
    journal text PRIMARY KEY, id text NOT NULL, salt text NOT NULL, sequence bigint NOT NULL, hash bytea NOT NULL,
    base_sequence bigint NOT NULL, base_hash bytea NOT NULL, format integer NOT NULL DEFAULT 1
);
ALTER TABLE handrail_head ADD COLUMN IF NOT EXISTS format integer NOT NULL DEFAULT 1;
CREATE TABLE IF NOT EXISTS handrail_record (
    journal text NOT NULL, sequence bigint NOT NULL, call_id text NOT NULL, body bytea NOT NULL, hash bytea NOT NULL,
    PRIMARY KEY (journal, sequence)
);
CREATE INDEX IF NOT EXISTS handrail_record_of_call ON handrail_record (journal, call_id) WHERE call_id <> '';
CREATE TABLE IF NOT EXISTS handrail_call (
    journal text NOT NULL, call_id text NOT NULL, state text NOT NULL, executor text NOT NULL, epoch bigint NOT NULL,
    intent bigint NOT NULL, ended bigint NOT NULL, status text NOT NULL, approval_id text NOT NULL,
    commit_state text NOT NULL, resolved bigint NOT NULL, PRIMARY KEY (journal, call_id)
);
CREATE INDEX IF NOT EXISTS handrail_call_not_over ON handrail_call (journal, intent) WHERE ended = 0;
CREATE TABLE IF NOT EXISTS handrail_approval (
    journal text NOT NULL, approval_id text NOT NULL, call_id text NOT NULL, parked bigint NOT NULL,
    answered bigint NOT NULL, verdict text NOT NULL, used boolean NOT NULL, expires_at double precision NOT NULL,
    binding text NOT NULL, PRIMARY KEY (journal, approval_id)
);
CREATE TABLE IF NOT EXISTS handrail_grant (
    journal text NOT NULL, grant_id text NOT NULL, session text NOT NULL, granted bigint NOT NULL,
    revoked_at double precision, PRIMARY KEY (journal, grant_id)
);
CREATE TABLE IF NOT EXISTS handrail_executor (
    executor text PRIMARY KEY, journal text NOT NULL, expires timestamptz NOT NULL
);
"""

_CALL = "call_id, state, executor, epoch, intent, ended, status, approval_id, commit_state, resolved"
_APPROVAL = "approval_id, call_id, parked, answered, verdict, used, expires_at, binding"

_PUT_CALL = """
INSERT INTO handrail_call VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s,%s,%s)
ON CONFLICT (journal, call_id) DO UPDATE SET state = EXCLUDED.state, executor = EXCLUDED.executor,
    epoch = EXCLUDED.epoch, intent = EXCLUDED.intent, ended = EXCLUDED.ended, status = EXCLUDED.status,
    approval_id = EXCLUDED.approval_id, commit_state = EXCLUDED.commit_state, resolved = EXCLUDED.resolved
"""
_PUT_APPROVAL = """
INSERT INTO handrail_approval VALUES (%s,%s,%s,%s,%s,%s,%s,%s,%s)
ON CONFLICT (journal, approval_id) DO UPDATE SET answered = EXCLUDED.answered, verdict = EXCLUDED.verdict,
    used = EXCLUDED.used
"""
_PUT_GRANT = """
INSERT INTO handrail_grant VALUES (%s,%s,%s,%s,%s)
ON CONFLICT (journal, grant_id) DO UPDATE SET granted = EXCLUDED.granted,
    revoked_at = EXCLUDED.revoked_at
"""
_NEEDED = """
SELECT least(
    (SELECT min(r.sequence) FROM handrail_call c JOIN handrail_record r
        ON r.journal = c.journal AND r.call_id = c.call_id AND r.call_id <> ''
        WHERE c.journal = %(journal)s AND (c.ended = 0 OR c.ended > %(cut)s OR c.resolved > %(cut)s)
            AND r.sequence <= %(cut)s),
    (SELECT min(parked) FROM handrail_approval WHERE journal = %(journal)s AND NOT used AND parked <= %(cut)s)
)
"""
_PRUNE = (
    "DELETE FROM handrail_record WHERE journal = %(journal)s AND sequence <= %(cut)s",
    "DELETE FROM handrail_call WHERE journal = %(journal)s AND ended BETWEEN 1 AND %(cut)s AND resolved <= %(cut)s",
    """DELETE FROM handrail_approval a WHERE journal = %(journal)s AND used AND parked <= %(cut)s
        AND NOT EXISTS (SELECT 1 FROM handrail_call c WHERE c.journal = a.journal AND c.call_id = a.call_id)""",
    "DELETE FROM handrail_grant WHERE journal = %(journal)s AND revoked_at IS NOT NULL AND granted <= %(cut)s",
    "UPDATE handrail_head SET base_sequence = %(cut)s, base_hash = %(hash)s WHERE journal = %(journal)s",
)


@contextmanager
def understood(doing: str) -> Generator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise JournalError(f"the journal's database cannot be used ({doing}): {error}") from error


class PostgresStore:
    """The writing side. Its methods are called by one thread, the writer's. A lost connection is made anew."""

    def __init__(self, dsn: str, name: str, lease_seconds: float) -> None:
        self._dsn, self._name, self._lease = dsn, name, lease_seconds
        self.executor = str(uuid.uuid4())
        self._connection: Any = None
        with ExitStack() as undone, understood("opening"):
            undone.callback(self._connected().close)
            self.journal_id, self.salt = self._prepared()
            self._renew()
            self._connection.commit()
            undone.pop_all()

    @property
    def beat_every(self) -> float:
        """A third of the lease: two renewals may be late before anybody takes our calls over."""
        return self._lease / 3

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            connection: Any = psycopg.connect(self._dsn)
            connection.execute("SET synchronous_commit = on")
            if connection.execute("SHOW fsync").fetchone() != ("on",):
                connection.close()
                raise JournalError("the database server does not flush (fsync = off), so nothing in it is durable")
            connection.commit()
            self._connection = connection
        return self._connection

    def _prepared(self) -> tuple[str, str]:
        run = self._connection.execute
        run("SELECT pg_advisory_xact_lock(hashtext('handrail journal'))")  # two who create the tables at once
        run(_SCHEMA)
        found = run("SELECT id, salt, format FROM handrail_head WHERE journal = %s", (self._name,)).fetchone()
        if found is not None:
            _check_format(self._name, found[2])
            found = found[:2]
        else:
            found = str(uuid.uuid4()), os.urandom(16).hex()
            first = extended(Head(), encode(opening_data(found[0])))
            run("INSERT INTO handrail_record VALUES (%s, 1, '', %s, %s)", (self._name, first.body, first.hash))
            run(
                "INSERT INTO handrail_head VALUES (%s, %s, %s, 1, %s, 0, %s, %s)",
                (self._name, *found, first.hash, Head().hash, FORMAT),
            )
        return found

    def _renew(self) -> None:
        self._connection.execute(
            "INSERT INTO handrail_executor VALUES (%s, %s, clock_timestamp() + %s * interval '1 second')"
            " ON CONFLICT (executor) DO UPDATE SET expires = EXCLUDED.expires",
            (self.executor, self._name, self._lease),
        )

    def beat(self) -> None:
        """Renew the lease. Where that fails the next renewal tries again; until then others may take over."""
        try:
            self._connected()
            self._renew()
            self._connection.commit()
        except (psycopg.Error, JournalError):
            self.rollback()

    def load(self, operations: list[Operation]) -> Page:
        """Lock the named rows and the head (rule 1), and read. A connection lost meanwhile is made anew, once."""
        with understood("reading"):
            return self._once_more_if_lost(lambda: self._load(operations))

    def _once_more_if_lost(self, load: Callable[[], Page]) -> Page:
        try:
            return load()
        except psycopg.OperationalError:
            if self._connection is not None and not self._connection.closed:
                raise
            return load()

    def _load(self, operations: list[Operation]) -> Page:
        run = self._connected().execute
        waited = {call for item in operations if not item.skip_locked for call in item.calls}
        skipped = {call for item in operations if item.skip_locked for call in item.calls} - waited
        calls = self._locked(run, waited, "") | self._locked(run, skipped, " SKIP LOCKED")
        head = run("SELECT sequence, hash FROM handrail_head WHERE journal = %s FOR UPDATE", (self._name,)).fetchone()
        if head is None:
            raise JournalCorrupt(f"the journal {self._name!r} has no head")
        page = Page(Head(*head), calls=calls)
        if missing := waited - calls.keys():  # made by somebody else before we had the head
            page.calls |= self._locked(run, missing, "")
        approvals = {item for operation in operations for item in operation.approvals}
        approvals |= {row.approval_id for row in page.calls.values() if row.approval_id}
        if approvals:
            sql = f"SELECT {_APPROVAL} FROM handrail_approval WHERE journal = %s AND approval_id = ANY(%s)"  # noqa: S608 - a constant
            for row in run(sql, (self._name, list(approvals))):
                page.approvals[row[0]] = ApprovalRow(*row)
        grants = {item for operation in operations for item in operation.grants}
        if grants:
            sql = (
                "SELECT grant_id, session, granted, revoked_at FROM handrail_grant"
                " WHERE journal = %s AND grant_id = ANY(%s)"
            )
            for row in run(sql, (self._name, list(grants))):
                page.grants[row[0]] = GrantRow(*row)
        return page

    def _locked(self, run: Any, call_ids: Collection[str], how: str) -> dict[str, CallRow]:
        if not call_ids:
            return {}
        sql = (
            f"SELECT {_CALL} FROM handrail_call WHERE journal = %s AND call_id = ANY(%s)"  # noqa: S608 - constants
            f" ORDER BY call_id FOR UPDATE{how}"
        )
        return {row[0]: CallRow(*row) for row in run(sql, (self._name, list(call_ids)))}

    def commit(self, page: Page) -> None:
        """Write the page; the server flushes it."""
        with understood("writing"), self._connection.cursor() as cursor:
            name = self._name
            records = [(name, record.sequence, call_id, record.body, record.hash) for record, call_id in page.added]
            _many(cursor, "INSERT INTO handrail_record VALUES (%s,%s,%s,%s,%s)", records)
            _many(cursor, _PUT_CALL, ((name, *page.calls[item]) for item in page.changed_calls))
            _many(cursor, _PUT_APPROVAL, ((name, *page.approvals[item]) for item in page.changed_approvals))
            _many(cursor, _PUT_GRANT, ((name, *page.grants[item]) for item in page.changed_grants))
            cursor.execute(
                "UPDATE handrail_head SET sequence = %s, hash = %s WHERE journal = %s",
                (page.head.sequence, page.head.hash, name),
            )
            if page.cut is not None:
                for sql in _PRUNE:
                    cursor.execute(sql, {"journal": name, "cut": page.cut.sequence, "hash": page.cut.hash})
            faults.point("journal.flush.before")
            self._connection.commit()

    def rollback(self) -> None:
        """Leave the transaction; a broken connection is dropped and made anew at the next turn."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()

    def close(self) -> None:
        """Give the lease up and close the connection."""
        try:
            connection = self._connected()
            connection.execute("DELETE FROM handrail_executor WHERE executor = %s", (self.executor,))
            connection.commit()
            connection.close()
        except (psycopg.Error, JournalError):  # the lease runs out by itself
            pass


class PostgresReader:
    """The reading side, on a connection of its own. One caller at a time; a lock sees to it."""

    def __init__(self, dsn: str, name: str) -> None:
        self._dsn, self._name = dsn, name
        self._lock = threading.Lock()
        self._connection: Any = None

    def _rows(self, sql: str, *values: Any) -> list[Any]:
        return self._fetched(sql, values)

    def _fetched(self, sql: str, values: tuple[Any, ...] | dict[str, Any]) -> list[Any]:
        """All rows. A connection that turns out to be lost is made anew, once: reading twice is harmless."""
        with self._lock, understood("reading"):
            try:
                return self._connected().execute(sql, values).fetchall()
            except psycopg.OperationalError:
                if self._connection is not None and not self._connection.closed:
                    raise
                return self._connected().execute(sql, values).fetchall()

    def _connected(self) -> Any:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._dsn, autocommit=True)
        return self._connection

    def _one(self, sql: str, *values: Any) -> Any:
        found = self._rows(sql, *values)
        return found[0] if found else None

    def meta(self) -> dict[str, str]:
        """The journal's id and salt."""
        found = self._one("SELECT id, salt, format FROM handrail_head WHERE journal = %s", self._name)
        if found is None:
            raise JournalError(f"there is no journal {self._name!r} in this database")
        _check_format(self._name, found[2])
        return {"id": found[0], "salt": found[1]}

    def head(self) -> Head:
        """The last record's place and hash, as the database says."""
        return self._place("sequence, hash")

    def base(self) -> Head:
        """Where the kept records begin: the last that retention dropped."""
        return self._place("base_sequence, base_hash")

    def _place(self, columns: str) -> Head:
        found = self._one(f"SELECT {columns} FROM handrail_head WHERE journal = %s", self._name)  # noqa: S608 - a constant
        if found is None:
            raise JournalCorrupt(f"the journal {self._name!r} has no head")
        return Head(*found)

    def call(self, call_id: str) -> CallRow | None:
        """Where a call stands."""
        found = self._one(f"SELECT {_CALL} FROM handrail_call WHERE journal = %s AND call_id = %s", self._name, call_id)  # noqa: S608 - a constant
        return None if found is None else CallRow(*found)

    def calls_not_over(self) -> list[CallRow]:
        """Every call without an end."""
        sql = f"SELECT {_CALL} FROM handrail_call WHERE journal = %s AND ended = 0"  # noqa: S608 - a constant
        return [CallRow(*row) for row in self._rows(sql, self._name)]

    def approval(self, approval_id: str) -> ApprovalRow | None:
        """Where an approval stands."""
        sql = f"SELECT {_APPROVAL} FROM handrail_approval WHERE journal = %s AND approval_id = %s"  # noqa: S608 - a constant
        found = self._one(sql, self._name, approval_id)
        return None if found is None else ApprovalRow(*found)

    def approvals_unused(self) -> list[ApprovalRow]:
        """Every approval that was not used, oldest first."""
        sql = f"SELECT {_APPROVAL} FROM handrail_approval WHERE journal = %s AND NOT used ORDER BY parked"  # noqa: S608 - a constant
        return [ApprovalRow(*row) for row in self._rows(sql, self._name)]

    def grants(self) -> list[GrantRow]:
        """Every grant, oldest first."""
        sql = "SELECT grant_id, session, granted, revoked_at FROM handrail_grant WHERE journal = %s ORDER BY granted"
        return [GrantRow(*row) for row in self._rows(sql, self._name)]

    def record(self, sequence: int) -> Record | None:
        """One record."""
        sql = "SELECT sequence, body, hash FROM handrail_record WHERE journal = %s AND sequence = %s"
        found = self._one(sql, self._name, sequence)
        return None if found is None else _record(found)

    def records_of(self, call_id: str) -> list[Record]:
        """The records of one call."""
        sql = (
            "SELECT sequence, body, hash FROM handrail_record"
            " WHERE journal = %s AND call_id = %s AND call_id <> '' ORDER BY sequence"
        )
        return [_record(row) for row in self._rows(sql, self._name, call_id)]

    def records(self, after: int = 0) -> Iterator[Record]:
        """The records behind a place, in order, piecewise."""
        sql = (
            "SELECT sequence, body, hash FROM handrail_record"
            " WHERE journal = %s AND sequence > %s ORDER BY sequence LIMIT %s"
        )
        while True:
            rows = self._rows(sql, self._name, after, CHUNK)
            yield from (_record(row) for row in rows)
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def rows_of_calls(self) -> Iterator[CallRow]:
        """Every call's row, by id, piecewise."""
        sql = f"SELECT {_CALL} FROM handrail_call WHERE journal = %s AND call_id > %s ORDER BY call_id LIMIT %s"  # noqa: S608 - a constant
        return (CallRow(*row) for row in self._by_id(sql))

    def rows_of_approvals(self) -> Iterator[ApprovalRow]:
        """Every approval's row, by id, piecewise."""
        sql = (
            f"SELECT {_APPROVAL} FROM handrail_approval"  # noqa: S608 - a constant
            " WHERE journal = %s AND approval_id > %s ORDER BY approval_id LIMIT %s"
        )
        return (ApprovalRow(*row) for row in self._by_id(sql))

    def _by_id(self, sql: str) -> Iterator[Any]:
        after = ""
        while True:
            rows = self._rows(sql, self._name, after, CHUNK)
            yield from rows
            if len(rows) < CHUNK:
                return
            after = rows[-1][0]

    def needed_before(self, cut: int) -> int | None:
        """The first record at or before ``cut`` that a call or question which goes on behind it still needs."""
        return self._fetched(_NEEDED, {"journal": self._name, "cut": cut})[0][0]

    def is_alive(self, executor: str) -> bool:
        """Whether an executor's lease has not run out, by the server's clock."""
        return bool(
            self._rows("SELECT 1 FROM handrail_executor WHERE executor = %s AND expires > clock_timestamp()", executor)
        )

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()


class PostgresJournal(StoredJournal):
    """The journal ``name`` in the database that ``dsn`` names (a libpq connection string).

    ``lease_seconds``: how long an executor that gives no sign of life keeps its calls. Everything else as for
    :class:`~handrail.journal.stored.StoredJournal`. Raises :class:`~handrail.errors.JournalError`, and
    :class:`~handrail.errors.ConfigurationError` for a lease that cannot work.
    """

    def __init__(
        self,
        dsn: str,
        *,
        name: str = "default",
        lease_seconds: float = LEASE_SECONDS,
        secret_names: Collection[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        require_seconds("lease_seconds", lease_seconds)
        store = PostgresStore(dsn, name, lease_seconds)
        super().__init__(store, PostgresReader(dsn, name), secret_names=secret_names, clock=clock)


def _check_format(name: str, found: int) -> None:
    if found != FORMAT:
        raise JournalError(
            f"the journal {name!r} was written by another version of Handrail (format {found}; this one reads {FORMAT})"
        )


def _many(cursor: Any, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
    values = list(rows)
    if values:
        cursor.executemany(sql, values)


def _record(row: Any) -> Record:
    sequence, body, digest = row
    return Record(sequence, bytes(body), bytes(digest))
