"""Both providers' clients against a real HTTP server on loopback that behaves well and badly."""

import asyncio
import copy
import functools
import json
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anthropic.types.message_create_params as anthropic_params
import jsonschema_rs
import openai.types.chat.completion_create_params as openai_params
import pytest
from pydantic import TypeAdapter

from agent_kit import Kit, in_loop
from fake_providers import (
    Exchange,
    FakeProvider,
    Handler,
    anthropic_streamed,
    anthropic_whole,
    openai_streamed,
    openai_whole,
    refusal,
)
from handrail.agent.events import ModelRetry, RunEnded, TextArrived
from handrail.agent.transcript import Answered
from handrail.agent.valves import StopReason
from handrail.models.anthropic import Anthropic
from handrail.models.client import Usage
from handrail.models.openai_compatible import OpenAICompatible
from handrail.models.retry import RetryPolicy
from handrail.tool import RiskLevel, Signal, ToolDef

Answer = Callable[..., Handler]


class Dialect:
    """One provider in one mode: how it is asked, how it answers, and what its published schema accepts."""

    def __init__(self, provider: str, stream: bool, answer: Answer) -> None:
        self.provider, self.stream, self.answer = provider, stream, answer

    def __repr__(self) -> str:
        return f"{self.provider}-{'streamed' if self.stream else 'whole'}"

    @asynccontextmanager
    async def kit(self, server: FakeProvider, *, timeout: float = 20.0, **settings: Any) -> AsyncGenerator[Kit, None]:
        kind = Anthropic if self.provider == "anthropic" else OpenAICompatible
        kit = Kit(kind("fake-1", base_url=server.url, key="k", stream=self.stream, timeout=timeout), **settings)
        try:
            yield kit
        finally:
            await kit.agent.aclose()

    def problems(self, body: Any) -> list[str]:
        """What the provider's published schema of a request has against this one."""
        return [str(error.message) for error in self._published().iter_errors(body)]

    def check(self, body: Any) -> None:
        assert self.problems(body) == []

    def _published(self) -> jsonschema_rs.Draft202012Validator:
        if self.provider == "anthropic":
            kinds = anthropic_params.MessageCreateParamsStreaming, anthropic_params.MessageCreateParamsNonStreaming
        else:
            kinds = openai_params.CompletionCreateParamsStreaming, openai_params.CompletionCreateParamsNonStreaming
        return published(kinds[0] if self.stream else kinds[1])


@functools.cache
def published(kind: type[Any]) -> jsonschema_rs.Draft202012Validator:
    """The SDK's own type of a request, which its provider publishes, as a schema that knows no other keys.

    As JSON Schema, because checking the type itself would look at no message: its lists are ``Iterable``, which are
    checked only when somebody walks through them, and unknown keys would pass.
    """
    return jsonschema_rs.Draft202012Validator(closed(TypeAdapter(kind).json_schema()))


