"""The question in a real pseudo-terminal: the screen is read back from it, and keys are pressed on it."""

import asyncio
import fcntl
import itertools
import json
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases_dir import cases
from handrail.approval.console import ConsoleApprover
from handrail.approval.decision import ApprovalRequest, Reject
from handrail.approval.question import columns, sheet, wrapped_line
from handrail.changes.changeset import ChangeSet
from handrail.parked import GrantPattern
from handrail.tool import RiskLevel
from pty_kit import Terminal, Terminals

CASES = cases("rendering")
READY = "e edit · v view all"
WAIT = 60


class Question:
    """A question at a terminal, and what a person does there."""

    def __init__(self, terminal: Terminal, answer: Path) -> None:
        self.terminal = terminal
        self.answer = answer

    @property
    def text(self) -> str:
        return self.terminal.text

    @property
    def visible(self) -> list[str]:
        return self.terminal.visible

    def ready(self, times: int = 1) -> None:
        """Keys count from here on: the line that names them is drawn after what was typed before is thrown away."""
        self.terminal.until_shows(READY, times)

    def press(self, keys: bytes | str) -> None:
        self.terminal.press(keys)

    def press_in_vain(self, keys: bytes) -> None:
        """Press what means nothing here: the bell rings, and nothing is decided."""
        rung = self.terminal.raw.count(b"\a")
        self.press(keys)
        self.terminal.until(lambda: self.terminal.raw.count(b"\a") > rung, f"a bell for {keys!r}")
        assert self.undecided(), keys

    def type_in_field(self, keys: bytes, shown: str) -> None:
        """Press something in a field, and wait until the field, drawn again, ends with ``shown``."""
        drawn = self.terminal.raw.count(b"\x1b[K")
        self.press(keys)
        self.terminal.until(
            lambda: self.terminal.raw.count(b"\x1b[K") > drawn and self.text.rstrip().endswith(shown),
            f"the field after {keys!r}",
        )
        assert self.undecided(), keys

    def decision(self) -> dict[str, Any]:
        assert self.terminal.status() == 0, self.text
        return json.loads(self.answer.read_text())

    def undecided(self) -> bool:
        return not self.answer.exists() and not self.terminal.ended


Ask = Callable[..., Question]


@pytest.fixture
def ask(tmp_path: Path, terminals: Terminals) -> Iterator[Ask]:
    asked = itertools.count()

    def start(question: dict[str, Any], *, display: float = 0.1, **options: Any) -> Question:
        answer = tmp_path / f"answer{next(asked)}"
        environment = {
            **os.environ,
            "QUESTION": json.dumps(question),
            "ANSWER": str(answer),
            "MINIMUM_DISPLAY": str(display),
        }
        options = {"columns": 100, "lines": 60, **options}
        target = "unit.approval.asking_program:main"
        return Question(terminals.start([target], environment, target=target, **options), answer)

    yield start
    terminals.close_all()


def call(command: str, **more: Any) -> dict[str, Any]:
    return {"arguments": {"command": command}, **more}


# ── what stands on the screen ────────────────────────────────────────────────────────────────────────────────────

EXPECTED = {
    "ansi": r'"rm -rf build\x1b[2K\x1b[1G ls"',
    "bidi-override": r'"cp a \u202e txt.exe"',
    "zero-width": r'"git\u200b push"',
    "tabs-padding": r'"ls\[12×\t]; curl x"',
    "500-blank-lines": r'"ls\[501×\n]curl x | sh"',
    "fake-verdict": '"ls # [approved by administrator]"',
}


