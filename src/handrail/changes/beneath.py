"""Descriptor-relative file operations beneath one directory. Never through a link, never into another mount.

Everything takes an open directory and one name in it; a path is walked by the kernel once, to its parent
(``openat2`` with ``RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV``), and held as a descriptor from then on.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from handrail import private
from handrail.changes.changeset import FileState
from handrail.errors import ChangeError

_SYS_OPENAT2 = 437  # the same number on every architecture (Linux 5.6)
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)

CHUNK = 1 << 20
MAX_DEPTH = 400  # directories above a name: each takes a descriptor and a frame while a tree is read
MANY_FILES = 24  # from here on one flush of the whole filesystem is cheaper than one for each file
LINK_MODE = 0o777  # Linux gives every link this mode and lets nobody change it


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True, slots=True)
class Seen:
    """What one name was when it was looked at, with what the filesystem knows besides the portable state.

    ``changed_ns`` is the inode's change time, in nanoseconds since 1970.
    """

    state: FileState
    inode: int
    uid: int
    gid: int
    links: int
    changed_ns: int


def open_directory(root: int, path: bytes) -> int:
    """An ``O_PATH`` descriptor of the directory ``path`` beneath ``root``; ``b""`` is the root itself.

    Raises :class:`OSError` as open(2) does: ``ELOOP`` or ``ENOTDIR`` where a link or a file stands in the way,
    ``EXDEV`` where another filesystem is mounted.
    """
    how = _OpenHow(
        os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
        0,
        _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_XDEV | _RESOLVE_NO_MAGICLINKS,
    )
    while True:
        fd = _libc.syscall(_SYS_OPENAT2, root, path or b".", ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0:
            return int(fd)
        number = ctypes.get_errno()
        if number == errno.ENOSYS:
            return _walk(root, path)
        if number not in (errno.EAGAIN, errno.EINTR):  # a rename raced the kernel's walk: it asks us to try again
            raise OSError(number, os.strerror(number), os.fsdecode(path))


def _walk(root: int, path: bytes) -> int:
    """:func:`open_directory` where the kernel has no openat2: one name after the other. A mount of the very same
    filesystem is then not noticed here, but by the rename that cannot leave it.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    here = os.open(b".", flags, dir_fd=root)
    device = os.fstat(here).st_dev
    for name in path.split(b"/") if path else []:
        try:
            inner = os.open(name, flags, dir_fd=here)
        finally:
            os.close(here)
        here = inner
        if name in (b"", b".", b"..") or os.fstat(here).st_dev != device:
            os.close(here)
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), os.fsdecode(path))
    return here


@contextmanager
def directory(root: int, path: bytes) -> Generator[int, None, None]:
    """:func:`open_directory` for a ``with`` block."""
    fd = open_directory(root, path)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def parent_of(root: int, path: bytes) -> Generator[tuple[int, bytes], None, None]:
    """The directory that holds ``path``, and the name in it."""
    above, _, name = path.rpartition(b"/")
    with directory(root, above) as fd:
        yield fd, name


def look(parent: int, name: bytes) -> os.stat_result | None:
    """lstat(2) of one name; ``None`` when it is not there."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def open_file(parent: int, name: bytes, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open one name without following a link and without waiting for anybody. One that is made is private."""
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY, mode, dir_fd=parent)
    if flags & os.O_CREAT:
        private.give_mode(fd)
    return fd


