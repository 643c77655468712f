"""Programs in pseudo-terminals: keys go in, and the screen that a person would see is read back."""

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pyte

PATIENCE = 180.0


class Terminals:
    """Starts programs, each in a terminal of its own; ``modules`` are imported once for all of them."""

    def __init__(self, *modules: str) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = str(Path(__file__).with_name("pty_host.py"))
        with theirs:
            number = theirs.fileno()
            self._host = subprocess.Popen([sys.executable, program, str(number), *modules], pass_fds=[number])
        self._requests = ours
        ours.settimeout(PATIENCE)
        assert ours.recv(1), "the host died while it imported what its programs need"
        self._opened: list[Terminal] = []

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        *,
        target: str = "",
        columns: int = 80,
        lines: int = 40,
        typed_before: bytes = b"",
    ) -> "Terminal":
        """Run ``target`` (``module:function``) with these words as ``sys.argv``; without one, execute the words.

        ``typed_before`` is in the terminal before the program is there.
        """
        terminal, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.write(terminal, typed_before)
        told, report = os.pipe()
        request = json.dumps({"words": list(words), "environment": dict(environment), "target": target})
        socket.send_fds(self._requests, [request.encode()], [theirs, report])
        os.close(theirs)
        os.close(report)
        self._opened.append(Terminal(terminal, told, columns, lines))
        return self._opened[-1]

    def close_all(self) -> None:
        """End every program that was started."""
        while self._opened:
            self._opened.pop().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close_all()
        self._requests.close()
        self._host.wait(PATIENCE)


class Terminal:
    """A program in a terminal. ``raw`` is every byte it drew, ``screen`` what they amount to."""

    def __init__(self, terminal: int, told: int, columns: int, lines: int) -> None:
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, lines, history=5_000)
        self._stream = pyte.ByteStream(self.screen)
        self._terminal = terminal
        self._told = told
        self._report = b""

    # ── the screen ───────────────────────────────────────────────────────────────────────────────────────────

    @property
    def visible(self) -> list[str]:
        """The lines that stand on the screen now."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The lines that scrolled off, and those on the screen."""
        above = ["".join(row[x].data for x in range(self.screen.columns)).rstrip() for row in self.screen.history.top]
        return "\n".join([*above, *self.visible])

    def pump(self, seconds: float = 0.1) -> bool:
        """Read what the program drew, waiting at most so long for some; false when nothing came."""
        if self._terminal < 0 or not select.select([self._terminal], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._terminal, 65_536)
        except OSError:  # nobody holds the other side any more
            data = b""
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def until(self, seen: Callable[[], bool], what: str) -> str:
        """Until something can be seen. Fails, with the screen, where the program ends or hangs before it."""
        end = time.monotonic() + PATIENCE
        while not seen():
            if not self.pump() and self.ended and not self.pump(0):
                assert seen(), f"the program ended before {what}:\n{self.text}"
                break
            assert time.monotonic() < end, f"{what} never came; the screen:\n{self.text}"
        return self.text

    def until_shows(self, text: str, times: int = 1) -> str:
        return self.until(lambda: self.text.count(text) >= times, f"{text!r}, {times} times")

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────

    def press(self, keys: bytes | str) -> None:
        data = keys.encode() if isinstance(keys, str) else keys
        while data:
            data = data[os.write(self._terminal, data) :]

    def hang_up(self) -> None:
        """The terminal goes away, as when its window is closed."""
        os.close(self._terminal)
        self._terminal = -1

    # ── the program ──────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pid(self) -> int:
        return int(self._words(1)[0])

    @property
    def ended(self) -> bool:
        """Whether the program has ended."""
        while select.select([self._told], [], [], 0)[0] and (data := os.read(self._told, 64)):
            self._report += data
        return self._report.count(b"\n") == 2

    def status(self) -> int:
        """Its exit status, once it has ended; what it draws until then is read."""
        self.until(lambda: self.ended, "its end")
        while self.pump(0):
            pass
        return int(self._words(2)[1])

    def frozen(self) -> "_Frozen":
        """``with terminal.frozen():`` the program stands still; what it drew before is read."""
        return _Frozen(self)

    def close(self) -> None:
        """End the program, however far it is."""
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self._words(2)
        if self._terminal >= 0:
            self.hang_up()
        os.close(self._told)

    def _words(self, count: int) -> list[bytes]:
        end = time.monotonic() + PATIENCE
        while self._report.count(b"\n") < count:
            assert select.select([self._told], [], [], max(0.0, end - time.monotonic()))[0], "no word of the program"
            data = os.read(self._told, 64)
            assert data, "the program's minder is gone"
            self._report += data
        return self._report.split()


class _Frozen:
    """A program that stands still for a while."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def __enter__(self) -> None:
        pid = self._terminal.pid
        os.kill(pid, signal.SIGSTOP)
        end = time.monotonic() + PATIENCE
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < end, "the program did not stop"
        while self._terminal.pump(0.05):
            pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.kill(self._terminal.pid, signal.SIGCONT)
