"""Servers that other people wrote, offline, in cells: through the client and through the proxy."""

import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters

from handrail import AlwaysApprove, ToolExecutor, ToolRegistry, Workspace
from handrail.mcp.catalog import parse_catalog
from handrail.mcp.joining import register_servers, servers_for
from handrail.sandbox.supervisor import Supervisor
from mcp_servers import NODE, NODE_MODULES, PYTHON_SERVERS, installed

pytestmark = [pytest.mark.anyio, pytest.mark.walls, pytest.mark.slow]
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
            ("create_entities", {"entities": [{"name": "n", "entityType": "t", "observations": ["o"]}]}, '"n"'),
            ("read_graph", {}, '"n"'),
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


def filled(value, workspace: Path):
    return json.loads(json.dumps(value).replace("{workspace}", str(workspace)))


@asynccontextmanager
async def by_catalog(workspace: Path, state: Path, names):
    """The servers through ``--mcp``: a catalog, cells, pins and an executor."""
    lines = []
    for name in names:
        server = SERVERS[name]
        lines += [f"[servers.{name}]", f"command = {json.dumps(server['command'])}"]
        lines += ['workspace = "write"', "start_timeout = 150"]
        lines += [f"read = {json.dumps([str(NODE_MODULES), GROUND])}"]
        lines += [
            f"env = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in server.get('env', {}).items())} }}"
        ]
    catalog = parse_catalog("\n".join(lines), workspace=str(workspace))
    with Workspace(str(workspace)) as opened, Supervisor() as supervisor:
        specs = catalog.select(list(names))
        async with servers_for(
            specs, supervisor=supervisor, workspace=opened, approver=None, state=str(state)
        ) as servers:
            registry = ToolRegistry()
            register_servers(registry, servers)
            yield registry, ToolExecutor(registry, approver=AlwaysApprove(), spill_directory=str(state / "spill"))


async def test_every_server_by_catalog(workspace, tmp_path):
    async with by_catalog(workspace, tmp_path / "state", SERVERS) as (registry, executor):
        for name, server in SERVERS.items():
            offered = [item for item in registry if item.canonical_id.startswith(f"mcp:{name}/")]
            assert len(offered) >= server["tools"], name
            for tool, arguments, expected in filled(server["calls"], workspace):
                outcome = await executor.execute(f"mcp:{name}/{tool}", arguments)
                assert (outcome.status, outcome.invalid_output) == ("ok", False), outcome.text
                assert expected in outcome.text
        outside = await executor.execute("mcp:everything/get-env", {})
        assert "HANDRAIL" not in outside.text


def proxied(name: str, workspace: Path, state: Path) -> StdioServerParameters:
    """The command line of the proxy in front of one server."""
    server = SERVERS[name]
    options = [
        "-w",
        str(workspace),
        "--access",
        "write",
        "--start-timeout",
        "150",
        "--read",
        str(NODE_MODULES),
        "--read",
        GROUND,
    ]
    for key, value in server.get("env", {}).items():
        options += ["--env", filled(f"{key}={value}", workspace)]
    arguments = [
        "-m",
        "handrail",
        "proxy",
        *options,
        "--approve",
        "always",
        "--",
        *filled(server["command"], workspace),
    ]
    environment = {"XDG_STATE_HOME": str(state), "XDG_CONFIG_HOME": str(state), "PYTHONWARNINGS": "default"}
    return StdioServerParameters(command=sys.executable, args=arguments, env=environment)


@pytest.mark.promise("mcp:proxy:same-names-behind-the-corridor")
@pytest.mark.parametrize("name", SERVERS)
async def test_every_server_by_proxy_with_the_librarys_client(name, workspace, tmp_path):
    async with Client(
        proxied(name, workspace, tmp_path), mode="legacy" if name in ("memory", "time") else "2026-07-28"
    ) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert len(tools) >= SERVERS[name]["tools"]
        for tool, arguments, expected in filled(SERVERS[name]["calls"], workspace):
            assert tool in tools
            result = await client.call_tool(tool, arguments)
            assert not result.is_error
            assert expected in "".join(str(block) for block in result.content)


@pytest.mark.parametrize("name", ["filesystem", "time"])
def test_the_inspector_by_proxy(name, workspace, tmp_path):
    parameters = proxied(name, workspace, tmp_path)
    environment = {**os.environ, **parameters.env, "PATH": f"{os.path.dirname(NODE)}:{os.environ['PATH']}"}
    tool, arguments, expected = filled(SERVERS[name]["calls"][0], workspace)
    target = tmp_path / "inspector.json"
    server = {"command": parameters.command, "args": parameters.args, "env": parameters.env}
    target.write_text(json.dumps({"mcpServers": {"proxy": server}}))
    inspector = [str(NODE_MODULES / ".bin" / "mcp-inspector"), "--cli", "--config", str(target), "--server", "proxy"]

    def inspect(*options):
        ran = subprocess.run([*inspector, *options], env=environment, capture_output=True, text=True, timeout=120)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert tool in inspect("--method", "tools/list")
    called = inspect("--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))
    assert expected in called