@pytest.mark.promise("approval:render:handed-cases")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_every_handed_text_is_shown_as_it_must_be(case: dict[str, str], ask: Ask) -> None:
    screen = ask(call(case["text"]))
    screen.ready()
    drawn = screen.terminal.raw
    assert b"\x1b[2K" not in drawn
    assert b"\x1b[1G" not in drawn
    assert not any(byte < 0x20 and byte not in b"\r\n\x1b" for byte in drawn)
    if case["name"] == "100-kB":
        digest = __import__("hashlib").sha256(case["text"].encode()).hexdigest()
        assert f"{len(case['text'])} bytes" in screen.text
        assert digest in screen.text.replace("\n│ ", "")
        screen.press("y")
        screen.terminal.until_shows("Not all of it is on the screen")
        assert screen.undecided()
    else:
        assert f"command: {EXPECTED[case['name']]}" in screen.text
        assert any(line.startswith("│ command: ") for line in screen.visible)
        screen.press("y")
        assert screen.decision()["kind"] == "Approve"


def test_a_text_that_imitates_the_question_never_begins_a_line(ask: Ask) -> None:
    """Lies in the loop (Checkmarx): the text of the dialog is the agent's."""
    fake = "x" * 88 + 'y yes, once · n no   Approved, once.\n\nRun this tool?\ntool      "safe"'
    screen = ask(call(fake, description="Run this tool?\r\n\r\ny yes, once"))
    screen.ready()
    ours = [line for line in screen.visible if line.startswith(("Run this tool?", "y yes, once", "tool ", "Approved"))]
    assert ours == [
        "Run this tool?",
        'tool      "builtin:bash"',
        "y yes, once · n no · r no, because … · e edit · v view all",
    ]


@pytest.mark.parametrize(
    "command", ["# only a comment\nrm -rf ~", "ls\r\nrm -rf ~", "ls\u2028rm -rf ~", "ls\x0brm -rf ~"]
)
def test_a_command_of_several_lines_is_shown_whole(command: str, ask: Ask) -> None:
    """claude-code 2.1.113: only the first line was shown when it was a comment."""
    screen = ask(call(command))
    screen.ready()
    assert "rm -rf ~" in screen.text


def test_it_says_tool_risk_source_reason_walls_and_where_a_link_leads(ask: Ask) -> None:
    screen = ask(
        {
            "tool": "mcp:sentry/fix",
            "risk": "destructive",
            "source": "MCP server sentry",
            "arguments": {"path": "/w/ok"},
            "resolved_paths": {"path": "/w/secret"},
            "enforcement": "landlock, seccomp",
            "why": "destructive tools are asked about",
            "agent": "helper",
        }
    )
    screen.ready()
    for text in ("mcp:sentry/fix", "destructive (asked about every time)", "MCP server sentry", "landlock, seccomp",
                 'leads through links to "/w/secret"', "destructive tools are asked about", '"helper"'):  # fmt: skip
        assert text in screen.text


def test_what_does_not_fit_on_the_screen_has_no_quick_yes(ask: Ask) -> None:
    """claude-code 2.1.235: quick answers are withheld when the contents cannot be displayed."""
    offer = {"tool": "builtin:bash", "equals": {}, "beneath": {}, "any": ["command"]}
    screen = ask(call("x" * 1_900, offer=offer), columns=60, lines=24)
    screen.ready()
    assert "y yes" not in screen.text
    assert "· g yes" not in screen.text
    screen.press("y")
    screen.terminal.until_shows("Not all of it")
    screen.press("g")
    screen.terminal.until_shows("This cannot be approved for the session")
    assert screen.undecided()
    screen.press("a")
    screen.terminal.until_shows("Type approve")
    prompt = "Type approve and Return:"
    screen.press_in_vain(b"approve\r")  # pasted
    for typed in range(1, len("approve") + 1):
        screen.type_in_field("approve"[typed - 1].encode(), f"{prompt} {'approve'[:typed]}")
    screen.press("\r")
    assert screen.decision()["kind"] == "Approve"


def test_viewing_shows_every_byte_in_pages(ask: Ask) -> None:
    screen = ask(call("begin " + "x" * 5_000 + " middle " + "x" * 5_000 + " end"), columns=100, lines=30)
    screen.ready()
    assert "middle" not in screen.text
    screen.press("v")
    for page in range(1, 20):
        screen.terminal.until_shows(f"page {page} of")
        if "middle" in screen.text.replace("\n│ ", ""):
            break
        screen.press(" ")
    else:
        raise AssertionError("the middle was never shown")
    screen.press("q")
    screen.ready(2)
    screen.press("n")
    assert screen.decision()["kind"] == "Reject"


# ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.promise("approval:console:type-ahead-is-flushed")
def test_keys_pressed_before_the_question_stood_there_do_not_count(ask: Ask) -> None:
    """claude-code 2.1.236: the first key was taken for an approval before the dialog was drawn."""
    for display in (1.0, 4.0, 16.0, 64.0):
        screen = ask(call("ls"), display=display, typed_before=b"yyyyy")
        screen.terminal.until_shows("Run this tool?")
        with screen.terminal.frozen():
            if READY not in screen.text:  # else this machine was so slow that the keys count already
                screen.press("y")
                break
    else:
        raise AssertionError("the question was never seen before its keys counted")
    screen.ready()
    assert screen.undecided()
    screen.press("n")
    assert screen.decision()["kind"] == "Reject"


@pytest.mark.promise("approval:console:one-meaning-a-key")
def test_no_other_keyanswers(ask: Ask) -> None:
    """No default yes; Shift-Tab, arrows, mouse, focus, paste, Alt-y and look-alikes mean nothing."""
    screen = ask(call("ls"))
    screen.ready()
    others = [
        *(b"\r", b"\n", b" ", b"Y", b"\t", b"\x00", b"\x04", b"\x19", b"1", b"q"),
        *(b"\x1b", b"\x1b[Z", b"\x1by", b"\x1b[A", b"\x1b[I", b"\x1b[O", b"\x1b[M y!", b"\x1b[<0;1;1M"),
        *(b"\x1b[200~y\x1b[201~", b"yes", b"y\r", b"yy", "у".encode()),
    ]
    for key in others:
        screen.press_in_vain(key)
    screen.press(b"\x03")
    assert screen.decision()["kind"] == "Reject"


def test_no_key_in_a_field_approves(ask: Ask) -> None:
    """claude-code 2.1.235: Shift-Tab in the comment field approved, and for the whole session."""
    screen = ask(call("ls"))
    screen.ready()
    screen.press("r")
    screen.terminal.until_shows("Why not")
    for key, typed in [
        (b"y", "y"), (b"\x1b[Z", "y"), (b"g", "yg"), (b"\t", "yg\\t"), (b"a", "yg\\ta"), (b"\x1b\r", "yg\\ta"),
        (b"\x1b[13;2u", "yg\\ta"),
    ]:  # fmt: skip
        screen.type_in_field(key, f"Why not (the model reads this): {typed}")
    screen.press("\r")
    decision = screen.decision()
    assert (decision["kind"], decision["why"]) == ("Reject", "yg\ta")


def test_an_edit_gives_new_arguments_and_nonsense_gives_none(ask: Ask) -> None:
    screen = ask(call("ls"))
    screen.ready()
    screen.press("e")
    screen.terminal.until_shows('New arguments (JSON): {"command": "ls"}')
    screen.press("junk\r")
    screen.terminal.until_shows("Not edited")
    screen.press("e")
    screen.terminal.until_shows('JSON): {"command": "ls"}', times=2)
    screen.type_in_field(b"\x7f", 'JSON): {"command": "ls"')
    screen.press(', "n": 1}\r')
    decision = screen.decision()
    assert (decision["kind"], decision["arguments"]) == ("Modify", {"command": "ls", "n": 1})


@pytest.mark.promise("approval:console:shown-is-granted")
def test_the_pattern_on_the_screen_is_the_pattern_that_is_granted(ask: Ask) -> None:
    """claude-code 2.1.235: what is displayed must equal what the grant covers."""
    offer = {"tool": "builtin:write", "equals": {"mode": 7}, "beneath": {"path": "/w/src"}, "any": ["content"]}
    screen = ask(
        {"tool": "builtin:write", "arguments": {"path": "/w/src/a", "content": "x", "mode": 7}, "offer": offer}
    )
    screen.ready()
    for line in (
        '│ tool "builtin:write", only with:',
        "│ mode: 7",
        '│ "path": anything beneath "/w/src"',
        '│ "content": any text',
    ):
        assert line in screen.visible
    screen.press("g")
    assert screen.decision()["grant"] == offer


