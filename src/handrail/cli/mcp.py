"""``handrail mcp list|inspect|diff|trust``: look at MCP servers, and at what changed since they were trusted."""

import difflib
import json
from typing import Annotated, Any

import anyio
import platformdirs
import typer

from handrail.approval.render import escaped
from handrail.cli.options import JsonOption, McpConfigOption, WeakerOption, WorkspaceOption
from handrail.cli.show import json_line, say
from handrail.errors import ConfigurationError
from handrail.hidden import printable
from handrail.mcp.catalog import ServerSpec, load_catalog
from handrail.mcp.client import McpServer
from handrail.mcp.joining import PINS_FILE, servers_for
from handrail.mcp.pins import PinStore, Standing
from handrail.names import model_name
from handrail.sandbox.supervisor import Supervisor
from handrail.workspace import Workspace

app = typer.Typer(add_completion=False, no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="A server of the catalog.")]


@app.command("list")
def list_(workspace: WorkspaceOption = ".", mcp_config: McpConfigOption = None, json_: JsonOption = False) -> None:
    """List the servers of the catalog and what is pinned for them. Starts none."""
    pins = _pins()
    found = [_summary(spec, pins) for spec in _catalog(mcp_config, workspace)]
    if json_:
        say(json_line(found))
        return
    for item in found:
        pinned = f"{item['pinned']} tools pinned" if item["pinned"] is not None else "not used yet"
        say(f"{item['name']}  {item['where']}  ({pinned}; {item['walls']})")
    if not found:
        say("The catalog names no servers.", err=True)


@app.command()
def inspect(
    name: NameArgument,
    workspace: WorkspaceOption = ".",
    mcp_config: McpConfigOption = None,
    allow_weaker_walls: WeakerOption = False,
    json_: JsonOption = False,
) -> None:
    """Start a server, pin it if it is new, and show its tools: names, risk, state and warnings."""
    server = _looked_at(name, workspace, mcp_config, allow_weaker_walls)
    described = [_described(server, standing) for standing in server.offered()]
    if json_:
        assert server.listing is not None
        identity = server.listing.identity.to_json()
        say(json_line({"name": name, "identity": identity, "tools": described}))
        return
    for tool in described:
        say(f"{escaped(tool['id'])}  {tool['state']}  {tool['risk'] or ''}".rstrip())
        for line in (tool["why"], *(f"warning: {flag}" for flag in tool["flags"])):
            if line:
                say(f"    {escaped(line)}")


@app.command()
def diff(
    name: NameArgument,
    workspace: WorkspaceOption = ".",
    mcp_config: McpConfigOption = None,
    allow_weaker_walls: WeakerOption = False,
) -> None:
    """Start a server and show how its definitions differ from the pinned ones. Exit status 1 when they do."""
    server = _looked_at(name, workspace, mcp_config, allow_weaker_walls)
    lines = difference(server)
    for line in lines:
        say(line)
    if lines:
        raise typer.Exit(1)


@app.command()
def trust(
    name: NameArgument,
    tool: Annotated[list[str] | None, typer.Argument(metavar="[TOOL…]", help="Only these tools.")] = None,
    workspace: WorkspaceOption = ".",
    mcp_config: McpConfigOption = None,
    allow_weaker_walls: WeakerOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="You looked already; do not ask.")] = False,
) -> None:
    """Show the difference, and pin what the server offers now."""
    server = _looked_at(name, workspace, mcp_config, allow_weaker_walls)
    lines = difference(server)
    if not lines:
        say("Nothing differs from what is pinned.")
        return
    for line in lines:
        say(line)
    if not yes:
        typer.confirm("Trust these definitions?", abort=True)
    assert server.listing is not None
    _pins().trust(name, server.listing, tool or None)
    say(f"Pinned. {name} may be used as it is now.")


def difference(server: McpServer) -> list[str]:
    """How the definitions of a server differ from their pins, as lines fit for a screen; empty when none does."""
    lines: list[str] = []
    for name in sorted(server.standings):
        standing = server.standings[name]
        if standing.usable or (standing.was is None and standing.now is None and standing.state == "malformed"):
            continue
        lines.append(f"{escaped(name)}: {standing.state}: {escaped(standing.why)}")
        lines.extend(f"  {line}" for line in _definition_diff(standing))
    return lines


def _definition_diff(standing: Standing) -> list[str]:
    was = _pretty(standing.was)
    now = _pretty(standing.now.document if standing.now is not None else None)
    changed = list(difflib.unified_diff(was, now, "pinned", "offered", lineterm=""))
    warnings = [f"warning: {escaped(flag)}" for flag in (standing.now.flags if standing.now is not None else ())]
    return [*(line for line in changed), *warnings]


def _pretty(document: Any) -> list[str]:
    if document is None:
        return []
    text = json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True)
    return [printable(line) for line in text.split("\n")]


def _catalog(mcp_config: str | None, workspace: str) -> list[ServerSpec]:
    with Workspace(workspace) as opened:
        return list(load_catalog(mcp_config, workspace=opened.path).servers.values())


def _pins() -> PinStore:
    return PinStore(f"{platformdirs.user_state_dir('handrail')}/{PINS_FILE}")


def _looked_at(name: str, workspace: str, mcp_config: str | None, weaker: bool) -> McpServer:
    """Start the server, list its tools, and end it."""
    with Workspace(workspace) as opened, Supervisor(allow_reduced=weaker) as supervisor:
        specs = load_catalog(mcp_config, workspace=opened.path).select([name])
        if len(specs) != 1:
            raise ConfigurationError("name one server")
        servers = servers_for(
            specs,
            supervisor=supervisor,
            workspace=opened,
            approver=None,
            state=platformdirs.user_state_dir("handrail"),
            weaker=weaker,
        )

        async def look() -> McpServer:
            async with servers:
                return servers.servers[0]

        return anyio.run(look)


def _summary(spec: ServerSpec, pins: PinStore) -> dict[str, Any]:
    pinned = pins.get(spec.name)
    walls = "in a cell" if spec.sandbox == "cell" else "without walls"
    return {
        "name": spec.name,
        "where": spec.url or " ".join(spec.command),
        "transport": spec.transport,
        "walls": "remote" if spec.url else walls,
        "pinned": None if pinned is None else len(pinned.documents),
    }


def _described(server: McpServer, standing: Standing) -> dict[str, Any]:
    offered = {tool.name: tool.definition for tool in server.plugin().tools}
    definition = offered.get(standing.name)
    return {
        "id": f"mcp:{server.spec.name}/{standing.name}",
        "modelName": model_name(standing.name, server.spec.name) if definition is not None else None,
        "state": standing.state,
        "risk": definition.risk_level.value if definition is not None else None,
        "replay": definition.replay.value if definition is not None else None,
        "why": standing.why,
        "flags": list(standing.now.flags) if standing.now is not None else [],
        "description": definition.description if definition is not None else None,
    }
