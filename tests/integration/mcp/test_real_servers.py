"""Servers that other people wrote, offline, in cells: by ``--mcp`` and by the proxy, each with the library's client and
with the Inspector's command line.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from handrail.names import model_name
from mcp_servers import NODE, NODE_MODULES, PYTHON_SERVERS, installed

pytestmark = [pytest.mark.anyio, pytest.mark.walls, pytest.mark.slow]
PATIENCE = 500  # seconds; a machine in use by others may need most of a minute for one of these processes to start
ATTEMPTS = 4  # the Inspector gives each request a minute, and takes no other limit on its command line
GROUND = os.path.realpath(sys.base_prefix)

SERVERS = {
    "filesystem": {
        "command": [str(NODE_MODULES / ".bin" / "mcp-server-filesystem"), "{workspace}"],
        "tools": 14,
        "calls": [
            ("read_text_file", {"path": "{workspace}/a.txt"}, "hello"),
            ("list_directory", {"path": "{workspace}"}, "a.txt"),
        ],
    },
    "everything": {
        "command": [str(NODE_MODULES / ".bin" / "mcp-server-everything"), "stdio"],
        "tools": 13,
        "calls": [
            ("echo", {"message": "hi"}, "Echo: hi"),
            ("get-sum", {"a": 2, "b": 3}, "5"),
            ("get-structured-content", {"location": "New York"}, "temperature"),
            ("get-tiny-image", {}, "image/png"),
        ],
    },
    "memory": {
        "command": [str(NODE_MODULES / ".bin" / "mcp-server-memory")],
        "env": {"MEMORY_FILE_PATH": "{workspace}/memory.jsonl"},
        "tools": 9,
        "calls": [
            ("create_entities", {"entities": [{"name": "{new}", "entityType": "t", "observations": []}]}, "{new}"),
            ("read_graph", {}, "{new}"),
        ],
    },
    "git": {
        "command": [str(PYTHON_SERVERS / "bin" / "mcp-server-git"), "--repository", "{workspace}"],
        "tools": 12,
        "calls": [
            ("git_status", {"repo_path": "{workspace}"}, "a.txt"),
            ("git_log", {"repo_path": "{workspace}"}, "first"),
        ],
    },
    "time": {
        "command": [str(PYTHON_SERVERS / "bin" / "mcp-server-time"), "--local-timezone", "UTC"],
        "tools": 2,
        "calls": [("get_current_time", {"timezone": "UTC"}, "UTC")],
    },
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    installed()
    made = tmp_path_factory.mktemp("workspace")
    (made / "a.txt").write_text("hello")
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(made)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run(["git", "config", "--file", str(made / ".git" / "config"), "safe.directory", "*"], check=True)
    return made


def filled(value, workspace: Path, new: str = ""):
    """``value`` with its places filled in."""
    return json.loads(json.dumps(value).replace("{workspace}", str(workspace)).replace("{new}", new))


def started(*arguments: str, state: Path) -> StdioServerParameters:
    """One of our own commands, as a client starts it."""
    environment = {"XDG_STATE_HOME": str(state), "XDG_CONFIG_HOME": str(state), "PYTHONWARNINGS": "default"}
    return StdioServerParameters(command=sys.executable, args=["-m", "handrail", *arguments], env=environment)


def served(workspace: Path, state: Path) -> StdioServerParameters:
    """``handrail serve`` with every server of a catalog."""
    lines: list[str] = []
    for name, server in SERVERS.items():
        environment = ", ".join(f"{key} = {json.dumps(value)}" for key, value in server.get("env", {}).items())
        lines += [f"[servers.{name}]", f"command = {json.dumps(server['command'])}", f"env = {{ {environment} }}"]
        lines += ['workspace = "write"', f"read = {json.dumps([str(NODE_MODULES), GROUND])}"]
        lines += [f"start_timeout = {PATIENCE}"]
    catalog = state / "catalog.toml"
    catalog.write_text("\n".join(lines))
    catalog.chmod(0o600)
    options = ["-w", str(workspace), "--mcp-config", str(catalog), "--mcp", ",".join(SERVERS), "--approve", "always"]
    return started("serve", *options, state=state)


def proxied(name: str, workspace: Path, state: Path) -> StdioServerParameters:
    """``handrail proxy`` in front of one server."""
    server = SERVERS[name]
    options = ["-w", str(workspace), "--access", "write", "--read", str(NODE_MODULES), "--read", GROUND]
    options += ["--start-timeout", str(PATIENCE), "--approve", "always"]
    for key, value in server.get("env", {}).items():
        options += ["--env", filled(f"{key}={value}", workspace)]
    return started("proxy", *options, "--", *filled(server["command"], workspace), state=state)


class Inspector:
    """The Inspector's command line, on one of our commands."""

    def __init__(self, target: StdioServerParameters, directory: Path) -> None:
        self._directory = directory
        self._config = directory / "inspector.json"
        server = {"command": target.command, "args": target.args, "env": target.env}
        self._config.write_text(json.dumps({"mcpServers": {"ours": server}}))

    def __call__(self, *options: str):
        command = [str(NODE_MODULES / ".bin" / "mcp-inspector"), "--cli", "--config", str(self._config)]
        command += ["--server", "ours", "--connect-timeout", str(PATIENCE * 1000), "--format", "json", *options]
        path = f"{os.path.dirname(NODE)}:{os.environ['PATH']}"
        environment = {"PATH": path, "HOME": str(self._directory), "MCP_INSPECTOR_SECRET_STORE": "memory"}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        for _ in range(ATTEMPTS - 1):
            if "Request timed out" in ran.stderr:
                ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)["result"]

    def tools(self) -> set[str]:
        return {tool["name"] for tool in self("--method", "tools/list")["tools"]}

    def call(self, tool: str, arguments: dict) -> str:
        text = json.dumps(arguments)
        result = self("--method", "tools/call", "--tool-name", tool, "--tool-args-json", text)
        assert not result.get("isError"), result
        return json.dumps(result["content"])


