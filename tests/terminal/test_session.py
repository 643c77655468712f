"""The interactive session in a pseudo-terminal: keys go in, the screen is read back."""

import contextlib
import json
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from command_kit import Place, ask_for, say
from fake_providers import FakeProvider, Handler, openai_streamed
from mcp_kit import TOOL, VICTIM
from pty_kit import PATIENCE, Terminal, Terminals

WRITE = ("write", '{"path": "a.txt", "content": "hello\\n"}')
PROMPT = "›"


class Session:
    """``handrail run`` as a person sees it, 80 by 40 characters, with a scripted server behind it."""

    def __init__(self, terminal: Terminal, place: Place, server: FakeProvider) -> None:
        self.terminal = terminal
        self.place = place
        self.server = server

    @property
    def text(self) -> str:
        return self.terminal.text

    def wait(self, what: str) -> str:
        """Until the screen, with what scrolled off, shows ``what`` (a regular expression)."""
        return self.terminal.until(lambda: re.search(what, self.text) is not None, what)

    def prompt(self) -> str:
        """Until the session waits for a line. What is typed while a run goes on is thrown away."""
        return self.terminal.until(lambda: self.text.rstrip().endswith(PROMPT), "the prompt")

    def type(self, line: str) -> None:
        """A line at the prompt, which shows it."""
        self.prompt()
        echo = f"{PROMPT} {line}"
        there = self.text.count(echo)
        self.terminal.press(line + "\r")
        self.terminal.until(lambda: self.text.count(echo) > there, f"{line!r} on the screen")

    def key(self, key: str) -> None:
        self.terminal.press(key)

    def end(self) -> str:
        """Until the program is gone, and well."""
        assert self.terminal.status() == 0, self.text
        return self.text


def silent_until(told: threading.Event) -> Handler:
    """A model that thinks, and says nothing, until it is told to."""
    return openai_streamed("I have thought.", before=lambda number: number == 0 and told.wait(PATIENCE))


Start = Callable[..., Session]


@pytest.fixture
def start(tmp_path: Path, terminals: Terminals) -> Iterator[Start]:
    """Start sessions at one place, with one server that answers with ``handlers`` in turn."""
    with contextlib.ExitStack() as opened:
        opened.callback(terminals.close_all)
        places: list[tuple[Place, FakeProvider]] = []

        def started(*handlers: Handler, words: Sequence[str] = (), executed: bool = False, **variables: str) -> Session:
            if not places:
                server = opened.enter_context(FakeProvider(handlers))
                places.append((Place(tmp_path, server), server))
            place, server = places[0]
            command, environment = place.command(*words), {**place.environment, **variables}
            if executed:  # as from a shell; else in a fork of a process that has imported it all
                return Session(terminals.start(command, environment), place, server)
            terminal = terminals.start(["handrail", *command[3:]], environment, target="handrail.cli.main:run")
            return Session(terminal, place, server)

        yield started


def test_a_change_is_asked_about_with_its_diff_then_undone(start: Start) -> None:
    session = start(ask_for(WRITE, text="I write."), say("It is **written**."))
    file = session.place.workspace / "a.txt"
    session.type("write hello")
    asked = session.wait("y yes, once")
    assert "+hello" in asked
    assert "builtin:write" in asked
    assert not file.exists()
    session.key("y")
    done = session.wait("It is written")
    assert re.search(r"● write a\.txt \(mutation\) · [0-9.]+ m?s · ok", done)
    assert file.read_text() == "hello\n"
    drawn = session.text.count("+hello")
    session.type("/diff")
    session.terminal.until_shows("+hello", drawn + 1)
    session.type("/undo")
    session.wait("taken back: a.txt")
    assert not file.exists()
    session.type("/undo")
    session.wait("there is nothing to take back")
    session.type("/tools")
    session.wait("builtin:read +read_only")
    session.type("/exit")
    assert "handrail run --resume" in session.end()


def test_a_rejected_change_is_not_made_and_the_model_is_told(start: Start) -> None:
    session = start(ask_for(WRITE), say("As you wish."))
    session.type("write hello")
    session.wait("y yes, once")
    session.key("n")
    session.wait("As you wish")
    assert not (session.place.workspace / "a.txt").exists()
    assert "rejected" in str(session.server.bodies[1]["messages"])


