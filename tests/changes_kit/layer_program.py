"""A program that works on an overlay of its own, made without any code of the project.

``python layer_program.py FD`` reads JSON ``{"lower": …, "operations": […]}`` from its input, makes its own user and
mount namespace, lays an overlay over ``lower`` and carries the operations out there. A descriptor of the upper
directory goes through the socket FD.
"""

import ctypes
import json
import os
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from operations import perform

_NEWUSER, _NEWNS = 0x10000000, 0x00020000
_NOSUID_NODEV = 2 | 4


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
