"""What each server offered when it was first used, and how what it offers now differs. One file of the user's.

The whole set of definitions is pinned with the server's command or URL and its own name. Rules:

1. The first listing of a server is pinned as it is. After that, only a person changes pins (``handrail mcp trust``).
2. A definition that differs, is new, or was renamed is quarantined; one that is gone is quarantined too, so that it
   cannot come back as something else. Other tools of the server go on.
3. A server with another command, URL or name is another server: all its tools are quarantined.

A new version of the same server is noted and shown; its definitions decide. The file is 0600, replaced atomically, and
read and written under a lock, so that two processes cannot lose each other's pins.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import platformdirs

from handrail import private
from handrail.errors import ConfigurationError
from handrail.mcp.definitions import Definition, Malformed
from handrail.output import open_private_directory
from handrail.schema import ArgumentsInvalid, canonical_bytes, decode_json, digest_of

State = Literal["trusted", "changed", "new", "renamed", "removed", "malformed", "refused", "other-server"]
MAX_FILE_BYTES = 64 * 1024 * 1024
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """Who a server is: how it is reached (``where``: command or URL, no secrets), and what it calls itself."""

    where: Mapping[str, Any]
    name: str = ""
    version: str = ""

    def same_server(self, other: "ServerIdentity") -> bool:
        """Rule 3. The version does not count."""
        return self.name == other.name and canonical_bytes(self.where) == canonical_bytes(other.where)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {"where": dict(self.where), "name": self.name, "version": self.version}


@dataclass(frozen=True, slots=True)
class PinnedServer:
    """What was trusted: the identity and, by tool name, the definitions as the server wrote them."""

    identity: ServerIdentity
    documents: Mapping[str, Mapping[str, Any]]
    pinned_at: float = 0.0

    def digest_of(self, tool: str) -> str | None:
        """The pinned definition's digest."""
        document = self.documents.get(tool)
        return None if document is None else digest_of(document)


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one tool stands. ``was`` and ``now`` are its pinned and its offered definition, where there are any."""

    name: str
    state: State
    why: str = ""
    was: Mapping[str, Any] | None = None
    now: Definition | None = None

    @property
    def usable(self) -> bool:
        """Whether it may be called."""
        return self.state == "trusted"


@dataclass(frozen=True, slots=True)
class Listing:
    """What a server offers now."""

    identity: ServerIdentity
    definitions: Mapping[str, Definition]
    malformed: tuple[Malformed, ...] = field(default=())


def compare(pinned: PinnedServer | None, offered: Listing) -> dict[str, Standing]:
    """Where each tool stands, by name (rules 1 to 3). Pure."""
    standings = {bad.name: Standing(bad.name, "malformed", bad.reason) for bad in offered.malformed}
    if pinned is None:
        fresh = {name: Standing(name, "trusted", now=now) for name, now in offered.definitions.items()}
        return standings | fresh
    if not pinned.identity.same_server(offered.identity):
        why = f"this is another server than the one that was pinned ({_described(pinned.identity)})"
        for name, now in offered.definitions.items():
            standings[name] = Standing(name, "other-server", why, pinned.documents.get(name), now)
        for name in pinned.documents.keys() - offered.definitions.keys():
            standings.setdefault(name, Standing(name, "other-server", why, pinned.documents[name]))
        return standings
    gone = {name: was for name, was in pinned.documents.items() if name not in offered.definitions}
    former = {_nameless(was): name for name, was in gone.items()}
    for name, now in offered.definitions.items():
        standings[name] = _standing(name, pinned.documents.get(name), now, former.get(_nameless(now.document)))
    for name, was in gone.items():
        bad = standings.get(name)
        why = "the server does not offer it any more" if bad is None else f"it is malformed now: {bad.why}"
        standings[name] = Standing(name, "removed" if bad is None else "malformed", why, was)
    return standings


def _standing(name: str, was: Mapping[str, Any] | None, now: Definition, former: str | None) -> Standing:
    if was is None and former is not None:
        return Standing(name, "renamed", f"it was {former!r} when it was pinned", None, now)
    if was is None:
        return Standing(name, "new", "the server did not offer it when it was pinned", None, now)
    if digest_of(was) != now.digest:
        return Standing(name, "changed", "its definition is not the one that was pinned", was, now)
    return Standing(name, "trusted", was=was, now=now)


def _nameless(document: Mapping[str, Any]) -> str:
    return digest_of({key: value for key, value in document.items() if key != "name"})


def _described(identity: ServerIdentity) -> str:
    where = identity.where.get("url") or " ".join(cast("list[str]", identity.where.get("command", [])))
    return f"{identity.name or 'nameless'}: {where}"


def default_pins_path() -> str:
    """The user's pins: ``mcp-pins.json`` in the private state directory."""
    return os.path.join(platformdirs.user_state_dir("handrail"), "mcp-pins.json")


