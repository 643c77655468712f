"""One directory, opened once; everything is reached beneath its descriptor.

Rules:

1. The directory is opened when the Workspace is made. Renaming it, or putting a link in its place, changes nothing
   for a Workspace that is open already.
2. Every open resolves beneath the descriptor: ``openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)`` (openat2(2));
   where the kernel lacks it, a walk that opens one component at a time with ``O_NOFOLLOW`` and follows links itself.
3. Opening never blocks: FIFOs and devices are refused, never waited for.
4. Names are bytes. A ``str`` is encoded as the filesystem encoding with ``surrogateescape``.

What this does not protect: a handler that opens an absolute path by itself after it was resolved can be raced by
somebody who may write in the workspace. Use :meth:`Workspace.open`, which cannot.
"""

import ctypes
import errno
import os
import stat
from types import TracebackType
from typing import Self

from handrail.errors import PathEscape, PathUnusable, WorkspaceError

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_SYS_OPENAT2 = 437  # the same number on every architecture (Linux 5.6)
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Workspace:
    """The one directory that an agent's tools may reach.

    ``path`` is its absolute path as text, ``root`` the same as bytes. Close it, or use it as a context manager.
    Raises :class:`~handrail.errors.WorkspaceError` when the directory cannot be opened.
    """

    def __init__(self, directory: AnyPath) -> None:
        self.root: bytes = os.path.realpath(os.fsencode(directory))
        self.path: str = os.fsdecode(self.root)
        try:
            self.fd: int = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise WorkspaceError(f"the workspace {self.path!r} cannot be opened: {error.strerror}") from None

    def close(self) -> None:
        """Give the descriptor back. Closing twice is harmless."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def relative(self, path: AnyPath) -> bytes:
        """``path`` relative to the root, lexically: absolute paths must start with the root, nothing is opened.

        Raises :class:`~handrail.errors.PathEscape` for an absolute path elsewhere, :class:`PathUnusable` for an empty
        path or one with a NUL byte. ``..`` is kept for the kernel to judge.
        """
        raw = os.fsencode(path)
        if not raw or b"\0" in raw:
            raise PathUnusable("an empty path" if not raw else "a path with a NUL byte")
        if not raw.startswith(b"/"):
            return raw
        if raw == self.root or raw.startswith(self.root.rstrip(b"/") + b"/"):
            return raw[len(self.root) :].lstrip(b"/") or b"."
        raise PathEscape(f"{os.fsdecode(raw)!r} is outside the workspace")

    def open(self, path: AnyPath, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open ``path`` beneath the workspace and return a new descriptor (close-on-exec, never blocking).

        Raises :class:`PathEscape` when it leads outside, :class:`PathUnusable` for a FIFO, socket or device, and
        :class:`OSError` as open(2) does otherwise (missing, a directory, no permission).
        """
        relative = self.relative(path)
        safe_flags = flags | os.O_CLOEXEC | os.O_NOCTTY | (0 if flags & os.O_PATH else os.O_NONBLOCK)
        fd = self._open_beneath(relative, safe_flags, mode)
        if not flags & os.O_PATH:
            _require_file_or_directory(fd, relative)
        return fd

    def resolve(self, path: AnyPath) -> bytes:
        """The absolute path where ``path`` leads now, through links; the part that does not exist yet is kept as it is.

        Raises as :meth:`open` does; ``..`` in the part that does not exist is refused.
        """
        existing = self.relative(path)
        rest: list[bytes] = []
        while True:
            try:
                fd = self._open_beneath(existing, os.O_PATH | os.O_CLOEXEC, 0)
            except FileNotFoundError:
                self._refuse_dangling_link(existing)
                existing, _, name = existing.rstrip(b"/").rpartition(b"/")
                if name in (b"..", b""):
                    raise PathUnusable(f"{os.fsdecode(path)!r}: '..' after a directory that does not exist") from None
                rest.insert(0, name)
                existing = existing or b"."
                continue
            try:
                base = _fd_path(fd)
            finally:
                os.close(fd)
            return os.path.join(base, *(name for name in rest if name != b"."))

    def _refuse_dangling_link(self, relative: bytes) -> None:
        """A link with a missing target must not be created through; the kernel said only that something is missing."""
        try:
            fd = self._open_beneath(relative, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0)
        except FileNotFoundError:
            return
        os.close(fd)
        raise PathEscape(f"{os.fsdecode(relative)!r} is a link to something that does not exist")

    def _open_beneath(self, relative: bytes, flags: int, mode: int) -> int:
        how = _OpenHow(flags, mode if flags & os.O_CREAT else 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
        while True:
            fd = _libc.syscall(_SYS_OPENAT2, self.fd, relative, ctypes.byref(how), ctypes.sizeof(how))
            if fd >= 0:
                return int(fd)
            number = ctypes.get_errno()
            if number in (errno.EAGAIN, errno.EINTR):  # a rename raced the kernel's walk: it asks us to try again
                continue
            if number in (errno.EXDEV, errno.ELOOP):
                raise PathEscape(f"{os.fsdecode(relative)!r} leads outside the workspace")
            if number == errno.ENXIO:
                raise PathUnusable(f"{os.fsdecode(relative)!r} is a FIFO, socket or device")
            raise OSError(number, os.strerror(number), os.fsdecode(relative))


def _require_file_or_directory(fd: int, relative: bytes) -> None:
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(fd)
        raise PathUnusable(f"{os.fsdecode(relative)!r} is a FIFO, socket or device")


def _fd_path(fd: int) -> bytes:
    return os.readlink(f"/proc/self/fd/{fd}".encode())
