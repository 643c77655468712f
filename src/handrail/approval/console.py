"""A person at the terminal decides.

Rules:

1. One question at a time; another waits until this one is answered.
2. Nothing typed before the question stood on the screen for ``minimum_display`` seconds counts. There is no default:
   Return does nothing.
3. Each key has one meaning. A key is one byte that comes alone: pasted text, escape sequences (arrows, Shift-Tab,
   mouse, focus, Alt-anything) and characters of several bytes are thrown away whole, with a bell.
4. While a line is being typed (a reason, new arguments) no key answers the question; Return ends the line, Ctrl-C or
   Ctrl-D leaves it.
5. What was not shown whole has no quick yes and no grant: it takes the word ``approve``.
6. Ctrl-C at the question means no. A terminal that is gone means nobody is there, which is no.
"""

import contextlib
import json
import os
import select
import termios
import threading
import time
from collections.abc import Callable, Generator

from anyio import to_thread

from handrail.approval.decision import ApprovalRequest, Approve, Decision, Modify, Reject, Unavailable
from handrail.approval.question import Sheet, sheet
from handrail.approval.render import escaped, visible
from handrail.schema import ArgumentsInvalid, decode_arguments

ESCAPE, INTERRUPT, END, BACKSPACES = b"\x1b", b"\x03", b"\x04", (b"\x7f", b"\x08")
MAX_LINE = 1_048_576
CONFIRMING_WORD = "approve"
POLL_SECONDS = 0.2
ALONE_SECONDS = 0.03
_WITHDRAWN = Unavailable("the question was withdrawn")


class ConsoleApprover:
    """Asks the person at a terminal.

    ``fd``: a terminal to read and write (``None``: the process's controlling terminal, ``/dev/tty``). ``by`` names the
    person in the journal. ``minimum_display``: seconds that a question stands before any key counts.
    """

    def __init__(self, fd: int | None = None, *, by: str = "", minimum_display: float = 0.6) -> None:
        self._fd = fd
        self._by = by or f"user {os.getuid()} at the terminal"
        self._minimum_display = minimum_display
        self._one_at_a_time = threading.Lock()

    async def decide(self, request: ApprovalRequest) -> Decision:
        """Show the question and wait for an answer. Cancelling takes the question off the screen."""
        withdrawn = threading.Event()
        try:
            return await to_thread.run_sync(self._decide, request, withdrawn, abandon_on_cancel=True)
        finally:
            withdrawn.set()

    def _decide(self, request: ApprovalRequest, withdrawn: threading.Event) -> Decision:
        with self._one_at_a_time, self._terminal() as fd:
            if withdrawn.is_set():
                return _WITHDRAWN
            if fd is None or not os.isatty(fd):
                return Unavailable("there is no terminal to ask at")
            try:
                with _raw(fd):
                    return _Asking(fd, withdrawn, request, self._by, self._minimum_display).answer()
            except (OSError, termios.error, EOFError) as error:
                return Unavailable(f"the terminal is gone ({type(error).__name__})")

    @contextlib.contextmanager
    def _terminal(self) -> Generator[int | None]:
        if self._fd is not None:
            yield self._fd
            return
        try:
            fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            yield fd
        finally:
            os.close(fd)


@contextlib.contextmanager
def _raw(fd: int) -> Generator[None]:
    """No echo, no line editing, no signals from keys; what was typed before and after is thrown away."""
    before = termios.tcgetattr(fd)
    raw = termios.tcgetattr(fd)
    raw[0] &= ~(termios.IXON | termios.ICRNL | termios.INLCR)
    raw[3] &= ~(termios.ECHO | termios.ICANON | termios.ISIG | termios.IEXTEN)
    raw[6][termios.VMIN], raw[6][termios.VTIME] = 1, 0
    termios.tcsetattr(fd, termios.TCSAFLUSH, raw)
    try:
        yield
    finally:
        with contextlib.suppress(termios.error):  # the terminal is gone; there is nothing to restore
            termios.tcsetattr(fd, termios.TCSAFLUSH, before)


