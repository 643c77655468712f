"""Raw system calls by number, and the few structures they need (x86-64 and aarch64).

Calls keep the interpreter's lock: a cell has one thread until the tool's own code starts, and no call here waits.
Every function raises ``OSError`` with the kernel's errno; nothing here decides anything.
"""

import ctypes
import os
import struct
import sys

from handrail_cell._numbers import NUMBERS

LINUX = sys.platform == "linux"
MACHINE = os.uname().machine
COLUMN = {"x86_64": 0, "aarch64": 1}.get(MACHINE)
"""Which column of the number table is ours; ``None`` on an architecture that we have no table for."""

_libc = ctypes.PyDLL(None, use_errno=True) if LINUX else None
_syscall = _libc.syscall if _libc is not None else None
if _syscall is not None:
    _syscall.restype = ctypes.c_long
_before_fork = ctypes.pythonapi.PyOS_BeforeFork
_after_fork_parent = ctypes.pythonapi.PyOS_AfterFork_Parent
_after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
_set_handler = ctypes.pythonapi.PyOS_setsig
_set_handler.restype = ctypes.c_void_p
for _hook in (_before_fork, _after_fork_parent, _after_fork_child):
    _hook.restype = None

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
AT_RECURSIVE = 0x8000

OPEN_TREE_CLONE = 1
OPEN_TREE_CLOEXEC = 0o2000000
MOVE_MOUNT_F_EMPTY_PATH = 0x4

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOUNT_ATTR_NOEXEC = 0x8
MOUNT_ATTR_IDMAP = 0x100000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

CLONE_PIDFD = 0x1000
CLONE_CHILD_SETTID = 0x01000000
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_THREAD = 0x00010000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_GET_TID_ADDRESS = 40

PROT_READ_WRITE = 3
MAP_SHARED = 1
MAP_ANONYMOUS = 0x20
M_ARENA_MAX = -8


HERE = {} if COLUMN is None else {name: row[COLUMN] for name, row in NUMBERS.items() if row[COLUMN] is not None}
"""The numbers of the calls that this machine has."""


def call(name: str, *args: int | bytes | ctypes.c_void_p | None) -> int:
    """Make one system call. Bytes are passed by address (NUL added by C), ``None`` as a null pointer.

    Integers are C's ``int``: an address is given as ``c_void_p``. Raises ``OSError(ENOSYS)`` for a call that this
    machine does not have.
    """
    if _syscall is None or name not in HERE:
        raise OSError(38, f"{name}: no such call on {sys.platform}, {MACHINE}")
    result = _syscall(HERE[name], *args)
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result


def prctl(option: int, argument: int = 0) -> int:
    """``prctl(2)`` with the unused arguments zero."""
    return call("prctl", option, argument, 0, 0, 0)


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    """``mount(2)``."""
    call("mount", source, target, kind, flags, data)


def open_tree(directory: int, path: bytes, flags: int) -> int:
    """A detached copy of the mounts at ``path``, as a descriptor that only ``move_mount`` can bring to life."""
    return call("open_tree", directory, path, flags | OPEN_TREE_CLOEXEC)


def move_mount(tree: int, target: bytes) -> None:
    """Attach what ``open_tree`` gave at ``target``."""
    call("move_mount", tree, b"", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH)


def mount_setattr(directory: int, path: bytes, flags: int, *, add: int = 0, clear: int = 0, userns: int = 0) -> None:
    """Change flags of a mount (and below it, with ``AT_RECURSIVE``). Attributes: set, clear, propagation, userns."""
    attributes = struct.pack("=QQQQ", add, clear, 0, userns)
    call("mount_setattr", directory, path, flags, attributes, len(attributes))


def move_into(tree: int, target: bytes) -> None:
    """Attach a detached tree and close its descriptor."""
    move_mount(tree, target)
    os.close(tree)


def pivot_here() -> None:
    """Make the current directory (a mount) the root and let go of the old root with everything on it."""
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")


def prepare_clone() -> None:
    """Make what :func:`clone` passes to the kernel, once, so that no later child pays for it."""
    global _clone_flags, _clone_arguments
    slot = ctypes.c_long(0)
    try:
        call("prctl", PR_GET_TID_ADDRESS, ctypes.c_void_p(ctypes.addressof(slot)), 0, 0, 0)
    except OSError:  # a kernel without checkpoint support: glibc's cached thread id stays the parent's
        slot.value = 0
    _clone_flags = SIGCHLD | CLONE_PIDFD
    if slot.value:
        _clone_flags |= CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID
    own = ctypes.c_void_p(slot.value)
    # The last two arguments change places between the architectures.
    _clone_arguments = (None, ctypes.c_void_p(ctypes.addressof(_pidfd)), *((own, None) if COLUMN == 0 else (None, own)))


SIGCHLD = 17
_clone_flags = 0
_clone_arguments: tuple[ctypes.c_void_p | None, ...] = ()
_pidfd = ctypes.c_int(-1)


