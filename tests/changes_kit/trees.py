"""Trees of files, seen without any code of the project: what stands on disk, byte for byte and mode for mode."""

import hashlib
import os
import stat
from pathlib import Path

Tree = dict[bytes, tuple[str, int, bytes]]


def tree_of(root: Path | str) -> Tree:
    """Every path beneath ``root`` with kind, permission bits, and content hash or link target."""
    top = os.fsencode(root)
    found: Tree = {}
    for above, directories, files in os.walk(top):
        for name in [*directories, *files]:
            path = os.path.join(above, name)
            state = os.lstat(path)
            found[os.path.relpath(path, top)] = (*_kind(path, state), _content(path, state))
    return found


def _kind(path: bytes, state: os.stat_result) -> tuple[str, int]:
    for test, word in ((stat.S_ISLNK, "link"), (stat.S_ISDIR, "directory"), (stat.S_ISREG, "file")):
        if test(state.st_mode):
            return word, stat.S_IMODE(state.st_mode)
    return "special", stat.S_IMODE(state.st_mode)


def _content(path: bytes, state: os.stat_result) -> bytes:
    if stat.S_ISLNK(state.st_mode):
        return os.readlink(path)
    if not stat.S_ISREG(state.st_mode):
        return b""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).digest()


def grow(root: Path, files: dict[str, str | bytes]) -> None:
    """Write ``files`` (relative path → content) beneath ``root``, with the directories they need."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