class _Asking:
    """One question on one terminal in raw mode."""

    def __init__(
        self, fd: int, withdrawn: threading.Event, request: ApprovalRequest, by: str, minimum_display: float
    ) -> None:
        self._fd = fd
        self._withdrawn = withdrawn
        self._request = request
        self._by = by
        self._minimum_display = minimum_display
        self._quick = False
        self._meanings: dict[bytes, Callable[[], Decision | None]] = {
            b"y": self._yes,
            b"g": self._yes_for_the_session,
            b"a": self._yes_by_word,
            b"n": self._no,
            INTERRUPT: self._no,
            b"r": self._no_with_reason,
            b"e": self._edit,
            b"v": self._view,
        }

    def answer(self) -> Decision:
        """Show the question; go on until a key decides."""
        self._show()
        while True:
            key = self._key()
            if key is None:
                return _WITHDRAWN
            decision = self._meanings.get(key, self._ring)()
            if decision is not None:
                return decision

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _yes(self) -> Decision | None:
        if not self._quick:
            return self._say("Not all of it is on the screen: press v to see it, a to approve by a word.")
        self._say("Approved, once.")
        return Approve(by=self._by)

    def _yes_for_the_session(self) -> Decision | None:
        offer = self._request.offer
        if offer is None or not self._request.can_grant or not self._quick:
            return self._say("This cannot be approved for the session.")
        self._say("Approved, and for this session what the pattern covers.")
        return Approve(by=self._by, grant=offer)

    def _yes_by_word(self) -> Decision | None:
        typed = self._line(f"Type {CONFIRMING_WORD} and Return: ", "", pasting=False)
        if typed != CONFIRMING_WORD:
            return self._say("Not approved.", keys=True)
        self._say("Approved, once.")
        return Approve(by=self._by)

    def _no(self) -> Decision:
        self._say("Rejected.")
        return Reject(by=self._by)

    def _no_with_reason(self) -> Decision | None:
        reason = self._line("Why not (the model reads this): ", "")
        if not reason:
            return self._say("No reason was given; nothing is decided.", keys=True)
        self._say("Rejected.")
        return Reject(reason, by=self._by)

    def _edit(self) -> Decision | None:
        text = json.dumps(self._request.arguments, ensure_ascii=True)
        typed = self._line("New arguments (JSON): ", text if len(text) <= 2_000 else "{}")
        if typed is None:
            return self._say("Not edited.", keys=True)
        try:
            arguments = decode_arguments(typed)
        except ArgumentsInvalid as error:
            return self._say(f"Not edited: {escaped(str(error))}.", keys=True)
        self._say("Edited. The edited call is checked again, and asked about again.")
        return Modify(arguments, by=self._by)

    def _view(self) -> None:
        """Everything, in pages; then the question again."""
        width, height = self._size()
        lines = sheet(self._request, width=width, whole=True).lines
        step = max(1, height - 2)
        pages = [lines[start : start + step] for start in range(0, len(lines), step)]
        for number, page in enumerate(pages, start=1):
            self._write(["", *page, f"— page {number} of {len(pages)}: space goes on, q goes back —"])
            key = self._key()
            while key not in (b" ", b"q", None):
                key = self._key()
            if key != b" ":
                break
        self._show()

    # ── the screen ───────────────────────────────────────────────────────────────────────────────────────────

    def _show(self) -> None:
        width, height = self._size()
        shown: Sheet = sheet(self._request, width=width)
        self._quick = shown.complete and len(shown.lines) + 3 <= height
        self._write(["", *shown.lines, ""])
        self._wait_until_seen()
        self._say_keys()

    def _wait_until_seen(self) -> None:
        """Throw away everything typed until the question has stood for its time (rule 2)."""
        end = time.monotonic() + self._minimum_display
        while (left := end - time.monotonic()) > 0 and not self._withdrawn.is_set():
            if select.select([self._fd], [], [], min(left, POLL_SECONDS))[0]:
                self._read_now()
        termios.tcflush(self._fd, termios.TCIFLUSH)

    def _say_keys(self) -> None:
        yes = "y yes, once" if self._quick else "a approve by a word (not all of it is on the screen)"
        session = " · g yes for this session" if self._quick and self._request.can_grant else ""
        self._write([f"{yes}{session} · n no · r no, because … · e edit · v view all"])

    def _say(self, text: str, *, keys: bool = False) -> None:
        self._write([text])
        if keys:
            self._say_keys()

    def _ring(self) -> None:
        """Say that what was pressed means nothing here."""
        os.write(self._fd, b"\a")

    def _write(self, lines: list[str]) -> None:
        data = "".join(f"{line}\r\n" for line in lines).encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._fd, data) :]

    def _size(self) -> tuple[int, int]:
        try:
            size = os.get_terminal_size(self._fd)
        except OSError:
            return 80, 24
        return size.columns or 80, size.lines or 24

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────

    def _read_now(self) -> bytes:
        data = os.read(self._fd, 65_536)
        if not data:
            raise EOFError
        return data

    def _burst(self) -> bytes | None:
        """Bytes that came together, or ``None`` when the question was withdrawn."""
        while not self._withdrawn.is_set():
            if not select.select([self._fd], [], [], POLL_SECONDS)[0]:
                continue
            data = self._read_now()
            while select.select([self._fd], [], [], ALONE_SECONDS)[0]:
                data += self._read_now()
            return data
        return None

    def _key(self) -> bytes | None:
        """One byte that came alone; everything else is thrown away whole (rule 3)."""
        while True:
            burst = self._burst()
            if burst is None or (len(burst) == 1 and burst != ESCAPE):
                return burst
            self._ring()

    def _line(self, prompt: str, text: str, *, pasting: bool = True) -> str | None:
        """A line of text, or ``None`` if it was left. Without ``pasting`` only single keys count."""
        raw = text.encode()
        while True:
            self._redraw(prompt, raw)
            burst = self._burst()
            if burst is None or burst in (INTERRUPT, END):
                self._write([""])
                return None
            if ESCAPE in burst or (len(burst) > 1 and not pasting):
                self._ring()
                continue
            if burst in BACKSPACES:
                raw = raw.decode("utf-8", "ignore")[:-1].encode()
                continue
            more, ended, _ = burst.replace(b"\n", b"\r").partition(b"\r")
            raw = (raw + more)[:MAX_LINE]
            if ended:
                self._redraw(prompt, raw)
                self._write([""])
                return raw.decode("utf-8", "replace")

    def _redraw(self, prompt: str, raw: bytes) -> None:
        room = max(8, self._size()[0] - len(prompt) - 1)
        typed = visible(raw.decode("utf-8", "replace")).replace("\\\\", "\\")  # the person's own
        line = prompt + typed[-room:]
        data = f"\r\x1b[K{line}".encode()
        while data:
            data = data[os.write(self._fd, data) :]
