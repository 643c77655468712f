"""Operations on a tree as data, and the few lines that carry them out; a program too, standing alone.

``python operations.py FD`` reads JSON ``{"root": …, "lower": …, "operations": […]}`` from its input. With ``lower`` it
makes its own user and mount namespace, lays an overlay over ``lower`` and works there; a descriptor of the upper
directory goes through the socket FD. Nothing of the project is used.
"""

import ctypes
import json
import os
import shutil
import socket
import sys

_NEWUSER, _NEWNS = 0x10000000, 0x00020000
_NOSUID_NODEV = 2 | 4


def perform(root: str, operations: list[list]) -> None:
    """Carry out ``operations`` in ``root``. One that cannot be done in the tree as it is then is left out."""
    os.umask(0o022)
    for name, *arguments in operations:
        try:
            _DO[name](root, *arguments)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, shutil.Error):
            continue


def _write(root, path, text):
    _no_link(root, path)
    with open(os.path.join(root, path), "w") as file:
        file.write(text)


def _append(root, path, text):
    _no_link(root, path)
    with open(os.path.join(root, path), "a") as file:
        file.write(text)


def _no_link(root, path):
    if os.path.islink(os.path.join(root, path)):
        raise FileExistsError


def _delete(root, path):
    at = os.path.join(root, path)
    shutil.rmtree(at) if os.path.isdir(at) and not os.path.islink(at) else os.unlink(at)


def _mkdir(root, path):
    os.mkdir(os.path.join(root, path))


def _replace_directory(root, path, names):
    _delete(root, path)
    _mkdir(root, path)
    for name in names:
        _write(root, os.path.join(path, name), name)


def _move(root, source, target):
    start, end = os.path.join(root, source), os.path.join(root, target)
    if os.path.lexists(end) or (end + "/").startswith(start + "/"):
        raise FileExistsError
    os.lstat(start)
    os.lstat(os.path.dirname(end))
    shutil.move(start, end)


def _rename_over(root, source, target):
    start, end = os.path.join(root, source), os.path.join(root, target)
    if os.path.isdir(start) or os.path.isdir(end):
        raise IsADirectoryError
    os.rename(start, end)


def _link(root, path, target):
    os.symlink(target, os.path.join(root, path))


def _mode(root, path, mode):
    _no_link(root, path)
    os.chmod(os.path.join(root, path), mode)


def _touch(root, path):
    _no_link(root, path)
    os.utime(os.path.join(root, path))


def _special(root, path):
    os.mkfifo(os.path.join(root, path))


def _hard_link(root, source, target):
    os.link(os.path.join(root, source), os.path.join(root, target), follow_symlinks=False)


_DO = {
    "write": _write,
    "append": _append,
    "delete": _delete,
    "mkdir": _mkdir,
    "replace_directory": _replace_directory,
    "move": _move,
    "rename_over": _rename_over,
    "link": _link,
    "mode": _mode,
    "touch": _touch,
    "special": _special,
    "hard_link": _hard_link,
}


def _overlay(lower: str) -> tuple[str, int]:
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()

    def must(result: int) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    must(libc.unshare(_NEWUSER | _NEWNS))
    for name, data in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(data)
    must(libc.mount(b"tmpfs", b"/run", b"tmpfs", _NOSUID_NODEV, b"size=16m"))
    for name in ("upper", "work", "merged"):
        os.mkdir(f"/run/{name}")
    upper = os.open("/run/upper", os.O_RDONLY | os.O_DIRECTORY)
    options = f"lowerdir={lower},upperdir=/run/upper,workdir=/run/work,userxattr".encode()
    must(libc.mount(b"overlay", b"/run/merged", b"overlay", _NOSUID_NODEV, options))
    return "/run/merged", upper


def main() -> None:
    """The program."""
    order = json.load(sys.stdin)
    channel = socket.socket(fileno=int(sys.argv[1]))
    root, upper = _overlay(order["lower"])
    channel.recv(1)  # the host took its moment
    perform(root, order["operations"])
    socket.send_fds(channel, [b"done"], [upper])


if __name__ == "__main__":
    main()