class PinStore:
    """The pins file. Every method reads it afresh; methods that change it hold the lock and replace it whole.

    Raises :class:`~handrail.errors.ConfigurationError` when the file is damaged or is not private.
    """

    def __init__(self, path: str | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self.path = os.path.abspath(path) if path is not None else default_pins_path()
        self._clock = clock

    def get(self, server: str) -> PinnedServer | None:
        """What is pinned for a server of the catalog."""
        with self._locked() as directory:
            return self._read(directory).get(server)

    def pin_first(self, server: str, offered: Listing) -> PinnedServer:
        """Pin what is offered, unless something is pinned already: then that stands (rule 1)."""
        with self._locked() as directory:
            pins = self._read(directory)
            if server not in pins:
                pins[server] = self._pinned(offered)
                self._write(directory, pins)
            return pins[server]

    def trust(self, server: str, offered: Listing, tools: list[str] | None = None) -> PinnedServer:
        """A person looked: pin what is offered now, the whole set or only ``tools``.

        Raises :class:`~handrail.errors.ConfigurationError` when only some tools of another server are named.
        """
        with self._locked() as directory:
            pins = self._read(directory)
            before = pins.get(server)
            if before is None or tools is None:
                pins[server] = self._pinned(offered)
            elif not before.identity.same_server(offered.identity):
                raise ConfigurationError(f"{server!r} is another server now; trust it as a whole, or not at all")
            else:
                pins[server] = PinnedServer(offered.identity, _merged(before, offered, tools), self._clock())
            self._write(directory, pins)
            return pins[server]

    def forget(self, server: str) -> None:
        """Drop a server's pins: its next use is a first use."""
        with self._locked() as directory:
            pins = self._read(directory)
            if pins.pop(server, None) is not None:
                self._write(directory, pins)

    def _pinned(self, offered: Listing) -> PinnedServer:
        return PinnedServer(
            offered.identity, {name: found.document for name, found in offered.definitions.items()}, self._clock()
        )

    @contextmanager
    def _locked(self) -> Generator[int]:
        directory = open_private_directory(os.path.dirname(self.path))
        try:
            name = os.path.basename(self.path) + ".lock"
            lock = private.open_file(name, os.O_RDWR, directory=directory)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield directory
            finally:
                os.close(lock)
        finally:
            os.close(directory)

    def _read(self, directory: int) -> dict[str, PinnedServer]:
        name = os.path.basename(self.path)
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigurationError(f"{self.path!r} cannot be opened: {error.strerror}") from None
        with os.fdopen(fd, "rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        try:
            return _pins_of(decode_json(raw, max_bytes=MAX_FILE_BYTES))
        except (ArgumentsInvalid, KeyError, TypeError, AttributeError, ValueError) as error:
            raise ConfigurationError(
                f"{self.path!r} is damaged ({error}); look at it, then move it away: every server is then pinned anew"
            ) from None

    def _write(self, directory: int, pins: Mapping[str, PinnedServer]) -> None:
        name = os.path.basename(self.path)
        fresh = f"{name}.{os.getpid()}.new"
        servers = {server: _pin_json(pinned) for server, pinned in pins.items()}
        fd = private.open_file(fresh, os.O_WRONLY | os.O_TRUNC, directory=directory)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            json.dump({"format": _FORMAT, "servers": servers}, file, ensure_ascii=True, indent=1)
            file.flush()
            os.fsync(fd)
        os.rename(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)


def _merged(before: PinnedServer, offered: Listing, tools: list[str]) -> dict[str, Mapping[str, Any]]:
    documents = dict(before.documents)
    for tool in tools:
        now = offered.definitions.get(tool)
        if now is not None:
            documents[tool] = now.document
        elif documents.pop(tool, None) is None:
            raise ConfigurationError(f"there is no tool {tool!r} to trust")
    return documents


def _pin_json(pinned: PinnedServer) -> dict[str, Any]:
    return {
        "identity": pinned.identity.to_json(),
        "pinnedAt": pinned.pinned_at,
        "tools": {name: dict(document) for name, document in pinned.documents.items()},
    }


def _pins_of(document: Any) -> dict[str, PinnedServer]:
    if document["format"] != _FORMAT:
        raise ValueError(f"format {document['format']!r} is not known")
    found: dict[str, PinnedServer] = {}
    for server, pin in document["servers"].items():
        who = pin["identity"]
        identity = ServerIdentity(dict(who["where"]), str(who["name"]), str(who["version"]))
        tools = {name: dict(tool) for name, tool in pin["tools"].items()}
        found[server] = PinnedServer(identity, tools, float(pin["pinnedAt"]))
    return found