def closed(schema: Any) -> Any:
    """Every object that lists its properties has no others."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(item) for key, item in schema.items()}
    return {"additionalProperties": False, **inner} if isinstance(inner.get("properties"), dict) else inner


DIALECTS = [
    Dialect("openai", True, openai_streamed),
    Dialect("openai", False, openai_whole),
    Dialect("anthropic", True, anthropic_streamed),
    Dialect("anthropic", False, anthropic_whole),
]
STREAMED = [dialect for dialect in DIALECTS if dialect.stream]
every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
streamed_dialects = pytest.mark.parametrize("dialect", STREAMED, ids=repr)


@pytest.mark.promise("models:request:accepted-by-published-schema")
@every_dialect
@in_loop
async def test_a_conversation_with_calls_and_usage(dialect: Dialect) -> None:
    handlers = [
        dialect.answer("I look. ", [("id1", "look", '{"what": "é"}'), ("id2", "fail", "{}")]),
        dialect.answer("Done now."),
    ]
    with FakeProvider(handlers) as server:
        async with dialect.kit(server) as kit:
            result = await kit.run("look")
    assert (result.stop, result.text.strip()) == (StopReason.DONE, "Done now.")
    assert kit.ran == {"look é": 1, "fail": 1}
    assert kit.named(RunEnded)[0].usage == Usage(22, 14, 8, 0)
    assert "k" in (server.headers[0].get("authorization", ""), server.headers[0].get("x-api-key", "").strip()) or (
        server.headers[0]["authorization"] == "Bearer k"
    )
    for body in server.bodies:
        dialect.check(body)


def last_result(body: Any) -> Any:
    """The message, or the block of one, that holds the last result."""
    message = body["messages"][-1]
    return message["content"][-1] if isinstance(message["content"], list) else message


BREAKS: dict[str, Callable[[Any], object]] = {
    "a key nobody knows": lambda body: body.update(bogus=1),
    "no model": lambda body: body.pop("model"),
    "a role nobody has": lambda body: body["messages"][0].update(role="nonsense"),
    "a number for text": lambda body: body["messages"][0].update(content=3),
    "a result of no call": lambda body: [last_result(body).pop(key, None) for key in ("tool_call_id", "tool_use_id")],
    "a key nobody knows, deep inside": lambda body: last_result(body).update(bogus=1),
    "a tool without a name": lambda body: body["tools"][0].get("function", body["tools"][0]).pop("name"),
}


@every_dialect
@in_loop
async def test_the_published_schema_refuses_what_is_wrong(dialect: Dialect) -> None:
    """So that being accepted by it says something."""
    with FakeProvider([dialect.answer("", [("id1", "look", "{}")]), dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            await kit.run()
    dialect.check(server.bodies[1])
    for what, break_it in BREAKS.items():
        body = copy.deepcopy(server.bodies[1])
        break_it(body)
        assert dialect.problems(body) != [], what


@every_dialect
@in_loop
async def test_fifty_calls_in_one_answer_are_fifty_calls(dialect: Dialect) -> None:
    fifty = [(f"id{n}", "look", f'{{"what": "{n}"}}') for n in range(50)]
    with FakeProvider([dialect.answer("", fifty), dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            result = await kit.run()
    assert sorted(kit.ran.values()) == [1] * 50
    assert [f"look {n}" in item.text for n, item in enumerate(kit.results(result.run_id))] == [True] * 50
    dialect.check(server.bodies[1])


@pytest.mark.promise("models:ids:duplicates-are-two-calls")
@every_dialect
@in_loop
async def test_duplicate_ids_are_two_calls_with_ids_of_ours(dialect: Dialect) -> None:
    twins = [("same", "look", '{"what": "a"}'), ("same", "look", '{"what": "b"}')]
    with FakeProvider([dialect.answer("", twins), dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            await kit.run()
    assert kit.ran == {"look a": 1, "look b": 1}
    sent = str(server.bodies[1])
    assert "same" not in sent
    dialect.check(server.bodies[1])


@streamed_dialects
@in_loop
async def test_malformed_arguments_come_back_as_an_error_and_the_next_request_is_sound(dialect: Dialect) -> None:
    bad = [
        ("1", "look", '{"what": '),
        ("2", "no such tool!", "{}"),
        ("3", "look", '["a"]'),
        ("4", "look", '{"what": NaN}'),
    ]
    with FakeProvider([dialect.answer("", bad), dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            result = await kit.run()
    assert not kit.ran
    assert [item.is_error for item in kit.results(result.run_id)] == [True] * 4
    assert result.stop is StopReason.DONE
    dialect.check(server.bodies[1])


@every_dialect
@in_loop
async def test_an_answer_cut_at_its_length_runs_nothing(dialect: Dialect) -> None:
    finish = "max_tokens" if dialect.provider == "anthropic" else "length"
    with FakeProvider([dialect.answer("", [("1", "act", '{"what": "x"}')], finish), dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            assert (await kit.run()).stop is StopReason.DONE
    assert not kit.ran


@every_dialect
@in_loop
async def test_a_declined_answer_ends_the_run_as_refused(dialect: Dialect) -> None:
    finish = "refusal" if dialect.provider == "anthropic" else "content_filter"
    with FakeProvider([dialect.answer("No", [], finish)]) as server:
        async with dialect.kit(server) as kit:
            assert (await kit.run()).stop is StopReason.REFUSED


@pytest.mark.promise("models:broken-stream:nothing-runs-nothing-is-repeated")
@streamed_dialects
@pytest.mark.parametrize("after", [3, 4, 6])
@in_loop
async def test_a_stream_that_breaks_runs_nothing_and_is_not_asked_for_again(dialect: Dialect, after: int) -> None:
    call = [("1", "act", '{"what": "long enough"}')]
    with FakeProvider([dialect.answer("One two three.", call, break_after=after), dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            broken = await kit.run()
            assert broken.stop is StopReason.MODEL_FAILED
            assert len(server.bodies) == 1
            assert not kit.ran
            assert not [record for record in kit.transcript(broken.run_id).records if isinstance(record, Answered)]
            assert (await kit.resume(broken.run_id)).stop is StopReason.DONE
    dialect.check(server.bodies[1])


@every_dialect
@in_loop
async def test_rate_limits_are_waited_for_as_asked_and_bounded(dialect: Dialect) -> None:
    busy = refusal(429, {"error": {"type": "rate_limit_error", "message": "slow down"}}, {"retry-after": "0.01"})
    with FakeProvider([busy, busy, dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            assert (await kit.run()).stop is StopReason.DONE
            assert [event.wait for event in kit.named(ModelRetry)] == [0.01, 0.01]
    with FakeProvider([busy] * 4) as server:
        async with dialect.kit(server, retry=RetryPolicy(attempts=4)) as kit:
            result = await kit.run()
            assert result.stop is StopReason.MODEL_FAILED
            assert "429" in result.detail
            assert len(server.bodies) == 4


@every_dialect
@in_loop
async def test_a_wrong_request_is_sent_once(dialect: Dialect) -> None:
    with FakeProvider([refusal(400, {"error": {"message": "no such model"}})]) as server:
        async with dialect.kit(server) as kit:
            result = await kit.run()
            assert (result.stop, len(server.bodies)) == (StopReason.MODEL_FAILED, 1)
            assert "no such model" in result.detail


@every_dialect
@in_loop
async def test_a_server_that_goes_silent_is_given_up_within_the_timeout(dialect: Dialect) -> None:
    release = threading.Event()

    def silent(exchange: Any) -> None:
        release.wait(30)

    with FakeProvider([silent]) as server:
        async with dialect.kit(server, timeout=0.2, retry=RetryPolicy(attempts=1)) as kit:
            try:
                result = await asyncio.wait_for(kit.run(), 20)
            finally:
                release.set()
    assert result.stop is StopReason.MODEL_FAILED


@streamed_dialects
@in_loop
async def test_a_slow_stream_can_be_interrupted_in_the_middle(dialect: Dialect) -> None:
    release = threading.Event()
    signal = Signal()

    def before(number: int) -> None:
        if number == 4:
            signal.set("interrupted")
            release.wait(30)

    handlers = [dialect.answer("one two three four five six", before=before), dialect.answer("ok")]
    with FakeProvider(handlers) as server:
        async with dialect.kit(server) as kit:
            try:
                result = await asyncio.wait_for(kit.run(signal=signal), 20)
            finally:
                release.set()
            assert result.stop is StopReason.CANCELLED
            assert (await kit.resume(result.run_id)).stop is StopReason.DONE


@pytest.mark.promise("models:projection:one-bad-tool-poisons-nothing")
@every_dialect
@in_loop
async def test_an_awkward_tool_neither_poisons_the_request_nor_loses_its_names(dialect: Dialect) -> None:
    given: list[Any] = []

    def awkward(arguments: dict[str, Any]) -> str:
        given.append(dict(arguments))
        return "ok"

    definition = ToolDef(
        name="awkward",
        parameters={
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "definitions": {"node": {"type": "object", "properties": {"next": {"$ref": "#/definitions/node"}}}},
            "properties": {"über key!": {"type": "string"}, "tree": {"$ref": "#/definitions/node"}},
            "oneOf": [{"required": ["über key!"]}, {"required": ["tree"]}],
        },
        risk_level=RiskLevel.READ_ONLY,
    )
    shown: dict[str, Any] = {}

    def answer(exchange: Any) -> None:
        tools = exchange.body["tools"]
        tool = next(item for item in tools if "awkward" in str(item))
        shown.update(tool.get("input_schema") or tool["function"]["parameters"])
        key = next(name for name in shown["properties"] if name.startswith("ber_key"))
        dialect.answer("", [("1", "awkward", f'{{"{key}": "v"}}')])(exchange)

    with FakeProvider([answer, dialect.answer("ok")]) as server:
        async with dialect.kit(server) as kit:
            kit.agent.tools.register_from_def(definition, awkward)
            assert (await kit.run()).stop is StopReason.DONE
    assert given == [{"über key!": "v"}]
    assert not {"$schema", "definitions", "oneOf"} & set(shown)
    assert "$ref" not in str(shown)
    dialect.check(server.bodies[0])


SLOPPY = {
    "no index, one after the other": [
        {"tool_calls": [{"id": "a", "function": {"name": "look", "arguments": '{"what": "1"}'}}]},
        {"tool_calls": [{"id": "b", "function": {"name": "look", "arguments": '{"what": "2"}'}}]},
    ],
    "all under index 0": [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"what": "1"}'}}]},
        {"tool_calls": [{"index": 0, "id": "b", "function": {"name": "look", "arguments": '{"what": "2"}'}}]},
    ],
    "id and name in every fragment": [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"what"'}}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "look", "arguments": ': "1"}'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "look", "arguments": '{"what": "2"}'}}]},
    ],
    "name in pieces": [
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "lo"}}]},
        {"tool_calls": [{"index": 0, "function": {"name": "ok", "arguments": '{"what": "1"}'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "look", "arguments": '{"what": "2"}'}}]},
    ],
}


@pytest.mark.parametrize("habit", SLOPPY)
@in_loop
async def test_sloppy_servers_are_understood(habit: str) -> None:
    with FakeProvider([openai_streamed(deltas=SLOPPY[habit]), openai_streamed("ok")]) as server:
        async with STREAMED[0].kit(server) as kit:
            await kit.run()
    assert kit.ran == {"look 1": 1, "look 2": 1}


@every_dialect
@in_loop
async def test_parameters_that_the_sdk_does_not_know_reach_the_server(dialect: Dialect) -> None:
    kind = Anthropic if dialect.provider == "anthropic" else OpenAICompatible
    with FakeProvider([dialect.answer("ok")]) as server:
        kit = Kit(kind("fake-1", base_url=server.url, stream=dialect.stream, extra={"vendor_switch": {"on": True}}))
        result = await kit.run()
        await kit.agent.aclose()
    assert result.stop is StopReason.DONE, result.detail
    assert server.bodies[0]["vendor_switch"] == {"on": True}


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_a_refusal_in_a_field_of_its_own_is_a_refusal_with_its_words(stream: bool) -> None:
    said = {"role": "assistant", "content": None, "refusal": "I will not."}

    def answer(exchange: Exchange) -> None:
        figures = {"id": "c", "created": 1, "model": "fake-1"}
        choice = {"index": 0, "finish_reason": "stop", ("delta" if stream else "message"): said}
        if not stream:
            exchange.send_json(200, {**figures, "object": "chat.completion", "choices": [choice]})
            return
        exchange.start_stream()
        chunk = {**figures, "object": "chat.completion.chunk", "choices": [choice]}
        exchange.send_raw(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")
        exchange.end_stream()

    with FakeProvider([answer]) as server:
        kit = Kit(OpenAICompatible("fake-1", base_url=server.url, stream=stream))
        result = await kit.run()
        await kit.agent.aclose()
    assert (result.stop, result.text) == (StopReason.REFUSED, "I will not.")
    assert [event.text for event in kit.named(TextArrived)] == ["I will not."]


@every_dialect
@in_loop
async def test_an_answer_is_told_to_the_listener_also_where_it_is_not_streamed(dialect: Dialect) -> None:
    with FakeProvider([dialect.answer("All is well.")]) as server:
        async with dialect.kit(server) as kit:
            await kit.run()
    assert "".join(event.text for event in kit.named(TextArrived)).strip() == "All is well."


@every_dialect
@in_loop
async def test_a_key_that_a_server_repeats_is_not_shown_or_kept(dialect: Dialect) -> None:
    key = "sk-not-a-real-key"
    kind = Anthropic if dialect.provider == "anthropic" else OpenAICompatible
    with FakeProvider([refusal(401, {"error": {"message": f"Received={key} is not valid"}})]) as server:
        kit = Kit(kind("fake-1", base_url=server.url, key=key, stream=dialect.stream))
        result = await kit.run()
        await kit.agent.aclose()
    assert result.stop is StopReason.MODEL_FAILED
    assert "Received=[key]" in result.detail
    assert key not in repr(kit.transcript(result.run_id).records)
