"""What a call did to files, as data. Nothing here touches a disk.

Paths are bytes, relative to the workspace. Contents are named by SHA-256 and lie in a private store.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from handrail.errors import ChangeConflict
from handrail.schema import digest_of

FileKind = Literal["file", "directory", "link"]


@dataclass(frozen=True, slots=True)
class FileState:
    """One name in the workspace at one moment.

    ``mode`` are the permission bits. ``size`` in bytes and ``sha256`` (hex) are of a file's content; ``target`` is
    where a link points.
    """

    kind: FileKind
    mode: int
    size: int = 0
    sha256: str | None = None
    target: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "kind": self.kind,
            "mode": self.mode,
            "size": self.size,
            "sha256": self.sha256,
            "target": None if self.target is None else _bytes_to_json(self.target),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "FileState":
        """The inverse of :meth:`to_json`."""
        target = None if data["target"] is None else _bytes_from_json(data["target"])
        return cls(data["kind"], data["mode"], data["size"], data["sha256"], target)


@dataclass(frozen=True, slots=True)
class Change:
    """One path, before and after. ``None`` means: not there."""

    path: bytes
    before: FileState | None
    after: FileState | None

    @property
    def verb(self) -> Literal["create", "delete", "modify", "mode", "replace"]:
        """What happened, in one word."""
        if self.before is None:
            return "create"
        if self.after is None:
            return "delete"
        if self.before.kind != self.after.kind:
            return "replace"
        same_content = (self.before.sha256, self.before.target) == (self.after.sha256, self.after.target)
        return "mode" if same_content else "modify"

    def inverted(self) -> "Change":
        """The change that takes this one back."""
        return Change(self.path, self.after, self.before)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data; the path is text where it is UTF-8, else base64."""
        return {
            "path": _bytes_to_json(self.path),
            "before": None if self.before is None else self.before.to_json(),
            "after": None if self.after is None else self.after.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Change":
        """The inverse of :meth:`to_json`."""
        before, after = data["before"], data["after"]
        return cls(
            _bytes_from_json(data["path"]),
            None if before is None else FileState.from_json(before),
            None if after is None else FileState.from_json(after),
        )


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Every change of one call, sorted by path. Empty when nothing changed."""

    changes: tuple[Change, ...] = ()

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def digest(self) -> str:
        """``sha256:…`` over the canonical JSON: what an approval binds and the journal records."""
        return digest_of(self.to_json())

    @property
    def paths(self) -> tuple[bytes, ...]:
        """The changed paths."""
        return tuple(change.path for change in self.changes)

    def inverted(self) -> "ChangeSet":
        """The ChangeSet that takes this one back."""
        return ChangeSet(tuple(change.inverted() for change in self.changes))

    def then(self, later: "ChangeSet") -> "ChangeSet":
        """Both, one after the other, as one ChangeSet; what comes out as it was is left out.

        Raises :class:`~handrail.errors.ChangeConflict` where ``later`` does not begin with what this one leaves.
        """
        joined = {change.path: change for change in self.changes}
        broken: list[bytes] = []
        for change in later.changes:
            earlier = joined.get(change.path)
            if earlier is not None and earlier.after != change.before:
                broken.append(change.path)
            joined[change.path] = change if earlier is None else Change(change.path, earlier.before, change.after)
        if broken:
            names = ", ".join(repr(path.decode("utf-8", "surrogateescape")) for path in broken)
            raise ChangeConflict(f"changed in between: {names}", tuple(broken))
        kept = (joined[path] for path in sorted(joined))
        return ChangeSet(tuple(change for change in kept if change.before != change.after))

    def to_json(self) -> list[dict[str, Any]]:
        """Plain JSON data."""
        return [change.to_json() for change in self.changes]

    @classmethod
    def from_json(cls, data: list[Mapping[str, Any]]) -> "ChangeSet":
        """The inverse of :meth:`to_json`."""
        return cls(tuple(Change.from_json(item) for item in data))


def _bytes_to_json(raw: bytes) -> str | dict[str, str]:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def _bytes_from_json(data: str | Mapping[str, str]) -> bytes:
    return data.encode() if isinstance(data, str) else base64.b64decode(data["base64"], validate=True)
