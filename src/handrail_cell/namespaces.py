"""A private root, private views of the machine, and the workspace at its own place.

The zygote builds a lean root once: read-only copies of the interpreter's and the system's directories on a small tmpfs.
A cell gets a copy of that mount table with its own mount namespace and adds what is its own: ``/proc``, ``/tmp``, and,
when the call arrives, the workspace.
"""

import os
import socket
import stat
import struct

from handrail_cell import _libc

WALLS = (
    _libc.CLONE_NEWUSER
    | _libc.CLONE_NEWPID
    | _libc.CLONE_NEWNS
    | _libc.CLONE_NEWIPC
    | _libc.CLONE_NEWUTS
    | _libc.CLONE_NEWCGROUP
)
"""Namespaces of a zygote, besides its network."""

LENT = _libc.CLONE_NEWIPC
OWN_WALLS = WALLS & ~LENT
"""Namespaces that are made with a cell. The others are lent to it: see :class:`Lender`."""

SEALED = _libc.MOUNT_ATTR_RDONLY | _libc.MOUNT_ATTR_NOSUID | _libc.MOUNT_ATTR_NODEV
TREE = _libc.OPEN_TREE_CLONE | _libc.AT_RECURSIVE

MERGED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
DEVICES = ("null", "zero", "full", "random", "urandom")
DEVICE_LINKS = (
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("shm", "/tmp/.shm"),
)
EMPTY = ("proc", "tmp", "run", "dev", "etc", "var", "sys")
TOPS = ("home", "root", "srv", "mnt", "media", "opt", "data", "app", "code", "work", "workspace", "workspaces", "repo")
"""Directories that stand empty in the root so that a workspace below one of them can be shown at its own path."""

SIOCSIFFLAGS, IFF_UP = 0x8914, 1
KEPT = 16
"""As many as a busy warm parent has out at a time (cells that run, wait and are being reaped): each holds 200 kB."""

SCRATCH_BYTES = 256 * 1024 * 1024
"""How large ``/tmp`` is while a cell waits. A call with another limit gives it another size."""

SHARED_MEMORY = "/dev/shm"
"""A link into the cell's ``/tmp``: a workspace beneath it is shown there, and reached by either path."""

UNOWNED_ID = 0x70000000
"""The user and group that cells are, started by root: nothing on a machine is likely to belong to it."""
KEY_LISTS = ("/proc/keys", "/proc/key-users")

ETC_COPIES = ("ld.so.cache", "ld.so.conf", "localtime", "mime.types", "services", "protocols", "inputrc", "magic")
ETC_NETWORK = ("resolv.conf", "hosts", "gai.conf")
ETC_NETWORK_TREES = ("ssl", "pki", "ca-certificates")
NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"
HOSTS = "127.0.0.1 localhost cell\n::1 localhost\n"


class Lender:
    """Network and IPC namespaces, one of each lent to one cell at a time and empty again when that cell is dead.

    To make them costs as much as the rest of a cell. Nothing can stay behind in them: a cell has no right over them, it
    can open no socket, and the zygote has given up, for itself and all of its cells, every call that queues, semaphores
    and shared memory segments are made with. A cell that may open sockets makes a network of its own, and that dies
    with the cell. ``network``: whether networks are lent; otherwise the host's is used.
    """

    def __init__(self, procfs: int, *, network: bool) -> None:
        self._procfs = procfs
        self._flags = LENT | (_libc.CLONE_NEWNET if network else 0)
        self._names = ("self/ns/ipc", "self/ns/net") if network else ("self/ns/ipc",)
        self._free: list[tuple[int, ...]] = []

    def enter(self) -> tuple[int, ...]:
        """Move this process, and whatever it forks next, into some that nobody uses. Returns their descriptors."""
        if self._free:
            lent = self._free.pop()
            for namespace in lent:
                _libc.call("setns", namespace, 0)
            return lent
        _libc.call("unshare", self._flags)
        return tuple(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._procfs) for name in self._names)

    def give_back(self, lent: tuple[int, ...]) -> None:
        """The cell they were lent to is dead."""
        if len(self._free) < KEPT:
            self._free.append(lent)
            return
        for namespace in lent:
            os.close(namespace)


def raise_loopback() -> bool:
    """Switch on the loopback device of this process's network namespace. False where that is not ours to do."""
    request = struct.pack("16sh14x", b"lo", IFF_UP)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            _libc.call("ioctl", any_socket.fileno(), SIOCSIFFLAGS, request)
    except OSError:
        return False
    return True