async def listed_and_called(target: StdioServerParameters, calls, *, mode: str) -> set[str]:
    """The names that the library's client is shown, after it made ``calls``."""
    async with Client(target, mode=mode, read_timeout_seconds=PATIENCE) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        for tool, arguments, expected in calls:
            assert tool in tools
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, (tool, result.content)
            assert expected in "".join(str(block) for block in result.content)
        return tools


def served_calls(workspace: Path, new: str):
    """Every server's calls, under the names that ``serve`` offers them by."""
    for name, server in SERVERS.items():
        for tool, arguments, expected in filled(server["calls"], workspace, new):
            yield name, model_name(tool, name), arguments, expected


@pytest.mark.promise("mcp:serve:many-servers-through-one-door")
@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_every_server_by_catalog_with_the_librarys_client(mode, workspace, tmp_path):
    calls = [call for _, *call in served_calls(workspace, f"library-{mode}")]
    tools = await listed_and_called(served(workspace, tmp_path), calls, mode=mode)
    assert len(tools) >= sum(server["tools"] for server in SERVERS.values())


def test_every_server_by_catalog_with_the_inspector(workspace, tmp_path):
    inspector = Inspector(served(workspace, tmp_path), tmp_path)
    assert len(inspector.tools()) >= sum(server["tools"] for server in SERVERS.values())
    first = {name: call for name, *call in reversed(list(served_calls(workspace, "inspector")))}
    for tool, arguments, expected in first.values():
        assert expected in inspector.call(tool, arguments)


@pytest.mark.promise("mcp:proxy:same-names-behind-the-corridor")
@pytest.mark.parametrize("name", SERVERS)
async def test_every_server_by_proxy_with_the_librarys_client(name, workspace, tmp_path):
    mode = "legacy" if name in ("memory", "time") else "2026-07-28"
    calls = filled(SERVERS[name]["calls"], workspace, "proxied")
    tools = await listed_and_called(proxied(name, workspace, tmp_path), calls, mode=mode)
    assert len(tools) >= SERVERS[name]["tools"]


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_by_proxy_with_the_inspector(name, workspace, tmp_path):
    inspector = Inspector(proxied(name, workspace, tmp_path), tmp_path)
    assert len(inspector.tools()) >= SERVERS[name]["tools"]
    tool, arguments, expected = filled(SERVERS[name]["calls"][0], workspace, "inspected")
    assert expected in inspector.call(tool, arguments)
