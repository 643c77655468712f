"""What a remote server may answer a call with, that it carried out, besides an answer."""

import asyncio
import contextlib
import json

import pytest

from handrail import Reason
from mcp_remote import Breaking, breaking

pytestmark = pytest.mark.anyio


EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def redirect(status: int, location: str) -> bytes:
    return f"HTTP/1.1 {status} Elsewhere\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.promise("mcp:calls:lost-is-unknown-and-never-sent-again")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("where", ["the same host", "another host"])
async def test_a_redirected_call_is_sent_nowhere_else_and_not_again(status, where, tmp_path):
    heard: list[bytes] = []

    async def listen(reader, writer):
        heard.append(await reader.read(1000))
        writer.close()

    other = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with other, breaking(b"", tmp_path) as (server, executor):
        elsewhere = f"http://127.0.0.1:{other.sockets[0].getsockname()[1]}/mcp"
        server.ending = redirect(status, "/mcp" if where == "the same host" else elsewhere)
        outcome = await executor.execute("mcp:far/act", {"n": 1})
        assert (outcome.status, outcome.reason) == ("unknown", Reason.CONNECTION_LOST), outcome.text
        assert server.effects == 1
        assert heard == []


@pytest.mark.parametrize(
    "ending",
    [
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>ok</html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nContent-Length: 4\r\n\r\n\x89PNG",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 401 Who\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n",
        b"\x00\x01 this is no HTTP\r\n\r\n",
    ],
    ids=["html", "no type", "picture", "nothing", "busy", "login", "not http"],
)
async def test_an_answer_of_another_kind_is_unknown_and_the_call_is_not_sent_again(ending, tmp_path):
    async with breaking(ending, tmp_path) as (server, executor):
        outcome = await executor.execute("mcp:far/act", {"n": 1})
        assert outcome.status == "unknown", outcome.text
        assert server.effects == 1


class Commenting(Breaking):
    """Answers a call with a stream of comments that never ends."""

    def __init__(self) -> None:
        super().__init__(EVENTS)
        self.left = asyncio.Event()

    async def broken_off(self, writer):
        comments = b": still there\r\n\r\n" * 100
        writer.write(EVENTS)
        while not writer.transport.is_closing():
            writer.write(f"{len(comments):x}\r\n".encode() + comments + b"\r\n")
            await asyncio.sleep(0.01)
        self.left.set()


class Forgetting(Breaking):
    """Gives a session at the start, and knows only the latest one that it gave."""

    def __init__(self, refusal: bytes) -> None:
        super().__init__(b"")
        self.refusal = refusal
        self.session = 0
        self.forgotten = False

    async def serve(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                length = next((line for line in head.splitlines() if line.startswith("content-length:")), ":0")
                message = json.loads(await reader.readexactly(int(length.split(":")[1])) or b"{}")
                writer.write(self.respond(head, message))
        writer.close()

    def respond(self, head: str, message) -> bytes:
        method = message.get("method")
        if method == "initialize":
            self.session += 1
            self.forgotten = False
            answer = self.answer(message)
            return answer.replace(b"\r\n\r\n", f"\r\nMcp-Session-Id: s{self.session}\r\n\r\n".encode(), 1)
        if method == "tools/call" and self.forgotten:
            return self.refusal
        if method == "tools/call":
            self.effects += 1
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}).encode()
            return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        if method is None:
            return b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n"
        return self.answer(message)


SAID = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"Session not found"}}'
REFUSALS = {
    "plain": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "in words": b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(SAID)
    + SAID,
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_a_forgotten_session_is_refused_once_and_the_next_call_begins_a_new_one(refusal, tmp_path):
    async with breaking(b"", tmp_path, Forgetting(REFUSALS[refusal])) as (server, executor):
        assert (await executor.execute("mcp:far/act", {"n": 1})).succeeded
        server.forgotten = True
        refused = await executor.execute("mcp:far/act", {"n": 2})
        assert refused.status == "error", refused.text
        assert server.effects == 1
        assert (await executor.execute("mcp:far/act", {"n": 3})).succeeded
        assert (server.session, server.effects) == (2, 2)


async def test_a_stream_of_comments_without_end_is_unknown_when_its_time_is_over(tmp_path):
    async with breaking(b"", tmp_path, Commenting(), timeout=2.0) as (server, executor):
        outcome = await executor.execute("mcp:far/act", {"n": 1})
        assert (outcome.status, outcome.limit) == ("unknown", "wall")
        assert server.effects == 1
        await asyncio.wait_for(server.left.wait(), 60)  # closing the stream is what tells the server
