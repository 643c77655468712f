"""The transcript file: a torn tail is cut, other damage is refused by place, one process writes at a time."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.agent.conversation import Conversation, messages_of, open_calls_of
from handrail.agent.transcript import (
    Answered,
    Asked,
    ContextLoaded,
    Ended,
    FileTranscripts,
    Record,
    Resulted,
    Summarised,
    Waiting,
    decode_lines,
    encode_line,
    started,
)
from handrail.agent.valves import StopReason
from handrail.errors import TranscriptError
from handrail.models.client import AssistantMessage, Message, ModelCall, Usage, UserMessage


def records() -> list[Record]:
    call = ModelCall("look", '{"what": "ä"}', "p", "c1")
    return [
        started("r1", "/w", "m", "b"),
        Asked("do it"),
        Answered("I look.", (call,), "calls", Usage(1, 2, 3, 4), "m"),
        Waiting("c1", "a1"),
        Resulted("c1", "ok", None, "seen", "host:look", 1.5, changed=False, edited_arguments={"what": "o"}),
        Summarised("short", 2, Usage()),
        Ended("done", ""),
    ]


def test_records_come_back_as_they_were() -> None:
    raw = b"".join(map(encode_line, records()))
    found, whole = decode_lines(raw, "file")
    assert whole == len(raw)
    assert found[1:] == records()[1:]


def test_every_torn_tail_is_cut_and_appending_goes_on(tmp_path: Path) -> None:
    lines = [encode_line(record) for record in records()]
    raw = b"".join(lines)
    store = FileTranscripts(str(tmp_path / "runs"))
    store.create("r1").close()
    file = tmp_path / "runs" / "r1.jsonl"
    for size in range(len(lines[0]), len(raw) + 1, 29):
        file.write_bytes(raw[:size])
        transcript = store.open("r1")
        transcript.append(Ended("done", "again"))
        transcript.close()
        after = store.open("r1")
        after.close()
        whole = raw[:size].count(b"\n")
        assert len(after.records) == whole + 1
        assert after.records[-1] == Ended("done", "again")


@pytest.mark.parametrize("damage", [b"\0", b"[" * 100_000, b"1" * 5_000], ids=["zeros", "nesting", "digits"])
@pytest.mark.parametrize("number", [0, 2, 4])
def test_damage_elsewhere_is_refused_by_line(number: int, damage: bytes) -> None:
    lines = [encode_line(record) for record in records()]
    lines[number] = damage + b"\n"
    with pytest.raises(TranscriptError, match=rf"file:{number + 1}:"):
        decode_lines(b"".join(lines), "file")


def test_records_that_break_the_rules_are_refused() -> None:
    first, asked, answered, waiting, result, *_ = records()
    for broken in (
        [asked],
        [first, result],
        [first, answered, result, result],
        [first, answered, asked],
        [first, answered, answered],
        [first, first],
    ):
        with pytest.raises(TranscriptError):
            decode_lines(b"".join(map(encode_line, broken)), "file")
    assert open_calls_of([first, answered, waiting])[0].approval_id == "a1"


def test_one_process_writes_a_run_at_a_time(tmp_path: Path) -> None:
    store = FileTranscripts(str(tmp_path / "runs"))
    transcript = store.create("r1")
    transcript.append(*records())
    with pytest.raises(TranscriptError, match="in use by another process"):
        store.open("r1")
    transcript.close()
    store.open("r1").close()


def test_the_directory_and_files_are_private_and_ids_are_no_paths(tmp_path: Path) -> None:
    store = FileTranscripts(str(tmp_path / "runs"))
    store.create("r1").close()
    assert os.stat(tmp_path / "runs").st_mode & 0o777 == 0o700
    assert os.stat(tmp_path / "runs" / "r1.jsonl").st_mode & 0o777 == 0o600
    for name in ("../r1", "r1/..", "", "a" * 65, "r1\n"):
        with pytest.raises(TranscriptError):
            store.open(name)


def test_a_planted_link_is_not_written_through(tmp_path: Path) -> None:
    store = FileTranscripts(str(tmp_path / "runs"))
    store.create("r1").close()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "runs" / "r2.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(TranscriptError, match=r"r2.jsonl: File exists"):
        store.create("r2")
    with pytest.raises(TranscriptError, match=r"r2.jsonl: Too many levels"):
        store.open("r2")
    assert (tmp_path / "victim").read_text() == "mine"


def test_a_run_of_another_version_is_refused_by_its_version_and_left_as_it_is(tmp_path: Path) -> None:
    store = FileTranscripts(str(tmp_path))
    text = '{"record":"run","version":2,"what this is":"nobody knows yet"}\n'
    (tmp_path / "r1.jsonl").write_text(text)
    with pytest.raises(TranscriptError, match=r"another version of Handrail \(format 2; this one reads 1\)"):
        store.open("r1")
    assert (tmp_path / "r1.jsonl").read_text() == text


def test_lone_surrogates_of_a_broken_provider_do_not_stop_the_record() -> None:
    line = encode_line(Asked("\ud800"))
    assert json.loads(line)["text"] == "?"


def test_the_reasons_to_stop_are_a_closed_list() -> None:
    assert sorted(StopReason) == [
        "awaiting_approval", "cancelled", "consecutive_errors", "cycle", "done", "errors", "max_turns", "model_failed",
        "refused", "repeated_call", "tokens", "truncated", "wall_time",
    ]  # fmt: skip


class CountedRecords(list[Record]):
    """Records that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Record]:
        raise AssertionError("the whole list was walked through")


