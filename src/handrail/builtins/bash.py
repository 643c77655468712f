"""``bash``: a command line in a cell, with the workspace staged.

The command sees the workspace at its own path and may change it; the change is a layer above, which the corridor shows
and makes real when the command ended with status 0. There is no network. Pipes, background jobs and children work, and
nothing of them is left when the shell ends.
"""

import os
from collections.abc import Mapping
from typing import Any

from handrail.sandbox.bodies import CellBody, Cells, Tail
from handrail.sandbox.supervisor import ShellCommand
from handrail.tool import Capability, Job, Plugin, RiskLevel, Tool, ToolDef
from handrail_cell.wire import Limits

DEFAULT_TIMEOUT_S = 120.0
MAX_TIMEOUT_S = 600.0
TAIL = Tail(lines=2_000, bytes=50_000)

LIMITS = Limits(
    wall_s=DEFAULT_TIMEOUT_S,
    cpu_s=MAX_TIMEOUT_S,
    memory_bytes=2 << 30,
    processes=256,
    disk_bytes=1 << 30,
    file_bytes=512 << 20,
    open_files=1024,
)
"""What one command may use: enough to build and test a project."""

DEFINITION = ToolDef(
    name="bash",
    description=(
        "Run a bash command line in a sandbox with the workspace as the current directory and no network. "
        "Nothing it starts outlives it. Changes in the workspace are shown to the user, and kept only if the exit "
        f"status is 0. Long output is cut to its end. timeout is in seconds ({DEFAULT_TIMEOUT_S:g} unless given)."
    ),
    parameters={
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1, "description": "The command line."},
            "timeout": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_TIMEOUT_S},
            "cwd": {"type": "string", "description": "A directory of the workspace to start in."},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
    risk_level=RiskLevel.MUTATION,
    path_args=("cwd",),
    capability=Capability(reads=True, writes=True, exec=True),
    timeout=MAX_TIMEOUT_S,
)


def bash_tool(cells: Cells, *, limits: Limits = LIMITS) -> Tool:
    """The tool, run by ``cells``. ``limits`` hold for one command; its wall time is the call's ``timeout``."""
    body = CellBody(
        cells,
        _program,
        capability=DEFINITION.capability,
        limits=limits,
        identity={"builtin": "bash:v1"},
        tail=TAIL,
        wall=lambda job: _timeout(job.arguments),
    )
    return Tool(DEFINITION, body=body)


def bash_plugin(cells: Cells, *, limits: Limits = LIMITS) -> Plugin:
    """``--plugin bash``."""
    return Plugin("builtin", (bash_tool(cells, limits=limits),), "built in")


def _program(job: Job) -> ShellCommand:
    return ShellCommand((_shell(), "-c", job.arguments["command"]), cwd=job.arguments.get("cwd"))


def _timeout(arguments: Mapping[str, Any]) -> float:
    return float(arguments.get("timeout", DEFAULT_TIMEOUT_S))


def _shell() -> str:
    """Cells see the host's system directories: what is there, is there inside."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if os.path.exists(path)), "/bin/sh")
