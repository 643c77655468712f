"""Lines of bytes over descriptors that others may share: read without blocking the loop, written whole.

Neither side ever makes a descriptor non-blocking, because that would hold for everyone who shares it: a read takes only
what is there already, and a write only what fits.
"""

import asyncio
import os
import select
import stat

import anyio
import anyio.to_thread

from handrail.mcp.wire import EDGE_BYTES

CHUNK = 65536
PIPE_BUF = 4096  # a write of at most this many bytes to a writable pipe does not block (POSIX PIPE_BUF on Linux)


class TooLong:
    """What is left of a line beyond the limit: its edges and its whole size in bytes."""

    __slots__ = ("head", "size", "tail")

    def __init__(self, head: bytes, tail: bytes, size: int) -> None:
        self.head = head
        self.tail = tail
        self.size = size


class LineReader:
    """Splits a descriptor's bytes into lines, and throws away the middle of a line that is too long.

    Belongs to one task. :meth:`close` it before the descriptor is closed.
    """

    def __init__(self, fd: int, max_bytes: int) -> None:
        self._max = max_bytes
        self._rest = bytearray()
        self._lines: list[bytes] = []
        self._size = 0
        self._head = b""
        self.ended = False  # once what was read last is all that came, and no line end stood after it
        self._source = _Regular(fd) if _always_ready(fd) else _Watched(fd)

    async def line(self) -> bytes | TooLong | None:
        """The next line without its end, ``None`` at the end of the stream. Raises :class:`OSError`."""
        while not self._lines:
            chunk = await self._source.chunk()
            if not chunk:
                rest = bytes(self._rest)
                self._rest.clear()
                self.ended = True
                return rest or None
            found = self._take(chunk)
            if found is not None:
                return found
        return self._lines.pop(0)

    def close(self) -> None:
        """Stop watching the descriptor."""
        self._source.close()

    def _take(self, chunk: bytes) -> TooLong | None:
        """Add a chunk. Only the chunk is searched for line ends, so a long line costs one pass."""
        first, *more = chunk.split(b"\n")
        lost = self._extend(first, ended=bool(more))
        if more:
            self._rest = bytearray(more.pop())
            self._size = len(self._rest)
            self._lines.extend(line for line in more if line.strip())
        return lost

    def _extend(self, part: bytes, *, ended: bool) -> TooLong | None:
        self._rest += part
        self._size += len(part)
        if self._size > self._max:
            self._head = self._head or bytes(self._rest[:EDGE_BYTES])
            del self._rest[:-EDGE_BYTES]
        if not ended:
            return None
        head, whole, size = self._head, bytes(self._rest), self._size
        self._head, self._size = b"", 0
        if head:
            return TooLong(head, whole, size)
        if whole.strip():
            self._lines.append(whole)
        return None


def _always_ready(fd: int) -> bool:
    """Whether no loop can watch it, since reading never waits: a regular file, ``/dev/null``."""
    mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and not os.isatty(fd))


class _Watched:
    """A pipe, socket or terminal. The loop watches it from the first wait on, and reads for the one who waits."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[bytes] | None = None

    async def chunk(self) -> bytes:
        """What can be read now, or as soon as something can be; empty at the end."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        if self._loop is None:
            self._loop = loop
            loop.add_reader(self._fd, self._ready)
        try:
            return await self._waiter
        finally:
            self._waiter = None

    def _ready(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():  # nobody wants more yet, so the writer must wait
            self.close()
            return
        try:
            waiter.set_result(os.read(self._fd, CHUNK))
        except OSError as error:
            waiter.set_exception(error)

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._fd)
            self._loop = None


class _Regular:
    """A regular file or a device, which no loop can watch."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    async def chunk(self) -> bytes:
        return await anyio.to_thread.run_sync(os.read, self._fd, CHUNK)

    def close(self) -> None:
        pass


class LineWriter:
    """Writes whole lines to a descriptor, one writer at a time. It owns the descriptor and closes it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._turn = anyio.Lock(fast_acquire=True)
        self._fits = select.poll()
        self._watched = not _always_ready(fd)
        if self._watched:
            self._fits.register(fd, select.POLLOUT)

    async def write(self, data: bytes) -> None:
        """Write everything. Raises :class:`OSError` when nobody reads any more, or it was closed."""
        view = memoryview(data)
        async with self._turn:
            while view:
                view = view[await self._some(view) :]

    def write_now(self, data: bytes) -> bool:
        """Write everything at once, or nothing: what is long, or would have to wait, is not written.

        So a caller that is cancelled never leaves half a line. Raises :class:`OSError` as :meth:`write` does.
        """
        if len(data) > PIPE_BUF or not self._watched or self._turn.locked():
            return False
        if self._fd < 0:
            raise BrokenPipeError("it was closed")
        return bool(self._fits.poll(0)) and os.write(self._fd, data) == len(data)

    async def _some(self, view: memoryview) -> int:
        if self._fd < 0:
            raise BrokenPipeError("it was closed")
        if not self._watched:
            return os.write(self._fd, view)
        if not self._fits.poll(0):
            await anyio.wait_writable(self._fd)
        return os.write(self._fd, view[:PIPE_BUF])

    def close(self) -> None:
        """Close the descriptor. Closing twice is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
