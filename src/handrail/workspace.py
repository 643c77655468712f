"""One directory, opened once; everything is reached beneath its descriptor.

Rules:

1. The directory is opened when the Workspace is made. Renaming it, or putting a link in its place, changes nothing
   for a Workspace that is open already.
2. Every open resolves beneath the descriptor: ``openat2(RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)`` (openat2(2));
   where the kernel lacks it, a walk that opens one component at a time with ``O_NOFOLLOW`` and follows links itself.
   Which one is decided by asking the kernel once, not by its version.
3. Absolute links are refused, also those that lead back inside: RESOLVE_BENEATH does the same.
4. Opening never blocks: FIFOs and devices are refused, never waited for.
5. Names are bytes. A ``str`` is encoded as the filesystem encoding with ``surrogateescape``.

What this does not protect: a handler that opens an absolute path by itself after it was resolved can be raced by
somebody who may write in the workspace. Use :meth:`Workspace.open`, which cannot.
"""

import ctypes
import errno
import os
import stat
from collections import deque
from functools import cache
from types import TracebackType
from typing import Literal, Self

from handrail.errors import PathEscape, PathUnusable, WorkspaceError

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Engine = Literal["openat2", "walk"]

MAX_LINKS = 40  # as the kernel's own MAXSYMLINKS
MAX_ATTEMPTS = 1000  # how often a walk that a rename disturbed is begun again

