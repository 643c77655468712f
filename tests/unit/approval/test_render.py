"""Untrusted text on a screen: nothing acts, nothing hides, and two different texts never look the same."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handrail.approval.render import arguments_lines, block_lines, escaped, quoted, visible
from handrail.hidden import is_hidden

nasty = st.text(
    st.sampled_from(
        "ab\\\"'\n\t\r\x00\x1b\x7f\x85\u00a0\u00ad\u200b\u202e\u2028\u2066\u3164\ufe0f\U000e0041\ue000×[]0123456789n日é"
    ),
    max_size=30,
)


@pytest.mark.promise("approval:render:nothing-acts-and-nothing-hides")
@settings(deadline=None, max_examples=400)
@given(text=nasty | st.text(max_size=60))
def test_every_character_that_comes_out_can_be_seen(text: str) -> None:
    shown = escaped(text)
    assert "\n" not in shown
    assert all(character == " " or unicodedata.category(character)[0] not in "CZ" for character in shown)
    assert not any(is_hidden(character) for character in shown)


@settings(deadline=None, max_examples=400)
@given(one=nasty, other=nasty)
def test_two_texts_that_are_shown_whole_look_the_same_only_if_they_are_the_same(one: str, other: str) -> None:
    if escaped(one) == escaped(other):
        assert one == other


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text", "plain text"),
        ("a\\nb", "a\\\\nb"),
        ('say "hi"', 'say \\"hi\\"'),
        ("\n" * 4, "\\n\\n\\n\\n"),
        ("\n" * 5, "\\[5×\\n]"),
        ("\\[5×\\n]", "\\\\[5×\\\\n]"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("e" + "\u0301" * 5, "e\u0301\u0301\\u0301\\u0301\\u0301"),  # marks piled up paint over other lines
        ("\ud800", "\\ud800"),
        ("日本", "日本"),
    ],
)
def test_texts_and_how_they_are_shown(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_a_long_value_is_shown_by_both_ends_size_and_digest_and_is_not_complete() -> None:
    shown = quoted("begin" + "x" * 5_000 + "end")
    assert not shown.complete
    assert shown.text.startswith('"begin')
    assert "5008 bytes, sha256 " in shown.text
    assert quoted("x" * 2_000).complete


def test_a_short_text_of_many_escapes_is_not_let_grow_without_end() -> None:
    assert not quoted("\x1b\x1c" * 1_000).complete


def test_arguments_are_sorted_escaped_also_in_their_names_and_nested_values() -> None:
    lines, complete = arguments_lines({"b": {"k\n": ["\u202e"]}, "a\x1b[2K": 1, "a": None})
    assert lines == ["a: null", '"a\\x1b[2K": 1', 'b: {"k\\n": ["\\u202e"]}']
    assert complete


def test_a_number_is_shown_as_the_tool_will_get_it() -> None:
    lines, complete = arguments_lines({"big": 2**60, "deep": [2**60, 2.0], "float": 2.0})
    assert lines == ["big: 1152921504606846976", "deep: [1152921504606846976, 2.0]", "float: 2.0"]
    assert complete


def test_a_flood_of_blank_lines_is_counted_and_lines_left_out_are_said() -> None:
    lines, complete = block_lines("a\n" + "\n" * 500 + "b", max_lines=10)
    assert (lines, complete) == (["a", "(500 blank lines)", "b"], True)
    lines, complete = block_lines("\n".join("abcdefghijklmn"), max_lines=3)
    assert (lines, complete) == (["a", "b", "c", "(11 more lines are not shown)"], False)


def test_a_line_that_stands_by_itself_keeps_its_quotes_and_nothing_else() -> None:
    assert visible('print("a\\n")') == 'print("a\\\\n")'
    assert visible('\\"') == '\\\\"'
    assert visible('"\x1b[2J') == '"\\x1b[2J'


def test_letters_that_draw_nothing_are_hidden_and_those_that_draw_are_not() -> None:
    nothing = "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00\ufe0f\U000e0100\U000e01ef\U000e0041\u00a0"
    assert [character for character in nothing if not is_hidden(character)] == []
    assert [character for character in "a ~\u00e9\u4e2d\u0301\u20ac\u2801\ufe10" if is_hidden(character)] == []
