"""How a ChangeSet becomes real: compare, prepare, apply, and either finish or take everything back.

::

    compare   every path is what the call saw, or nothing happens                     (reads only)
    prepare   everything new is built whole in one private directory in the workspace (nothing visible changes)
              ── the store records the commit: from here on it goes forward ──
    apply     one rename for each step: new names are placed, old ones taken, both swapped
              ── the store records the end ──
    discard   the private directory, which by now holds what was there before, goes away

Rules:

1. A rename never replaces anything: it swaps (``RENAME_EXCHANGE``) or needs a free name (``RENAME_NOREPLACE``). What
   was there is compared *after* it was moved aside, where nobody can open it by name any more. If it is not what was
   expected, or somebody holds it open for writing, it goes back, and so does every step before it: an edit that
   lands at any moment is kept.
2. Which steps were made can be read from the private directory alone: a slot holds the inode that was prepared (not
   made) or something else or nothing (made). So a commit cut off anywhere can be carried on.
3. The unit of a step is the topmost changed name: a new directory arrives, and an old one leaves, whole.
4. Nothing is committed silently that a copy cannot be faithful to: files with several hard links, files with
   set-user-id or set-group-id, special files, other filesystems mounted inside.

What this does not promise: readers see each name change in one step, not all names at once. Modification times,
and extended attributes other than ``user.*`` and access control lists, are not carried over.
"""

import errno
import logging
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from handrail import faults
from handrail.changes import beneath
from handrail.changes.beneath import Keep, Seen, hash_of
from handrail.changes.changeset import Change, ChangeSet, FileState
from handrail.changes.contents import Blobs
from handrail.errors import ChangeConflict, ChangeError

log = logging.getLogger("handrail")

Verb = Literal["place", "take", "swap", "mode"]
PRIVATE_PREFIX = b".handrail-commit-"
_SET_ID = stat.S_ISUID | stat.S_ISGID
_MISSING_PARENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


@dataclass(frozen=True, slots=True)
class Step:
    """One rename (or one change of mode) that makes ``change`` real, and with it everything ``inside`` it."""

    index: int
    verb: Verb
    change: Change
    inside: tuple[Change, ...] = ()

    @property
    def path(self) -> bytes:
        """The topmost changed name."""
        return self.change.path

    @property
    def slot(self) -> bytes:
        """Its name in the private directory."""
        return b"%d" % self.index

    @property
    def before(self) -> dict[bytes, FileState]:
        """The tree that is expected at ``path``."""
        return {item.path: item.before for item in (self.change, *self.inside) if item.before is not None}

    @property
    def after(self) -> dict[bytes, FileState]:
        """The tree that will be at ``path``."""
        return {item.path: item.after for item in (self.change, *self.inside) if item.after is not None}


# ── pure: from a ChangeSet to steps ──────────────────────────────────────────────────────────────────────────────


def steps_of(changes: ChangeSet) -> tuple[Step, ...]:
    """The steps that make ``changes`` real, in order of path.

    Raises :class:`~handrail.errors.ChangeError` for a ChangeSet that contradicts itself or names what may not be
    committed.
    """
    ordered = sorted(changes, key=lambda change: change.path.split(b"/"))
    steps: list[Step] = []
    for previous, change in zip([None, *ordered], ordered, strict=False):
        _check_path(change.path)
        if previous is not None and previous.path == change.path:
            raise ChangeError(f"{_shown(change.path)} is named twice")
        for state in (change.before, change.after):
            _check_state(change.path, state)
        if change.before == change.after:
            continue
        above = steps[-1] if steps else None
        if above is not None and above.verb != "mode" and change.path.startswith(above.path + b"/"):
            _check_inside(above, change)
            steps[-1] = Step(above.index, above.verb, above.change, (*above.inside, change))
        else:
            steps.append(Step(len(steps), _verb(change), change))
    return tuple(steps)


def _verb(change: Change) -> Verb:
    if change.before is None:
        return "place"
    if change.after is None:
        return "take"
    return "mode" if change.verb == "mode" else "swap"


