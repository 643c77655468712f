"""Where the MCP rooms meet the rest of the house: a launcher, pins, and tools put into a registry."""

import os
from collections.abc import Sequence

from handrail.approval.decision import Approver
from handrail.mcp.catalog import ServerSpec
from handrail.mcp.cells import CellLauncher
from handrail.mcp.client import McpServers, refuse_collisions
from handrail.mcp.launch import ChosenLauncher, PlainLauncher
from handrail.mcp.pins import PinStore
from handrail.registry import ToolRegistry
from handrail.sandbox.supervisor import Supervisor
from handrail.workspace import Workspace

PINS_FILE = "mcp-pins.json"


def servers_for(
    specs: Sequence[ServerSpec],
    *,
    supervisor: Supervisor,
    workspace: Workspace | None,
    approver: Approver | None,
    state: str,
    weaker: bool = False,
) -> McpServers:
    """The servers, not started: in cells, or without walls where their entry says ``sandbox = 'none'``."""
    launcher = ChosenLauncher(CellLauncher(supervisor, workspace, weaker=weaker), PlainLauncher(workspace))
    pins = PinStore(os.path.join(state, PINS_FILE))
    return McpServers(specs, launcher=launcher, pins=pins, approver=approver)


def register_servers(registry: ToolRegistry, servers: McpServers) -> None:
    """Put the tools of started servers into a registry; what would meet another name is refused and named."""
    refuse_collisions(servers.servers, {item.model_name: item.canonical_id for item in registry})
    for plugin in servers.plugins():
        registry.register_plugin(plugin)