@pytest.mark.walls
@pytest.mark.parametrize("key", ["\x1b", "\x03"], ids=["Esc", "Ctrl-C"])
def test_a_running_cell_is_interrupted_and_the_conversation_goes_on(start: Start, key: str) -> None:
    sleeping = ask_for(("bash", '{"command": "touch started; sleep 600"}'))
    session = start(sleeping, say("I was interrupted."), words=["--approve", "always"])
    session.type("sleep")
    session.wait(r"bash touch started; sleep 600 \(mutation\) [1-9]")  # over a second: progress shows
    session.key(key)
    session.wait(r"stopped \(cancelled\)")
    session.type("what happened?")
    session.wait("I was interrupted")
    results = [message for message in session.server.bodies[1]["messages"] if message["role"] == "tool"]
    assert len(results) == 1
    session.prompt()
    session.key("\x04")
    assert re.search(r"handrail run --resume [0-9a-f-]{36}", session.end())


@pytest.mark.parametrize("key", ["\x1b", "\x03"], ids=["Esc", "Ctrl-C"])
def test_between_calls_while_the_model_is_thinking_the_run_is_interrupted(start: Start, key: str) -> None:
    held = threading.Event()
    session = start(ask_for(("read", '{"path": "a.txt"}')), silent_until(held), say("Back again."))
    (session.place.workspace / "a.txt").write_text("read me")
    session.type("think")
    session.wait(r"● read a\.txt \(read_only\)")
    session.wait("waiting for the model, [1-9]")
    session.key(key)
    session.wait(r"stopped \(cancelled\)")
    held.set()
    session.type("go on")
    session.wait("Back again")
    assert [message["role"] for message in session.server.bodies[2]["messages"][1:]] == [
        "user", "assistant", "tool", "user",
    ]  # fmt: skip


@pytest.mark.parametrize("first", ["\x1b", "\x03"], ids=["Esc", "Ctrl-C"])
def test_ctrl_c_after_an_interruption_leaves_and_says_how_to_resume(start: Start, first: str) -> None:
    held = threading.Event()
    session = start(silent_until(held))
    session.type("think")
    session.wait("waiting for the model, [1-9]")
    session.key(first)
    session.wait("Ctrl-C again leaves")
    session.prompt()
    session.key("\x03")
    assert re.search(r"handrail run --resume [0-9a-f-]{36}", session.end())


@pytest.mark.walls
def test_ctrl_c_twice_leaves_a_single_task_and_says_how_to_resume(start: Start) -> None:
    """However far the first has come when the second arrives."""
    sleeping = ask_for(("bash", '{"command": "sleep 600"}'))
    session = start(sleeping, words=["--approve", "always", "sleep"])
    session.wait(r"bash sleep 600 \(mutation\) [1-9]")
    session.key("\x03")
    session.key("\x03")
    assert session.terminal.status() == 130
    assert re.search(r"resume with: handrail run --resume [0-9a-f-]{36}", session.text)


def test_prose_is_folded_between_words_in_eighty_columns(start: Start) -> None:
    session = start(ask_for(("nosuch", "{}")), say("I see."), words=["go"])
    text = session.end()
    told = text[text.index("There is no tool") :].splitlines()
    assert told[0].endswith(",")
    assert told[1].startswith("  ")
    assert all(len(line) <= 80 for line in told)


def test_at_the_prompt_ctrl_c_twice_leaves_and_once_only_clears_the_line(start: Start) -> None:
    session = start(say("Hello."))
    session.type("hello")
    session.wait("Hello\\.")
    session.prompt()
    session.key("half a line")
    session.wait("half a line")
    session.key("\x03")
    session.wait("Ctrl-C again leaves")
    session.prompt()
    session.key("\x03")
    assert re.search(r"handrail run --resume [0-9a-f-]{36}", session.end())
    assert len(session.server.bodies) == 1


def test_calls_that_were_parked_are_answered_in_place_and_the_run_goes_on(start: Start) -> None:
    session = start(ask_for(WRITE), say("Now it is there."), words=["--approve", "park"])
    file = session.place.workspace / "a.txt"
    session.type("/approve")
    session.wait("no call waits")
    session.type("write hello")
    session.wait("answer with /approve")
    assert not file.exists()
    session.type("/approve")
    assert "+hello" in session.wait("y yes, once")
    session.key("y")
    session.wait("Now it is there")
    assert file.read_text() == "hello\n"
    session.type("/approve")
    session.terminal.until_shows("no call waits", 2)


