"""``handrail journal``: show, verify, recover, settle, export, prune, sign."""

import asyncio
import getpass
import json
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from handrail.bounds import require_seconds
from handrail.cli.options import id_text
from handrail.cli.show import json_line, say
from handrail.errors import ConfigurationError, JournalError
from handrail.journal import audit
from handrail.journal.records import Record
from handrail.journal.recovering import Host, Recovered, recover
from handrail.journal.sqlite import SqliteJournal, SqliteReader, default_path
from handrail.wiring import Settings, open_house

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Show, verify, recover, settle and export the journal.")

WorkspaceOption = Annotated[str, typer.Option("--workspace", "-w", metavar="DIR", help="Whose journal.")]
JournalOption = Annotated[str | None, typer.Option("--journal", metavar="FILE", help="A journal file, instead.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
KeyOption = Annotated[str | None, typer.Option("--key", metavar="FILE", help="The file with the signing key.")]
KeyEnvOption = Annotated[
    str | None, typer.Option("--key-env", metavar="NAME", help="The variable that holds the signing key, instead.")
]
POLL_SECONDS = 0.2


def _path(workspace: str, journal: str | None) -> str:
    path = journal if journal is not None else default_path(workspace)
    if not os.path.exists(path):
        raise JournalError(f"there is no journal at {path}: nothing was recorded for {workspace}")
    return path


def _with_journal(path: str, steps: Callable[[SqliteJournal], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        journal = SqliteJournal(path)
        try:
            return await steps(journal)
        finally:
            journal.close()

    return asyncio.run(run())


@app.command()
def show(
    workspace: WorkspaceOption = ".",
    journal: JournalOption = None,
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Only the calls of one run.")] = None,
    call: Annotated[str | None, typer.Option("--call", metavar="CALL", help="Only one call.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as records come.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the records, oldest first."""
    reader = SqliteReader(_path(workspace, journal))
    calls_of_run: set[str] = set()
    after = reader.base().sequence
    while True:
        for record in reader.records(after):
            after = record.sequence
            data = record.data
            if run is not None and _run_of(data) == run:
                calls_of_run.add(data["call_id"])
            if (call is None or data["call_id"] == call) and (run is None or data["call_id"] in calls_of_run):
                say(_as_json(record) if as_json else _as_line(record))
        if not follow:
            break
        time.sleep(POLL_SECONDS)
    reader.close()


def _run_of(data: dict[str, Any]) -> Any:
    return data.get("origin", {}).get("run_id", data.get("run_id"))


def _as_json(record: Record) -> str:
    return json_line({"sequence": record.sequence, "hash": record.hash.hex(), **record.data})


def _as_line(record: Record) -> str:
    """One line for people. Everything that a model wrote is shown as JSON text, so it can draw nothing."""
    data = record.data
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(data["at"]))
    parts = [f"{record.sequence:>7}  {at}  {data['kind']:<12}", data["call_id"]]
    if data["kind"] == "intent":
        parts += [data["tool"], json.dumps(data["arguments"], sort_keys=True)[:200]]
    elif "outcome" in data:
        outcome = data["outcome"]
        reason = f" ({outcome['reason']})" if outcome["reason"] else ""
        parts += [f"{outcome['status']}{reason}", json.dumps(outcome["text"][:120])]
    elif data["kind"] in ("answered", "resolved"):
        parts += [str(data["verdict"]), "by", json.dumps(data["by"])]
    return "  ".join(parts)


@app.command()
def verify(
    workspace: WorkspaceOption = ".",
    journal: JournalOption = None,
    head: Annotated[str | None, typer.Option("--head", metavar="FILE", help="A signed head kept elsewhere.")] = None,
    key: KeyOption = None,
    key_env: KeyEnvOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the whole chain. Exit status 1, naming the place, if any record is not what it was."""
    signed = None
    if head is not None:
        signed = audit.read_signed(Path(head).read_text(encoding="utf-8"), _key(key, key_env))
    reader = SqliteReader(_path(workspace, journal))
    found = audit.verify(reader, signed)
    reader.close()
    if as_json:
        summary = {"ok": True, "journal": found.journal_id, "records": found.records, "head": found.head.hash.hex()}
        say(json_line({**summary, "sequence": found.head.sequence, "signed": signed is not None}))
        return
    say(f"{found.records} records are what they were, up to record {found.head.sequence}.")
    say(f"head {found.head.hash.hex()}" + (", as it was signed" if signed else ", not compared with a signed one"))


@app.command()
def sign(
    workspace: WorkspaceOption = ".",
    journal: JournalOption = None,
    key: KeyOption = None,
    key_env: KeyEnvOption = None,
) -> None:
    """Print the signed head, to be kept elsewhere."""
    reader = SqliteReader(_path(workspace, journal))
    found = audit.verify(reader)
    reader.close()
    say(json_line(audit.sign(found.journal_id, found.head, _key(key, key_env)).to_json()))


def _key(path: str | None, variable: str | None) -> bytes:
    if path is not None and variable is None:
        return Path(path).read_bytes()
    if variable is not None and path is None:
        if variable not in os.environ:
            raise ConfigurationError(f"--key-env {variable}: there is no such variable")
        return os.fsencode(os.environ[variable])
    raise ConfigurationError("signing needs one key: --key FILE or --key-env NAME, at least 16 random bytes")


@app.command("recover")
def recover_command(
    workspace: WorkspaceOption = ".",
    journal: JournalOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Settle the calls that a dead process left behind, as far as the records and the kept changes decide.

    Runs no tool: safe calls are left to a host that has their tools. With --journal, begun commits are left to a
    recovery of their workspace.
    """
    path = _path(workspace, journal)
    if dry_run:
        done = _with_journal(path, lambda opened: recover(opened, Host(roll_forward=_not_now), dry_run=True))
    elif journal is not None:
        done = _with_journal(path, lambda opened: recover(opened, Host()))
    else:
        with open_house(Settings(workspace=workspace, plugins=(), approve="never", door="cli")) as house:
            done = asyncio.run(house.recover(replay=False))
    for item in done:
        say(json_line(_recovered_json(item)) if as_json else _recovered_line(item))
    if not done and not as_json:
        say("Nothing is left to settle.")


async def _not_now(call_id: str) -> bool:
    """Stands for the store of changes in a plan that is not carried out."""
    raise AssertionError(f"a dry run was to roll {call_id} forward")


def _recovered_json(item: Recovered) -> dict[str, Any]:
    step = item.step
    return {
        "call_id": step.call_id,
        "tool": step.tool,
        "action": step.action,
        "why": step.why,
        "block": step.block,
        "outcome": None if item.outcome is None else item.outcome.to_json(),
    }


def _recovered_line(item: Recovered) -> str:
    status = "" if item.outcome is None else f" → {item.outcome.status}"
    return f"{item.step.call_id}  {item.step.tool}  {item.step.action}: {item.step.why}{status}"


@app.command()
def settle(
    call: Annotated[str, typer.Argument(metavar="CALL", parser=id_text, help="The call's id.")],
    verdict: Annotated[str, typer.Argument(metavar="happened|did-not", help="What became of it.")],
    workspace: WorkspaceOption = ".",
    journal: JournalOption = None,
) -> None:
    """Say what became of a call whose outcome is unknown. It is recorded under your name."""
    words = {"happened": "happened", "did-not": "did_not"}
    if verdict not in words:
        raise ConfigurationError(f"say happened or did-not, not {verdict!r}")
    chosen = "happened" if verdict == "happened" else "did_not"
    _with_journal(_path(workspace, journal), lambda opened: opened.resolve(call, chosen, getpass.getuser()))
    say(f"{call}: {verdict}, says {getpass.getuser()}.")


@app.command()
def export(workspace: WorkspaceOption = ".", journal: JournalOption = None) -> None:
    """Print every kept record as a JSON line, with its hash."""
    reader = SqliteReader(_path(workspace, journal))
    for line in audit.exported(reader):
        say(line)
    reader.close()


@app.command()
def prune(
    days: Annotated[float, typer.Option("--older-than", metavar="DAYS", help="How old a record must be.")],
    workspace: WorkspaceOption = ".",
    journal: JournalOption = None,
) -> None:
    """Drop old records that nothing needs any more; the chain of the rest stays verifiable.

    Calls whose question was open until before then are ended, answered or not, and their staged changes are dropped
    (with --journal, those that have changes are left as they are); grants are kept until they are revoked.
    """
    path = _path(workspace, journal)
    require_seconds("--older-than", days, zero=True, unit="days")
    before = time.time() - days * 86_400
    if journal is not None:
        cut = _with_journal(path, lambda opened: opened.prune(before))
    else:
        with open_house(Settings(workspace=workspace, plugins=(), approve="never", door="cli")) as house:
            cut = asyncio.run(house.prune(before))
    say("Nothing was dropped." if cut is None else f"Dropped the records up to {cut.sequence}.")
