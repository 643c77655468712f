"""The interactive session in a pseudo-terminal: keys go in, the screen is read back."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pyte
import pytest

from command_kit import Place, ask_for, say
from fake_providers import FakeProvider, Handler

PATIENCE = 180.0
WRITE = ("write", '{"path": "a.txt", "content": "hello\\n"}')


class Terminal:
    """The session as a person sees it: 80 by 40 characters."""

    def __init__(self, place: Place, *words: str) -> None:
        self.screen = pyte.HistoryScreen(80, 40, history=2000)
        self._stream = pyte.ByteStream(self.screen)
        command, *rest = place.command(*words)
        self.child = pexpect.spawn(command, rest, env=place.environment, dimensions=(40, 80), timeout=PATIENCE)

    def text(self) -> str:
        above = ["".join(row[x].data for x in range(80)).rstrip() for row in self.screen.history.top]
        return "\n".join([*above, *(line.rstrip() for line in self.screen.display)])

    def wait(self, what: str) -> str:
        """Until the screen, with what scrolled off, shows ``what`` (a regular expression)."""
        return self.until(lambda text: re.search(what, text) is not None, what)

    def until(self, seen: Callable[[str], bool], what: str) -> str:
        end = time.monotonic() + PATIENCE
        while not seen(self.text()):
            if time.monotonic() > end:
                raise AssertionError(f"{what!r} never came; the screen:\n{self.text()}")
            self._read()
        return self.text()

    def type(self, line: str) -> None:
        """A line at the prompt. What is typed while a run goes on is thrown away, so the prompt is waited for."""
        self.until(lambda text: text.rstrip().endswith("›"), "the prompt")
        self.child.send(line + "\r")

    def key(self, key: str) -> None:
        self.child.send(key)

    def end(self) -> str:
        """Until the program is gone."""
        while self.child.isalive():
            self._read()
        self._read()
        return self.text()

    def _read(self) -> None:
        try:
            self._stream.feed(self.child.read_nonblocking(65_536, timeout=0.2))
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self.child.wait()


@contextmanager
def session(tmp_path: Path, handlers: list[Handler], *words: str) -> Iterator[tuple[Terminal, Place, FakeProvider]]:
    with FakeProvider(handlers) as server:
        place = Place(tmp_path, server)
        terminal = Terminal(place, *words)
        try:
            terminal.wait("›")
            yield terminal, place, server
        finally:
            terminal.child.close(force=True)


@pytest.mark.slow
def test_a_change_is_asked_about_with_its_diff_then_undone(tmp_path: Path) -> None:
    with session(tmp_path, [ask_for(WRITE, text="I write."), say("It is **written**.")]) as (terminal, place, _):
        file = place.workspace / "a.txt"
        terminal.type("write hello")
        asked = terminal.wait("y yes, once")
        assert "+hello" in asked
        assert "builtin:write" in asked
        assert not file.exists()
        terminal.key("y")
        done = terminal.wait("It is written")
        assert "● write a.txt (mutation)" in done
        assert file.read_text() == "hello\n"
        terminal.type("/diff")
        terminal.wait(r"\+hello")
        terminal.type("/undo")
        terminal.wait("taken back: a.txt")
        assert not file.exists()
        terminal.type("/tools")
        terminal.wait("builtin:read")
        terminal.type("/exit")
        assert "handrail run --resume" in terminal.end()


@pytest.mark.slow
def test_a_rejected_change_is_not_made_and_the_model_is_told(tmp_path: Path) -> None:
    with session(tmp_path, [ask_for(WRITE), say("As you wish.")]) as (terminal, place, server):
        terminal.type("write hello")
        terminal.wait("y yes, once")
        terminal.key("n")
        terminal.wait("As you wish")
        assert not (place.workspace / "a.txt").exists()
        assert "rejected" in str(server.bodies[1]["messages"])


@pytest.mark.slow
@pytest.mark.walls
@pytest.mark.parametrize("key", ["\x1b", "\x03"], ids=["Esc", "Ctrl-C"])
def test_a_running_cell_is_interrupted_and_the_run_resumed(tmp_path: Path, key: str) -> None:
    sleeping = ask_for(("bash", '{"command": "touch started; sleep 600"}'))
    handlers = [sleeping, say("I was interrupted.")]
    with session(tmp_path, handlers, "--approve", "always") as (terminal, _, server):
        terminal.type("sleep")
        terminal.wait(r"bash touch started; sleep 600 \(mutation\) [1-9]")  # over a second: progress shows
        terminal.key(key)
        terminal.wait(r"stopped \(cancelled\)")
        terminal.type("what happened?")
        terminal.wait("I was interrupted")
        results = [message for message in server.bodies[1]["messages"] if message["role"] == "tool"]
        assert len(results) == 1
        terminal.until(lambda text: text.rstrip().endswith("›"), "the prompt")
        terminal.key("\x04")
        left = terminal.end()
    assert re.search(r"handrail run --resume [0-9a-f-]{36}", left)


@pytest.mark.slow
def test_a_session_is_resumed_by_the_id_it_printed(tmp_path: Path) -> None:
    with FakeProvider([say("Hello."), say("You said hello.")]) as server:
        place = Place(tmp_path, server)
        first = Terminal(place)
        first.wait("›")
        first.type("hello")
        first.wait("Hello\\.")
        first.type("/exit")
        found = re.search(r"--resume ([0-9a-f-]{36})", first.end())
        assert found is not None
        second = Terminal(place, "--resume", found[1])
        second.wait("›")
        second.type("what did I say?")
        second.wait("You said hello")
        second.type("/exit")
        second.end()
        said = [message["content"] for message in server.bodies[1]["messages"] if message["role"] == "user"]
    assert said == ["hello", "what did I say?"]


@pytest.mark.slow
@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "no colour"])
def test_a_dumb_terminal_and_no_colour_are_honoured(tmp_path: Path, setting: dict[str, str]) -> None:
    with FakeProvider([ask_for(("read", '{"path": "a.txt"}')), say("Fine.")]) as server:
        place = Place(tmp_path, server)
        (place.workspace / "a.txt").write_text("x")
        place.environment.update(setting)
        child = pexpect.spawn(*_split(place.command("read it")), env=place.environment, timeout=PATIENCE)
        child.expect(pexpect.EOF)
        raw: bytes = child.before
    assert b"Fine." in raw
    colours = re.findall(rb"\x1b\[[0-9;]*3[0-7][0-9;]*m", raw)
    assert colours == []
    if "TERM" in setting:
        assert b"\x1b[" not in raw


def _split(words: list[str]) -> tuple[str, list[str]]:
    return words[0], words[1:]
