"""A stdio server in a long-lived cell: pipes both ways, the same walls as any tool, no wall clock."""

import os
import shutil

import anyio.to_thread

from handrail.errors import SandboxUnavailable
from handrail.mcp.catalog import ServerSpec
from handrail.mcp.launch import BASE_PATH, environment_of
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import CellProcess, ShellCommand, Supervisor
from handrail.workspace import Workspace
from handrail_cell.wire import EnforcementReport, Limits

SYSTEM_DIRECTORIES = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt")
SERVER_LIMITS = Limits(cpu_s=3600.0, memory_bytes=2 * 1024 * 1024 * 1024, processes=128, open_files=1024)


class CellLauncher:
    """Starts servers in cells of ``supervisor``. What an entry does not grant is closed: the workspace, the network,
    every directory but the system's own.
    """

    def __init__(self, supervisor: Supervisor, workspace: Workspace | None = None, *, weaker: bool = False) -> None:
        self._supervisor = supervisor
        self._workspace = workspace
        self._weaker = weaker

    async def launch(self, spec: ServerSpec) -> "CelledServer":
        """Start it. Raises :class:`~handrail.errors.SandboxUnavailable` where the walls cannot be had."""
        command = ShellCommand(self._visible_command(spec), spec.cwd or None)
        return CelledServer(await anyio.to_thread.run_sync(self._supervisor.spawn, command, self.profile(spec)))

    def profile(self, spec: ServerSpec) -> SandboxProfile:
        """The walls of one entry of the catalog."""
        return SandboxProfile(
            workspace=self._workspace.path if self._workspace is not None and spec.workspace != "none" else None,
            access=spec.workspace if self._workspace is not None else "none",
            network=spec.network,
            exec=True,
            limits=SERVER_LIMITS.with_(
                memory_bytes=spec.memory_bytes or SERVER_LIMITS.memory_bytes,
                processes=spec.processes or SERVER_LIMITS.processes,
                cpu_s=float(spec.cpu_s or SERVER_LIMITS.cpu_s),
            ),
            environment=environment_of(spec, base={}),
            read_only_dirs=tuple(os.path.realpath(path) for path in spec.read),
            minimum_tier="reduced" if self._weaker else "full",
        )

    def _visible_command(self, spec: ServerSpec) -> tuple[str, ...]:
        """The argv with its program as an absolute path that can be seen from inside."""
        found = shutil.which(spec.command[0], path=spec.env.get("PATH", BASE_PATH))
        if found is None:
            raise SandboxUnavailable(
                f"the MCP server {spec.name!r}: there is no program {spec.command[0]!r} in "
                f"{spec.env.get('PATH', BASE_PATH)}; name it by its whole path"
            )
        target = os.path.realpath(found)
        shown = [*SYSTEM_DIRECTORIES, *(os.path.realpath(path) for path in spec.read)]
        if self._workspace is not None and spec.workspace != "none":
            shown.append(self._workspace.path)
        if not any(os.path.commonpath([target, directory]) == directory for directory in shown):
            raise SandboxUnavailable(
                f"the MCP server {spec.name!r}: its program {target!r} cannot be seen from inside its cell; grant the "
                "directory that holds it and what it needs (read = […] in the catalog, --read for the proxy)"
            )
        return (os.path.abspath(found), *spec.command[1:])


class CelledServer:
    """A server in its cell, as :class:`~handrail.mcp.launch.Launched`. Its descriptors are the caller's to close."""

    def __init__(self, process: CellProcess) -> None:
        self.stdin, process.stdin = process.stdin, -1
        self.stdout, process.stdout = process.stdout, -1
        self.stderr, process.stderr = process.stderr, -1
        self._process = process

    @property
    def report(self) -> EnforcementReport:
        """What really holds it."""
        return self._process.report

    def kill(self) -> None:
        """End it and everything it started, at once."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait for its end, then let its cell go."""
        code, signal = await anyio.to_thread.run_sync(self._process.wait, abandon_on_cancel=True)
        await anyio.to_thread.run_sync(self._process.close)
        return code if code is not None else -(signal or 0)
