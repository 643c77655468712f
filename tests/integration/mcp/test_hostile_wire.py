"""What a server may do to the pipe itself: ids, bytes, floods, and things that are no messages."""

import json

import pytest

from handrail import Reason
from handrail.executor import Listeners
from mcp_kit import tool

pytestmark = pytest.mark.anyio


def answer(text: str, identity: str = "@ID@", **more) -> str:
    result = json.dumps({"content": [{"type": "text", "text": text}], **more})
    return f'{{"jsonrpc":"2.0","id":{identity},"result":{result}}}'


def raw(*lines: str) -> dict:
    return {"do": "raw", "text": "\n".join(lines)}


async def called(victim, do, *, timeout=60.0, listeners=None):
    """The outcome of a call that does ``do``, and of a plain one after it on the same connection or the next."""
    victim.script(tools=[tool("act"), tool("other")], calls={"act": do})
    victim.with_(timeout=timeout)
    async with victim.opened() as opened:
        outcome = await opened.call(listeners=listeners) if listeners else await opened.call()
        after = await opened.call("other", {"n": 7})
    assert after.text == '{"n": 7}'
    assert victim.effects == ["act", "other"]
    return outcome


@pytest.mark.parametrize("identity", ['"@ID@"', "@ID@.5", "true", "null", "[]", "-1", "0"])
async def test_an_answer_under_a_wrong_id_answers_nothing(victim, identity):
    outcome = await called(victim, raw(answer("not yours", identity), answer("yours")))
    assert outcome.text == "yours"


async def test_of_two_answers_the_first_counts_and_the_second_answers_no_other_call(victim):
    outcome = await called(victim, raw(answer("first"), answer("second")))
    assert outcome.text == "first"


async def test_a_batch_answers_nothing(victim):
    outcome = await called(victim, raw(f"[{answer('in a batch')}]"), timeout=1.0)
    assert (outcome.status, outcome.reason) == ("unknown", Reason.CONNECTION_LOST)


@pytest.mark.parametrize(
    "line",
    [
        '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}',
        '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}',
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        '{"jsonrpc":"2.0","method":"notifications/unheard-of","params":{"a":[[[[]]]]}}',
        "starting up … 100 %",
        "",
    ],
)
async def test_a_flood_of_lines_that_are_no_answer_is_survived(victim, line):
    outcome = await called(victim, {"do": "flood", "stream": "stdout", "line": line, "times": 3000})
    assert outcome.text == "after the flood"


async def test_a_flood_on_standard_error_is_survived(victim):
    outcome = await called(victim, {"do": "flood", "stream": "stderr", "line": "x" * 1000, "times": 10_000})
    assert outcome.text == "after the flood"


async def test_a_server_that_prints_words_before_it_speaks_is_understood(victim):
    outcome = await called(victim, raw("Server running on stdio", answer("and still there")))
    assert outcome.text == "and still there"


async def test_an_answer_that_is_not_utf_8_ends_its_own_call_only(victim):
    data = answer("caf?").encode().replace(b"?", b"\xe9\xff") + b"\n"
    outcome = await called(victim, {"do": "bytes", "bytes": data.hex()})
    assert (outcome.status, outcome.reason, outcome.invalid_output) == ("error", Reason.INVALID_OUTPUT, True)


@pytest.mark.promise("mcp:calls:lost-is-unknown-and-never-sent-again")
@pytest.mark.parametrize("times", [1, 400])
async def test_half_a_line_and_then_death_is_unknown(victim, times):
    """400 times is more than a message may have, without one line end."""
    victim.with_(max_message_bytes=1_000_000)
    data = answer("cut off")[:40].encode() + b"x" * 3000
    outcome = await called(victim, {"do": "bytes", "bytes": data.hex(), "times": times, "then": "die"})
    assert (outcome.status, outcome.reason) == ("unknown", Reason.CONNECTION_LOST)


async def test_progress_under_a_foreign_token_and_after_the_answer_is_not_heard(victim):
    heard: list[object] = []
    foreign = '{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}'
    do = raw(foreign % "99999", foreign % '"1"', answer("done"), foreign % "@ID@")
    listeners = Listeners(on_progress=lambda *about: heard.append(about))
    assert (await called(victim, do, listeners=listeners)).text == "done"
    assert heard == []


@pytest.mark.parametrize(
    "block",
    [
        {"type": "hologram", "data": "x"},
        {"type": "text"},
        {"type": "image", "data": 5},
        "text",
        None,
    ],
)
async def test_content_of_an_unknown_kind_is_a_completed_call_that_nobody_can_read(victim, block):
    do = {"do": "result", "result": {"content": [block]}}
    outcome = await called(victim, do)
    assert (outcome.status, outcome.reason, outcome.invalid_output) == ("error", Reason.INVALID_OUTPUT, True)


@pytest.mark.parametrize("uri", ["file:///etc/passwd", "http://127.0.0.1:9/x", "javascript:alert(1)"])
async def test_a_resource_link_is_shown_and_never_followed(victim, uri):
    link = {"type": "resource_link", "uri": uri, "name": "look", "mimeType": "text/plain"}
    outcome = await called(victim, {"do": "result", "result": {"content": [link]}})
    assert outcome.succeeded
    assert outcome.text == f"[resource link look: {uri}]"
    assert "root:" not in json.dumps([dict(block) for block in outcome.content])


async def test_a_list_that_changes_in_the_middle_of_a_call_ends_no_call(victim):
    change = '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'
    outcome = await called(victim, raw(change, change, answer("done"), change))
    assert outcome.text == "done"