def write_maps(process: str, procfs: int, uid: int, gid: int, *, inside: tuple[int, int], deny_groups: bool) -> None:
    """Map one user and one group into the user namespace of ``process`` (a name below ``/proc``)."""
    if deny_groups:
        write_at(procfs, f"{process}/setgroups", b"deny")
    write_at(procfs, f"{process}/uid_map", b"%d %d 1" % (inside[0], uid))
    write_at(procfs, f"{process}/gid_map", b"%d %d 1" % (inside[1], gid))


def own_maps(ids: tuple[int, int]) -> tuple[tuple[str, bytes], ...]:
    """What a process writes below ``/proc`` to be the only user and group of its user namespace, with none below it."""
    user, group = ids
    return (
        ("self/setgroups", b"deny"),
        ("self/uid_map", b"%d %d 1" % (user, user)),
        ("self/gid_map", b"%d %d 1" % (group, group)),
        ("sys/user/max_user_namespaces", b"0"),
    )


def write_at(directory: int, path: str, data: bytes) -> None:
    """Write a kernel file in one call."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def clone_tree(path: str, attributes: int = SEALED) -> int:
    """A detached copy of the mounts at ``path`` with ``attributes`` on all of them."""
    tree = _libc.open_tree(_libc.AT_FDCWD, os.fsencode(path), TREE)
    _libc.mount_setattr(tree, b"", _libc.AT_EMPTY_PATH | _libc.AT_RECURSIVE, add=attributes)
    return tree


def collect(roots: list[tuple[str, str]], *, network: bool) -> list[tuple[str, int]]:
    """Detached copies of all that the root will show, taken while the paths can still be reached."""
    wanted = {real: SEALED for _, real in roots if real != "/"}
    wanted |= {f"/{name}": SEALED for name in ("usr", *MERGED) if _is_plain_directory(f"/{name}")}
    if network:
        wanted |= {f"/etc/{name}": SEALED for name in ETC_NETWORK_TREES if _is_plain_directory(f"/etc/{name}")}
    paths = [path for path in wanted if not any(path != other and _beneath(path, other) for other in wanted)]
    trees = [(path, clone_tree(path, wanted[path])) for path in sorted(paths)]
    flags = _libc.MOUNT_ATTR_NOSUID | _libc.MOUNT_ATTR_NOEXEC
    return trees + [(f"/dev/{name}", clone_tree(f"/dev/{name}", flags)) for name in DEVICES]


def _is_plain_directory(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _beneath(path: str, directory: str) -> bool:
    return path.startswith(directory.rstrip("/") + "/")


def build_root(
    trees: list[tuple[str, int]],
    roots: list[tuple[str, str]],
    tops: list[str],
    etc: dict[str, bytes],
    ids: tuple[int, int],
) -> dict[str, list[str]]:
    """Build the lean root on a fresh tmpfs and move into it. Returns, for each top directory, the mounts below it."""
    _libc.mount(None, b"/", None, _libc.MS_REC | _libc.MS_PRIVATE)
    here = next(path for path in ("/tmp", "/mnt", "/var", "/usr") if os.path.isdir(path))
    flags = _libc.MS_NOSUID | _libc.MS_NODEV
    _libc.mount(b"tmpfs", os.fsencode(here), b"tmpfs", flags, b"size=8m,nr_inodes=4k,mode=755")
    os.chdir(here)
    for name in (*EMPTY, *TOPS, *tops):
        os.makedirs(name, mode=0o755, exist_ok=True)
    for path, tree in trees:
        _make_point(path[1:], directory=not path.startswith("/dev/"))
        _libc.move_into(tree, os.fsencode(path[1:]))
    _link_merged()
    for path, real in roots:
        if path != real and not os.path.lexists(path[1:]):
            os.makedirs(os.path.dirname(path[1:]) or ".", exist_ok=True)
            os.symlink(real, path[1:])
    for name, target in DEVICE_LINKS:
        os.symlink(target, f"dev/{name}")
    os.symlink("/tmp", "var/tmp")
    write_etc(etc, ids)
    mount_proc(b"proc", writable=True)  # cells write their own id maps through it, then cover it with their own
    _libc.pivot_here()
    _libc.mount_setattr(_libc.AT_FDCWD, b"/", 0, add=_libc.MOUNT_ATTR_RDONLY)
    return _by_top([path for path, _ in trees])


def _make_point(path: str, *, directory: bool) -> None:
    if directory:
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _link_merged() -> None:
    for name in MERGED:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), name)


def _by_top(paths: list[str]) -> dict[str, list[str]]:
    below: dict[str, list[str]] = {}
    for path in paths:
        top = path.split("/")[1]
        if f"/{top}" != path:
            below.setdefault(top, []).append(path)
    return below


def read_etc(*, network: bool) -> dict[str, bytes]:
    """The few files of the machine's ``/etc`` that programs need, by value; links of ``alternatives`` as
    ``->target``.
    """
    found: dict[str, bytes] = {}
    for name in (*ETC_COPIES, *(ETC_NETWORK if network else ())):
        try:
            with open(f"/etc/{name}", "rb") as file:
                found[name] = file.read(1 << 20)
        except OSError:
            continue
    try:
        names = os.listdir("/etc/alternatives")
    except OSError:
        names = []
    for name in names:
        link = f"/etc/alternatives/{name}"
        if os.path.islink(link):
            found[f"alternatives/{name}"] = b"->" + os.fsencode(os.readlink(link))
    return found


def write_etc(found: dict[str, bytes], ids: tuple[int, int]) -> None:
    """Write the private ``/etc`` below the current directory."""
    uid, gid = ids
    files = {
        "passwd": f"root:x:0:0:root:/:/bin/false\ntool:x:{uid}:{gid}:tool:/tmp:/bin/sh\n".encode(),
        "group": f"root:x:0:\ntool:x:{gid}:\n".encode(),
        "nsswitch.conf": NSSWITCH.encode(),
        "hosts": HOSTS.encode(),
        "hostname": b"cell\n",
    } | found
    for name, data in files.items():
        os.makedirs(os.path.dirname(f"etc/{name}"), exist_ok=True)
        if data.startswith(b"->"):
            os.symlink(data[2:], os.fsencode(f"etc/{name}"))
            continue
        with open(f"etc/{name}", "wb") as file:
            file.write(data)


def mount_proc(target: bytes, *, writable: bool = False) -> None:
    """A fresh ``/proc`` of this PID namespace, read-only as a whole: ``/proc/sys`` and every knob of a process with
    it.
    """
    flags = _libc.MS_NOSUID | _libc.MS_NODEV | _libc.MS_NOEXEC | (0 if writable else _libc.MS_RDONLY)
    _libc.mount(b"proc", target, b"proc", flags)


def hide_key_lists() -> None:
    """Cover the lists of keys: a cell that is its caller would read the descriptions of the caller's keys in them."""
    for path in KEY_LISTS:
        if os.path.exists(path):
            _libc.move_into(_libc.open_tree(_libc.AT_FDCWD, b"/dev/null", _libc.OPEN_TREE_CLONE), os.fsencode(path))