def _check_path(path: bytes) -> None:
    parts = path.split(b"/")
    if any(part in (b"", b".", b"..") for part in parts) or b"\0" in path:
        raise ChangeError(f"{_shown(path)} is no path inside the workspace")
    if any(part.startswith(PRIVATE_PREFIX) for part in parts):
        raise ChangeError(f"{_shown(path)} is a name that commits keep for themselves")


def _check_state(path: bytes, state: FileState | None) -> None:
    if state is None:
        return
    if state.kind == "file" and state.mode & _SET_ID:
        raise ChangeError(f"{_shown(path)} has a set-user-id or set-group-id bit; such files are not committed")
    if state.kind == "file" and state.sha256 is None:
        raise ChangeError(f"{_shown(path)} has no content recorded")
    if state.kind == "link" and not state.target:
        raise ChangeError(f"{_shown(path)} is a link without a target")


def _check_inside(above: Step, change: Change) -> None:
    comes, goes = change.after is not None, change.before is not None
    becomes_directory = above.change.after is not None and above.change.after.kind == "directory"
    was_directory = above.change.before is not None and above.change.before.kind == "directory"
    if (comes and not becomes_directory) or (goes and not was_directory):
        raise ChangeError(f"{_shown(change.path)} cannot change so: {_shown(above.path)} above it is no directory")


def _shown(path: bytes) -> str:
    return repr(os.fsdecode(path))


# ── compare ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Compared:
    """What the comparison saw: each path that is there, and the modes of directories we must open up to work in."""

    seen: Mapping[bytes, Seen]
    widened: Mapping[bytes, int]


def compare(root: int, steps: Iterable[Step], keep: Keep = hash_of) -> Compared:
    """Look whether every path is what the ChangeSet says it was; ``keep`` is handed every content that will go.

    Raises :class:`~handrail.errors.ChangeConflict` with every path that is not, and
    :class:`~handrail.errors.ChangeError` for what may not or cannot be changed.
    """
    seen: dict[bytes, Seen] = {}
    widened: dict[bytes, int] = {}
    conflicts: set[bytes] = set()
    for step in steps:
        try:
            now = _tree_at(root, step, keep if step.verb != "mode" else hash_of, widened)
        except OSError as error:
            if error.errno not in _MISSING_PARENT:
                raise ChangeError(f"{_shown(step.path)}: {error.strerror}") from error
            conflicts.add(step.path)
            continue
        conflicts |= _differences(step.before, {path: item.state for path, item in now.items()})
        seen.update(now)
    if conflicts:
        raise conflict_at(conflicts)
    for path, item in seen.items():
        if item.state.kind == "file" and item.links > 1:
            raise ChangeError(f"{_shown(path)} has {item.links} hard links; changing one name would part them")
    return Compared(seen, widened)


def conflict_at(paths: Iterable[bytes]) -> ChangeConflict:
    """The error that names these paths."""
    ordered = tuple(sorted(paths))
    shown = ", ".join(_shown(path) for path in ordered[:10])
    more = f" and {len(ordered) - 10} more" if len(ordered) > 10 else ""
    return ChangeConflict(f"no longer what the call saw: {shown}{more}", ordered)


def _tree_at(root: int, step: Step, keep: Keep, widened: dict[bytes, int]) -> dict[bytes, Seen]:
    above = step.path.rpartition(b"/")[0]
    with beneath.parent_of(root, step.path) as (parent, name):
        _note_closed(parent, above, widened)
        if step.verb == "mode":
            item = beneath.read_state(parent, name, step.path, keep)
            return {} if item is None else {step.path: item}
        tree = beneath.read_tree(parent, name, step.path, keep)
    top = tree.get(step.path)
    if top is not None and top.state.kind == "directory" and _closed_to_us(top.state.mode, top.uid):
        widened[step.path] = top.state.mode  # moving a directory to another one writes its ".."
    return tree


