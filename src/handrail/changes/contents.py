"""File contents by their SHA-256, in one private directory, never more than its limit.

Every content is one file (0600) named by its hash. A write goes to a private name first and is renamed when it is
whole, so a content that is there is complete. The bytes in use are counted in a file that all processes share; the
room is taken before the first byte is written.
"""

import fcntl
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager

from handrail import faults, private
from handrail.changes import beneath
from handrail.errors import ChangeError, UndoUnavailable

_COUNT = b"bytes-in-use"
_PARTIAL = b"partial-"
MAX_REMEMBERED = 10_000


class StoreFull(ChangeError):
    """The private store has no room left for this content, even after everything old was given up."""


class Blobs:
    """Contents in the directory ``path``. ``make_room(bytes)`` is called when the limit would be passed."""

    def __init__(self, path: str, max_bytes: int) -> None:
        private.make_directories(path)
        self.max_bytes = max_bytes
        self.make_room: Callable[[int], None] = lambda _needed: None
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._flushed: dict[str, int] = {}  # each with its inode: who removes and writes it anew makes another file

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def put(self, data: bytes) -> str:
        """Keep ``data`` and return its name. Raises :class:`StoreFull`."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.touch(sha256):
            self._write(len(data), lambda target: _write_all(target, data))
        return sha256

    def put_fd(self, fd: int) -> tuple[str, int]:
        """Keep what can be read from ``fd``, from its start; return name and size. Raises :class:`StoreFull`."""
        expected = os.fstat(fd).st_size
        if expected <= beneath.CHUNK:
            data = os.pread(fd, beneath.CHUNK + 1, 0)
            if len(data) <= beneath.CHUNK:
                return self.put(data), len(data)
        return self._write(expected, lambda target: beneath.copy_content(fd, target))

    def open(self, sha256: str) -> int:
        """A read-only descriptor. Raises :class:`~handrail.errors.UndoUnavailable` when the content is gone."""
        try:
            return beneath.open_file(self._fd, sha256.encode())
        except FileNotFoundError:
            raise UndoUnavailable(f"the private store no longer holds the content {sha256[:12]}…") from None

    def read(self, sha256: str, limit: int) -> bytes:
        """At most ``limit`` bytes of a content, from its start."""
        fd = self.open(sha256)
        try:
            return os.pread(fd, limit, 0)
        finally:
            os.close(fd)

    def touch(self, sha256: str) -> bool:
        """Whether the content is here; if it is, it counts as used now and is not given up for a while."""
        try:
            os.utime(sha256.encode(), dir_fd=self._fd)
        except FileNotFoundError:
            return False
        return True

    def sizes(self) -> Iterator[tuple[str, int, float]]:
        """Every content: name, size in bytes, when it was last used (seconds since 1970)."""
        with os.scandir(self._fd) as entries:
            for entry in entries:
                if len(entry.name) == 64:
                    found = entry.stat(follow_symlinks=False)
                    yield entry.name, found.st_size, found.st_mtime

    def remove(self, sha256: str) -> None:
        """Forget a content."""
        with self._counter() as (value, put):
            found = beneath.look(self._fd, sha256.encode())
            if found is not None:
                os.unlink(sha256.encode(), dir_fd=self._fd)
                put(max(0, value - found.st_size))

    def flush(self, names: Iterable[str], *, whole: bool) -> None:
        """Return after those of these contents that are here are on disk, whoever wrote them.

        ``whole``: by one flush of the filesystem.
        """
        here = {name: found.st_ino for name in names if (found := beneath.look(self._fd, name.encode())) is not None}
        waiting = {name: inode for name, inode in here.items() if self._flushed.get(name) != inode}
        if not waiting:
            return
        if whole:
            beneath.flush_filesystem(self._fd)
        else:
            for name in waiting:
                beneath.flush_name(self._fd, name.encode())
            os.fsync(self._fd)
        if len(self._flushed) > MAX_REMEMBERED:
            self._flushed.clear()
        self._flushed |= waiting

    @property
    def bytes_in_use(self) -> int:
        """What all contents take together, and what was reserved for contents being written."""
        with self._counter() as (value, _):
            return value

    def sweep(self) -> None:
        """Count what is really there: a writer that was killed gave neither its file nor its room back."""
        with self._counter() as (_, put):
            total = sum(size for _, size, _ in self.sizes())
            for name in os.listdir(self._fd):
                if name.startswith(_PARTIAL.decode()):
                    total += self._reserved_by(name)
            put(total)

    def _write(self, expected: int, fill: Callable[[int], tuple[str, int]]) -> tuple[str, int]:
        partial, fd = self._begun(expected)
        try:
            sha256, size = fill(fd)
            faults.point("contents:written")
            with self._counter() as (value, put):
                if self.touch(sha256):
                    os.unlink(partial, dir_fd=self._fd)
                    put(max(0, value - expected))
                else:
                    os.rename(partial, sha256.encode(), src_dir_fd=self._fd, dst_dir_fd=self._fd)
                    put(max(0, value - expected + size))
        except BaseException as error:
            self._abandon(partial, expected)
            if isinstance(error, OSError):
                raise ChangeError(f"the private store cannot be written: {error.strerror}") from error
            raise
        finally:
            os.close(fd)
        return sha256, size

    def _begun(self, size: int) -> tuple[bytes, int]:
        """A private file to write to, and room for ``size`` bytes; both at once, so that neither is lost alone."""
        for gain in (self.sweep, lambda: self.make_room(size), None):
            with self._counter() as (value, put):
                if value + size <= self.max_bytes:
                    partial = b"%s%d-%s" % (_PARTIAL, size, os.urandom(8).hex().encode())
                    fd = beneath.open_file(self._fd, partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                    fcntl.flock(fd, fcntl.LOCK_EX)  # held for as long as its writer lives
                    put(value + size)
                    return partial, fd
            if gain is not None:
                gain()
        raise StoreFull(f"the private store is full (limit {self.max_bytes} bytes, {size} more needed)")

    def _abandon(self, partial: bytes, expected: int) -> None:
        with self._counter() as (value, put):
            if beneath.look(self._fd, partial) is not None:
                os.unlink(partial, dir_fd=self._fd)
                put(max(0, value - expected))

    def _reserved_by(self, partial: str) -> int:
        """The room that a living writer's file holds; a dead one's file is removed, and holds none."""
        fd = beneath.open_file(self._fd, partial.encode())
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(partial.split("-")[1])
        else:
            os.unlink(partial, dir_fd=self._fd)
            return 0
        finally:
            os.close(fd)

    @contextmanager
    def _counter(self) -> Generator[tuple[int, Callable[[int], None]], None, None]:
        fd = beneath.open_file(self._fd, _COUNT, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            raw = os.pread(fd, 20, 0)
            yield int(raw or b"0"), lambda value: _put_number(fd, value)
        finally:
            os.close(fd)


def _put_number(fd: int, value: int) -> None:
    os.pwrite(fd, b"%020d" % value, 0)


def _write_all(target: int, data: bytes) -> tuple[str, int]:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
    return hashlib.sha256(data).hexdigest(), len(data)
