"""Output kept with flat memory: the head and the tail of what came, however much came."""

from collections import deque

ENDURED_FACTOR = 64
ENDURED_AT_LEAST = 16 * 1024 * 1024


class KeptOutput:
    """Keeps at most ``cap`` bytes: the first half of it as it came, then the latest of what follows.

    ``total`` counts everything. ``flooded`` says that more came than any honest program sends: sixty-four times the
    cap, and never less than 16 MB.
    """

    __slots__ = ("_cap", "_head", "_tail", "_tail_bytes", "total")

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total = 0

    def add(self, chunk: bytes) -> None:
        """Take what came next."""
        self.total += len(chunk)
        room = self._cap - self._cap // 2 - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail.append(chunk)
            self._tail_bytes += len(chunk)
            self._trim()

    def _trim(self) -> None:
        excess = self._tail_bytes - self._cap // 2
        while excess > 0:
            first = self._tail.popleft()
            if len(first) > excess:
                self._tail.appendleft(first[excess:])
                self._tail_bytes -= excess
                return
            self._tail_bytes -= len(first)
            excess -= len(first)

    @property
    def truncated(self) -> bool:
        """Whether bytes between head and tail were let go."""
        return self.total > len(self._head) + self._tail_bytes

    @property
    def flooded(self) -> bool:
        """Whether the program sent so much that it should be stopped."""
        return self.total > max(self._cap * ENDURED_FACTOR, ENDURED_AT_LEAST)

    def kept(self) -> bytes:
        """Head and tail, joined."""
        return bytes(self._head) + b"".join(self._tail)
