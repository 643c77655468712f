"""What the corridor and the bodies ask of the private store of staged changes."""

from collections.abc import Awaitable, Callable
from typing import Protocol

from handrail.changes.changeset import ChangeSet


class Contents(Protocol):
    """File contents by their SHA-256 (hex), in a private directory outside the workspace."""

    def put(self, data: bytes) -> str:
        """Keep ``data`` and return its name."""
        ...

    def put_fd(self, fd: int) -> tuple[str, int]:
        """Keep what can be read from ``fd`` (a regular file, from its start); return its name and size in bytes."""
        ...

    def open(self, sha256: str) -> int:
        """A new read-only descriptor of the content. Raises :class:`~handrail.errors.UndoUnavailable` if it is gone."""
        ...


class ChangeKeeper(Protocol):
    """Keeps staged changes, shows them, and makes them real: all of a ChangeSet or nothing, once."""

    @property
    def contents(self) -> Contents: ...

    def diff(self, changes: ChangeSet) -> str:
        """A unified diff for people (text files; others summarised)."""
        ...

    async def hold(self, call_id: str, changes: ChangeSet) -> None:
        """Keep the changes of ``call_id`` durably, not yet real."""
        ...

    async def held(self, call_id: str) -> ChangeSet | None:
        """The changes held for ``call_id``."""
        ...

    async def drop(self, call_id: str) -> None:
        """Forget what is held for ``call_id``; nothing of it becomes real."""
        ...

    async def commit(
        self,
        call_id: str,
        changes: ChangeSet,
        *,
        begun: Callable[[], Awaitable[None]],
        ended: Callable[[], Awaitable[None]],
    ) -> None:
        """Make the changes real. ``begun`` is awaited after the comparison and before the first change, ``ended`` after
        the last is durable.

        Raises :class:`~handrail.errors.ChangeConflict` (nothing was applied) or
        :class:`~handrail.errors.ChangeError` (the workspace is as it was).
        """
        ...