def mount_scratch(options: bytes) -> None:
    """A private ``/tmp`` (and, through a link, ``/dev/shm``), as :func:`scratch_options` says."""
    _libc.mount(b"tmpfs", b"/tmp", b"tmpfs", _libc.MS_NOSUID | _libc.MS_NODEV, options)
    os.mkdir("/tmp/.shm", 0o1777)


def mount_scratch_around(options: bytes, kept: list[str]) -> None:
    """The same, with what is mounted below ``/tmp`` shown again: an interpreter that lives there."""
    trees = [(path, clone_tree(path)) for path in kept]
    mount_scratch(options)
    for path, tree in trees:
        os.makedirs(path, exist_ok=True)
        _libc.move_into(tree, os.fsencode(path))


def resize_scratch(size: int) -> None:
    """Give ``/tmp`` another bound."""
    flags = _libc.MS_REMOUNT | _libc.MS_NOSUID | _libc.MS_NODEV
    _libc.mount(None, b"/tmp", None, flags, scratch_options(size))


def scratch_options(size: int) -> bytes:
    """Mount options of a bounded tmpfs: one inode for every 4 kB, at least 1,024."""
    return b"size=%d,nr_inodes=%d,mode=1777" % (max(size, 4096), max(size // 4096, 1024))


def place_workspace(
    tree: int, path: str, access: str, *, may_exec: bool, size: int, copy: int, below: dict[str, list[str]]
) -> int | None:
    """Show the workspace at ``path``. For ``stage`` and ``copy`` returns a descriptor of what takes the changes: at
    most ``size`` bytes of them, besides a copy of at most ``copy`` bytes.
    """
    attributes = _libc.MOUNT_ATTR_NOSUID | _libc.MOUNT_ATTR_NODEV
    if access != "write":
        attributes |= _libc.MOUNT_ATTR_RDONLY
    if not may_exec:
        attributes |= _libc.MOUNT_ATTR_NOEXEC
    _libc.mount_setattr(tree, b"", _libc.AT_EMPTY_PATH | _libc.AT_RECURSIVE, add=attributes)
    kept = make_room(path, below)
    target = os.fsencode(path)
    if access == "stage":
        upper = _stage(tree, target, size)
    elif access == "copy":
        upper = _stage_copy(tree, target, size, copy)
    else:
        upper = _libc.move_into(tree, target)
    for inner, mount in kept:
        _restore(inner, mount)
    return upper


def make_room(path: str, below: dict[str, list[str]]) -> list[tuple[str, int]]:
    """Make ``path`` exist as a directory. Returns the mounts that the workspace will hide and that must come back."""
    top = path.split("/")[1]
    if os.path.isdir(path) or top == "tmp" or _beneath(path, SHARED_MEMORY):
        os.makedirs(path, exist_ok=True)
        return [(inner, clone_tree(inner)) for inner in below.get(top, []) if _beneath(inner, path)]
    kept = [(inner, clone_tree(inner)) for inner in below.get(top, [])]
    room = os.fsencode(f"/{top}")
    flags = _libc.MS_NOSUID | _libc.MS_NODEV
    _libc.mount(b"tmpfs", room, b"tmpfs", flags, b"size=64k,nr_inodes=64,mode=755")
    os.makedirs(path, exist_ok=True)
    for inner, _ in kept:
        if not _beneath(inner, path):
            os.makedirs(inner, exist_ok=True)
    _libc.mount_setattr(_libc.AT_FDCWD, room, 0, add=_libc.MOUNT_ATTR_RDONLY)
    return kept


def _restore(path: str, tree: int) -> None:
    """Lay a read-only library directory over whatever the workspace shows at its path."""
    try:
        _libc.move_into(tree, os.fsencode(path))
    except FileNotFoundError:  # the workspace does not hold it (any more): then there is nothing to protect
        os.close(tree)


OVERLAY_REFUSED = "no overlay: "
"""What a cell says, followed by the reason, when the kernel refuses an overlay over the workspace."""


def _stage(tree: int, target: bytes, size: int) -> int:
    """An overlay at ``target``: below it the workspace, above it a bounded tmpfs that only this cell and the host
    hold.
    """
    flags = _libc.MS_NOSUID | _libc.MS_NODEV
    _open_stage(tree, size)
    os.mkdir("/run/work", 0o755)
    options = b"lowerdir=/run/lower,upperdir=/run/upper,workdir=/run/work,userxattr"
    try:
        _libc.mount(b"overlay", target, b"overlay", flags, options)
    except OSError as error:
        raise OSError(error.errno, OVERLAY_REFUSED + os.strerror(error.errno or 0)) from error
    return _close_stage()


def _stage_copy(tree: int, target: bytes, size: int, copy: int) -> int:
    """A copy of the workspace at ``target``, on a tmpfs as bounded as :func:`_stage`'s."""
    _open_stage(tree, copy + size)
    copy_tree("/run/lower", "/run/upper")
    space = os.statvfs("/run")
    used = (space.f_blocks - space.f_bfree) * space.f_frsize
    flags = _libc.MS_REMOUNT | _libc.MS_NOSUID | _libc.MS_NODEV
    _libc.mount(None, b"/run", None, flags, b"size=%d" % (used + max(size, 4096)))
    _libc.move_into(_libc.open_tree(_libc.AT_FDCWD, b"/run/upper", _libc.OPEN_TREE_CLONE), target)
    return _close_stage()


def _open_stage(tree: int, size: int) -> None:
    """The workspace at ``/run/lower`` and, beside it, an empty directory for what is written, on a bounded tmpfs."""
    flags = _libc.MS_NOSUID | _libc.MS_NODEV
    _libc.mount(b"tmpfs", b"/run", b"tmpfs", flags, scratch_options(size))
    for name in ("upper", "lower"):
        os.mkdir(f"/run/{name}", 0o755)
    _libc.move_into(tree, b"/run/lower")


def _close_stage() -> int:
    """Let go of ``/run``; returns the descriptor that keeps what is written there."""
    upper = os.open("/run/upper", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    _libc.call("umount2", b"/run/lower", _libc.MNT_DETACH)
    _libc.call("umount2", b"/run", _libc.MNT_DETACH)
    return upper


def copy_tree(source: str, target: str) -> None:
    """Copy files, directories and links beneath ``source`` into the directory ``target``, with modes and times.

    What vanishes meanwhile is left out; special files are too.
    """
    for name in os.listdir(source):
        start, end = f"{source}/{name}", f"{target}/{name}"
        try:
            found = os.lstat(start)
            if stat.S_ISLNK(found.st_mode):
                os.symlink(os.readlink(start), end)
                continue
            if stat.S_ISDIR(found.st_mode):
                os.mkdir(end, 0o700)
                copy_tree(start, end)
            elif stat.S_ISREG(found.st_mode):
                _copy_file(start, end)
            else:
                continue
        except FileNotFoundError:
            continue
        os.chmod(end, stat.S_IMODE(found.st_mode))
        os.utime(end, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_file(source: str, target: str) -> None:
    with (
        open(os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb", buffering=0) as file,
        open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb", buffering=0) as copy,
    ):
        while chunk := file.read(1 << 20):
            while chunk:
                chunk = chunk[copy.write(chunk) :]
