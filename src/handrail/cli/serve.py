"""``handrail serve`` and ``handrail proxy``: tools over MCP, through the whole corridor."""

import os
import sys
from typing import Annotated

import anyio
import typer

from handrail.approval.decision import AlwaysApprove, Approver, NeverApprove
from handrail.approval.inbox import InboxApprover
from handrail.bounds import require_seconds
from handrail.cli.mcp import difference
from handrail.cli.notice import tell_interrupted
from handrail.cli.options import (
    McpConfigOption,
    McpOption,
    PluginOption,
    PolicyOption,
    SkillOption,
    WeakerOption,
    WorkspaceOption,
    names,
)
from handrail.cli.show import say
from handrail.errors import ConfigurationError
from handrail.mcp.approvals import ClientApprover
from handrail.mcp.catalog import Access, Catalog, ServerSpec, ToolOverride, load_catalog
from handrail.mcp.http import new_token
from handrail.mcp.proxy import http_front, joined, name_of, run_door, stdio_front
from handrail.tool import RiskLevel
from handrail.wiring import House, Settings, open_house

serve_app = typer.Typer(add_completion=False)
proxy_app = typer.Typer(add_completion=False)

AnswerOption = Annotated[
    str,
    typer.Option(
        "--approve",
        metavar="client|park|always|never",
        help="Who answers when policy asks: the client (the inbox where it cannot), the inbox, all yes, all no.",
    ),
]
NoJournalOption = Annotated[bool, typer.Option("--no-journal", help="Keep no journal. Questions then cannot wait.")]
HttpOption = Annotated[
    int | None,
    typer.Option(
        "--http",
        min=0,
        max=65_535,
        metavar="PORT",
        help="Streamable HTTP on 127.0.0.1 instead of stdio; 0 takes a free port.",
    ),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token-env", metavar="NAME", help="The variable that holds the bearer token; else one is made."),
]


@serve_app.command()
def serve(
    workspace: WorkspaceOption = ".",
    plugin: PluginOption = None,
    skill: SkillOption = None,
    mcp: McpOption = None,
    mcp_config: McpConfigOption = None,
    http: HttpOption = None,
    token_env: TokenOption = None,
    approve: AnswerOption = "client",
    policy: PolicyOption = None,
    no_journal: NoJournalOption = False,
    allow_weaker_walls: WeakerOption = False,
) -> None:
    """Offer our tools over MCP: on standard input and output, or on a loopback port."""
    settings = Settings(
        workspace=workspace,
        plugins=names(plugin),
        skills=tuple(skill or ()),
        policy=policy,
        journal=not no_journal,
        allow_weaker_walls=allow_weaker_walls,
        door="mcp",
    )
    approver = approver_of(approve, journal=not no_journal)
    with open_house(settings, approver=approver) as house:
        catalog = load_catalog(mcp_config, workspace=house.workspace.path) if mcp else Catalog({})
        specs = catalog.select(mcp or [])
        _run(house, specs, approver, http, token_env)


