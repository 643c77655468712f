"""Tampering, damage, retention and secrets, in a real journal file."""

import asyncio
import dataclasses
import json
import math
import random
import time

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.errors import JournalCorrupt, JournalError
from handrail.executor import ToolExecutor
from handrail.journal import audit, ledger
from handrail.journal.records import decode
from handrail.journal.secrets import Redactor
from handrail.journal.sqlite import SqliteJournal, SqliteReader
from handrail.journal.writer import CommitInDoubt
from handrail.parked import Answer, ParkedCall
from handrail.registry import ToolRegistry
from handrail.tool import RiskLevel, ToolDef
from journal_kit import grant, question

KEY = b"0123456789abcdef"
SECRET = {
    "type": "object",
    "properties": {"token": {"type": "string", "writeOnly": True}, "deep": {"$ref": "#/$defs/d"}},
    "$defs": {"d": {"type": "object", "properties": {"pin": {"writeOnly": True}}}},
}


def written(path, calls=3, **arguments):
    """A journal with some calls in it, closed."""

    async def scenario():
        journal = SqliteJournal(str(path), secret_names=("api_key",))
        tools = ToolRegistry()
        definition = ToolDef("pay", risk_level=RiskLevel.SAFE, parameters=SECRET)
        tools.register_from_def(definition, lambda args: f"done with {args.get('token')}")
        executor = ToolExecutor(tools, journal=journal)
        for _ in range(calls):
            await executor.execute("pay", arguments)
        journal.close()

    asyncio.run(scenario())
    return path


@pytest.fixture(scope="module")
def journal_file(tmp_path_factory):
    path = written(tmp_path_factory.mktemp("journal") / "j.sqlite")
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA journal_mode=DELETE").fetchall()  # everything in one file
    connection.close()
    return path.read_bytes()


def verified(path, signed=None):
    reader = SqliteReader(str(path))
    try:
        return audit.verify(reader, signed)
    finally:
        reader.close()


TAMPERINGS = {
    "flip": "UPDATE record SET body = replace(body, '\"at\":', '\"aT\":') WHERE sequence = ?1",
    "delete": "DELETE FROM record WHERE sequence = ?1",
    "swap": "UPDATE record SET body = (SELECT body FROM record WHERE sequence = (?1 % 7) + 1) WHERE sequence = ?1",
    "rehash": "UPDATE record SET hash = zeroblob(32) WHERE sequence = ?1",
}


@pytest.mark.promise("journal:audit:any-changed-record-is-named")
@pytest.mark.parametrize("sequence", range(1, 8))
@pytest.mark.parametrize("how", TAMPERINGS)
def test_any_changed_record_is_named(tmp_path, journal_file, how, sequence):
    path = tmp_path / "j.sqlite"
    path.write_bytes(journal_file)
    assert verified(path).records == 7
    connection = apsw.Connection(str(path))
    connection.execute(
        TAMPERINGS[how]
        .replace("replace(body", "CAST(replace(CAST(body AS TEXT)")
        .replace("'\"aT\":')", "'\"aT\":') AS BLOB)"),
        (sequence,),
    )
    connection.close()
    with pytest.raises(JournalCorrupt) as caught:
        verified(path)
    assert caught.value.sequence == sequence


@pytest.mark.promise("journal:audit:any-changed-record-is-named")
def test_a_cut_tail_is_named_by_the_head_and_a_rewritten_one_by_the_signed_head(tmp_path, journal_file):
    path = tmp_path / "j.sqlite"
    path.write_bytes(journal_file)
    found = verified(path)
    signed = audit.read_signed(json.dumps(audit.sign(found.journal_id, found.head, KEY).to_json()), KEY)
    assert verified(path, signed).signed == signed
    with pytest.raises(JournalCorrupt, match="does not fit"):
        audit.read_signed(json.dumps(signed.to_json()), b"another key, as long")
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM record WHERE sequence > 5")
    with pytest.raises(JournalCorrupt) as caught:
        verified(path)
    assert caught.value.sequence == 6
    connection.execute("DELETE FROM call WHERE ended > 5 OR intent > 5")
    connection.execute("UPDATE head SET sequence = 5, hash = (SELECT hash FROM record WHERE sequence = 5)")
    connection.close()
    assert verified(path).records == 5
    with pytest.raises(JournalCorrupt, match="was signed at 7"):
        verified(path, signed)


