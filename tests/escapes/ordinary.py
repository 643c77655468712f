"""Become an ordinary user and execute a program: ``python ordinary.py UID DIRECTORY… -- PROGRAM ARGUMENTS…``

Needs root. The directories named are kept reachable at their own paths even where one above them is closed to others
(an interpreter in root's home, say): in a mount namespace of its own, the closed directory is covered by an empty one
that holds nothing but them. The user keeps no group, no capability and no environment but what is passed on.
"""

import ctypes
import os
import stat
import sys

CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind, data)]
    if _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def closed_directory_above(path: str) -> str | None:
    """The topmost directory above ``path`` that others may not pass."""
    parts = path.strip("/").split("/")
    for count in range(1, len(parts)):
        above = "/" + "/".join(parts[:count])
        if not os.stat(above).st_mode & stat.S_IXOTH:
            return above
    return None


def open_the_way_to(directories: list[str]) -> None:
    closed: dict[str, list[str]] = {}
    for directory in directories:
        above = closed_directory_above(directory)
        if above is not None:
            closed.setdefault(above, []).append(directory)
    if not closed:
        return
    if _libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    for above, kept in closed.items():
        opened = {directory: os.open(directory, os.O_PATH) for directory in kept}
        mount("tmpfs", above, "tmpfs", 0, "mode=755")
        for directory, fd in sorted(opened.items()):
            os.makedirs(directory, exist_ok=True)
            mount(f"/proc/self/fd/{fd}", directory, None, MS_BIND | MS_REC)
            os.close(fd)


def main() -> None:
    border = sys.argv.index("--")
    uid, directories, program = int(sys.argv[1]), sys.argv[2:border], sys.argv[border + 1 :]
    open_the_way_to(directories)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    os.execv(program[0], program)


if __name__ == "__main__":
    main()
