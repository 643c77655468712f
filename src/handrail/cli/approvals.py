"""``handrail approvals`` and ``handrail grants``: answer calls that wait, end lasting approvals."""

import asyncio
import os
import pwd
import shutil
import time
from contextlib import closing
from dataclasses import replace
from typing import Annotated, Any

import typer

from handrail.approval.inbox import Inbox
from handrail.approval.question import grant_lines, sheet
from handrail.approval.render import quoted
from handrail.cli.options import JsonOption, PluginOption, PolicyOption, WorkspaceOption, id_text, names, standard_input
from handrail.cli.show import finish, json_line, say
from handrail.errors import ApprovalError, ConfigurationError
from handrail.journal.sqlite import SqliteJournal, default_path
from handrail.parked import Answer, Grant, ParkedCall
from handrail.schema import ArgumentsInvalid, decode_arguments
from handrail.wiring import Settings, open_house

approvals_app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="List, show and answer the calls that wait for a person."
)
grants_app = typer.Typer(add_completion=False, no_args_is_help=True, help="List and revoke lasting approvals.")

MINIMUM_ENDING = 6

IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", parser=id_text, help="The approval's id, or enough of its end to be the only one."),
]
RunOption = Annotated[
    bool, typer.Option("--run", help="Go on with the call now, in this process, and print its outcome.")
]
DigestOption = Annotated[
    str,
    typer.Option("--digest", metavar="DIGEST", help="The digest shown, for questions too long to be shown whole."),
]


@approvals_app.command("list")
def list_(workspace: WorkspaceOption = ".", json_: JsonOption = False) -> None:
    """List the calls that wait, oldest first."""
    with closing(_journal(workspace)) as journal:
        waiting = asyncio.run(Inbox(journal, by=_by()).waiting())
    if json_:
        say(json_line([_row(parked, answer) for parked, answer in waiting]))
        return
    if not waiting:
        say("Nothing waits.")
    for parked, answer in waiting:
        state = "waits" if answer is None else f"{answer.verdict} by {quoted(answer.by, 60).text}, not run yet"
        left = max(0, round((parked.expires_at - time.time()) / 60))
        say(f"{parked.approval_id}  {quoted(parked.tool, 60).text}  {state}  ({left} min left)")


@approvals_app.command()
def show(
    approval_id: IdArgument,
    workspace: WorkspaceOption = ".",
    whole: Annotated[bool, typer.Option("--whole", help="Leave nothing out, however long.")] = False,
    json_: JsonOption = False,
) -> None:
    """Show one question: exactly what would run."""
    with closing(_journal(workspace)) as journal:
        inbox, parked, answer = asyncio.run(_found(journal, approval_id))
        request, _ = asyncio.run(inbox.question(parked.approval_id))
    if json_:
        say(json_line(_row(parked, answer) | {"question": dict(parked.question)}))
        return
    laid = sheet(request, width=shutil.get_terminal_size().columns, whole=whole, grants=False)
    say("\n".join(laid.lines))
    if not laid.complete:
        say("Not all of it is shown: use --whole. Approving it takes --digest with the digest above.")


@approvals_app.command()
def approve(
    approval_id: IdArgument,
    workspace: WorkspaceOption = ".",
    digest: DigestOption = "",
    run: RunOption = False,
    plugin: PluginOption = None,
    policy: PolicyOption = None,
    json_: JsonOption = False,
) -> None:
    """Say yes, once, to exactly what is shown. The call goes on when its run is resumed, or now with --run."""
    with closing(_journal(workspace)) as journal:
        inbox, parked, _ = asyncio.run(_found(journal, approval_id))
        request, _ = asyncio.run(inbox.question(parked.approval_id))
        laid = sheet(request, width=shutil.get_terminal_size().columns, grants=False)
        if digest and digest != parked.binding:
            raise ApprovalError(f"approval {parked.approval_id} has the digest {parked.binding}, not {digest}")
        if not laid.complete and not digest:
            raise ApprovalError(
                f"{parked.approval_id} cannot be shown whole; read it with 'approvals show --whole', then give --digest"
            )
        say("\n".join(laid.lines), err=True)
        asyncio.run(inbox.approve(parked.approval_id))
    _answered(parked, "approved", workspace, plugin, policy, run=run, json_=json_)


@approvals_app.command()
def reject(
    approval_id: IdArgument,
    why: Annotated[str, typer.Option("--why", help="What the model reads.")] = "The approver said no.",
    workspace: WorkspaceOption = ".",
    run: RunOption = False,
    json_: JsonOption = False,
) -> None:
    """Say no. The call never runs."""
    with closing(_journal(workspace)) as journal:
        inbox, parked, _ = asyncio.run(_found(journal, approval_id))
        asyncio.run(inbox.reject(parked.approval_id, why))
    _answered(parked, "rejected", workspace, None, None, run=run, json_=json_)


