"""The stdio door, line by line: plain calls are answered without the library, and nobody can tell from the answers."""

import json
import os
from contextlib import asynccontextmanager

import anyio
import pytest

from handrail import AlwaysApprove, NeverApprove, RiskLevel, Tool, ToolDef, ToolExecutor, ToolOutcome, ToolRegistry
from handrail.errors import ToolError
from handrail.mcp.approvals import ClientApprover, ask_client
from handrail.mcp.catalog import ToolOverride
from handrail.mcp.client import opened
from handrail.mcp.joining import register_servers
from handrail.mcp.launch import PlainLauncher
from handrail.mcp.pipes import LineReader
from handrail.mcp.server import CorridorServer, model_names
from handrail.mcp.shortcut import PlainCalls
from handrail.mcp.stdio import server_streams
from mcp_lines import ERAS, Conversation

pytestmark = pytest.mark.anyio
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
PIXEL = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


class Tools:
    """The tools of these tests, and what they did."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.waiting = anyio.Event()

    async def echo(self, arguments):
        self.effects.append("echo")
        return json.dumps(arguments)

    async def shape(self, arguments):
        return ToolOutcome.ok("shaped: é 名 \u2028", value={"n": 1, "nothing": None}, content=[PIXEL])

    async def broken(self, arguments):
        return ToolOutcome.ok("broken", value={"n": "one"})

    async def fail(self, arguments):
        raise ToolError("it failed")

    async def greet(self, arguments):
        answer = await ask_client("Who are you?", NAME)
        return f"{answer.action}: {(answer.content or {}).get('name')}"

    async def wait(self, arguments):
        self.effects.append("wait")
        self.waiting.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.effects.append("ended")

    def registry(self) -> ToolRegistry:
        number = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        registry = ToolRegistry()
        for handler in (self.echo, self.fail, self.wait):
            registry.register(Tool(ToolDef(handler.__name__, "For the tests.", {"type": "object"}), handler))
        free = ToolDef("greet", "For the tests.", {"type": "object"}, risk_level=RiskLevel.READ_ONLY)
        registry.register(Tool(free, self.greet))
        for handler in (self.shape, self.broken):
            definition = ToolDef(handler.__name__, "For the tests.", {"type": "object"}, output_schema=number)
            registry.register(Tool(definition, handler))
        return registry


@asynccontextmanager
async def conversation(era, tmp_path, tools, approver=None, capabilities=None, *, naming=model_names):
    spill = str(tmp_path / "spill")
    executor = ToolExecutor(tools.registry(), approver=approver or AlwaysApprove(), spill_directory=spill)
    door = CorridorServer(executor, naming=naming, ask_client=approver is not None)
    door.ready.set()
    (server_read, client_write), (client_read, server_write) = os.pipe(), os.pipe()
    client = Conversation(era, client_write, client_read, capabilities or {})
    async with anyio.create_task_group() as tasks:

        async def serve():
            async with server_streams(server_read, server_write, PlainCalls(door)) as (read_stream, write_stream):
                learn = door.on_request
                door.on_request = lambda context: (client.library.append(context.method), learn(context))
                await door.server.run(read_stream, write_stream, door.options())

        tasks.start_soon(serve)
        await anyio.wait_all_tasks_blocked()
        await client.open()
        client.library.clear()
        yield client
        client.writer.close()
        client.reader.close()
    for fd in (server_read, server_write, client_read):
        os.close(fd)


def without_id(answer):
    """An answer, but for what is its own: the request's number and the call's id."""
    text = json.dumps({key: value for key, value in answer.items() if key != "id"})
    made = answer.get("result", {}).get("_meta", {}).get("handrail/outcome", {}).get("callId")
    return json.loads(text.replace(made, "ID") if made else text)


@pytest.mark.promise("mcp:stdio:a-shortcut-that-answers-alike")
@pytest.mark.parametrize("era", ERAS)
async def test_a_plain_call_is_answered_as_the_library_would(era, tmp_path):
    async with conversation(era, tmp_path, Tools()) as client:
        for name in ("echo", "shape", "broken", "fail", "no-such-tool"):
            plain = await client.call(name, {"a": [1, None, "é"]})
            assert client.library == [], name
            by_library = await client.call(name, {"a": [1, None, "é"]}, progressToken="p")
            assert client.library == ["tools/call"], name
            client.library.clear()
            assert without_id(plain) == without_id(by_library), name


@pytest.mark.parametrize("era", ERAS)
async def test_what_is_not_plain_is_left_to_the_library(era, tmp_path):
    tools = Tools()
    async with conversation(era, tmp_path, tools) as client:
        odd = [
            {"name": 7},
            {"name": "echo", "arguments": [1]},
            {"name": "echo", "arguments": "{}"},
            {"arguments": {}},
        ]
        for params in odd:
            answer = await client.asked("tools/call", params)
            assert answer["error"]["code"] == -32602, params
        client.capabilities = {"elicitation": {}}
        if era == "2026-07-28":  # another envelope: the library has to look at it first
            await client.call("echo")
            assert client.library == ["tools/call"]
            await client.call("echo")
            assert client.library == ["tools/call"]
    assert tools.effects == (["echo", "echo"] if era == "2026-07-28" else [])


async def test_a_client_of_one_era_cannot_switch_to_the_other_by_a_plain_call(tmp_path):
    tools = Tools()
    async with conversation("2025-11-25", tmp_path, tools) as client:
        client.era = "2026-07-28"
        answer = await client.call("echo")
        assert answer["error"]["code"] == -32600
    assert tools.effects == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_plain_call_can_be_cancelled_and_is_then_not_answered(era, tmp_path):
    tools = Tools()
    async with conversation(era, tmp_path, tools) as client:
        number = await client.ask("tools/call", {"name": "wait", "arguments": {}})
        with anyio.fail_after(60):
            await tools.waiting.wait()
        await client.say({"method": "notifications/cancelled", "params": {"requestId": number}})
        assert "result" in await client.call("echo")  # the next answer is this one's
        assert client.library == []
    assert tools.effects == ["wait", "ended", "echo"]


async def test_a_client_that_leaves_ends_its_plain_calls(tmp_path):
    tools = Tools()
    async with conversation("2025-11-25", tmp_path, tools) as client:
        await client.ask("tools/call", {"name": "wait", "arguments": {}})
        with anyio.fail_after(60):
            await tools.waiting.wait()
    assert tools.effects == ["wait", "ended"]


@pytest.mark.parametrize("verdict", ["approve", "reject"])
async def test_a_plain_call_asks_its_client_before_2026(verdict, tmp_path):
    tools = Tools()
    approver = ClientApprover(AlwaysApprove())
    async with conversation("2025-11-25", tmp_path, tools, approver, {"elicitation": {"form": {}}}) as client:
        number = await client.ask("tools/call", {"name": "echo", "arguments": {"a": 1}})
        question = await client.line()
        assert question["method"] == "elicitation/create"
        assert "Allow" in question["params"]["message"]
        assert tools.effects == []
        await client.say({"id": question["id"], "result": {"action": "accept", "content": {"decision": verdict}}})
        answer = await client.line()
        assert answer["id"] == number
        assert answer["result"]["isError"] is (verdict == "reject")
        assert client.library == []
    assert tools.effects == (["echo"] if verdict == "approve" else [])


async def test_a_plain_call_asks_its_client_since_2026(tmp_path):
    tools = Tools()
    approver = ClientApprover(AlwaysApprove())
    async with conversation("2026-07-28", tmp_path, tools, approver, {"elicitation": {"form": {}}}) as client:
        asked = (await client.call("echo", {"a": 1}))["result"]
        assert asked["resultType"] == "input_required"
        assert client.library == []
        responses = {"approval": {"action": "accept", "content": {"decision": "approve"}}}
        reply = {"name": "echo", "arguments": {"a": 1}, "inputResponses": responses}
        assert tools.effects == []
        wrong = await client.asked("tools/call", reply | {"requestState": "guessed"})
        assert wrong["error"]["code"] == -32602
        other = reply | {"arguments": {"a": 2}, "requestState": asked["requestState"]}
        assert (await client.asked("tools/call", other))["error"]["code"] == -32602  # and the question is used up
        assert tools.effects == []
        again = (await client.call("echo", {"a": 1}))["result"]
        answer = await client.asked("tools/call", reply | {"requestState": again["requestState"]})
        assert answer["result"]["content"][0]["text"] == '{"a": 1}'
    assert tools.effects == ["echo"]


class Served:
    """The tools of MCP servers, instead of tools of ours."""

    def __init__(self, servers):
        self.servers = servers

    def registry(self):
        registry = ToolRegistry()
        register_servers(registry, self.servers)
        return registry


async def question_and_answer(client, name, content, action="accept"):
    """Call a tool that asks; answer what it asks; the question and the tool's result."""
    reply = {"action": action} | ({"content": content} if content is not None else {})
    if client.era == "2026-07-28":
        asked = (await client.call(name))["result"]
        ((key, request),) = asked["inputRequests"].items()
        more = {"inputResponses": {key: reply}, "requestState": asked["requestState"]}
        answer = await client.asked("tools/call", {"name": name, "arguments": {}} | more)
        return request["params"], answer["result"]
    await client.ask("tools/call", {"name": name, "arguments": {}})
    question = await client.line()
    await client.say({"id": question["id"], "result": reply})
    return question["params"], (await client.line())["result"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_tool_of_ours_asks_the_person_at_the_client(era, tmp_path):
    approver = ClientApprover(NeverApprove())
    async with conversation(era, tmp_path, Tools(), approver, {"elicitation": {"form": {}}}) as client:
        request, answer = await question_and_answer(client, "greet", {"name": "Ada"})
        assert request["message"] == "Who are you?"
        assert answer["content"][0]["text"] == "accept: Ada"
    async with conversation(era, tmp_path, Tools(), approver) as client:  # a client that cannot be asked
        assert (await client.call("greet"))["result"]["content"][0]["text"] == "cancel: None"


@pytest.mark.promise("mcp:elicitation:asks-our-approver")
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("theirs", ["legacy", "modern"])
@pytest.mark.parametrize(
    ("action", "content", "expected"),
    [
        ("accept", {"branch": "dev"}, {"action": "accept", "content": {"branch": "dev"}}),
        ("accept", {"branch": 7}, {"action": "decline"}),
        ("accept", {"other": "x"}, {"action": "decline"}),
        ("decline", None, {"action": "decline"}),
        ("cancel", None, {"action": "cancel"}),
    ],
)
async def test_a_servers_question_reaches_the_person_at_the_client(
    victim, tmp_path, era, theirs, action, content, expected
):
    form = {
        "type": "object",
        "properties": {"branch": {"type": "string", "title": "Bra\u200bnch", "enum": ["dev", "main"]}},
        "required": ["branch"],
    }
    question = {"message": "Which\u200b branch?", "requestedSchema": form}
    victim.script(era=theirs, calls={"act": {"do": "elicit" if theirs == "legacy" else "legs", "params": question}})
    victim.with_(overrides={"act": ToolOverride(risk=RiskLevel.READ_ONLY)})
    approver = ClientApprover(NeverApprove())
    async with opened([victim.spec], launcher=PlainLauncher(), pins=victim.pins, approver=approver) as servers:
        capabilities = {"elicitation": {"form": {}}}
        tools = Served(servers)
        async with conversation(
            era, tmp_path, tools, approver, capabilities, naming=lambda one: one.tool.name
        ) as client:
            request, answer = await question_and_answer(client, "act", content, action)
    assert request["message"] == "mcp:victim/act asks: Which\\u{200b} branch?"
    shown = request["requestedSchema"]["properties"]["branch"]
    assert shown["title"] == "Bra\\u{200b}nch"
    assert shown["enum"] == ["dev", "main"]
    told = json.loads(answer["content"][0]["text"])
    assert (told if theirs == "legacy" else told["answers"]["q"]) == expected
    assert victim.effects == (["act"] if theirs == "legacy" else ["act", "act"])


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","name":"echo"}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"a":NaN}}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":{"a":"\\ud800"}}}',
        b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":' + b'{"a":' * 100,
    ],
)
async def test_a_line_that_two_readers_could_read_differently_reaches_no_tool(line, tmp_path):
    tools = Tools()
    async with conversation("2025-11-25", tmp_path, tools) as client:
        await client.writer.write(line + b"\n")
        assert (await client.line())["error"]["code"] == -32700
    assert tools.effects == []


@pytest.mark.parametrize("name", ["/dev/null", "file"])
async def test_what_no_loop_can_watch_is_read_to_its_end(name, tmp_path):
    (tmp_path / "file").write_bytes(b'{"a": 1}\n')
    fd = os.open(tmp_path / name, os.O_RDONLY)
    reader = LineReader(fd, 1000)
    try:
        lines = [line async for line in _lines(reader)]
    finally:
        reader.close()
        os.close(fd)
    assert lines == ([b'{"a": 1}'] if name == "file" else [])


async def _lines(reader):
    while (line := await reader.line()) is not None:
        yield line