def clone(flags: int) -> tuple[int, int]:
    """Fork with ``flags`` (namespaces). Returns ``(pid, pidfd)`` in the parent and ``(0, -1)`` in the child.

    The interpreter's own fork hooks run on both sides, so locks and random state are as after ``os.fork``.
    The child's C library is told its new thread id by the kernel. Call :func:`prepare_clone` before.
    """
    _before_fork()
    try:
        pid = call("clone", flags | _clone_flags, *_clone_arguments)
    except OSError:
        _after_fork_parent()
        raise
    if pid == 0:
        _after_fork_child()
        return NOBODY
    _after_fork_parent()
    return pid, _pidfd.value


NOBODY = (0, -1)


_wait_status = ctypes.c_int(0)
_usage = ctypes.create_string_buffer(256)  # struct rusage, with room
_wait_arguments = (
    ctypes.c_void_p(ctypes.addressof(_wait_status)),
    0,
    ctypes.c_void_p(ctypes.addressof(_usage)),
)
_PROCESSOR_TIME = struct.Struct("@4l")  # seconds and microseconds in programs, and in the kernel for them


def reap(pid: int) -> tuple[int, float]:
    """``wait4(2)`` for a child that has ended: its wait status, and the processor seconds of it and all it waited for.

    ``os.wait4`` makes an object of everything else, too, and imports a module for that in each call.
    """
    call("wait4", pid, *_wait_arguments)
    seconds, microseconds, kernel_seconds, kernel_microseconds = _PROCESSOR_TIME.unpack_from(_usage)
    return _wait_status.value, seconds + kernel_seconds + (microseconds + kernel_microseconds) / 1e6


def map_shared(fd: int | None, length: int) -> int:
    """Map ``length`` bytes of ``fd`` (``None``: of nothing), shared and writable. Returns the address."""
    flags = MAP_SHARED if fd is not None else MAP_SHARED | MAP_ANONYMOUS
    return call("mmap", None, length, PROT_READ_WRITE, flags, -1 if fd is None else fd, None)


def store(address: int, data: bytes) -> None:
    """Copy bytes to an address that :func:`map_shared` gave (plus an offset inside it)."""
    ctypes.memmove(address, data, len(data))


def ignore_signal(number: int) -> ctypes.c_void_p:
    """Have the kernel drop a signal, and the interpreter keep its handler. Returns what :func:`hear_signal` takes."""
    return ctypes.c_void_p(_set_handler(number, _IGNORE))


def hear_signal(number: int, handler: ctypes.c_void_p) -> None:
    """Undo :func:`ignore_signal`, at a fraction of what ``signal.signal`` costs."""
    _set_handler(number, handler)


_IGNORE = ctypes.c_void_p(1)


def limit_arenas(count: int) -> None:
    """Tell the C library's allocator to keep at most ``count`` arenas: each reserves 64 MB of address space."""
    if _libc is not None and hasattr(_libc, "mallopt"):
        _libc.mallopt(M_ARENA_MAX, count)


def trim_heap() -> None:
    """Give the system back what the C library's allocator holds free: every fork would copy the page tables of it."""
    if _libc is not None and hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)


def use_up_holes() -> int:
    """Take the holes in the C library's heap for good: a fork that filled one would have its page copied first.

    What forks allocate then lies together, at the heap's end. Call :func:`trim_heap` before: it joins holes that touch.
    Returns how many bytes were taken; none where the allocator is not glibc's.
    """
    if _libc is None or not hasattr(_libc, "malloc_trim"):
        return 0
    malloc, free = _libc.malloc, _libc.free
    malloc.argtypes, malloc.restype = (ctypes.c_size_t,), ctypes.c_void_p
    free.argtypes, free.restype = (ctypes.c_void_p,), None
    end = malloc(BEYOND_HOLES)
    if not end:
        return 0
    taken = 0
    for size in HOLES:
        while taken < MOST_IN_HOLES and (block := malloc(size)):
            if block > end:
                free(block)
                break
            taken += size
    free(end)
    return taken


BEYOND_HOLES = 100_000
"""Larger than any hole of a trimmed heap, and smaller than what is mapped on its own."""
HOLES = (*(1 << power for power in range(16, 7, -1)), *range(240, 8, -16))
"""Large ones first, so that each is filled with as few blocks as will do."""
MOST_IN_HOLES = 8 << 20
"""Where the heap grows downwards, new blocks look like holes: then this ends it."""


class Filter:
    """Instructions as ``seccomp`` takes them: ``header`` is a ``struct sock_fprog``, made once, in the warm parent."""

    __slots__ = ("_body", "header")

    def __init__(self, program: bytes) -> None:
        self._body = ctypes.create_string_buffer(program, len(program))
        self.header = struct.pack("@HP", len(program) // 8, ctypes.addressof(self._body))


def install_filter(prepared: Filter, flags: int) -> int:
    """``seccomp(SECCOMP_SET_MODE_FILTER)``."""
    return call("seccomp", 1, flags, prepared.header)
