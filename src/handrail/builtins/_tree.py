"""Walks a workspace beneath its descriptor: sorted, never through a link, leaving out what .gitignore names.

The rules are git's own (gitignore(5)): deeper files win over shallower ones, the last matching line of a file wins,
and what lies in an ignored directory cannot be named back in. ``.git`` is always left out. Patterns run in linear
time, because the workspace's files are not trusted.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from pathspec import GitIgnoreSpec

from handrail.builtins._text import clipped, go_on, plural, shown, stream_of
from handrail.errors import PathEscape, PathUnusable
from handrail.tool import Signal
from handrail.workspace import Workspace

MAX_IGNORE_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the walk: its path relative to the workspace, and whether it is a directory or a regular file."""

    path: bytes
    is_directory: bool
    is_file: bool


@dataclass(frozen=True, slots=True)
class _Rules:
    """One .gitignore: the directory it stands in (``b""`` for the root) and what it says."""

    base: bytes
    spec: GitIgnoreSpec

    def verdict(self, entry: Entry) -> bool | None:
        inner = entry.path[len(self.base) + 1 :] if self.base else entry.path
        return self.spec.check_file(shown(inner) + ("/" if entry.is_directory else "")).include


def entries_beneath(workspace: Workspace, start: bytes, signal: Signal, unread: list[bytes]) -> Iterator[Entry]:
    """Everything beneath the directory ``start`` (relative, ``b"."`` for the root), depth first, sorted.

    A directory that is there and cannot be listed is added to ``unread``.
    """
    top = b"" if start == b"." else start
    pending = [(top, _rules_above(workspace, top))]
    while pending:
        go_on(signal)
        directory, above = pending.pop()
        rules = _with_rules_of(workspace, directory, above)
        below: list[tuple[bytes, tuple[_Rules, ...]]] = []
        for entry in _entries_of(workspace, directory, unread):
            if entry.path.rpartition(b"/")[2] == b".git" or _ignored(entry, rules):
                continue
            yield entry
            if entry.is_directory:
                below.append((entry.path, rules))
        pending.extend(reversed(below))


def opened_on_the_way(workspace: Workspace, path: bytes, flags: int, unread: list[bytes]) -> int | None:
    """A descriptor of what was listed at ``path``; ``None`` when it is gone or another thing since, or goes to
    ``unread``, where it is there and cannot be opened.
    """
    try:
        return workspace.open(path, flags | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError, PathEscape, PathUnusable):
        return None
    except OSError:
        unread.append(path)
        return None


def about_unread(unread: list[bytes]) -> str:
    """What is said below a result that does not know everything; empty where it does."""
    if not unread:
        return ""
    return f"\n[{plural(len(unread), 'entry', 'entries')} could not be read, such as {clipped(shown(unread[0]), 200)}]"


def _entries_of(workspace: Workspace, directory: bytes, unread: list[bytes]) -> list[Entry]:
    fd = opened_on_the_way(workspace, directory or b".", os.O_RDONLY | os.O_DIRECTORY, unread)
    if fd is None:
        return []
    try:
        found: list[Entry] = []
        for name in sorted(os.fsencode(name) for name in os.listdir(fd)):
            mode = _mode_of(fd, name)
            path = directory + b"/" + name if directory else name
            found.append(Entry(path, stat.S_ISDIR(mode), stat.S_ISREG(mode)))
        return found
    finally:
        os.close(fd)


def _mode_of(directory: int, name: bytes) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _ignored(entry: Entry, rules: tuple[_Rules, ...]) -> bool:
    for deeper in reversed(rules):
        verdict = deeper.verdict(entry)
        if verdict is not None:
            return verdict
    return False


def _rules_above(workspace: Workspace, directory: bytes) -> tuple[_Rules, ...]:
    """The rules of every directory above ``directory``, from the root down."""
    rules: tuple[_Rules, ...] = ()
    parts = directory.split(b"/") if directory else []
    for count in range(len(parts)):
        rules = _with_rules_of(workspace, b"/".join(parts[:count]), rules)
    return rules


def _with_rules_of(workspace: Workspace, directory: bytes, above: tuple[_Rules, ...]) -> tuple[_Rules, ...]:
    try:
        fd = workspace.open((directory + b"/" if directory else b"") + b".gitignore", os.O_RDONLY | os.O_NOFOLLOW)
    except (OSError, PathEscape, PathUnusable):
        return above
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return above
    with stream_of(fd) as file:
        lines = file.read(MAX_IGNORE_BYTES).decode("utf-8", "replace").splitlines()
    return (*above, _Rules(directory, _spec_of(lines)))


def _spec_of(lines: list[str]) -> GitIgnoreSpec:
    """The lines that are valid patterns; git too passes over the others."""
    try:
        return GitIgnoreSpec.from_lines(lines, backend="re2")
    except ValueError:
        return GitIgnoreSpec.from_lines([line for line in lines if _is_pattern(line)], backend="re2")


def _is_pattern(line: str) -> bool:
    try:
        GitIgnoreSpec.from_lines([line], backend="re2")
    except ValueError:
        return False
    return True
