"""Committing in one line, from code without an event loop."""

import uuid

import anyio

from handrail.changes.changeset import ChangeSet
from handrail.changes.store import ChangeStore


async def nothing() -> None:
    """A journal that has nothing to say."""


def commit(store: ChangeStore, changes: ChangeSet, call_id: str = "", begun=nothing, ended=nothing) -> str:
    """Commit, and return the call id."""
    name = call_id or uuid.uuid4().hex
    anyio.run(lambda: store.commit(name, changes, begun=begun, ended=ended))
    return name
