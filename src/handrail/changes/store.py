"""ChangeStore: the private store of staged changes, and the place where they become real, once.

::

    STATE/changes/<workspace>/      0700, outside the workspace
        workspace.json              which directory this is, and where
        lock                        flock(2): one commit at a time, over all threads and processes
        contents/                   file contents by SHA-256
        held/                       changes of calls that wait for an answer
        history/                    committed changes, newest kept until the limits say otherwise
        commit.json                 the commit that is under way, if one is

The life of a commit is told by two files. No ``commit.json``: nothing has changed, whatever lies about is rubbish.
``commit.json`` and no history of it: it goes forward to its end. Both: it is done, and only rubbish is left. Each is
written whole or not at all, and is on disk before the next step begins.
"""

import errno
import fcntl
import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import anyio
from anyio import to_thread

from handrail import faults, private
from handrail.bounds import require_seconds, require_whole
from handrail.changes import beneath
from handrail.changes import commit as committing
from handrail.changes.areas import MARK, Area, area_name, elsewhere, left_behind, mark_of
from handrail.changes.changeset import ChangeSet, FileState
from handrail.changes.contents import Blobs, StoreFull
from handrail.changes.diff import unified_diff
from handrail.errors import ChangeConflict, ChangeError, ConfigurationError, UndoUnavailable
from handrail.workspace import Workspace

log = logging.getLogger("handrail")

GIBIBYTE = 1 << 30
DAY = 86_400.0
IN_FLIGHT_SECONDS = 3600.0  # a content nobody refers to yet belongs to a call under way for this long
_LAST_PLACE = b"last-place"
_PARTIAL = ".partial"  # the end of a name that is still being written
MAX_ENTRIES = 1000  # what is remembered about calls after their contents were given up

