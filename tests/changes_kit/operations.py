"""Operations on a tree as data, and the few lines that carry them out. Nothing of the project is used."""

import os
import shutil


def perform(root: str, operations: list[list]) -> None:
    """Carry out ``operations`` in ``root``. One that cannot be done in the tree as it is then is left out."""
    os.umask(0o022)
    for name, *arguments in operations:
        try:
            _DO[name](root, *arguments)
        except OSError:
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
    at = os.path.join(root, path)
    # Root, who does it for real, passes through a directory that is closed to the cell's user.
    os.chmod(at, mode | 0o700 if os.path.isdir(at) and not mode & 0o100 else mode)


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