def test_the_conversation_reads_each_record_once_however_long_the_run_is() -> None:
    grown = CountedRecords([started("r1", "/w", "m", "b"), Asked("go")])
    conversation = Conversation(grown)
    for number in range(500):
        call = ModelCall("look", "{}", "", f"c{number}")
        grown.append(Answered("", (call,), "calls", Usage(), "m"))
        assert [item.call for item in conversation.open_calls] == [call]
        grown.append(Resulted(call.call_id, "ok", None, "seen", "host:look", 1.0, changed=False))
        assert conversation.open_calls == []
        assert len(conversation.messages) == 1 + 2 * (number + 1)
    assert grown.looks == len(grown)
    assert conversation.messages == messages_of(grown)


@given(st.lists(st.sampled_from(["ask", "answer", "summary"]), max_size=12), st.data())
@settings(deadline=None, max_examples=60)
def test_read_piece_by_piece_a_conversation_is_the_same_as_read_at_once(steps: list[str], data: st.DataObject) -> None:
    known: list[Record] = [started("r1", "/w", "m", "b"), ContextLoaded("AGENTS.md", "notes", "0" * 64, 5, cut=False)]
    conversation = Conversation(known)
    for number, step in enumerate(steps):
        if step == "ask":
            known.append(Asked(f"prompt {number}"))
        elif step == "answer":
            calls = tuple(ModelCall("look", "{}", "", f"c{number}.{index}") for index in range(number % 3))
            known.append(Answered(f"answer {number}", calls, "calls", Usage(), "m"))
            assert conversation.messages == messages_of(known)
            known += [Resulted(call.call_id, "error", "denied", "no", "t", 1.0, changed=False) for call in calls]
        else:
            cuts = [index for index, record in enumerate(known) if isinstance(record, (Asked, Answered))]
            if cuts:
                known.append(Summarised(f"summary {number}", data.draw(st.sampled_from(cuts)), Usage()))
        whole = Conversation(known)
        assert conversation.messages == whole.messages
        assert conversation.open_calls == whole.open_calls == []
        assert conversation.estimated_tokens == whole.estimated_tokens
        assert conversation.estimated_tokens == sum(map(length, whole.messages)) // 4
    if known and isinstance(known[-1], Summarised):
        assert isinstance(conversation.messages[0], UserMessage)
        assert "notes" in conversation.messages[0].text
        assert f"summary {len(steps) - 1}" in conversation.messages[1].text


def length(message: Message) -> int:
    calls = message.calls if isinstance(message, AssistantMessage) else ()
    return len(message.text) + sum(len(call.name) + len(call.arguments) for call in calls)


def test_what_may_be_flushed_later_is_flushed_with_what_must_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs" / "r1.jsonl"
    flushed: list[int] = []
    flush = os.fdatasync

    def watched(fd: int) -> None:
        flush(fd)
        flushed.append(file.stat().st_size)

    monkeypatch.setattr(os, "fdatasync", watched)
    transcript = FileTranscripts(str(tmp_path / "runs")).create("r1")
    transcript.append(records()[0])
    first = file.stat().st_size
    transcript.append(records()[1], durable=False)
    assert file.stat().st_size > first  # it is written, so only the machine's own death can lose it
    assert flushed == [first]
    transcript.append(records()[2])
    assert flushed == [first, file.stat().st_size]
    transcript.close()