@proxy_app.command(context_settings={"allow_interspersed_args": False})
def proxy(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND ARGS…", help="The server's command.")],
    name: Annotated[str | None, typer.Option("--name", help="The name its pins are kept under.")] = None,
    workspace: WorkspaceOption = ".",
    access: Annotated[str, typer.Option("--access", metavar="none|read|write", help="The workspace.")] = "none",
    read: Annotated[list[str] | None, typer.Option("--read", metavar="DIR", help="A directory it may read.")] = None,
    network: Annotated[bool, typer.Option("--network", help="It may use the network.")] = False,
    env: Annotated[list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="A variable it sees.")] = None,
    env_from: Annotated[
        list[str] | None, typer.Option("--env-from", metavar="NAME", help="A variable of ours that it sees.")
    ] = None,
    risk: Annotated[
        list[str] | None, typer.Option("--risk", metavar="TOOL=LEVEL", help="The risk of a tool, said by you.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", metavar="TOOL", help="Only these tools.")] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", metavar="SECONDS", help="For one call.")] = None,
    start_timeout: Annotated[
        float, typer.Option("--start-timeout", metavar="SECONDS", help="For the server's start and first answer.")
    ] = 60.0,
    trust: Annotated[
        bool, typer.Option("--trust", help="Show what differs from the pins, pin what is offered now, and end.")
    ] = False,
    no_walls: Annotated[bool, typer.Option("--no-walls", help="Run the server without walls.")] = False,
    http: HttpOption = None,
    token_env: TokenOption = None,
    approve: AnswerOption = "client",
    policy: PolicyOption = None,
    no_journal: NoJournalOption = False,
    allow_weaker_walls: WeakerOption = False,
) -> None:
    """Put one MCP server behind the corridor: same tools and names, but pinned, checked, walled and journaled."""
    if access not in ("none", "read", "write"):
        raise ConfigurationError(f"--access {access!r} is not one of: none, read, write")
    if timeout is not None:
        require_seconds("--timeout", timeout)
    require_seconds("--start-timeout", start_timeout)
    granted: Access = access
    spec = ServerSpec(
        name=name or name_of(command),
        command=tuple(command),
        env=dict(_pair(item, "--env") for item in env or ()),
        env_from=tuple(env_from or ()),
        workspace=granted,
        read=tuple(os.path.abspath(item) for item in read or ()),
        network=network,
        sandbox="none" if no_walls else "cell",
        allowed=names(allow),
        timeout=timeout,
        start_timeout=start_timeout,
        overrides=_overrides(risk or []),
    )
    settings = Settings(
        workspace=workspace,
        plugins=(),
        policy=policy,
        journal=not no_journal,
        allow_weaker_walls=allow_weaker_walls,
        door="proxy",
    )
    approver = approver_of(approve, journal=not no_journal)
    with open_house(settings, approver=approver) as house:
        if trust:
            anyio.run(_trust, house, spec, approver)
        else:
            _run(house, [spec], approver, http, token_env)


def _run(house: House, specs: list[ServerSpec], approver: Approver, http: int | None, token_env: str | None) -> None:
    tell_interrupted(house)
    own_names = house.settings.door == "proxy"
    if http is None:
        front = stdio_front
    else:
        token = _token(token_env)
        front = http_front(http, token, lambda url: _say_where(url, token, token_env))

    async def served() -> None:
        await run_door(house, specs, approver=approver, own_names=own_names, front=front, say=_say)

    anyio.run(served)


async def _trust(house: House, spec: ServerSpec, approver: Approver) -> None:
    async with joined(house, [spec], approver=approver) as servers:
        server = servers.servers[0]
        for line in difference(server) or ["Nothing differs from what is pinned."]:
            say(line)
        server.trust()


def _say(line: str) -> None:
    say(f"handrail: {line}", err=True)


def approver_of(word: str, *, journal: bool) -> Approver:
    """Who answers. A question can wait only where there is a journal to keep it."""
    later: Approver = InboxApprover() if journal else NeverApprove("the client cannot ask, and there is no journal")
    known: dict[str, Approver] = {
        "client": ClientApprover(later),
        "park": later,
        "always": AlwaysApprove(),
        "never": NeverApprove(),
    }
    if word not in known:
        raise ConfigurationError(f"--approve {word!r} is not one of: {', '.join(known)}")
    return known[word]


def _token(token_env: str | None) -> str:
    if token_env is None:
        return new_token()
    token = os.environ.get(token_env, "")
    if len(token) < 16:
        raise ConfigurationError(f"the variable {token_env} must hold a token of at least 16 characters")
    return token


def _say_where(url: str, token: str, token_env: str | None) -> None:
    _say(f"listening on {url}")
    _say(f"the token is {f'in {token_env}' if token_env else token}")
    sys.stderr.flush()


def _pair(text: str, option: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigurationError(f"{option} {text!r} must be NAME=VALUE")
    return key, value


def _overrides(given: list[str]) -> dict[str, ToolOverride]:
    pairs = (_pair(item, "--risk") for item in given)
    return {tool: ToolOverride(risk=_risk(level)) for tool, level in pairs}


def _risk(word: str) -> RiskLevel:
    if word not in list(RiskLevel):
        raise ConfigurationError(f"--risk: {word!r} is not one of: {', '.join(RiskLevel)}")
    return RiskLevel(word)