@approvals_app.command()
def edit(
    approval_id: IdArgument,
    arguments: Annotated[str, typer.Argument(metavar="JSON", help="The new arguments as one JSON object, or '-'.")],
    workspace: WorkspaceOption = ".",
    run: RunOption = False,
    plugin: PluginOption = None,
    policy: PolicyOption = None,
    json_: JsonOption = False,
) -> None:
    """Give it other arguments. The edited call is checked from the start, and asked about again where policy asks."""
    try:
        decoded = decode_arguments(standard_input() if arguments == "-" else arguments)
    except ArgumentsInvalid as error:
        raise ConfigurationError(f"the new arguments cannot be used: {error}") from None
    with closing(_journal(workspace)) as journal:
        inbox, parked, _ = asyncio.run(_found(journal, approval_id))
        asyncio.run(inbox.edit(parked.approval_id, decoded))
    _answered(parked, "edited", workspace, plugin, policy, run=run, json_=json_)


@grants_app.command("list")
def list_grants(
    workspace: WorkspaceOption = ".",
    all_: Annotated[bool, typer.Option("--all", help="Also those that were revoked.")] = False,
    json_: JsonOption = False,
) -> None:
    """List lasting approvals."""
    with closing(_journal(workspace)) as journal:
        found = [grant for grant in asyncio.run(journal.grants()) if all_ or grant.revoked_at is None]
    if json_:
        say(json_line([grant.to_json() for grant in found]))
        return
    if not found:
        say("There are no lasting approvals.")
    for grant in found:
        _show_grant(grant)


@grants_app.command()
def revoke(
    grant_id: Annotated[str, typer.Argument(metavar="ID", parser=id_text, help="The grant's id.")],
    workspace: WorkspaceOption = ".",
) -> None:
    """End a lasting approval, at once and for every process."""
    with closing(_journal(workspace)) as journal:
        grant = asyncio.run(journal.revoke_grant(grant_id, time.time()))
    say(f"Revoked {grant.grant_id}.")


# ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _journal(workspace: str) -> SqliteJournal:
    path = default_path(workspace)
    if not os.path.exists(path):
        raise ApprovalError(f"no call was ever recorded for the workspace {os.path.realpath(workspace)!r}")
    return SqliteJournal(path)


async def _found(journal: SqliteJournal, wanted: str) -> tuple[Inbox, ParkedCall, Answer | None]:
    """The one waiting call whose id is, or ends in, ``wanted``; raises :class:`ApprovalError` otherwise."""
    inbox = Inbox(journal, by=_by())
    found = [pair for pair in await inbox.waiting() if _is_meant(pair[0].approval_id, wanted)]
    exact = [pair for pair in found if pair[0].approval_id == wanted]
    if exact or len(found) == 1:
        return (inbox, *(exact or found)[0])
    if not found:
        parked, answer, _ = await journal.parked(wanted)  # says what is wrong with an id that does not wait
        return inbox, parked, answer
    raise ApprovalError(f"{len(found)} calls that wait have an id ending in {wanted!r}")


def _is_meant(approval_id: str, wanted: str) -> bool:
    return approval_id == wanted or (len(wanted) >= MINIMUM_ENDING and approval_id.endswith(wanted))


def _answered(
    parked: ParkedCall,
    what: str,
    workspace: str,
    plugin: list[str] | None,
    policy: str | None,
    *,
    run: bool,
    json_: bool,
) -> None:
    if not run:
        said = {"approval_id": parked.approval_id, "call_id": parked.call_id, "answer": what}
        say(json_line(said) if json_ else f"{what.capitalize()}: {parked.approval_id}.")
        return
    settings = Settings(workspace=workspace, plugins=names(plugin), approve="park", policy=policy, door="cli")
    with open_house(replace(settings, session=str(parked.question.get("session", "")))) as house:
        outcome = asyncio.run(house.executor.resume(parked.approval_id))
    finish(outcome, as_json=json_)


def _row(parked: ParkedCall, answer: Answer | None) -> dict[str, Any]:
    return {
        "approval_id": parked.approval_id,
        "call_id": parked.call_id,
        "tool": parked.tool,
        "arguments": dict(parked.arguments),
        "binding": parked.binding,
        "asked_at": parked.asked_at,
        "expires_at": parked.expires_at,
        "run_id": parked.run_id,
        "answer": None if answer is None else {"verdict": answer.verdict, "by": answer.by, "at": answer.at},
    }


def _show_grant(grant: Grant) -> None:
    ended = "" if grant.revoked_at is None else "  (revoked)"
    say(f"{grant.grant_id}  session {quoted(grant.session, 60).text}  by {quoted(grant.by, 60).text}{ended}")
    for line in grant_lines(grant.pattern):
        say(f"  {line}")


def _by() -> str:
    """Who answers: the user as the system knows them, not as the environment says."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = "user"
    return f"{name} ({os.getuid()}) at the command line"