def test_the_tools_of_an_mcp_server_are_used_like_any_others(start: Start, tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps({"tools": [TOOL], "effects": str(tmp_path / "effects")}))
    command = json.dumps([sys.executable, "-I", "-S", str(VICTIM), str(tmp_path / "script.json")])
    catalog = tmp_path / "catalog.toml"
    catalog.write_text(f'[servers.victim]\ncommand = {command}\nsandbox = "none"\n')
    catalog.chmod(0o600)
    handlers = [ask_for(("victim__act", '{"n": 1}')), say("The server acted.")]
    session = start(*handlers, words=["--mcp", "victim", "--mcp-config", str(catalog)])
    session.type("/tools")
    name = re.search(r"mcp:victim/act", session.wait("mcp:victim/act"))
    assert name is not None
    session.type("act")
    session.wait("y yes, once")
    assert not (tmp_path / "effects").exists()
    session.key("y")
    session.wait("The server acted")
    assert (tmp_path / "effects").read_text() == "act\n"
    session.type("/exit")
    session.end()


def test_a_conversation_is_summarised_on_demand(start: Start) -> None:
    answers = [say(f"Answer {number}.") for number in range(6)]
    session = start(*answers, say("All that was said."), say("After it."))
    session.type("/compact")
    session.wait("there is nothing to summarise yet")
    for number in range(6):
        session.type(f"question {number}")
        session.wait(rf"Answer {number}\.")
    session.type("/compact")
    session.wait("\nsummarised")
    session.type("go on")
    session.wait("After it")
    sent = json.dumps(session.server.bodies[-1]["messages"])
    assert "All that was said" in sent
    assert "question 0" not in sent


def test_a_session_is_resumed_by_the_id_it_printed(start: Start) -> None:
    first = start(say("Hello."), say("You said hello."), executed=True)
    first.type("hello")
    first.wait("Hello\\.")
    first.type("/exit")
    found = re.search(r"--resume ([0-9a-f-]{36})", first.end())
    assert found is not None
    second = start(words=["--resume", found[1]])
    second.type("what did I say?")
    second.wait("You said hello")
    second.type("/exit")
    second.end()
    said = [message["content"] for message in first.server.bodies[1]["messages"] if message["role"] == "user"]
    assert said == ["hello", "what did I say?"]


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "no colour"])
def test_a_dumb_terminal_and_no_colour_are_honoured(start: Start, tmp_path: Path, setting: dict[str, str]) -> None:
    session = start(ask_for(("read", '{"path": "a.txt"}')), say("It is **fine**."), words=["read it"], **setting)
    text = session.end()
    assert re.search(r"● read a\.txt \(read_only\)", text)
    assert "fine" in text
    colours = re.findall(rb"\x1b\[[0-9;]*[34][0-7][0-9;]*m", session.terminal.raw)
    assert colours == []
    if "TERM" in setting:
        assert b"\x1b[" not in session.terminal.raw


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"NO_COLOR": "1"}], ids=["dumb", "no colour"])
def test_a_session_works_in_a_dumb_terminal_and_without_colour(start: Start, setting: dict[str, str]) -> None:
    session = start(ask_for(WRITE), say("Written."), **setting)
    session.type("write hello")
    session.wait("y yes, once")
    session.key("y")
    session.wait("Written")
    session.type("/exit")
    session.end()
    assert (session.place.workspace / "a.txt").read_text() == "hello\n"
    assert re.findall(rb"\x1b\[[0-9;]*[34][0-7][0-9;]*m", session.terminal.raw) == []


@pytest.mark.parametrize("key", ["\x1b", "\x03"], ids=["Esc", "Ctrl-C"])
def test_a_summary_that_takes_long_is_interrupted_and_the_conversation_goes_on(start: Start, key: str) -> None:
    held = threading.Event()
    begun = threading.Event()
    stuck = openai_streamed("Too late.", before=lambda number: begun.set() or (number == 0 and held.wait(PATIENCE)))
    session = start(*(say(f"Answer {number}.") for number in range(6)), stuck, say("Back again."))
    for number in range(6):
        session.type(f"question {number}")
        session.wait(rf"Answer {number}\.")
    session.type("/compact")
    session.wait("summarising")
    assert begun.wait(PATIENCE)
    session.key(key)
    session.wait("interrupted; nothing was summarised")
    held.set()
    session.type("go on")
    session.wait("Back again")
    assert "question 0" in json.dumps(session.server.bodies[-1]["messages"])