def whole_history(path):
    """A journal with a call, a question and a grant in each of the states they can be in, closed."""

    def end(call, kind="settled", status="ok", **more):
        return {"kind": kind, "call_id": call, "at": 4.0, "outcome": {"status": status}, **more}

    async def scenario():
        journal = SqliteJournal(str(path))
        me = journal.executor

        def begin(call, approval=None):
            intent = {"kind": "intent", "call_id": call, "at": 2.0, "approval": approval, "executor": me}
            return ledger.begin(intent, me, [])

        def yes(name):
            return ledger.answer(name, Answer(verdict="approve", by="ann", at=2.0), 2.0)

        for operation in (
            ledger.park(question("waits", 1), me, None, 1.0),
            ledger.park(question("waits", 2), me, None, 1.0),  # asked again
            ledger.park(question("told", 1), me, None, 1.0),
            yes("told-1"),
            ledger.park(question("refused", 1), me, None, 1.0),
            ledger.refuse("refused", end("refused", "refused", "error"), me, []),
            ledger.park(question("approved", 1), me, None, 1.0),
            yes("approved-1"),
            begin("approved", {"id": "approved-1", "binding": "b"}),
            begin("runs", {"id": "on the spot", "binding": "b"}),
            begin("unknown"),
            ledger.settle("unknown", end("unknown", status="unknown", epoch=1), me, 1),
            ledger.resolve("unknown", "happened", "ann", 5.0),
            begin("held"),
            ledger.park(question("held", 1), me, 1, 3.0),
            begin("committed"),
            ledger.park(question("committed", 1), me, 1, 3.0),
            ledger.park(question("committed", 2), me, 2, 3.0),
            yes("committed-2"),
            ledger.commit_begin("committed", "committed-2", "digest", executor=me, epoch=3, at=3.0),
            ledger.commit_end("committed", "digest", me, 3, 3.0),
            ledger.settle("committed", end("committed", epoch=3), me, 3),
            begin("late"),
            ledger.park(question("late", 1), me, 1, 3.0),
            ledger.expire("late", "late-1", end("late", "refused", "error"), 10.0),
            begin("claimed"),
            ledger.claim(["claimed"], lambda _: True, me, 3.0),
            ledger.add_grant(grant("lasting"), 1.0),
            ledger.add_grant(grant("ended"), 1.0),
            ledger.revoke_grant("ended", 2.0),
        ):
            await journal.writer.write(operation)
        journal.close()

    asyncio.run(scenario())
    return path


CHANGED = {str: lambda value: value + "x", int: lambda value: value + 1, float: lambda value: value + 1}
TABLES = ("call", "approval", "grant_given")
NOT_TOLD = {("call", "committed", "executor")}  # who ended a call that had waited for its commit


def changes_of(table, columns, row):
    """Each way to change one row: every column, its removal, and another like it."""
    key, name = columns[0], row[0]
    for column, value in zip(columns, row, strict=True):
        if (table, name, column) not in NOT_TOLD:
            other = 1.0 if value is None else CHANGED[type(value)](value)
            yield f"UPDATE {table} SET {column} = ? WHERE {key} = ?", (other, name)
    yield f"DELETE FROM {table} WHERE {key} = ?", (name,)
    yield f"INSERT INTO {table} SELECT ?, {', '.join(columns[1:])} FROM {table} WHERE {key} = ?", (f"{name}x", name)


@pytest.mark.promise("journal:audit:any-changed-record-is-named")
@pytest.mark.parametrize("table", TABLES)
def test_any_changed_removed_or_added_row_beside_the_chain_is_found(tmp_path, table):
    path = whole_history(tmp_path / "j.sqlite")
    verified(path)
    connection = apsw.Connection(str(path))
    columns = [found[1] for found in connection.execute(f"PRAGMA table_info({table})")]
    rows = connection.execute(f"SELECT * FROM {table}").fetchall()
    for row in rows:
        for change, values in changes_of(table, columns, row):
            connection.execute(change, values)
            assert connection.changes() == 1
            with pytest.raises(JournalCorrupt):
                verified(path)
            connection.execute(f"DELETE FROM {table}")
            connection.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(columns))})", rows)
    verified(path)


@pytest.mark.promise("journal:reader:fuzzed-bytes-never-crash")
def test_fuzzed_files_are_refused_or_read_and_never_crash(tmp_path, journal_file):
    chance = random.Random(7)
    path = tmp_path / "j.sqlite"
    refused = 0
    for _ in range(150):
        damaged = bytearray(journal_file)
        for _ in range(chance.randint(1, 20)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged[: chance.choice((len(damaged), chance.randrange(len(damaged))))])
        try:
            verified(path)
        except JournalError:
            refused += 1
    assert refused > 20


@pytest.mark.promise("journal:reader:fuzzed-bytes-never-crash")
@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_a_body_or_damage(body):
    try:
        read = decode(body, 1)
    except JournalCorrupt:
        return
    assert read == json.loads(body)


@pytest.mark.promise("journal:secrets:never-stored")
def test_no_secret_is_in_any_byte_of_the_journal(tmp_path):
    path = tmp_path / "j.sqlite"
    written(path, 1, token="hunter2-token", deep={"pin": "hunter2-pin"}, api_key="hunter2-key", other="kept")
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    assert b"kept" in stored
    assert b"hunter2" not in stored