_SYS_OPENAT2 = 437  # the same number on every architecture (Linux 5.6)
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08
_O_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # all that openat2 takes beside O_PATH
_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Workspace:
    """The one directory that an agent's tools may reach.

    ``path`` is its absolute path as text, ``root`` the same as bytes. ``engine`` says who walks paths; the default is
    what this kernel can do. Close it, or use it as a context manager.
    Raises :class:`~handrail.errors.WorkspaceError` when the directory cannot be opened.
    """

    def __init__(self, directory: AnyPath, *, engine: Engine | None = None) -> None:
        asked = os.fsencode(directory)
        if not asked or b"\0" in asked:
            raise WorkspaceError("the workspace has no name" if not asked else "the workspace's name holds a NUL byte")
        try:
            self.root: bytes = os.path.realpath(asked)
        except FileNotFoundError:  # a relative name, and nothing that it could be relative to
            raise WorkspaceError("the current directory does not exist any more") from None
        self.path: str = os.fsdecode(self.root)
        self._roots = dict.fromkeys((self.root, os.path.abspath(asked)))  # as found, and as asked for
        self.engine: Engine = engine or ("openat2" if kernel_has_openat2() else "walk")
        self._open_at = _openat2 if self.engine == "openat2" else _walk_open
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

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────────

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
        for root in self._roots:
            if raw == root or raw.startswith(root.rstrip(b"/") + b"/"):
                return raw[len(root) :].lstrip(b"/") or b"."
        raise PathEscape(f"{os.fsdecode(raw)!r} is outside the workspace")

    def resolve(self, path: AnyPath) -> bytes:
        """The absolute path where ``path`` leads now, through links; the part that does not exist yet is kept as it is.

        Raises as :meth:`open` does; ``..`` in the part that does not exist is refused.
        """
        located = self.locate(path)
        return self.root if located == b"." else os.path.join(self.root, located)

    def locate(self, path: AnyPath) -> bytes:
        """As :meth:`resolve`, but relative to the root (``b"."`` for the root itself): no link is in it any more."""
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
                base = self._place_of(fd)
            finally:
                os.close(fd)
            names = [name for name in (*base.split(b"/"), *rest) if name not in (b".", b"")]
            return b"/".join(names) or b"."

    def locate_entry(self, path: AnyPath) -> bytes:
        """Where the directory entry ``path`` itself stands, relative to the root: a link as the last name is not
        followed, so that it can be moved or deleted. Raises :class:`PathUnusable` for the workspace itself.
        """
        directory, _, name = self.relative(path).rstrip(b"/").rpartition(b"/")
        if name in (b"", b".", b".."):
            raise PathUnusable(f"{os.fsdecode(path)!r} does not name an entry of a directory in the workspace")
        parent = self.locate(directory or b".")
        return name if parent == b"." else parent + b"/" + name

    # ── descriptors ──────────────────────────────────────────────────────────────────────────────────────────

    def open(self, path: AnyPath, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open ``path`` beneath the workspace and return a new descriptor (close-on-exec, never blocking).

        Raises :class:`PathEscape` when it leads outside, :class:`PathUnusable` for a FIFO, socket or device, and
        :class:`OSError` as open(2) does otherwise (missing, a directory, no permission).
        """
        relative = self.relative(path)
        if flags & os.O_PATH:
            return self._open_beneath(relative, (flags & _O_PATH_FLAGS) | os.O_CLOEXEC, 0)
        fd = self._open_beneath(relative, flags | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK, mode)
        _require_file_or_directory(fd, relative)
        return fd

    def status(self, path: AnyPath) -> os.stat_result | None:
        """What the entry ``path`` is (a link as the last name is not followed); ``None`` when there is none.

        Raises :class:`PathEscape` when a directory on the way leads outside, :class:`OSError` otherwise.
        """
        try:
            fd = self.open(path, os.O_PATH | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            return os.fstat(fd)
        finally:
            os.close(fd)

    def link_target(self, path: AnyPath) -> bytes:
        """Where the link ``path`` points, as it is written. Raises :class:`OSError` when it is no link."""
        fd = self.open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            return os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)

    def names_in(self, path: AnyPath) -> list[bytes]:
        """The names in a directory, sorted as bytes. Raises :class:`OSError` when it cannot be listed."""
        fd = self.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return sorted(os.fsencode(name) for name in os.listdir(fd))
        finally:
            os.close(fd)

    def _refuse_dangling_link(self, relative: bytes) -> None:
        """A link with a missing target must not be created through; the kernel said only that something is missing."""
        try:
            fd = self._open_beneath(relative.rstrip(b"/"), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, 0)
        except FileNotFoundError:
            return
        os.close(fd)
        raise PathEscape(f"{os.fsdecode(relative)!r} is a link to something that does not exist")

    def _place_of(self, fd: int) -> bytes:
        """Where an open descriptor stands, relative to where the root stands now (it may have been renamed)."""
        here, place = _fd_path(self.fd), _fd_path(fd)
        if place.endswith(b" (deleted)") and os.fstat(fd).st_nlink == 0:
            raise PathUnusable(f"{os.fsdecode(place)!r} was removed while it was looked at")
        if place == here:
            return b"."
        prefix = here.rstrip(b"/") + b"/"
        if not place.startswith(prefix):  # moved out of the workspace since it was opened
            raise PathEscape(f"{os.fsdecode(place)!r} is outside the workspace")
        return place[len(prefix) :]

    def _open_beneath(self, relative: bytes, flags: int, mode: int) -> int:
        try:
            return self._open_at(self.fd, relative, flags, mode)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise PathEscape(f"{os.fsdecode(relative)!r} leads outside the workspace") from None
            if error.errno == errno.ELOOP:
                raise PathUnusable(
                    f"{os.fsdecode(relative)!r} is, or goes through, a link that is not followed"
                ) from None
            if error.errno == errno.ENXIO:
                raise PathUnusable(f"{os.fsdecode(relative)!r} is a FIFO, socket or device") from None
            raise


# ── two engines with one contract: an open(2) that stays beneath ``root``, raising OSError as the kernel would ────


@cache
def kernel_has_openat2() -> bool:
    """Whether this kernel, through whatever filter stands before it, answers ``openat2`` with ``RESOLVE_BENEATH``."""
    root = os.open(b"/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_openat2(root, b".", os.O_PATH | os.O_CLOEXEC, 0))
    except OSError:  # ENOSYS: too old; EPERM: a seccomp filter; EINVAL: too old for the flags
        return False
    finally:
        os.close(root)
    return True


def _openat2(root: int, relative: bytes, flags: int, mode: int) -> int:
    how = _OpenHow(flags, mode if flags & os.O_CREAT else 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    number = 0
    for _ in range(MAX_ATTEMPTS):
        fd = _libc.syscall(_SYS_OPENAT2, root, relative, ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number not in (errno.EAGAIN, errno.EINTR):  # a rename raced the kernel's walk: it asks us to try again
            break
    raise OSError(number, os.strerror(number), os.fsdecode(relative))


def _walk_open(root: int, relative: bytes, flags: int, mode: int) -> int:
    for _ in range(MAX_ATTEMPTS):
        walk = _Walk(root)
        try:
            return walk.open(relative, flags, mode)
        except _Disturbed:
            continue
        finally:
            walk.close()
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), os.fsdecode(relative))


class _Disturbed(Exception):
    """A name became a link between being looked at and being opened."""


class _Walk:
    """One walk beneath ``root``, component by component. Directories on the way stay open: ``..`` goes back to one."""

    def __init__(self, root: int) -> None:
        self._open: list[int] = []
        self._root = root
        self._links = 0
        self._pending: deque[bytes] = deque()

    def close(self) -> None:
        while self._open:
            os.close(self._open.pop())

    @property
    def _here(self) -> int:
        return self._open[-1] if self._open else self._root

    def open(self, relative: bytes, flags: int, mode: int) -> int:
        self._take(relative)
        while self._pending:
            name = self._pending.popleft()
            if name == b"..":
                self._up()
            elif name in (b"", b"."):
                continue
            elif self._pending:
                self._into(name)
            elif (fd := self._last(name, flags, mode)) is not None:
                return fd
        return os.open(b".", flags, mode, dir_fd=self._here)

    def _take(self, path: bytes) -> None:
        if path.startswith(b"/"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        self._pending.extendleft(reversed(path.split(b"/")))

    def _up(self) -> None:
        if not self._open:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.close(self._open.pop())

    def _into(self, name: bytes) -> None:
        """Go into a directory, or take a link's target in place of its name."""
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._here)
        kind = os.fstat(fd).st_mode
        if stat.S_ISDIR(kind):
            self._open.append(fd)
            return
        try:
            if not stat.S_ISLNK(kind):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self._follow(os.readlink(b"", dir_fd=fd))
        finally:
            os.close(fd)

    def _follow(self, target: bytes) -> None:
        self._links += 1
        if self._links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        self._take(target)

    def _last(self, name: bytes, flags: int, mode: int) -> int | None:
        """Open the last name; ``None`` when it was a link, whose target is now pending."""
        if not flags & os.O_NOFOLLOW and not (flags & os.O_CREAT and flags & os.O_EXCL):
            target = self._target_of(name)
            if target is not None:
                self._follow(target)
                return None
        try:
            fd = os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=self._here)
        except OSError as error:
            if error.errno == errno.ELOOP and not flags & os.O_NOFOLLOW:
                raise _Disturbed from None
            raise
        if flags & os.O_PATH and not flags & os.O_NOFOLLOW and stat.S_ISLNK(os.fstat(fd).st_mode):
            os.close(fd)
            raise _Disturbed
        return fd

    def _target_of(self, name: bytes) -> bytes | None:
        try:
            return os.readlink(name, dir_fd=self._here)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing yet: open(2) decides
                return None
            raise


def _require_file_or_directory(fd: int, relative: bytes) -> None:
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        os.close(fd)
        raise PathUnusable(f"{os.fsdecode(relative)!r} is a FIFO, socket or device")


def _fd_path(fd: int) -> bytes:
    return os.readlink(f"/proc/self/fd/{fd}".encode())
