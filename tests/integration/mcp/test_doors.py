"""The doors whole: what a person at the command line sees of servers, and what a client of the proxy is told."""

import json
import os
import signal
from contextlib import asynccontextmanager

import anyio
import pytest
import uvicorn
from mcp.server import MCPServer
from typer.testing import CliRunner

from handrail import AlwaysApprove, ToolExecutor, ToolOutcome, ToolRegistry
from handrail.approval.inbox import Inbox, InboxApprover
from handrail.cli.mcp import app as mcp_app
from handrail.cli.serve import proxy_app
from handrail.errors import ServerUnavailable
from handrail.mcp.catalog import parse_catalog
from handrail.mcp.client import McpServers, opened, refuse_collisions
from handrail.mcp.http import Guarded, listening
from handrail.mcp.joining import register_servers
from handrail.mcp.launch import PlainLauncher
from handrail.mcp.proxy import run_door
from handrail.mcp.shortcut import PlainCalls
from handrail.mcp.stdio import server_streams
from handrail.tool import Tool, ToolDef
from handrail.wiring import Settings, open_house
from mcp_kit import tool, until
from mcp_lines import ERAS, Conversation

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def private_state(tmp_path, monkeypatch):
    """Nobody's pins but this test's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "private-state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "private-config"))


@pytest.fixture
def workspace(tmp_path):
    made = tmp_path / "workspace"
    made.mkdir()
    return made


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────


class Person:
    """Somebody at ``handrail mcp``, with a catalog of one server."""

    def __init__(self, victim, workspace, catalog) -> None:
        self.options = ["--workspace", str(workspace), "--mcp-config", str(catalog)]
        catalog.write_text(f'[servers.victim]\ncommand = {json.dumps(list(victim.spec.command))}\nsandbox = "none"\n')
        catalog.chmod(0o600)

    def __call__(self, *words, answer=None):
        name, *rest = words
        return CliRunner().invoke(mcp_app, [name, *rest, *self.options], input=answer, catch_exceptions=False)


@pytest.fixture
def person(victim, workspace, tmp_path):
    return Person(victim, workspace, tmp_path / "catalog.toml")


@pytest.mark.promise("mcp:cli:a-person-looks-before-trusting")
def test_a_person_lists_inspects_compares_and_trusts(victim, person):
    victim.script(tools=[tool("kept"), tool("changed"), tool("gone", description="Another.")])
    assert "not used yet" in person("list").stdout
    assert "mcp:victim/kept  trusted  mutation" in person("inspect", "victim").stdout
    assert "3 tools pinned" in person("list").stdout
    same = person("diff", "victim")
    assert (same.exit_code, same.stdout) == (0, "")

    victim.script(tools=[tool("kept"), tool("changed", description="Acts!\u200b"), tool("new"), {"name": "odd"}])
    shown = person("diff", "victim")
    assert shown.exit_code == 1
    for line in (
        '-  "description": "Acts."',
        '+  "description": "Acts!\\u{200b}"',
        "warning: hidden characters: U+200B",
    ):
        assert line in shown.stdout
    assert {"changed: changed", "gone: removed", "new: new"} <= {
        ": ".join(line.split(": ")[:2]) for line in shown.stdout.splitlines()
    }
    described = {item["id"]: item for item in json.loads(person("inspect", "victim", "--json").stdout)["tools"]}
    assert {name.removeprefix("mcp:victim/"): item["state"] for name, item in described.items()} == {
        "kept": "trusted",
        "changed": "changed",
        "gone": "removed",
        "new": "new",
        "odd": "malformed",
    }

    assert person("trust", "victim", answer="n\n").exit_code == 1
    assert person("diff", "victim").exit_code == 1  # no is no
    person("trust", "victim", "changed", answer="y\n")
    assert "changed: changed" not in person("diff", "victim").stdout
    assert "new: new" in person("diff", "victim").stdout
    assert "Pinned." in person("trust", "victim", answer="y\n").stdout
    assert person("diff", "victim").exit_code == 0
    assert "Nothing differs" in person("trust", "victim").stdout
    assert victim.effects == []


def test_a_server_that_is_not_in_the_catalog_is_named(person):
    with pytest.raises(Exception, match="there is no MCP server 'vctim'"):
        person("inspect", "vctim")


@pytest.mark.promise("mcp:proxy:trust-shows-the-difference")
def test_the_proxy_shows_the_difference_and_then_trusts(victim, workspace):
    def trusted():
        options = ["--trust", "--no-walls", "--no-journal", "--workspace", str(workspace), "--name", "mine"]
        return CliRunner().invoke(proxy_app, [*options, "--", *victim.spec.command], catch_exceptions=False).stdout

    assert "Nothing differs" in trusted()
    victim.script(tools=[tool("act", description="Acts twice.")])
    assert '+  "description": "Acts twice."' in trusted()
    assert "Nothing differs" in trusted()
    assert victim.effects == []


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("mcp:names:two-that-would-meet-are-both-refused")
async def test_two_tools_that_would_meet_are_both_refused_and_each_names_the_other(victim, monkeypatch):
    victim.script(tools=[tool("one"), tool("two"), tool("three")])
    async with victim.opened() as first:
        # No two pairs are known to meet: that would be a collision of SHA-256. So two are made to.
        monkeypatch.setattr("handrail.mcp.client.model_name", lambda name, _: "same" if name != "three" else name)
        refuse_collisions([first.server])
        standings = first.server.standings
        assert {name: standing.state for name, standing in standings.items()} == {
            "one": "refused",
            "two": "refused",
            "three": "trusted",
        }
        for name in ("one", "two"):
            assert standings[name].why == "mcp:victim/one and mcp:victim/two would both be offered as 'same'"
            assert not (await first.call(name)).succeeded
        assert [item.name for item in first.server.plugin().tools] == ["three"]
    assert victim.effects == []


async def test_a_servers_tool_never_takes_the_name_of_one_of_ours(victim):
    registry = ToolRegistry()

    async def ours(arguments):
        return "ours"

    registry.register(Tool(ToolDef("victim__act", "Ours."), ours))
    async with McpServers([victim.spec], launcher=PlainLauncher(), pins=victim.pins) as servers:
        register_servers(registry, servers)
        why = servers.servers[0].standings["act"].why
    assert why == "mcp:victim/act and host:victim__act would both be offered as 'victim__act'"
    assert [item.canonical_id for item in registry] == ["host:victim__act"]
    assert victim.effects == []


# ── the proxy, in this process ───────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def proxy(victim, workspace, era, *, approver=None, journal=False):
    """A client of the proxy before the victim, and the house behind it."""
    (server_read, client_write), (client_read, server_write) = os.pipe(), os.pipe()
    client = Conversation(era, client_write, client_read, {})
    settings = Settings(workspace=str(workspace), plugins=(), journal=journal, door="proxy")
    said: list[str] = []

    async def front(door):
        async with server_streams(server_read, server_write, PlainCalls(door)) as (read_stream, write_stream):
            await door.server.run(read_stream, write_stream, door.options())

    answers = approver or AlwaysApprove()
    with open_house(settings, approver=answers) as house:
        async with anyio.create_task_group() as tasks:

            async def serve():
                await run_door(house, [victim.spec], approver=answers, own_names=True, front=front, say=said.append)

            tasks.start_soon(serve)
            yield client, house
            client.writer.close()
            client.reader.close()
    for fd in (server_read, server_write, client_read):
        os.close(fd)


def names_of(listed):
    return [item["name"] for item in listed["result"]["tools"]]


@pytest.mark.promise("mcp:proxy:changes-are-pushed-and-quarantined")
@pytest.mark.parametrize("era", ERAS)
async def test_a_change_is_told_to_the_client_and_what_changed_is_gone(victim, workspace, era):
    victim.script(tools=[tool("act"), tool("other")])
    async with proxy(victim, workspace, era) as (client, _):
        assert names_of(await client.open()) == ["act", "other"]
        if era == "2026-07-28":
            await client.ask("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            assert (await client.line())["method"] == "notifications/subscriptions/acknowledged"
        victim.script(tools=[tool("act", description="Now with teeth."), tool("other")])
        os.kill(victim.pid, signal.SIGUSR1)
        assert (await client.line())["method"] == "notifications/tools/list_changed"
        assert names_of(await client.asked("tools/list", {})) == ["other"]
        refused = (await client.call("act"))["result"]
        assert refused["isError"]
        assert "quarantined" in refused["content"][0]["text"]
        assert not (await client.call("other"))["result"]["isError"]
    assert victim.effects == ["other"]


def status(answer):
    return answer["result"]["_meta"]["handrail/outcome"]["status"]


@pytest.mark.promise("mcp:parked:the-same-call-again-goes-on")
@pytest.mark.parametrize("again", ["same process", "after a restart"])
async def test_a_parked_call_goes_on_once_when_it_is_made_again_after_its_answer(victim, workspace, again):
    async def answered(house, verdict):
        inbox = Inbox(house.journal, by="test")
        ((parked, _),) = [item for item in await inbox.waiting() if item[1] is None]
        await (inbox.approve if verdict else inbox.reject)(parked.approval_id)

    async with proxy(victim, workspace, "2025-11-25", approver=InboxApprover(), journal=True) as (client, house):
        await client.open()
        assert status(await client.call("act", {"n": 1})) == "pending"
        assert status(await client.call("act", {"n": 1})) == "pending"  # the same question still, not another
        assert len(await house.journal.list_parked()) == 1
        await answered(house, verdict=True)
        if again == "same process":
            done = await client.call("act", {"n": 1})
            assert status(done) == "ok"
    if again == "after a restart":
        assert victim.effects == []
        async with proxy(victim, workspace, "2025-11-25", approver=InboxApprover(), journal=True) as (client, house):
            await client.open()
            done = await client.call("act", {"n": 1})
            assert (status(done), done["result"]["content"][0]["text"]) == ("ok", '{"n": 1}')
            assert status(await client.call("act", {"n": 1})) == "pending"  # one yes, one call
            await answered(house, verdict=False)
            assert status(await client.call("act", {"n": 1})) == "error"
            assert status(await client.call("act", {"n": 2})) == "pending"
    assert victim.effects == ["act"]


# ── a remote server ──────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def remote(token):
    """The library's own server behind a bearer token, and what it was asked."""
    server = MCPServer("remote")
    asked: list[str] = []

    @server.tool()
    def add(a: int, b: int) -> int:
        asked.append("add")
        return a + b

    with listening(0) as bound:
        port = bound.getsockname()[1]
        app = Guarded(server.streamable_http_app(), token=token, hosts=[f"127.0.0.1:{port}"])
        running = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
        async with anyio.create_task_group() as tasks:

            async def serve():
                await running.serve(sockets=[bound])

            tasks.start_soon(serve)
            await until(lambda: running.started, 60)
            yield port, asked
            running.should_exit = True