Fate = Literal["committed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """One committed call. ``at`` is seconds since 1970. ``gone`` says why an undo is no longer possible, else empty.

    ``place`` counts the commits of a workspace, whatever its clocks say; 0 where it was not counted yet.
    """

    call_id: str
    at: float
    changes: ChangeSet
    gone: str = ""
    place: int = 0

    @property
    def order(self) -> tuple[int, float]:
        """Sorts commits as they were made."""
        return self.place, self.at

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "call_id": self.call_id,
            "at": self.at,
            "digest": self.changes.digest,
            "changes": self.changes.to_json(),
            "gone": self.gone,
            "place": self.place,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Committed":
        """The inverse of :meth:`to_json`."""
        return cls(
            call_id=data["call_id"],
            at=data["at"],
            changes=ChangeSet.from_json(data["changes"]),
            gone=data["gone"],
            place=data.get("place", 0),
        )


@dataclass(frozen=True, slots=True)
class _Record:
    """``commit.json``: what recovery needs."""

    entry: Committed
    prepared: committing.Prepared


class ChangeStore:
    """Keeps and commits the changes of one workspace. It is a :class:`~handrail.changes.keeper.ChangeKeeper`.

    ``state_directory``: private, outside the workspace; made if needed. ``max_bytes`` limits the contents kept,
    ``max_age`` (seconds) how long an undo is kept. ``area`` opens the one of a path where the directory was before.
    Opening it carries an unfinished commit to its end, also one that was cut off before the directory was moved.

    Raises :class:`~handrail.errors.ConfigurationError` for a state directory inside the workspace and for a number
    that cannot work.
    """

    def __init__(
        self,
        state_directory: str,
        workspace: Workspace,
        *,
        max_bytes: int = GIBIBYTE,
        max_age: float = 30 * DAY,
        clock: Callable[[], float] = time.time,
        area: str | None = None,
    ) -> None:
        require_whole("max_bytes", max_bytes)
        require_seconds("max_age", max_age)
        self.workspace = workspace
        self.max_age = max_age
        self._clock = clock
        state = _outside(state_directory, workspace)
        private.make_directories(state)
        self._state = state
        self._is_own = area is None
        self.path = os.path.join(state, "changes", area_name(workspace) if area is None else area)
        for part in ("..", ".", "held", "history"):
            _make_private(os.path.normpath(os.path.join(self.path, part)))
        with ExitStack() as undone:  # what fails on the way leaves nothing open
            self._root = os.dup(workspace.fd)
            undone.callback(os.close, self._root)
            self._area = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            undone.callback(os.close, self._area)
            self._private = _private_name(self.path)
            self._blobs = Blobs(os.path.join(self.path, "contents"), max_bytes)
            undone.callback(self._blobs.close)
            self._blobs.make_room = self._make_room
            self._open_up()
            undone.pop_all()

    def close(self) -> None:
        """Give the descriptors back. Closing twice is harmless."""
        self._blobs.close()
        for name in ("_root", "_area"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def contents(self) -> Blobs:
        """The contents, for whoever stages changes."""
        return self._blobs

    def diff(self, changes: ChangeSet) -> str:
        """See :func:`~handrail.changes.diff.unified_diff`. Contents that are not in the store are read from the
        workspace where the file there is still what the call saw."""
        return unified_diff(changes, self._content_for_diff)

    # ── parked calls ─────────────────────────────────────────────────────────────────────────────────────────

    async def hold(self, call_id: str, changes: ChangeSet) -> None:
        """Keep the changes of ``call_id`` durably, not yet real."""
        await to_thread.run_sync(self._hold, call_id, changes)

    def _hold(self, call_id: str, changes: ChangeSet) -> None:
        self._require_contents(changes)
        needed = _contents_after(changes)
        self._blobs.flush(needed, whole=len(needed) >= beneath.MANY_FILES)
        self._write_json(f"held/{_file_name(call_id)}", {"call_id": call_id, "changes": changes.to_json()})

    async def held(self, call_id: str) -> ChangeSet | None:
        """The changes held for ``call_id``."""
        data = self._read_json(f"held/{_file_name(call_id)}")
        return None if data is None else ChangeSet.from_json(data["changes"])

    async def drop(self, call_id: str) -> None:
        """Forget what is held for ``call_id``; nothing of it becomes real."""
        self._remove(f"held/{_file_name(call_id)}")

    # ── commit ───────────────────────────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        call_id: str,
        changes: ChangeSet,
        *,
        begun: Callable[[], Awaitable[None]],
        ended: Callable[[], Awaitable[None]],
    ) -> None:
        """Make the changes real, all or none. A call whose changes are real already is not applied again.

        Raises :class:`~handrail.errors.ChangeConflict` naming the files that are no longer what the call saw (then
        nothing was applied) or :class:`~handrail.errors.ChangeError` (the workspace is as it was).
        """
        async with self._locked_async():
            await to_thread.run_sync(self._recover)
            done = self.find(call_id)
            if done is not None:
                _require_same(done, changes)
                await ended()
                await self.drop(call_id)
                return
            steps = committing.steps_of(changes)
            entry, prepared = await to_thread.run_sync(self._prepare, call_id, changes, steps)
            with anyio.CancelScope(shield=True):
                try:
                    await begun()
                except BaseException:
                    await to_thread.run_sync(committing.discard_private, self._root, self._private)
                    raise
                await to_thread.run_sync(self._record_and_apply, _Record(entry, prepared), steps)
                await ended()
            await self.drop(call_id)

    def _prepare(
        self, call_id: str, changes: ChangeSet, steps: tuple[committing.Step, ...]
    ) -> tuple[Committed, committing.Prepared]:
        self._require_contents(changes)
        place = self._next_place()
        keep = _BeforeContents(self._blobs)
        faults.point("commit:compare")
        compared = committing.compare(self._root, steps, keep)
        prepared = committing.prepare(self._root, self._private, steps, compared, self._blobs)
        entry = Committed(call_id=call_id, at=self._clock(), changes=changes, gone=keep.gone, place=place)
        return entry, prepared

    def _next_place(self) -> int:
        """One more than the last commit's; under the lock. The count is no further behind than what it counts."""
        try:
            fd = beneath.open_file(self._area, _LAST_PLACE, os.O_RDWR | os.O_CREAT)
            try:
                raw = os.pread(fd, 20, 0)
                place = 1 + (int(raw) if raw.isdigit() else max((entry.place for entry in self.history()), default=0))
                os.pwrite(fd, b"%020d" % place, 0)
            finally:
                os.close(fd)
        except OSError as error:
            raise ChangeError(f"the private store cannot be written: {error.strerror}") from error
        return place

    def _forget_place(self) -> None:
        """After a start the count is made anew: a power cut may have taken it back, and never the history."""
        with suppress(FileNotFoundError):
            os.unlink(_LAST_PLACE, dir_fd=self._area)

    def _record_and_apply(self, record: _Record, steps: tuple[committing.Step, ...]) -> None:
        faults.point("commit:record")
        try:
            self._write_json("commit.json", {"entry": record.entry.to_json(), "prepared": record.prepared.to_json()})
        except ChangeError:
            committing.discard_private(self._root, self._private)
            raise
        faults.point("commit:recorded")
        self._apply(record, steps)

    def _apply(self, record: _Record, steps: tuple[committing.Step, ...]) -> None:
        application = committing.Application(self._root, steps, record.prepared)
        try:
            application.forward()
            faults.point("commit:applied")
            self._record_end(record, application)
        except ChangeError:  # everything was taken back
            faults.point("commit:taken-back")
            self._remove("commit.json")
            committing.discard_private(self._root, record.prepared.private)
            raise
        except OSError as error:
            raise ChangeError(
                f"the commit of {record.entry.call_id} was cut off ({error.strerror}); the next start carries it on"
            ) from error
        else:
            faults.point("commit:ended")
            self._discard(application)
            faults.point("commit:discarded")
            self._remove("commit.json")
        finally:
            application.close()

    def _record_end(self, record: _Record, application: committing.Application) -> None:
        """``commit.json`` becomes history too, as a second name of the same file: no room is needed to say the end."""
        try:
            os.link(
                "commit.json",
                f"history/{_file_name(record.entry.call_id)}",
                src_dir_fd=self._area,
                dst_dir_fd=self._area,
            )
            beneath.flush_name(self._area, b"history")
        except OSError as error:
            self._remove(f"history/{_file_name(record.entry.call_id)}")
            application.back()
            raise ChangeError(f"the private store cannot be written: {error.strerror}") from error

    # ── recovery ─────────────────────────────────────────────────────────────────────────────────────────────

    def recover(self) -> None:
        """Carry an unfinished commit to its end. Doing it again changes nothing."""
        with self._locked():
            self._recover()

    def _recover(self) -> None:
        data = self._read_json("commit.json")
        if data is None:
            committing.discard_private(self._root, self._private)
            return
        record = _Record(Committed.from_json(data["entry"]), committing.Prepared.from_json(data["prepared"]))
        steps = committing.steps_of(record.entry.changes)
        faults.point("recover:begin")
        if self.find(record.entry.call_id) is None:
            if beneath.look(self._root, record.prepared.private) is None:
                self._give_commit_up(record)
                return
            try:
                self._apply(record, steps)
            except ChangeConflict:
                return  # somebody edited a file while we were away: everything was taken back, the edit is kept
        else:
            self._finish(record, steps)

    def _finish(self, record: _Record, steps: tuple[committing.Step, ...]) -> None:
        if beneath.look(self._root, record.prepared.private) is not None:
            application = committing.Application(self._root, steps, record.prepared)
            try:
                self._discard(application)
            finally:
                application.close()
        self._remove("commit.json")

    def _discard(self, application: committing.Application) -> None:
        """The commit is over: what cannot be removed any more must not keep anybody from the next one."""
        try:
            application.discard()
        except OSError as error:
            log.warning("what a commit replaced cannot be removed: %s", error)
            committing.discard_private(self._root, application.prepared.private)

    def _give_commit_up(self, record: _Record) -> None:
        """Somebody removed the private directory of a commit that was cut off: it can go neither forward nor back."""
        log.warning(
            "the commit of %s was cut off, and its directory %s was removed since: its changes may be made in part",
            record.entry.call_id,
            record.prepared.private.decode("ascii"),
        )
        self._remove("commit.json")

    def fate(self, call_id: str) -> Fate:
        """Whether the changes of ``call_id`` are real. ``unknown``: they are not, or it is too long ago to say."""
        return "committed" if self.find(call_id) is not None else "unknown"

    # ── history and undo ─────────────────────────────────────────────────────────────────────────────────────

    def find(self, call_id: str) -> Committed | None:
        """What was committed for ``call_id``."""
        data = self._read_json(f"history/{_file_name(call_id)}")
        return None if data is None else Committed.from_json(data["entry"])

    def history(self) -> list[Committed]:
        """Everything that is remembered, oldest first."""
        found = [self._read_json(f"history/{name}") for name in self._names("history")]
        return sorted(
            (Committed.from_json(data["entry"]) for data in found if data is not None), key=lambda item: item.order
        )

    def inverse_of(self, *call_ids: str) -> ChangeSet:
        """The changes that take these calls back, the latest first, as one ChangeSet.

        Raises :class:`~handrail.errors.UndoUnavailable` for a call that changed nothing here, or whose contents were
        given up (the text says why), and :class:`~handrail.errors.ChangeConflict` where another call changed the same
        files in between.
        """
        entries = [self._undoable(call_id) for call_id in dict.fromkeys(call_ids)]
        inverse = ChangeSet()
        for entry in sorted(entries, key=lambda entry: entry.order, reverse=True):
            inverse = inverse.then(entry.changes.inverted())
        self._require_contents(inverse)
        return inverse

    def _undoable(self, call_id: str) -> Committed:
        entry = self.find(call_id)
        if entry is None:
            raise UndoUnavailable(self.unknown(call_id))
        if entry.gone:
            raise UndoUnavailable(f"call {call_id} can no longer be undone: {entry.gone}")
        return entry

    def unknown(self, call_id: str) -> str:
        """Why nothing is known of a call, with where to look if the directory was moved."""
        text = f"no change of a call {call_id!r} is remembered for {self.workspace.path!r}"
        moved = [area for area in self.moved_from() if area.changes]
        return f"{text}; {elsewhere(moved)}" if moved else text

    # ── limits ───────────────────────────────────────────────────────────────────────────────────────────────

    def tidy(self) -> None:
        """Give up what is older than the age limit, contents that nobody refers to, and what a killed writer left."""
        oldest = self._clock() - self.max_age
        entries = self.history()
        for entry in entries[: max(0, len(entries) - MAX_ENTRIES)]:
            self._remove(f"history/{_file_name(entry.call_id)}")
        for entry in entries[-MAX_ENTRIES:]:
            if not entry.gone and entry.at < oldest:
                self._give_up(entry, f"it is older than {self.max_age / DAY:g} days")
        self._remove_leftovers()
        self._remove_unreferenced()
        self._blobs.sweep()

    def _remove_leftovers(self) -> None:
        """What a killed process left: half a file of its own, and held changes of a call that was committed."""
        for name in set(self._names("held")).intersection(self._names("history")):
            self._remove(f"held/{name}")
        abandoned = time.time() - IN_FLIGHT_SECONDS
        for part in ("", "held/", "history/"):
            for name in os.listdir(os.path.join(self.path, part)):
                found = beneath.look(self._area, os.fsencode(part + name)) if name.endswith(_PARTIAL) else None
                if found is not None and found.st_mtime < abandoned:
                    self._remove(part + name)

    def _make_room(self, needed: int) -> None:
        """The oldest undos go first, until ``needed`` more bytes fit."""
        self._remove_unreferenced()
        for entry in self.history():
            if self._blobs.bytes_in_use + needed <= self._blobs.max_bytes:
                return
            if not entry.gone:
                self._give_up(entry, f"the private store met its limit of {self._blobs.max_bytes} bytes")
                self._remove_unreferenced()

    def _give_up(self, entry: Committed, why: str) -> None:
        self._write_json(f"history/{_file_name(entry.call_id)}", {"entry": replace(entry, gone=why).to_json()})

    def _remove_unreferenced(self) -> None:
        referenced = {name for entry in self.history() if not entry.gone for name in _contents_of(entry.changes)}
        for name in self._names("held"):
            data = self._read_json(f"held/{name}")
            if data is not None:
                referenced |= _contents_of(ChangeSet.from_json(data["changes"]))
        in_flight = time.time() - IN_FLIGHT_SECONDS
        given_up = {name for entry in self.history() if entry.gone for name in _contents_of(entry.changes)}
        for name, _, used_at in list(self._blobs.sizes()):
            if name not in referenced and (used_at < in_flight or name in given_up):
                self._blobs.remove(name)

    # ── private ──────────────────────────────────────────────────────────────────────────────────────────────

    def _open_up(self) -> None:
        if self._is_own and self._read_json(MARK) != mark_of(self.workspace):
            self._write_json(MARK, mark_of(self.workspace))
        if self._is_own:
            self._recover_what_was_moved()
        try:
            with self._locked(wait=False):
                self._forget_place()
                self._recover()
                self.tidy()
        except BlockingIOError:
            return  # somebody is committing right now; they are alive, and the next commit looks again

    def moved_from(self) -> list[Area]:
        """Where this directory was before it was moved, with what is remembered of it there."""
        return left_behind(os.path.dirname(self.path), self.workspace)

    def _recover_what_was_moved(self) -> None:
        """Carry on a commit that was cut off at another path. Its private directory, with a name that only its own
        area makes, came along: no other directory has it.
        """
        names = beneath.names_in(self._root, b".")
        foreign = {name for name in names if name.startswith(committing.PRIVATE_PREFIX) and name != self._private}
        for area in self.moved_from() if foreign else ():
            if _private_name(os.path.join(os.path.dirname(self.path), area.name)) in foreign:
                ChangeStore(self._state, self.workspace, area=area.name).close()

    def _require_contents(self, changes: ChangeSet) -> None:
        for change in changes:
            if change.after is not None and change.after.sha256 and not self._blobs.touch(change.after.sha256):
                if change.before is not None and change.before.sha256 == change.after.sha256:
                    continue  # only its mode changes
                raise UndoUnavailable(f"the private store no longer holds the content of {os.fsdecode(change.path)!r}")

    def _content_for_diff(self, path: bytes, state: FileState, limit: int) -> bytes | None:
        try:
            return self._blobs.read(state.sha256 or "", limit)
        except UndoUnavailable:
            pass
        try:
            with beneath.parent_of(self._root, path) as (parent, name):
                fd = beneath.open_file(parent, name)
        except OSError:
            return None
        try:
            return os.pread(fd, limit, 0) if beneath.hash_of(fd)[0] == state.sha256 else None
        except OSError:
            return None
        finally:
            os.close(fd)

    @contextmanager
    def _locked(self, *, wait: bool = True) -> Generator[None, None, None]:
        fd = beneath.open_file(self._area, b"lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield
        finally:
            os.close(fd)

    @asynccontextmanager
    async def _locked_async(self) -> AsyncGenerator[None, None]:
        """The lock, without a thread that waits for it: every waiter would hold one, and the holder needs one too."""
        fd = beneath.open_file(self._area, b"lock", os.O_RDWR | os.O_CREAT)
        try:
            pause = 0.001
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await anyio.sleep(pause)
                    pause = min(pause * 1.5, 0.02)
            yield
        finally:
            os.close(fd)

    def _names(self, part: str) -> list[str]:
        return [name for name in os.listdir(os.path.join(self.path, part)) if name.endswith(".json")]

    def _read_json(self, name: str) -> dict[str, Any] | None:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._area)
        except FileNotFoundError:
            return None
        with open(fd, "rb") as file:
            try:
                return json.load(file)
            except ValueError as error:
                raise ChangeError(f"{os.path.join(self.path, name)!r} is damaged ({error}); move it away") from None

    def _write_json(self, name: str, data: dict[str, Any]) -> None:
        """Whole or not at all, and on disk when this returns."""
        partial = f"{name}.{os.urandom(6).hex()}{_PARTIAL}"
        raw = json.dumps(data, separators=(",", ":")).encode("ascii")  # a path that is not UTF-8 becomes an escape
        try:
            fd = beneath.open_file(self._area, partial.encode(), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                view = memoryview(raw)
                while view:
                    view = view[os.write(fd, view) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            faults.point("store:written")
            os.rename(partial, name, src_dir_fd=self._area, dst_dir_fd=self._area)
            beneath.flush_name(self._area, os.path.dirname(name).encode() or b".")
        except OSError as error:
            self._remove(partial)
            raise ChangeError(f"the private store cannot be written: {error.strerror}") from error

    def _remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self._area)
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise ChangeError(f"the private store cannot be written: {error.strerror}") from error


class _BeforeContents:
    """Keeps every content that a commit will replace, for the undo; when there is no room, only hashes from then on."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.gone = ""

    def __call__(self, fd: int) -> tuple[str, int]:
        if not self.gone:
            try:
                return self._blobs.put_fd(fd)
            except StoreFull as error:
                self.gone = f"what it replaced did not fit: {error}"
        return beneath.hash_of(fd)


def _outside(state_directory: str, workspace: Workspace) -> str:
    path = os.path.realpath(state_directory)
    if os.path.commonpath([path, workspace.path]) == workspace.path:
        raise ConfigurationError(
            f"the state directory {path!r} lies inside the workspace {workspace.path!r}; tools could write to it. "
            "Choose one outside."
        )
    return path


def _make_private(path: str) -> None:
    """A directory that is ours and nobody else can look into."""
    if not private.make_directory(path):
        found = os.stat(path, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigurationError(
                f"{path!r} must be a directory of this user with mode 0700; move it away or repair it"
            )


def _private_name(area: str) -> bytes:
    """The private directory that commits of this area make in the workspace."""
    return committing.PRIVATE_PREFIX + hashlib.sha256(os.fsencode(area)).hexdigest()[:16].encode()


def _file_name(call_id: str) -> str:
    return hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:40] + ".json"


def _contents_after(changes: ChangeSet) -> set[str]:
    return {change.after.sha256 for change in changes if change.after is not None and change.after.sha256}


def _contents_of(changes: ChangeSet) -> set[str]:
    return _contents_after(changes) | _contents_after(changes.inverted())


def _require_same(done: Committed, changes: ChangeSet) -> None:
    if done.changes.digest != changes.digest:
        raise ChangeError(f"call {done.call_id} has committed other changes already")
