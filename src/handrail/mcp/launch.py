"""Starts a stdio server and hands over its pipes: in a cell, or without walls where the catalog says so."""

import os
import signal
import subprocess
from collections.abc import Mapping
from typing import Protocol

import anyio

from handrail.errors import SandboxUnavailable
from handrail.mcp.catalog import ServerSpec
from handrail.workspace import Workspace

BASE_PATH = "/usr/local/bin:/usr/bin:/bin"


class Launched(Protocol):
    """A running server. The descriptors belong to the caller, who closes them; ``stdin`` is ours to write to."""

    @property
    def stdin(self) -> int: ...

    @property
    def stdout(self) -> int: ...

    @property
    def stderr(self) -> int: ...

    def kill(self) -> None:
        """End it and everything it started, at once."""
        ...

    async def wait(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        ...


class Launcher(Protocol):
    """Starts servers. Raises :class:`~handrail.errors.SandboxUnavailable` or :class:`OSError` when it cannot."""

    async def launch(self, spec: ServerSpec) -> Launched: ...


BASE_ENVIRONMENT = {"PATH": BASE_PATH, "LANG": "C.UTF-8"}


def environment_of(spec: ServerSpec, *, base: Mapping[str, str] = BASE_ENVIRONMENT) -> dict[str, str]:
    """The server's whole environment: ``base``, the variables of ours that the catalog names, and what it sets."""
    named = {name: os.environ[name] for name in spec.env_from if name in os.environ}
    return dict(base) | named | dict(spec.env)


class PlainLauncher:
    """No walls: the server can do whatever this user can. Only the environment is kept from it."""

    def __init__(self, workspace: Workspace | None = None) -> None:
        self._workspace = workspace

    async def launch(self, spec: ServerSpec) -> Launched:
        """Start it in a session of its own."""
        cwd = spec.cwd or (self._workspace.path if self._workspace is not None else "/")
        return PlainProcess(
            subprocess.Popen(  # noqa: ASYNC220 - a fork and exec; the pipes are then used without blocking
                list(spec.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=cwd,
                env=environment_of(spec),
                start_new_session=True,
                bufsize=0,
            )
        )


class PlainProcess:
    """An ordinary child process, the leader of its own group."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdin = os.dup(process.stdin.fileno())
        self.stdout = os.dup(process.stdout.fileno())
        self.stderr = os.dup(process.stderr.fileno())
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)

    def kill(self) -> None:
        """Kill the whole group; the leader is not reaped before, so its number still means it."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Wait on the process's descriptor, then reap it."""
        if self._process.returncode is None:
            await anyio.wait_readable(self._pidfd)
        code = self._process.wait()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        return code


class RefusingLauncher:
    """Where there are no walls: refuses every server that wants them."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def launch(self, spec: ServerSpec) -> Launched:
        """Refuse, and say what can be done."""
        raise SandboxUnavailable(
            f"the MCP server {spec.name!r} was not started: {self._why}. `handrail doctor` says how to mend it; "
            "sandbox = 'none' in the catalog runs the server without walls"
        )


class ChosenLauncher:
    """In the cell, unless the catalog says ``sandbox = 'none'`` for this server."""

    def __init__(self, cell: Launcher, plain: Launcher) -> None:
        self._cell = cell
        self._plain = plain

    async def launch(self, spec: ServerSpec) -> Launched:
        """Start it where its entry says."""
        return await (self._plain if spec.sandbox == "none" else self._cell).launch(spec)