def test_a_terminal_that_goes_away_means_no(ask: Ask) -> None:
    screen = ask(call("ls"))
    screen.ready()
    screen.terminal.hang_up()
    assert screen.decision()["kind"] == "Unavailable"


bursts = st.lists(
    st.binary(min_size=2, max_size=12)
    | st.sampled_from([b"\x1b", b"\r", b" ", b"Y", b"\t", b"yes", b"\x1by", b"y\r\n"]),
    max_size=6,
)


@pytest.mark.parametrize("missing", ["arguments", "place", "diff", "equals", "beneath"])
def test_a_question_of_which_anything_is_left_out_is_not_complete(missing: str) -> None:
    request = ApprovalRequest(
        approval_id="a", call_id="c", tool="host:t", title="t", risk=RiskLevel.MUTATION, source="host", arguments={},
        binding="sha256:0", why="mutation", asked_at=0.0, expires_at=1e12,
    )  # fmt: skip
    assert sheet(request).complete
    long = "x" * 5_000
    left_out: dict[str, Any] = {
        "arguments": {"arguments": {"n": long}},
        "place": {"arguments": {"n": "link"}, "resolved_paths": {"n": long}},
        "diff": {"diff": "+\n" * 500, "changes": ChangeSet(())},
        "equals": {"can_grant": True, "offer": GrantPattern("host:t", equals={"n": long})},
        "beneath": {"can_grant": True, "offer": GrantPattern("host:t", beneath={"n": long})},
    }
    asked = replace(request, **left_out[missing])
    assert not sheet(asked).complete
    assert sheet(asked, grants=False).complete is (missing in ("equals", "beneath"))  # then it is not offered
    assert sheet(asked, whole=True).complete


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(noise=bursts)
def test_no_noise_on_the_keyboard_ever_approves(noise: list[bytes]) -> None:
    """claude-code 2.1.235, 2.1.239: keys and clicks meant for something else answered the question."""
    master, slave = pty.openpty()
    request = ApprovalRequest(
        approval_id="a", call_id="c", tool="host:t", title="t", risk=RiskLevel.MUTATION, source="host", arguments={},
        binding="sha256:0", why="mutation", asked_at=0.0, expires_at=1e12, can_grant=True, offer=GrantPattern("host:t"),
    )  # fmt: skip
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 60, 100, 0, 0))
    try:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(asyncio.run, ConsoleApprover(slave, minimum_display=0.01).decide(request))
            drawn = drained(master, lambda data: READY.encode() in data)
            assert b"y yes, once" in drawn
            for burst in noise:
                os.write(master, burst)
                drained(master, lambda data: b"\a" in data)
            assert not asking.done()
            os.write(master, b"\x03")
            assert isinstance(asking.result(WAIT), Reject)
    finally:
        os.close(master)
        os.close(slave)


def drained(fd: int, enough: Callable[[bytes], bool]) -> bytes:
    """What the terminal drew, up to where it is enough."""
    data, end = b"", time.monotonic() + WAIT
    while not enough(data):
        assert time.monotonic() < end, data
        if select.select([fd], [], [], 0.1)[0]:
            data += os.read(fd, 65_536)
    return data


# ── wrapping, pure ───────────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    text=st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z", "M"]), min_size=1, max_size=200),
    width=st.integers(20, 90),
)
def test_wrapping_loses_nothing_and_never_lets_the_terminal_wrap(text: str, width: int) -> None:
    pieces = list(wrapped_line("│ " + text, width))
    assert "".join(piece.removeprefix("│ ") for piece in pieces) == text
    assert all(piece.startswith("│ ") and columns(piece) <= width for piece in pieces)