def test_retention_keeps_the_chain_verifiable(tmp_path):
    path = written(tmp_path / "j.sqlite")

    async def prune():
        journal = SqliteJournal(str(path))
        cut = await journal.prune(before=1e12)
        journal.close()
        return cut

    assert asyncio.run(prune()).sequence == 7
    found = verified(path)
    assert (found.base.sequence, found.head.sequence, found.records) == (7, 8, 1)
    connection = apsw.Connection(str(path))
    connection.execute("DELETE FROM record WHERE sequence <= 8")
    connection.execute("UPDATE head SET base_sequence = 8, base_hash = hash")
    connection.close()
    with pytest.raises(JournalCorrupt, match="no retention says so"):
        verified(path)


HIDDEN = {
    "an anchor": {"properties": {"t": {"$ref": "#s"}}, "$defs": {"x": {"$anchor": "s", "writeOnly": True}}},
    "an escaped pointer": {"properties": {"t": {"$ref": "#/$defs/a%20b"}}, "$defs": {"a b": {"writeOnly": True}}},
    "draft-07 dependencies": {"dependencies": {"u": {"properties": {"t": {"writeOnly": True}}}}},
    "unevaluatedItems": {"properties": {"t": {"unevaluatedItems": {"writeOnly": True}}}},
    "a reference that leads elsewhere": {
        "properties": {"t": {"$ref": "other#x"}},
        "$defs": {"x": {"writeOnly": True}},
    },
}


@pytest.mark.parametrize("where", HIDDEN)
def test_a_secret_is_found_wherever_its_schema_declares_it(where):
    kept = Redactor(HIDDEN[where], (), "salt").redacted({"u": "plain", "t": ["hunter2-token"]})
    assert "hunter2" not in json.dumps(kept)
    assert kept["u"] == "plain"


def test_a_schema_without_secrets_hides_only_what_the_host_named():
    document = {"properties": {"t": {"$ref": "other#x"}}}
    kept = Redactor(document, {"key"}, "salt").redacted({"t": "plain", "key": "hunter2"})
    assert kept["t"] == "plain"
    assert "hunter2" not in json.dumps(kept)


def test_a_secret_of_several_lines_is_scrubbed_from_quotes_and_diffs():
    pem = "-----BEGIN KEY-----\nhunter2hunter2\n\thunter2-tail\n-----END KEY-----\n"
    redactor = Redactor({"properties": {"t": {"writeOnly": True}}}, (), "salt")
    redactor.redacted({"t": pem})
    diff = "".join(f"+{line}\n" for line in pem.splitlines())
    outcome = {"text": f"bad value {pem!r}", "changes": {"diff": diff}, "value": json.dumps({"t": pem})}
    assert "hunter2" not in json.dumps(redactor.scrubbed(outcome))


@pytest.mark.parametrize("at", [b"1" + b"0" * 400, b"1e999", b"true", b'"now"', b"-1" + b"0" * 4400])
def test_a_time_that_is_none_is_damage(at):
    with pytest.raises(JournalCorrupt):
        decode(b'{"at":' + at + b',"call_id":"","kind":"journal"}', 7)


def test_what_is_no_json_is_its_writers_own_fault_and_harms_no_neighbour(tmp_path):
    def question(name, expires_at):
        return ParkedCall(
            approval_id=name,
            call_id=f"call of {name}",
            tool="pay",
            arguments={},
            binding="b",
            question={},
            asked_at=0.0,
            expires_at=expires_at,
        )

    async def scenario():
        journal = SqliteJournal(str(tmp_path / "j.sqlite"))
        asked = [question("endless", math.inf), question("good", time.time() + 600)]
        writes = [journal.writer.write(ledger.park(item, journal.executor, None, 0.0)) for item in asked]
        results = await asyncio.gather(*writes, return_exceptions=True)
        waiting = await journal.list_parked()
        with pytest.raises(JournalError, match="cannot be recorded"):
            await journal.answer("good", Answer(verdict="modify", by="me", at=0.0, arguments={"x": math.nan}))
        again = dataclasses.replace(question("second", math.inf), call_id=asked[1].call_id)
        with pytest.raises(JournalError, match="cannot be recorded"):
            await journal.writer.write(ledger.park(again, journal.executor, None, 0.0))
        await journal.answer("good", Answer(verdict="approve", by="me", at=0.0))  # it still waits, unused
        journal.close()
        return results, waiting

    results, waiting = asyncio.run(scenario())
    assert isinstance(results[0], JournalError)
    assert not isinstance(results[0], CommitInDoubt)
    assert isinstance(results[1], int)
    assert [parked.approval_id for parked, _ in waiting] == ["good"]
    verified(tmp_path / "j.sqlite")
