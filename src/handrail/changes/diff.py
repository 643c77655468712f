"""ChangeSets for people: a unified diff, a short tree, one line each.

Everything here returns plain text that still holds whatever the files hold. Whoever shows it on a terminal must make
what is hidden in it visible, line by line, because a changed file may carry escape sequences; a line ends at a line
feed only. Names are different: they are quoted here already, since a line feed in one could forge a line of the diff.

Nothing here is ever huge: a file above :data:`MAX_FILE_BYTES` is summarised, and so is what follows after
:data:`MAX_DIFF_BYTES` of text.
"""

import difflib
import re
import stat
from collections.abc import Callable

from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.hidden import escape, is_hidden

MAX_FILE_BYTES = 512 * 1024
MAX_DIFF_BYTES = 200_000
MAX_COMPARED_LINES = 3_000  # above this a changed region is shown as replaced whole: finding the best match is slow
CONTEXT_LINES = 3
NO_NEWLINE = "\\ No newline at end of file"  # as git writes it; no line of a file begins with a backslash

_PLACE = re.compile(r"([-+])(\d+)")

Content = Callable[[bytes, FileState, int], bytes | None]
"""(path, state, limit) → at most ``limit`` bytes of that content; ``None`` when nobody has it any more."""


def unified_diff(changes: ChangeSet, content: Content) -> str:
    """One text for all changes, like ``git diff``: text files line by line, all others in one line."""
    parts: list[str] = []
    room = MAX_DIFF_BYTES
    for index, change in enumerate(changes):
        part = _one(change, content)
        if len(part) > room:
            parts.append(_rest(changes.changes[index:]))
            break
        parts.append(part)
        room -= len(part)
    return "".join(parts)


def short_tree(changes: ChangeSet) -> str:
    """One line for each changed path: a mark (``+`` new, ``-`` gone, ``~`` changed, ``m`` mode), the name, the size."""
    return "".join(f"{_MARK[change.verb]} {_summary(change)}\n" for change in changes)


_MARK = {"create": "+", "delete": "-", "modify": "~", "replace": "~", "mode": "m"}


def quoted(path: bytes) -> str:
    """A name on one line: as it is where it is harmless, else in quotes with escapes, as git does."""
    text = path.decode("utf-8", "surrogateescape")
    inner = "".join(_in_quotes(character) for character in text)
    return text if inner == text else f'"{inner}"'


def _in_quotes(character: str) -> str:
    number = ord(character)
    if 0xDC80 <= number <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{number - 0xDC00:02x}"
    named = _NAMED.get(character)
    if named is not None:
        return named
    return escape(character) if is_hidden(character) else character


_NAMED = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}


def _one(change: Change, content: Content) -> str:
    before, after = change.before, change.after
    header = _header(change)
    if change.verb == "mode" or not _has_text(before) or not _has_text(after):
        return header
    old, new = _lines(change.path, before, content), _lines(change.path, after, content)
    if isinstance(old, str) or isinstance(new, str):
        why = next(item for item in (old, new) if isinstance(item, str))
        return f"{header}  {why}: {_size(before)} → {_size(after)}\n"
    name = quoted(change.path)
    body = _hunks(old, new)
    if not body:
        return header
    old_name = "/dev/null" if before is None else f"a/{name}"
    new_name = "/dev/null" if after is None else f"b/{name}"
    return f"{header}--- {old_name}\n+++ {new_name}\n{body}"


def _has_text(state: FileState | None) -> bool:
    return state is None or state.kind == "file"


def _header(change: Change) -> str:
    return f"{change.verb} {_summary(change)}\n"


def _summary(change: Change) -> str:
    before, after = change.before, change.after
    name = quoted(change.path)
    state = after or before
    assert state is not None
    facts: list[str] = []
    if before and after and before.kind != after.kind:
        facts.append(f"{before.kind} → {after.kind}")
    elif state.kind != "file":
        facts.append(state.kind)
    if before and after and before.mode != after.mode and before.kind == after.kind:
        facts.append(f"mode {before.mode:04o} → {after.mode:04o}")
    elif before is None and state.kind == "file" and state.mode & stat.S_IXUSR:
        facts.append(f"mode {state.mode:04o}")
    links = " → ".join(quoted(item.target) for item in (before, after) if item is not None and item.target)
    if links:
        facts.append(f"to {links}")
    if state.kind == "file" and change.verb != "mode":
        facts.append(_size(state) if before is None or after is None else f"{_size(before)} → {_size(after)}")
    return name + (f" ({', '.join(facts)})" if facts else "")


def _size(state: FileState | None) -> str:
    if state is None or state.kind != "file":
        return "nothing"
    return f"{state.size:,} bytes"


def _lines(path: bytes, state: FileState | None, content: Content) -> list[str] | str:
    """The lines of a text, or the reason in words why it is not shown."""
    if state is None:
        return []
    if state.size > MAX_FILE_BYTES:
        return "too large to show"
    raw = content(path, state, MAX_FILE_BYTES)
    if raw is None:
        return "content no longer kept"
    if b"\0" in raw:
        return "binary"
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return "binary"
    lines = text.split("\n")
    return [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _hunks(old: list[str], new: list[str]) -> str:
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    middle = max(len(old), len(new)) - head - tail
    if middle > MAX_COMPARED_LINES:
        return _replaced_whole(old, new, head, tail)
    start, rest = max(0, head - CONTEXT_LINES), max(0, tail - CONTEXT_LINES)
    compared = difflib.unified_diff(old[start : len(old) - rest], new[start : len(new) - rest], n=CONTEXT_LINES)
    return "".join(_ended(_moved(line, start)) for line in list(compared)[2:])


def _moved(line: str, by: int) -> str:
    """The head of a hunk with its line numbers counted from the start of the file; any other line as it is."""
    return _PLACE.sub(lambda found: found[1] + str(int(found[2]) + by), line) if line.startswith("@@ ") else line


def _common(old: list[str], new: list[str]) -> int:
    count = 0
    for one, other in zip(old, new, strict=False):
        if one != other:
            break
        count += 1
    return count


def _replaced_whole(old: list[str], new: list[str], head: int, tail: int) -> str:
    start = max(0, head - CONTEXT_LINES)
    after = min(tail, CONTEXT_LINES)
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    kept_after = old[len(old) - tail : len(old) - tail + after]
    context = head - start + after
    lines = [f"@@ -{start + 1},{len(gone) + context} +{start + 1},{len(come) + context} @@\n"]
    lines += [" " + line for line in old[start:head]]
    lines += ["-" + line for line in gone] + ["+" + line for line in come] + [" " + line for line in kept_after]
    return "".join(_ended(line) for line in lines)


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n"


def _rest(changes: tuple[Change, ...]) -> str:
    shown = "".join(_header(change) for change in changes[:50])
    more = f"… and {len(changes) - 50} more changed paths\n" if len(changes) > 50 else ""
    return f"The rest is too long to show line by line:\n{shown}{more}"
