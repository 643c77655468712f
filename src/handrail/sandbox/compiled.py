"""The code of tools as a cell compiled it, kept for later calls.

Compiling is a good part of what a short call does, and most of what a longer one does. What comes back from the cell
that compiles is bytes, which this process never looks into: only cells load them, behind their walls. That cell runs
nothing of the tool, so what is kept is what the source says and nothing that an earlier call did.
"""

from handrail.sandbox.programs import InlineCode

MOST_KEPT = 256
"""So many codes are known at a time. When there are more, all are forgotten: those in use come again."""
MOST_BYTES = 16 * 1024 * 1024
"""Of source and code, in all. A source of more than a sixteenth of it is compiled by each call."""


class CompiledCodes:
    """What is known of the code that was called lately, told apart by its whole text and its name.

    Thread-safe without a lock: each step is one of the dictionary's own, and two that cross cost a compilation and
    change no result.
    """

    def __init__(self) -> None:
        # None: called once. Empty: called again, and not compiled (yet).
        self._known: dict[tuple[str, str], bytes | None] = {}
        self._room = MOST_BYTES

    def find(self, program: InlineCode) -> bytes:
        """The compiled code; empty where a call compiles it itself."""
        return self._known.get(_key_of(program)) or b""

    def called(self, program: InlineCode) -> bool:
        """Take note of a call. True at the second one, when it is time to compile: most code comes once."""
        key, size = _key_of(program), len(program.source)
        known = self._known.get(key, b"" if size > MOST_BYTES // 16 else UNSEEN)
        if known is UNSEEN:
            self._make_room(size)
            self._known[key] = None
        elif known is None:
            self._known[key] = b""
        return known is None

    def keep(self, program: InlineCode, code: bytes) -> None:
        """Remember what a cell left."""
        self._make_room(len(code))
        self._known[_key_of(program)] = code

    def _make_room(self, size: int) -> None:
        if size > self._room or len(self._known) >= MOST_KEPT:
            self._known.clear()
            self._room = MOST_BYTES
        self._room -= size


UNSEEN = b"unseen"


def _key_of(program: InlineCode) -> tuple[str, str]:
    return program.filename, program.source
