"""The decoder at the borders of its rules, in the words a model reads; and the bytes that stand for a value."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handrail.schema import (
    MAX_BYTES,
    MAX_DEPTH,
    ArgumentsInvalid,
    canonical_bytes,
    copy_json,
    decode_arguments,
    decode_json,
    digest_of,
)


def refused(read: Callable[..., Any], *given: Any, **options: Any) -> str:
    with pytest.raises(ArgumentsInvalid) as caught:
        read(*given, **options)
    return str(caught.value)


# ── one text ─────────────────────────────────────────────────────────────────────────────────────────────────────

EMPTY = "the arguments are empty; give a JSON object, {} if there are none"
EARLY = "the JSON text ends too early ({}); send the whole object again"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", EMPTY),
        (" \n", EMPTY),
        ('{"a": 1', EARLY.format("line 1 column 8: Expecting ',' delimiter")),
        ('{"a": 1 \n', EARLY.format("line 2 column 1: Expecting ',' delimiter")),
        ('{"a": "b', EARLY.format("line 1 column 7: Unterminated string starting at")),
        ('{"a" 1}', "not valid JSON at line 1 column 6: Expecting ':' delimiter"),
        ('{"a": 1} x', "not valid JSON at line 1 column 10: Extra data"),
        ('{"b": 1, "a": 1, "a": 2}', "the key 'a' is given twice in one object; give it once"),
        ("[1e999]", "a number is too large to be represented; use a finite number"),
        ('["\\ud800"]', "a string holds a lone surrogate, which is not valid Unicode text"),
        ('["\ud800"]', "a string holds a lone surrogate, which is not valid Unicode text"),
        ("[" * 100_000, f"the arguments nest deeper than {MAX_DEPTH} levels"),
        (b'["\xff"]', "the arguments are not UTF-8 (byte 2)"),
    ],
)
def test_a_text_that_is_no_strict_json_is_refused_in_words_a_model_can_act_on(text: str | bytes, said: str) -> None:
    assert refused(decode_json, text) == said


def test_a_number_that_this_python_does_not_write_is_refused() -> None:
    assert refused(decode_json, "1" * 5_000).startswith("a number is too long: ")
    assert refused(copy_json, {"a": 10**5_000}).startswith("a number is too long: ")


def test_blanks_around_a_text_are_no_part_of_it() -> None:
    for text in ('\n {"a": 1}', '{"a": 1} \n', b' {"a": 1} ', '{"a": 1}'):
        assert decode_json(text) == {"a": 1}


@pytest.mark.parametrize(
    ("value", "kind"), [("[]", "an array"), ("1", "a number"), ("null", "null"), ('"{}"', "a string"), ([], "an array")]
)
def test_arguments_are_an_object(value: Any, kind: str) -> None:
    assert refused(decode_arguments, value) == f"the arguments must be a JSON object like {{…}}, not {kind}"


# ── how large, how deep ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ('"aaaaaaaa"', 10),
        ('"éééé"', 10),
        (b'"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9"', 10),
        ('"' + "é" * 18 + '"', 38),  # the characters alone would fit twice
        ('"' + "\U0001f600" * 3 + '"', 14),
    ],
)
def test_a_text_is_measured_in_bytes(text: str | bytes, size: int) -> None:
    assert decode_json(text, max_bytes=size) == json.loads(text)
    for fewer in range(size // 2, size):
        assert refused(decode_json, text, max_bytes=fewer) == f"the arguments are larger than {fewer} bytes"


def test_a_lone_surrogate_has_a_size_too() -> None:
    assert "surrogate" in refused(decode_json, '"\ud800"', max_bytes=5)
    assert "larger" in refused(decode_json, '"\ud800"', max_bytes=4)


def test_arguments_that_came_as_a_mapping_are_measured_as_compact_json() -> None:
    for character, size in (("a", 1), ("é", 2), ("\x00", 6)):
        room = MAX_BYTES - len('{"a":""}')
        fits = character * (room // size)
        assert decode_arguments({"a": fits}) == {"a": fits}
        assert refused(decode_arguments, {"a": fits + character}) == f"the arguments are larger than {MAX_BYTES} bytes"
    assert copy_json({"a": "a" * MAX_BYTES}, max_bytes=None) == {"a": "a" * MAX_BYTES}


ARRAY: Callable[[Any], Any] = lambda inner: [inner]  # noqa: E731
OBJECT: Callable[[Any], Any] = lambda inner: {"a": inner}  # noqa: E731


def nested(levels: int, around: tuple[Callable[[Any], Any], ...], core: Any) -> Any:
    for level in range(levels):
        core = around[level % len(around)](core)
    return core


@pytest.mark.parametrize("core", [1, [], {}], ids=repr)
@pytest.mark.parametrize("around", [(ARRAY,), (OBJECT,), (ARRAY, OBJECT)], ids=["arrays", "objects", "both"])
@pytest.mark.parametrize("read", [copy_json, lambda value: decode_json(json.dumps(value))], ids=["value", "text"])
def test_a_value_may_stand_in_as_many_levels_and_no_more(
    read: Callable[[Any], Any], around: tuple[Callable[[Any], Any], ...], core: Any
) -> None:
    deepest = nested(MAX_DEPTH, around, core)
    assert read(deepest) == deepest
    assert refused(read, nested(1, around, deepest)) == f"the arguments nest deeper than {MAX_DEPTH} levels"


# ── a value of Python ────────────────────────────────────────────────────────────────────────────────────────────


class Text(str):
    """A text with a mind of its own."""

    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": float("nan")}, "a number is NaN or infinite; use a finite number"),
        ([float("-inf")], "a number is NaN or infinite; use a finite number"),
        ({"a": (1,)}, "a value of type tuple is not JSON"),
        ({"a": {1}}, "a value of type set is not JSON"),
        ([Text("a")], "a value of type Text is not JSON"),
        ({1: "a"}, "a key of type int is not JSON; keys are strings"),
        ({Text("a"): 1}, "a key of type Text is not JSON; keys are strings"),
        ({"\ud800": 1}, "a string holds a lone surrogate, which is not valid Unicode text"),
        (["\ud800"], "a string holds a lone surrogate, which is not valid Unicode text"),
    ],
)
def test_a_value_that_is_no_plain_json_is_refused_by_its_kind(value: Any, said: str) -> None:
    assert refused(copy_json, value) == said


def test_a_copy_shares_nothing() -> None:
    given = {"a": [{"b": [1, 2.5, True, None, "x"]}]}
    copied = copy_json(given)
    assert copied == given
    given["a"][0]["b"].append("later")
    assert copied == {"a": [{"b": [1, 2.5, True, None, "x"]}]}


# ── the bytes of a value ─────────────────────────────────────────────────────────────────────────────────────────

LARGEST = 2**53 - 1  # the largest integer up to which RFC 8785 writes every one


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"b": 1.0, "a": [True, None, "é"]}, '{"a":[true,null,"é"],"b":1}'),
        ([LARGEST, -LARGEST], f"[{LARGEST},{-LARGEST}]"),
        (LARGEST + 1, "9007199254740992n"),
        (["\udcff", "\\udcff", "a\n\udc80é"], '["\\udcff","\\\\udcff","a\\n\\udc80é"]'),
        (
            {"\ue000": 1, "\udcff": (2**53,), "\U0001f600": 2},
            '{"\U0001f600":2,"\\udcff":[9007199254740992n],"\ue000":1}',
        ),
        (-LARGEST - 1, "-9007199254740992n"),
        ([LARGEST + 2, LARGEST, -LARGEST], f"[9007199254740993n,{LARGEST},-{LARGEST}]"),
        (
            {"n": 2**53, "b": [1.5, -1, True, None, "é", {"\ufb33": 1, "\U0001f600": 2}], "a": {}, "l": []},
            '{"a":{},"b":[1.5,-1,true,null,"é",{"\U0001f600":2,"\ufb33":1}],"l":[],"n":9007199254740992n}',
        ),
    ],
)
def test_a_value_has_one_spelling_and_integers_keep_every_digit(value: Any, written: str) -> None:
    assert canonical_bytes(value) == written.encode()


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        [1e17, 10**17, "100000000000000000", "n", "\udcff", "\\udcff", 6.957288955304731e16, 69572889553047310]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "$integer", "\udc80"]), inner, max_size=2)
    ),
    max_leaves=3,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: ``1`` is ``1.0`` and not ``true``; ``2**53 + 1`` is no float."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) or isinstance(other, float):
        large = any(type(value) is int and abs(value) >= 2**53 for value in (one, other))
        return not large and not isinstance(one, bool) and not isinstance(other, bool) and one == other
    return type(one) is type(other) and one == other


@given(plain, plain)
def test_two_values_have_the_same_bytes_exactly_when_they_are_the_same(one: Any, other: Any) -> None:
    assert (canonical_bytes(one) == canonical_bytes(other)) == same(one, other)
    assert (canonical_bytes([one, 2**60]) == canonical_bytes([other, 2**60])) == same(one, other)


def test_what_is_written_reads_back_as_the_same_value() -> None:
    value = {"b": [1.5, -1, True, None, "\u2028é\U0001f600", {}], "a": LARGEST}
    assert json.loads(canonical_bytes(value)) == value


def test_a_digest_is_the_sha_256_of_the_bytes() -> None:
    assert digest_of({}) == "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