def names_in(parent: int, name: bytes) -> list[bytes]:
    """The names in the directory ``name``, sorted."""
    fd = open_file(parent, name, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return sorted(os.fsencode(entry) for entry in os.listdir(fd))
    finally:
        os.close(fd)


Keep = Callable[[int], tuple[str, int]]
"""Reads a descriptor from its start and returns SHA-256 (hex) and size; a store may keep the content too."""


def hash_of(fd: int) -> tuple[str, int]:
    """SHA-256 (hex) and size of everything that can be read from ``fd``, from its start."""
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(fd, CHUNK, size):
        digest.update(chunk)
        size += len(chunk)
    return digest.hexdigest(), size


def read_state(parent: int, name: bytes, shown: bytes, keep: Keep = hash_of) -> Seen | None:
    """One name as it is now; ``None`` when it is not there. ``shown`` names it in errors.

    Raises :class:`~handrail.errors.ChangeError` for FIFOs, sockets and devices, which are no part of a ChangeSet.
    """
    found = look(parent, name)
    if found is None:
        return None
    kind, mode = found.st_mode, stat.S_IMODE(found.st_mode)
    if stat.S_ISDIR(kind):
        return _seen(FileState("directory", mode), found)
    if stat.S_ISLNK(kind):
        return _seen(FileState("link", LINK_MODE, target=os.readlink(name, dir_fd=parent)), found)
    if not stat.S_ISREG(kind):
        raise ChangeError(f"{os.fsdecode(shown)!r} is a FIFO, socket or device")
    try:
        fd = open_file(parent, name)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ChangeError(f"{os.fsdecode(shown)!r} is a FIFO, socket or device")
        sha256, size = keep(fd)
        found = os.fstat(fd)  # after the reading: a change before or during it has stamped the inode by now
        return _seen(FileState("file", stat.S_IMODE(found.st_mode), size, sha256), found)
    finally:
        os.close(fd)


def _seen(state: FileState, found: os.stat_result) -> Seen:
    return Seen(state, found.st_ino, found.st_uid, found.st_gid, found.st_nlink, found.st_ctime_ns)


def read_tree(parent: int, name: bytes, path: bytes, keep: Keep = hash_of) -> dict[bytes, Seen]:
    """``name`` and everything beneath it, by path (``path`` is what ``name`` is called). Empty when it is not there.

    Raises :class:`~handrail.errors.ChangeError` for special files, where another filesystem is mounted, and for what
    lies too deep.
    """
    seen = read_state(parent, name, path, keep)
    if seen is None:
        return {}
    tree = {path: seen}
    if seen.state.kind == "directory":
        if path.count(b"/") >= MAX_DEPTH:
            raise ChangeError(f"what lies more than {MAX_DEPTH} directories deep is not changed: {os.fsdecode(path)!r}")
        try:
            inner = open_directory(parent, name)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise ChangeError(f"another filesystem is mounted at {os.fsdecode(path)!r}") from None
            raise
        try:
            for child in names_in(parent, name):
                tree.update(read_tree(inner, child, path + b"/" + child, keep))
        finally:
            os.close(inner)
    return tree


def _renameat2(from_fd: int, source: bytes, to_fd: int, target: bytes, flags: int) -> None:
    if _libc.renameat2(from_fd, source, to_fd, target, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(target))


def move_new(from_fd: int, source: bytes, to_fd: int, target: bytes) -> None:
    """Rename, and raise :class:`FileExistsError` rather than replace anything."""
    _renameat2(from_fd, source, to_fd, target, _RENAME_NOREPLACE)


def exchange(from_fd: int, source: bytes, to_fd: int, target: bytes) -> None:
    """Swap two names in one step; at no moment is either of them missing."""
    _renameat2(from_fd, source, to_fd, target, _RENAME_EXCHANGE)


def make_directory(parent: int, name: bytes) -> None:
    """Make a directory that only its owner can use (0700), whatever the umask takes or ``parent`` hands down."""
    os.mkdir(name, 0o700, dir_fd=parent)
    change_mode(parent, name, 0o700)


def change_mode(parent: int, name: bytes, mode: int) -> None:
    """Set the permission bits of what ``name`` is now, never of what a link points to."""
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fsdecode(name))
        os.chmod(f"/proc/self/fd/{fd}", mode)  # fchmod refuses O_PATH; the magic link leads to this very inode
    finally:
        os.close(fd)


def has_writer(parent: int, name: bytes) -> bool:
    """Whether anybody holds the file ``name`` open for writing, or maps it so.

    A read lease (fcntl(2), ``F_SETLEASE``) is only given when nobody does. Where leases are refused for another reason
    (not our file, a filesystem without them) the answer is no: the content is compared all the same.
    """
    fd = open_file(parent, name)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno == errno.EAGAIN
    else:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False
    finally:
        os.close(fd)


def copy_content(source: int, target: int) -> tuple[str, int]:
    """Copy everything from one descriptor to another; return SHA-256 (hex) and size of what was copied."""
    digest, size = hashlib.sha256(), 0
    while chunk := os.pread(source, CHUNK, size):
        digest.update(chunk)
        size += len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(target, view) :]
    return digest.hexdigest(), size


def flush_name(parent: int, name: bytes) -> None:
    """Return after the file or directory ``name`` is on disk."""
    fd = open_file(parent, name)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def flush_tree(parent: int, name: bytes) -> None:
    """Return after ``name`` and everything beneath it is on disk (links lie in their directory)."""
    found = look(parent, name)
    if found is None or stat.S_ISLNK(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        with directory(parent, name) as inner:
            for child in names_in(parent, name):
                flush_tree(inner, child)
    flush_name(parent, name)


def flush_filesystem(parent: int, name: bytes = b".") -> None:
    """Return after the whole filesystem that holds ``name`` is on disk; reports a failed write (syncfs(2))."""
    fd = open_file(parent, name)
    try:
        if _libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    finally:
        os.close(fd)


def remove_tree(parent: int, name: bytes) -> None:
    """Remove ``name`` and everything beneath it. For private directories only: nothing is compared."""
    found = look(parent, name)
    if found is None:
        return
    if not stat.S_ISDIR(found.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    if found.st_mode & 0o700 != 0o700:
        change_mode(parent, name, 0o700)
    with directory(parent, name) as inner:
        for child in names_in(parent, name):
            remove_tree(inner, child)
    os.rmdir(name, dir_fd=parent)
