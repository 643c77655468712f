"""Files and directories of ours that nobody else may look into, whatever the umask says.

A umask of 0777 takes the mode away from what is made, so its owner cannot use it; one of 0 leaves the directories made
on the way to it open to all. So each is made closed to others, and then given the mode it needs.
"""

import errno
import os
import stat

DIRECTORY = 0o700
FILE = 0o600


def make_directory(path: str) -> bool:
    """Make one directory (0700); ``False`` where the name is taken already. Raises :class:`OSError`."""
    try:
        os.mkdir(path, DIRECTORY)
    except FileExistsError:
        return False
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chmod(f"/proc/self/fd/{fd}", DIRECTORY)  # fchmod refuses O_PATH, and without it 0000 cannot be opened
    finally:
        os.close(fd)
    return True


def make_directories(path: str) -> None:
    """Make ``path`` and what is missing on the way to it, each 0700. What is there stays as it is."""
    missing: list[str] = []
    at = os.path.abspath(path)
    while not os.path.isdir(at):
        missing.append(at)
        at = os.path.dirname(at)
    for directory in reversed(missing):
        if not make_directory(directory) and not os.path.isdir(directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)


def open_file(path: str, flags: int, *, directory: int | None = None) -> int:
    """``os.open`` for a file of ours that may have to be made (0600): a link is not followed.

    ``directory``: the descriptor that ``path`` is relative to. Raises :class:`OSError`.
    """
    fd = os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE, dir_fd=directory)
    give_mode(fd)
    return fd


def give_mode(fd: int) -> None:
    """Give a file that was just made what the umask took from it: that its owner may read and write it."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    if mode & FILE != FILE:
        os.fchmod(fd, mode | FILE)
