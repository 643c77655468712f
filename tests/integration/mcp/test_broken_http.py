"""A remote server that does what it was asked and then breaks off: one effect, and an outcome that says so."""

import pytest

from handrail import Reason
from mcp_remote import breaking

pytestmark = pytest.mark.anyio

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
HALF = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"jsonrpc":"2.0","id":'
ENDINGS = {
    "before a word": b"",
    "after the headers": EVENTS,
    "in a stream of events": EVENTS + b"10\r\nevent: message\r\n\r\n",
    "at the stream's proper end": EVENTS + b"0\r\n\r\n",
    "in half an event": EVENTS + b'18\r\ndata: {"jsonrpc":"2.0",',
    "in half an answer": HALF,
    "with an error of the server's": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    "with an accepted and no more": b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.promise("mcp:calls:lost-is-unknown-and-never-sent-again")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_call_that_a_remote_server_breaks_off_is_one_effect_and_unknown(ending, tmp_path):
    async with breaking(ENDINGS[ending], tmp_path) as (server, executor):
        outcome = await executor.execute("mcp:far/act", {"n": 1})
        assert (outcome.status, outcome.reason) == ("unknown", Reason.CONNECTION_LOST), outcome.text
        assert server.effects == 1
        assert (await executor.execute("mcp:far/act", {"n": 2})).status == "unknown"  # another call is another effect
    assert server.effects == 2
