"""Who is alive, on one machine: each process holds a lock on a file of its own for as long as it lives.

The kernel drops the lock with the process, whatever ended it; no process id is guessed and no clock is read. The
lock is of the POSIX kind: a child that was forked does not inherit it, so it does not keep its dead parent alive.
Such a lock is dropped too when its process closes any descriptor of the file, so a process never opens a file of its
own again (``_HERE``).
"""

import fcntl
import os
import re
import threading

from handrail import private
from handrail.errors import JournalError

_EXECUTOR = re.compile(r"[0-9a-f-]{36}")
_here: dict[tuple[str, str], int] = {}
_guard = threading.Lock()


class Lease:
    """One process's sign of life for one journal. ``directory`` holds one file for each executor."""

    def __init__(self, directory: str, executor: str) -> None:
        self._path = os.path.join(directory, executor)
        self._key = (os.path.realpath(directory), executor)
        private.make_directories(directory)
        with _guard:
            self._fd = private.open_file(self._path, os.O_RDWR | os.O_EXCL)
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _here[self._key] = os.getpid()

    def release(self) -> None:
        """Say that this executor is gone. Releasing twice is harmless."""
        with _guard:
            if _here.pop(self._key, None) is None:
                return
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
            os.close(self._fd)


def is_alive(directory: str, executor: str) -> bool:
    """Whether the process behind ``executor`` still runs. Raises :class:`JournalError` when nobody can say."""
    if not _EXECUTOR.fullmatch(executor):
        return False
    with _guard:
        if _here.get((os.path.realpath(directory), executor)) == os.getpid():
            return True
        try:
            fd = os.open(os.path.join(directory, executor), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise JournalError(f"cannot tell whether executor {executor} lives: {error}") from None
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who ask at once do not take each other for it
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(fd)


def sweep(directory: str, keep: frozenset[str]) -> None:
    """Remove the files of executors that are dead and own nothing any more (``keep`` names who still does)."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return
    for name in names:
        if name not in keep and not is_alive(directory, name):
            try:
                os.unlink(os.path.join(directory, name))
            except FileNotFoundError:
                continue
