"""The strict YAML reader: plain JSON values with their places, and none of YAML's tricks."""

import contextlib
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.strictyaml import MAX_BYTES, MAX_DEPTH, Mapping, NotStrict, Place, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1", {"a": 1}),
        ("a: -1.5e3", {"a": -1500.0}),
        ("a: no", {"a": "no"}),
        ("a: 1:30", {"a": "1:30"}),
        ("a: 012", {"a": "012"}),
        ("a: 2024-01-01", {"a": "2024-01-01"}),
        ("a: true\nb: null\nc: ~\nd:", {"a": True, "b": None, "c": None, "d": None}),
        ("a: 'true'", {"a": "true"}),
        ("a: |\n  x\n    y\n", {"a": "x\n  y\n"}),
        ("a: |\r\n  x\r\n  y\r\n", {"a": "x\ny\n"}),
        ('a: "\\u2028\\U0001F600"', {"a": "\u2028\U0001f600"}),
        ("- [1, {b: c}]", [[1, {"b": "c"}]]),
    ],
)
def test_values_mean_what_they_look_like(text: str, value: object) -> None:
    assert read(text).plain == value


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        ("a: &x 1\nb: *x", "anchor &x", Place(1, 4)),
        ("a: *x", "alias *x", Place(1, 4)),
        ("a: !!python/object/apply:os.system [id]", "tag", Place(1, 4)),
        ("a: !mine 1", "tag", Place(1, 4)),
        ("a: 1\nb: 2\na: 3", "given before, on line 1", Place(3, 1)),
        ("<<: {a: 1}", "merge", Place(1, 1)),
        ("1: x", "a key must be text", Place(1, 1)),
        ("? [a]\n: x", "a key must be text", Place(1, 3)),
        ("%YAML 1.1\n---\na: 1", "directives", Place(1, 1)),
        ("a: 1\n---\nb: 2", "second document", Place(2, 1)),
        ("a: [1,", "not valid YAML", Place(1, 7)),
        ("a: \x01", "U+0001", Place(1, 4)),
        ("a: 1e999", "too large", Place(1, 4)),
        ('a: "\\ud800"', "half of a surrogate pair", Place(1, 4)),
        ('a: {"\\udfff": 1}', "half of a surrogate pair", Place(1, 5)),
        ("a: |\n  x\ry", "U+000D", Place(2, 4)),
        ("a: 1\nb: x\x85y", "U+0085", Place(2, 5)),
        ("a: x\u2028y", "U+2028", Place(1, 5)),
        ("a: x\u2029y", "U+2029", Place(1, 5)),
        ("", "empty", Place(1, 1)),
        ("a: " + "[" * 60 + "]" * 60, "nested deeper", Place(1, 3 + MAX_DEPTH)),
        ("a" * (MAX_BYTES + 1), "larger than", Place(1, 1)),
    ],
)
def test_tricks_and_mistakes_are_refused_at_their_place(text: str, words: str, place: Place) -> None:
    with pytest.raises(NotStrict, match=re.escape(words)) as caught:
        read(text)
    assert caught.value.place == place


def test_an_alias_bomb_is_refused_before_it_grows() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(NotStrict, match="anchor"):
        read("\n".join(lines))


def test_keys_and_values_know_where_they_stand() -> None:
    document = read("a: 1\nbb:\n  - x\n  -   y\n", first_line=10)
    assert isinstance(document, Mapping)
    assert document.keys == {"a": Place(10, 1), "bb": Place(11, 1)}
    assert [item.place for item in document.items["bb"].items] == [Place(12, 5), Place(13, 7)]


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn", "Co"))),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcxyz", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(PLAIN)
def test_json_without_escapes_of_line_ends_reads_as_itself(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert read(text).plain == value


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from(list("ab:-[]{}|>'\"&*!#%?, \n\t~<1")), max_size=40))
def test_no_text_makes_it_fail_in_another_way(text: str) -> None:
    with contextlib.suppress(NotStrict):
        assert read(text).place >= Place(1, 1)
