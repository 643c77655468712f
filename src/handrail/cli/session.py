"""The interactive session: a prompt with history, runs shown live, questions and diffs in place.

Esc or Ctrl-C interrupts a run and leaves a whole transcript; Ctrl-C again leaves the session. At the prompt, Ctrl-C
clears the line and Ctrl-D (or Ctrl-C on an empty line, twice) leaves. Leaving prints how to resume.
"""

import asyncio
import os
import signal as signals
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import platformdirs
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from rich.console import Console
from rich.table import Table
from rich.text import Text

from handrail.agent.loop import Agent, Listener, RunResult
from handrail.agent.valves import StopReason
from handrail.approval.console import ConsoleApprover
from handrail.approval.decision import ApprovalRequest, Approve, Approver, Decision, Modify, Reject
from handrail.approval.inbox import Inbox
from handrail.changes.store import Committed
from handrail.cli.show import show_diff
from handrail.cli.undo import undo
from handrail.cli.views import View, one_line, text_view
from handrail.errors import ConfigurationError, HandrailError
from handrail.hidden import printable
from handrail.outcome import ToolOutcome
from handrail.output import open_private_directory
from handrail.tool import Signal
from handrail.wiring import House

TICK_SECONDS = 0.2
COMMANDS = {
    "/tools": "list the tools the model has",
    "/diff": "show what this session changed",
    "/undo": "take back the last change of this session",
    "/approve": "answer the calls that wait, and go on",
    "/compact": "summarise the earlier conversation",
    "/help": "show these commands",
    "/exit": "leave",
}


async def driven(view: View, run: Coroutine[Any, Any, RunResult]) -> RunResult:
    """Drive a run and keep its view moving while nothing happens."""

    async def ticking() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            view.tick()

    ticker = asyncio.create_task(ticking())
    try:
        return await run
    finally:
        ticker.cancel()
        await asyncio.wait([ticker])


class Keys:
    """Hears Esc and Ctrl-C while a run goes on, and keeps still while a question has the terminal."""

    def __init__(self, on_interrupt: Callable[[], None]) -> None:
        self._on_interrupt = on_interrupt
        self._fd = sys.stdin.fileno()
        self._before: list[Any] | None = None

    def start(self) -> None:
        """Take keys one by one, unechoed. Ctrl-C stays a signal."""
        if self._before is None:
            self._before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSADRAIN)
            asyncio.get_running_loop().add_reader(self._fd, self._read)

    def stop(self) -> None:
        """Give the terminal back as it was."""
        if self._before is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
            self._before = None

    def _read(self) -> None:
        if os.read(self._fd, 1024) == b"\x1b":  # an escape that came alone; arrows and the like bring more bytes
            self._on_interrupt()