def _note_closed(parent: int, path: bytes, widened: dict[bytes, int]) -> None:
    found = os.fstat(parent)
    if path and _closed_to_us(stat.S_IMODE(found.st_mode), found.st_uid):
        widened[path] = stat.S_IMODE(found.st_mode)


def _closed_to_us(mode: int, uid: int) -> bool:
    return uid == os.geteuid() != 0 and mode & 0o300 != 0o300


def _differences(expected: Mapping[bytes, FileState], found: Mapping[bytes, FileState]) -> set[bytes]:
    return {path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path)}


# ── prepare ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Prepared:
    """Everything that recovery needs besides the ChangeSet: which inode each slot held, and the widened modes."""

    private: bytes
    inodes: Mapping[int, int] = field(default_factory=dict[int, int])
    widened: Mapping[bytes, int] = field(default_factory=dict[bytes, int])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "private": self.private.decode("ascii"),
            "inodes": {str(index): inode for index, inode in self.inodes.items()},
            "widened": [[path.hex(), mode] for path, mode in self.widened.items()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Prepared":
        """The inverse of :meth:`to_json`."""
        return cls(
            data["private"].encode("ascii"),
            {int(index): inode for index, inode in data["inodes"].items()},
            {bytes.fromhex(path): mode for path, mode in data["widened"]},
        )


def prepare(root: int, private: bytes, steps: tuple[Step, ...], compared: Compared, blobs: Blobs) -> Prepared:
    """Build everything new in the directory ``private`` of the workspace, on disk before this returns.

    Raises :class:`~handrail.errors.ChangeError` (no room, no permission) or
    :class:`~handrail.errors.UndoUnavailable`; then the directory is gone again.
    """
    try:
        discard_private(root, private)  # what a killed process left before it recorded anything
        faults.point("prepare:private-directory")
        beneath.make_directory(root, private)
        with beneath.directory(root, private) as slots:
            inodes = {step.index: _build(root, slots, step, compared, blobs) for step in steps if step.after}
            inodes = {index: inode for index, inode in inodes.items() if inode}
        faults.point("prepare:built")
        _flush_prepared(root, private, steps, blobs)
    except OSError as error:
        discard_private(root, private)
        raise ChangeError(_why(error)) from error
    except ChangeError:
        discard_private(root, private)
        raise
    return Prepared(private, inodes, compared.widened)


def discard_private(root: int, private: bytes) -> None:
    """Remove the private directory of a commit that was never recorded, or is over, and everything in it.

    What cannot be removed (it belongs to somebody else, it is immutable) is put aside, still beneath the workspace, so
    that its name is free for the next commit.
    """
    try:
        beneath.remove_tree(root, private)
    except OSError as error:
        aside = b"%s-left-%s" % (private, os.urandom(4).hex().encode())
        log.warning("%s cannot be removed (%s); it is put aside as %s", _shown(private), _why(error), _shown(aside))
        beneath.move_new(root, private, root, aside)


def _why(error: OSError) -> str:
    where = f" at {_shown(os.fsencode(error.filename))}" if isinstance(error.filename, (str, bytes)) else ""
    return f"{error.strerror}{where}"


def _build(root: int, slots: int, step: Step, compared: Compared, blobs: Blobs) -> int:
    if step.verb == "mode":
        return 0
    faults.point("prepare:slot")
    after = step.after
    above = step.path.rpartition(b"/")[0]
    with beneath.directory(root, above) as parent:
        group = _inherited_group(parent)
    for path, state in after.items():
        at = step.slot + path[len(step.path) :]
        _make(slots, at, path, state, blobs)
        if group is not None:
            os.chown(at, -1, group, dir_fd=slots, follow_symlinks=False)
    old = compared.seen.get(step.path)
    if old is not None and len(step.before) == len(after) == 1 and old.state.kind == after[step.path].kind == "file":
        _keep_owner_and_attributes(root, slots, step, old)
    for path, state in reversed(after.items()):
        if state.kind != "link":
            top = path == step.path and state.kind == "directory"
            beneath.change_mode(slots, step.slot + path[len(step.path) :], state.mode | (0o200 if top else 0))
    found = beneath.look(slots, step.slot)
    return found.st_ino if found else 0


def _inherited_group(parent: int) -> int | None:
    found = os.fstat(parent)
    return found.st_gid if found.st_mode & stat.S_ISGID else None


def _make(slots: int, at: bytes, path: bytes, state: FileState, blobs: Blobs) -> None:
    if state.kind == "directory":
        beneath.make_directory(slots, at)
    elif state.kind == "link":
        os.symlink(state.target or b"", at, dir_fd=slots)
    else:
        _make_file(slots, at, path, state, blobs)


def _make_file(slots: int, at: bytes, path: bytes, state: FileState, blobs: Blobs) -> None:
    source = blobs.open(state.sha256 or "")
    try:
        target = beneath.open_file(slots, at, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            if beneath.copy_content(source, target) != (state.sha256, state.size):
                raise ChangeError(f"the private store's content for {_shown(path)} is damaged")
        finally:
            os.close(target)
    finally:
        os.close(source)


def _keep_owner_and_attributes(root: int, slots: int, step: Step, old: Seen) -> None:
    found = beneath.look(slots, step.slot)
    if found is not None and (found.st_uid, found.st_gid) != (old.uid, old.gid):
        os.chown(step.slot, old.uid, old.gid, dir_fd=slots, follow_symlinks=False)
    with beneath.parent_of(root, step.path) as (parent, name):
        source = beneath.open_file(parent, name)
        target = beneath.open_file(slots, step.slot)
        try:
            _copy_attributes(step.path, source, target)
        finally:
            os.close(source)
            os.close(target)


def _copy_attributes(path: bytes, source: int, target: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return
        raise
    for name in names:
        if name == "security.capability":
            raise ChangeError(f"{_shown(path)} carries file capabilities; such files are not committed")
        if name.startswith("user.") or name == "system.posix_acl_access":
            os.setxattr(target, name, os.getxattr(source, name))


def _flush_prepared(root: int, private: bytes, steps: tuple[Step, ...], blobs: Blobs) -> None:
    """Contents and prepared names on disk: one by one while they are few, else by one flush of the filesystem."""
    needed = {state.sha256 for step in steps for state in (*step.before.values(), *step.after.values())}
    whole = sum(len(step.after) + len(step.before) for step in steps) >= beneath.MANY_FILES
    blobs.flush((sha256 for sha256 in needed if sha256), whole=whole)
    if whole:
        beneath.flush_filesystem(root, private)
        return
    beneath.flush_tree(root, private)
    beneath.flush_name(root, b".")


# ── apply ────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Surprise(Exception):
    """What was moved aside is not what was expected; it has gone back."""

    def __init__(self, paths: set[bytes]) -> None:
        super().__init__()
        self.paths = paths


class Application:
    """One prepared commit on its way into the workspace, from the beginning or from wherever it was cut off."""

    def __init__(self, root: int, steps: tuple[Step, ...], prepared: Prepared) -> None:
        self.root = root
        self.steps = steps
        self.prepared = prepared
        self._slots = beneath.open_directory(root, prepared.private)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._slots)

    def forward(self) -> None:
        """Make every step that was not made yet, and return when all of them are on disk.

        Raises :class:`~handrail.errors.ChangeConflict` or :class:`~handrail.errors.ChangeError` after every step was
        taken back.
        """
        try:
            self._open_up()
            for step in self.steps:
                faults.point("apply:step")
                self._make(step)
            self._set_modes()
            faults.point("apply:made")
            self._flush()
        except _Surprise as surprise:
            self.back()
            raise conflict_at(surprise.paths) from None
        except OSError as error:
            self.back()
            raise ChangeError(_why(error)) from error

    def back(self) -> None:
        """Take back every step that was made. What somebody else changed since then stays as they left it."""
        self._open_up()
        for step in reversed(self.steps):
            faults.point("back:step")
            self._unmake(step)
        self._restore_modes()
        self._flush()

    def discard(self) -> None:
        """Remove what was there before, and the private directory. Only for a commit whose end is recorded.

        Names are removed one by one, those that were compared and no other: what somebody put into a directory after
        it was moved aside keeps that directory alive, and it is given back.
        """
        for step in self.steps:
            if step.verb in ("take", "swap"):
                faults.point("discard:step")
                self._discard_tree(step)
        beneath.remove_tree(self.root, self.prepared.private)

    def _discard_tree(self, step: Step) -> None:
        ordered = sorted(step.before, key=lambda path: path.split(b"/"))
        for path in ordered:
            self._open_for_removal(step, path)
        for path in reversed(ordered):
            try:
                with beneath.parent_of(self._slots, step.slot + path[len(step.path) :]) as (parent, name):
                    if step.before[path].kind == "directory":
                        os.rmdir(name, dir_fd=parent)
                    else:
                        os.unlink(name, dir_fd=parent)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EISDIR, *_MISSING_PARENT):
                    raise
        if beneath.look(self._slots, step.slot) is not None:
            with beneath.parent_of(self.root, step.path) as (parent, name):
                self._return(step.slot, parent, name)

    def _open_for_removal(self, step: Step, path: bytes) -> None:
        state = step.before[path]
        if state.kind == "directory" and state.mode & 0o700 != 0o700:
            try:
                beneath.change_mode(self._slots, step.slot + path[len(step.path) :], 0o700)
            except FileNotFoundError:
                pass  # removed before a crash

    # Which steps were made: rule 2.

    def _made(self, step: Step) -> bool:
        found = beneath.look(self._slots, step.slot)
        if step.verb == "take":
            return found is not None
        if step.verb == "place":
            return found is None
        return found is not None and found.st_ino != self.prepared.inodes[step.index]

    def _make(self, step: Step) -> None:
        if step.verb == "mode" or self._made(step):
            return
        try:
            with beneath.parent_of(self.root, step.path) as (parent, name):
                if step.verb == "place":
                    beneath.move_new(self._slots, step.slot, parent, name)
                elif step.verb == "take":
                    beneath.move_new(parent, name, self._slots, step.slot)
                else:
                    beneath.exchange(self._slots, step.slot, parent, name)
                faults.point("apply:moved")
                if step.verb != "place":
                    self._look_at_displaced(step, parent, name)
        except FileExistsError:
            raise _Surprise({step.path}) from None
        except OSError as error:
            if error.errno in _MISSING_PARENT:
                raise _Surprise({step.path}) from None
            if error.errno == errno.EINVAL:
                raise OSError(errno.EOPNOTSUPP, "this filesystem cannot rename without replacing") from None
            raise

    def _look_at_displaced(self, step: Step, parent: int, name: bytes) -> None:
        """Rule 1. Raises :class:`_Surprise` after what was moved aside went back."""
        wrong = self._unlike(step.slot, step.path, step.before)
        if not wrong:
            return
        if step.verb == "take":
            self._return(step.slot, parent, name)
        else:
            beneath.exchange(self._slots, step.slot, parent, name)
            if self._unlike(step.slot, step.path, step.after):
                self._return(step.slot, parent, name)  # edited while it stood there for an instant: keep that too
        raise _Surprise(wrong)

    def _unlike(self, slot: bytes, path: bytes, expected: Mapping[bytes, FileState]) -> set[bytes]:
        """Where the tree in ``slot`` is not ``expected``, or is held open for writing by somebody."""
        try:
            tree = beneath.read_tree(self._slots, slot, path)
        except (ChangeError, OSError):  # special, foreign or unreadable: certainly not what was expected
            return {path}
        found = {at: self._as_before_widening(at, item.state) for at, item in tree.items()}
        top, there = expected.get(path), found.get(path)
        if top and there and top.kind == there.kind == "directory" and there.mode == top.mode | 0o200:
            found[path] = _with_mode(there, top.mode)  # opened up by us, to be moved
        wrong = _differences(expected, found)
        for at, item in tree.items():
            if item.state.kind == "file" and (
                item.links > 1 or beneath.has_writer(self._slots, slot + at[len(path) :])
            ):
                wrong.add(at)
        return wrong

    def _as_before_widening(self, path: bytes, state: FileState) -> FileState:
        before = self.prepared.widened.get(path)
        return _with_mode(state, before if before is not None and state.mode == before | 0o300 else None)

    def _return(self, slot: bytes, parent: int, name: bytes) -> None:
        """Give back what lies in ``slot``: under its name if that is free, else under a name beside it."""
        for attempt in range(1000):
            try:
                beneath.move_new(self._slots, slot, parent, name if attempt == 0 else name + b".kept-%d" % attempt)
            except FileExistsError:
                continue
            return

    def _unmake(self, step: Step) -> None:
        if step.verb == "mode" or not self._made(step):
            return
        try:
            with beneath.parent_of(self.root, step.path) as (parent, name):
                if step.verb == "take":
                    self._return(step.slot, parent, name)
                    return
                if step.verb == "place":
                    beneath.move_new(parent, name, self._slots, step.slot)
                else:
                    beneath.exchange(self._slots, step.slot, parent, name)
                if self._unlike(step.slot, step.path, step.after):
                    if step.verb == "swap":
                        beneath.exchange(self._slots, step.slot, parent, name)
                    self._return(step.slot, parent, name)
        except OSError as error:
            if error.errno not in (*_MISSING_PARENT, errno.EEXIST):
                raise

    # Modes: opened up first, set last.

    def _open_up(self) -> None:
        for path, mode in self.prepared.widened.items():
            self._change_mode(path, mode | 0o300)

    def _set_modes(self) -> None:
        wanted = dict(self.prepared.widened)
        for step in self.steps:
            after = step.change.after
            if step.verb == "mode":
                self._check_mode(step)
            else:
                wanted.pop(step.path, None)
            if after is not None and (step.verb == "mode" or (after.kind == "directory" and not after.mode & 0o200)):
                wanted[step.path] = after.mode
        for path, mode in sorted(wanted.items(), reverse=True):
            faults.point("apply:mode")
            self._change_mode(path, mode)

    def _check_mode(self, step: Step) -> None:
        with beneath.parent_of(self.root, step.path) as (parent, name):
            found = beneath.look(parent, name)
        expected = step.change.before
        allowed = {state.mode for state in (expected, step.change.after) if state is not None}
        allowed |= {mode | 0o300 for path, mode in self.prepared.widened.items() if path == step.path}
        if found is None or expected is None or stat.S_IMODE(found.st_mode) not in allowed:
            raise _Surprise({step.path})

    def _restore_modes(self) -> None:
        wanted = dict(self.prepared.widened)
        for step in self.steps:
            if step.verb == "mode" and step.change.before is not None:
                wanted[step.path] = step.change.before.mode
        for path, mode in sorted(wanted.items(), reverse=True):
            self._change_mode(path, mode)

    def _change_mode(self, path: bytes, mode: int) -> None:
        """Set a mode; a path that is gone by now has no mode to set."""
        try:
            with beneath.parent_of(self.root, path) as (parent, name):
                beneath.change_mode(parent, name, mode)
        except OSError as error:
            if error.errno not in _MISSING_PARENT:
                raise

    def _flush(self) -> None:
        parents = {step.path.rpartition(b"/")[0] for step in self.steps}
        if len(parents) >= beneath.MANY_FILES:
            beneath.flush_filesystem(self.root)
            return
        for path in parents:
            try:
                beneath.flush_name(self.root, path or b".")
            except PermissionError:
                beneath.flush_filesystem(self.root)  # a directory we may write to and not read
            except OSError as error:
                if error.errno not in _MISSING_PARENT:
                    raise
        beneath.flush_name(self.root, self.prepared.private)


def _with_mode(state: FileState, mode: int | None) -> FileState:
    return state if mode is None else FileState(state.kind, mode, state.size, state.sha256, state.target)