# The server's library leaves the last connection to the collector when it is told to stop.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.promise("mcp:http:the-token-comes-from-a-named-variable")
async def test_a_remote_server_is_reached_with_the_token_of_a_named_variable(victim, monkeypatch, tmp_path):
    async with remote("a-secret-for-the-tests") as (port, asked):
        text = f'[servers.far]\nurl = "http://127.0.0.1:{port}/mcp"\ntoken_env = "FAR_TOKEN"\nstart_timeout = 60'
        specs = parse_catalog(text).select(["far"])
        for wrong, why in ((None, "holds no token"), ("another-secret", "cannot be used")):
            if wrong is None:
                monkeypatch.delenv("FAR_TOKEN", raising=False)
            else:
                monkeypatch.setenv("FAR_TOKEN", wrong)
            with pytest.raises(ServerUnavailable, match=why) as raised:
                async with opened(specs, launcher=PlainLauncher(), pins=victim.pins):
                    pass
            assert "another-secret" not in str(raised.value)
        monkeypatch.setenv("FAR_TOKEN", "a-secret-for-the-tests")
        async with opened(specs, launcher=PlainLauncher(), pins=victim.pins) as servers:
            registry = ToolRegistry()
            register_servers(registry, servers)
            executor = ToolExecutor(registry, approver=AlwaysApprove(), spill_directory=str(tmp_path / "spill"))
            outcome: ToolOutcome = await executor.execute("mcp:far/add", {"a": 2, "b": 3})
            assert outcome.value == {"result": 5}
    assert asked == ["add"]
    assert "a-secret-for-the-tests" not in (tmp_path / "state" / "pins.json").read_text()