class InPlace:
    """An approver that takes the screen and the keys from the running view while it asks."""

    def __init__(self, asker: Approver, session: "Session") -> None:
        self._asker = asker
        self._session = session

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Ask, with the terminal to itself."""
        with self._session.terminal_given_up():
            return await self._asker.decide(request)


class Session:
    """One conversation at the terminal."""

    def __init__(self, agent: Agent, house: House, *, resume: str | None = None) -> None:
        self._agent = agent
        self._house = house
        self._run_id = resume
        self._to_resume = resume is not None
        self._console = Console(highlight=False)
        self._view: View | None = None
        self._keys: Keys | None = None
        self._signal = Signal()
        self._leaving = False
        self._undone: set[str] = set()
        self._already_there = {entry.call_id for entry in house.changes.history()}
        self._last: RunResult | None = None
        if house.executor.approver is not None:
            house.executor.approver = InPlace(house.executor.approver, self)

    async def run(self) -> int:
        """Until the person leaves. Returns the exit status."""
        self._greet()
        if self._to_resume and self._run_id is not None:
            await self._drive(
                lambda listen: self._agent.resume(self._run_id or "", signal=self._signal, on_event=listen)
            )
        prompt: PromptSession[str] = PromptSession(
            history=self._history(), completer=WordCompleter(list(COMMANDS), sentence=True), complete_while_typing=False
        )
        interrupted = False
        while not self._leaving:
            try:
                line = (await prompt.prompt_async("› ")).strip()
                interrupted = False
            except EOFError:
                break
            except KeyboardInterrupt:
                if interrupted:
                    break
                interrupted = True
                self._say("Ctrl-C again leaves", "dim")
                continue
            if line:
                self._signal = Signal()
                await self._handle(line)
                interrupted = self._signal.is_set()
        self._say_goodbye()
        await self._agent.aclose()
        return 0

    # ── lines ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _handle(self, line: str) -> None:
        commands: dict[str, Callable[[], Awaitable[None]]] = {
            "/tools": self._tools,
            "/diff": self._diff,
            "/undo": self._undo,
            "/approve": self._approve,
            "/compact": self._compact,
            "/help": self._help,
            "/exit": self._exit,
        }
        try:
            if not line.startswith("/"):
                await self._drive(lambda listen: self._said(line, listen))
            elif line in commands:
                await commands[line]()
            else:
                self._say(f"{line} is not one of: {' '.join(COMMANDS)}", "yellow")
        except HandrailError as error:
            self._say(str(error), "red")

    async def _said(self, line: str, listen: Listener) -> RunResult:
        return await self._agent.run(line, run_id=self._run_id, signal=self._signal, on_event=listen)

    async def _tools(self) -> None:
        table = Table(box=None, pad_edge=False)
        for column in ("tool", "risk", "what it does"):
            table.add_column(column, overflow="fold")
        for item in sorted(self._agent.tools, key=lambda item: item.canonical_id):
            definition = item.tool.definition
            table.add_row(
                printable(item.canonical_id), definition.risk_level.value, one_line(definition.description, 200)
            )
        self._console.print(table)

    async def _diff(self) -> None:
        entries = self._changes()
        if not entries:
            self._say("nothing was changed in this session", "dim")
        for entry in entries:
            show_diff(self._console, self._house.changes.diff(entry.changes))

    async def _undo(self) -> None:
        entries = [entry for entry in self._changes() if entry.call_id not in self._undone]
        if not entries:
            self._say("there is nothing to take back", "dim")
            return
        outcome: ToolOutcome = await undo(self._house, entries[-1].call_id)
        if outcome.succeeded:
            self._undone |= {entries[-1].call_id, outcome.call_id}
            paths = ", ".join(one_line(path.decode("utf-8", "backslashreplace")) for path in entries[-1].changes.paths)
            self._say(f"taken back: {paths}", "green")
        else:
            self._say(one_line(outcome.text, 400), "red")

    async def _approve(self) -> None:
        """Ask about every call of this workspace that waits, here; then go on with this session's run."""
        if self._house.journal is None:
            self._say("this session keeps no journal, so no call can wait", "yellow")
            return
        inbox = Inbox(self._house.journal, by=f"user {os.getuid()} at the terminal")
        waiting = [parked.approval_id for parked, answer in await inbox.waiting() if answer is None]
        for approval_id in waiting:
            request, _ = await inbox.question(approval_id)
            await self._answered(inbox, approval_id, await ConsoleApprover().decide(request))
        if self._last is not None and self._last.stop is StopReason.AWAITING_APPROVAL:
            run_id = self._last.run_id
            await self._drive(lambda listen: self._agent.resume(run_id, signal=self._signal, on_event=listen))
        elif not waiting:
            self._say("no call waits", "dim")

    async def _answered(self, inbox: Inbox, approval_id: str, decision: Decision) -> None:
        if isinstance(decision, Approve):
            await inbox.approve(approval_id)
        elif isinstance(decision, Reject):
            await inbox.reject(approval_id, decision.why)
        elif isinstance(decision, Modify):
            await inbox.edit(approval_id, decision.arguments)
        else:
            self._say("not answered", "dim")

    async def _compact(self) -> None:
        self._say("summarising …", "dim")
        self._signal = Signal()
        async with self._interruptible():
            done = self._run_id is not None and await self._agent.compact(self._run_id, signal=self._signal)
        stopped = (
            "interrupted; nothing was summarised" if self._signal.is_set() else "there is nothing to summarise yet"
        )
        self._say("summarised" if done else stopped, "dim")

    async def _help(self) -> None:
        for name, what in COMMANDS.items():
            self._say(f"{name:<10} {what}", "")
        self._say("Esc or Ctrl-C interrupts a run; Ctrl-C again leaves.", "")

    async def _exit(self) -> None:
        self._leaving = True

    # ── driving ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _drive(self, start: Callable[[Listener], Coroutine[Any, Any, RunResult]]) -> None:
        self._signal = Signal()
        self._view = text_view()
        async with self._interruptible():
            try:
                self._last = await driven(self._view, start(self._view.show))
            finally:
                self._view.close()
                self._view = None
        self._run_id = self._last.run_id
        if self._last.stop is StopReason.AWAITING_APPROVAL:
            self._say("answer with /approve", "yellow")
        if self._signal.is_set() and not self._leaving:
            self._say("Ctrl-C again leaves", "dim")

    @asynccontextmanager
    async def _interruptible(self) -> AsyncGenerator[None, None]:
        loop = asyncio.get_running_loop()
        self._keys = Keys(self._interrupt)
        loop.add_signal_handler(signals.SIGINT, self._interrupt)
        self._keys.start()
        try:
            yield
        finally:
            self._keys.stop()
            self._keys = None
            loop.remove_signal_handler(signals.SIGINT)

    def _interrupt(self) -> None:
        if self._signal.is_set():
            self._leaving = True
        self._signal.set("interrupted")

    @contextmanager
    def terminal_given_up(self) -> Generator[None, None, None]:
        """While somebody else reads and writes the terminal."""
        if self._view is not None:
            self._view.pause()
        if self._keys is not None:
            self._keys.stop()
        try:
            yield
        finally:
            if self._keys is not None:
                self._keys.start()

    # ── words ────────────────────────────────────────────────────────────────────────────────────────────────

    def _greet(self) -> None:
        self._say(f"handrail · {self._agent.config.model.name} · {self._house.workspace.path}", "bold")
        self._say("/help shows the commands, Esc interrupts, Ctrl-D leaves", "dim")

    def _say_goodbye(self) -> None:
        if self._run_id is not None:
            self._say(f"resume with: handrail run --resume {self._run_id}", "dim")

    def _say(self, text: str, style: str) -> None:
        self._console.print(Text(printable(text), style=style), soft_wrap=True)

    def _changes(self) -> list[Committed]:
        return [entry for entry in self._house.changes.history() if entry.call_id not in self._already_there]

    def _history(self) -> History:
        """Earlier prompts, in the user's private state directory."""
        directory = platformdirs.user_state_dir("handrail")
        try:
            os.close(open_private_directory(directory))
        except (OSError, ConfigurationError):
            return InMemoryHistory()
        return FileHistory(os.path.join(directory, "prompts"))
