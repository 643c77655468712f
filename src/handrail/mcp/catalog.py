"""The catalog: which MCP servers there are, and what each is granted. The user writes it; the workspace never does.

A TOML file::

    [servers.sentry]
    url = "https://mcp.sentry.dev/mcp"
    token_env = "SENTRY_TOKEN"          # the name of a variable, never the token

    [servers.files]
    command = ["mcp-server-filesystem", "{workspace}"]
    workspace = "write"                 # none (default), read, write
    read = ["/opt/node"]                # directories that are visible besides the system's own
    network = false

    [servers.files.tools.read_text_file]
    risk = "read_only"
    replay = "safe"

Rules:

1. The file belongs to this user or to root, nobody else can write it, and it does not lie in the workspace.
2. Unknown keys are refused: a misspelt grant or limit must not pass silently.
3. A token is given by the name of an environment variable. URLs, tokens and headers never come from arguments.
4. ``{workspace}`` in a command or an environment value is the workspace's path; nothing else is substituted.
"""

import functools
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import platformdirs

from handrail import stricttoml
from handrail.bounds import MOST, MOST_SECONDS, require_seconds, require_whole
from handrail.errors import CatalogError
from handrail.sandbox.profile import MOST_PROCESSES
from handrail.tool import Replay, RiskLevel

Access = Literal["none", "read", "write"]
Sandbox = Literal["cell", "none"]

SERVER_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,46}[A-Za-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
DEFAULT_MESSAGE_BYTES = 16 * 1024 * 1024
MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """What the host says about one tool, over whatever the server says. ``None``: the host says nothing.

    ``path_args``: arguments that are paths in the workspace, to be guarded like our own tools' are. ``replay_key``
    names the behaviour for ``replay = "safe"``; without one, the definition's digest does.
    """

    risk: RiskLevel | None = None
    replay: Replay | None = None
    replay_key: str | None = None
    timeout: float | None = None
    path_args: tuple[str, ...] = ()


_NO_OVERRIDE = ToolOverride()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One server of the catalog.

    Exactly one of ``command`` (argv) and ``url`` is set. ``env`` is its whole environment besides a fixed ``PATH``;
    ``env_from`` names variables that are copied from ours. ``workspace``, ``read``, ``write`` and ``network`` are what
    the walls let through. ``allowed`` are the tools that are offered (``None``: all). ``timeout`` is seconds for one
    call, ``start_timeout`` for the start and the first answer. ``max_message_bytes`` bounds one message of the server;
    ``memory_bytes``, ``processes`` and ``cpu_s`` bound its cell. Raises
    :class:`~handrail.errors.ConfigurationError` for a number that cannot work.
    """

    name: str
    command: tuple[str, ...] = ()
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    env_from: tuple[str, ...] = ()
    workspace: Access = "none"
    read: tuple[str, ...] = ()
    network: bool = False
    sandbox: Sandbox = "cell"
    memory_bytes: int | None = None
    processes: int | None = None
    cpu_s: int | None = None
    url: str = ""
    token_env: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    allowed: tuple[str, ...] | None = None
    timeout: float | None = None
    start_timeout: float = 60.0
    max_message_bytes: int = DEFAULT_MESSAGE_BYTES
    overrides: Mapping[str, ToolOverride] = field(default_factory=dict[str, ToolOverride])

    def __post_init__(self) -> None:
        if self.timeout is not None:
            require_seconds("timeout", self.timeout)
        require_seconds("start_timeout", self.start_timeout)
        require_whole("max_message_bytes", self.max_message_bytes)
        for name, most in (("memory_bytes", MOST), ("processes", MOST_PROCESSES), ("cpu_s", MOST_SECONDS)):
            if getattr(self, name) is not None:
                require_whole(name, getattr(self, name), most=most)

    @property
    def transport(self) -> Literal["stdio", "http"]:
        """How the server is reached."""
        return "http" if self.url else "stdio"

    def override_for(self, tool: str) -> ToolOverride:
        """What the host says about ``tool``."""
        return self.overrides.get(tool, _NO_OVERRIDE)

    def identity(self) -> dict[str, Any]:
        """What makes it this server and no other: the command or the URL, and what surrounds it. No secret's value."""
        if self.url:
            return {"url": self.url, "headers": sorted(self.headers)}
        return {"command": list(self.command), "env": sorted({*self.env, *self.env_from})}


@dataclass(frozen=True, slots=True)
class Catalog:
    """The servers of one catalog file, by name."""

    servers: Mapping[str, ServerSpec]
    file: str = ""

    def select(self, names: Sequence[str]) -> list[ServerSpec]:
        """The named servers, in the order they were named. ``"a,b"`` names two.

        Raises :class:`~handrail.errors.CatalogError` for a name that is not in the catalog.
        """
        wanted = dict.fromkeys(part.strip() for name in names for part in name.split(",") if part.strip())
        for name in wanted:
            if name not in self.servers:
                known = ", ".join(sorted(self.servers)) or "none"
                raise CatalogError(f"there is no MCP server {name!r}; the catalog has: {known}", file=self.file)
        return [self.servers[name] for name in wanted]


def default_catalog_path() -> str:
    """The user's catalog: ``mcp.toml`` in the configuration directory."""
    return os.path.join(platformdirs.user_config_dir("handrail"), "mcp.toml")


def load_catalog(path: str | None = None, *, workspace: str | None = None) -> Catalog:
    """Read a catalog file; the user's own when ``path`` is ``None`` (an absent one is an empty catalog).

    ``workspace`` is the directory the agent works in: a catalog inside it is refused (rule 1).
    Raises :class:`~handrail.errors.CatalogError`, naming the file and the key.
    """
    file = default_catalog_path() if path is None else path
    try:
        text = _read_trusted(file, workspace)
    except FileNotFoundError:
        if path is None:
            return Catalog({})
        raise CatalogError("there is no such file", file=file) from None
    except OSError as error:
        raise CatalogError(f"cannot be read: {error.strerror}", file=file) from None
    return parse_catalog(text, file=file, workspace=workspace)


def _read_trusted(file: str, workspace: str | None) -> str:
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as opened:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode):
            raise CatalogError("must be a regular file", file=file)
        if state.st_uid not in (0, os.geteuid()) or state.st_mode & 0o022:
            raise CatalogError("must belong to you and be writable by nobody else (chmod go-w)", file=file)
        if workspace is not None and _inside(os.path.realpath(file), os.path.realpath(workspace)):
            raise CatalogError("lies in the workspace, where tools can write; keep it outside", file=file)
        data = opened.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise CatalogError(f"is larger than {MAX_FILE_BYTES} bytes", file=file)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise CatalogError("is not UTF-8", file=file) from None


def _inside(path: str, directory: str) -> bool:
    return os.path.commonpath([path, directory]) == directory


def parse_catalog(text: str, *, file: str = "", workspace: str | None = None) -> Catalog:
    """The catalog that ``text`` (TOML) describes. Raises :class:`~handrail.errors.CatalogError`."""
    try:
        document = stricttoml.read(text)
    except stricttoml.NotToml as error:
        raise CatalogError(error.message, file=file, line=error.line, column=error.column) from None
    top = _Table(document, "", file)
    servers = {name: _server(name, top.sub("servers").sub(name), workspace) for name in top.table("servers")}
    top.finish()
    return Catalog(servers, file)


def _server(name: str, table: "_Table", workspace: str | None) -> ServerSpec:
    if not SERVER_NAME.fullmatch(name):
        raise table.wrong("", "a server's name is letters, digits, - and _ (at most 48)")
    command = tuple(_substituted(part, workspace, table) for part in table.texts("command"))
    url = table.text("url")
    if bool(command) == bool(url):
        raise table.wrong("", "needs either a command or a url")
    env = {key: _substituted(value, workspace, table) for key, value in table.text_map("env").items()}
    overrides = {tool: _override(table.sub("tools").sub(tool)) for tool in table.table("tools")}
    allowed = table.texts("allowed") if table.has("allowed") else None
    spec = ServerSpec(
        name=name,
        command=command,
        cwd=_substituted(table.text("cwd"), workspace, table),
        env=env,
        env_from=tuple(table.texts("env_from")),
        workspace=cast("Access", table.word("workspace", ("none", "read", "write"), "none")),
        read=tuple(_substituted(part, workspace, table) for part in table.texts("read")),
        network=table.flag("network"),
        sandbox=cast("Sandbox", table.word("sandbox", ("cell", "none"), "cell")),
        memory_bytes=table.count("memory_bytes"),
        processes=table.count("processes", most=MOST_PROCESSES),
        cpu_s=table.count("cpu_s", most=MOST_SECONDS),
        url=url,
        token_env=table.text("token_env"),
        headers=table.text_map("headers"),
        allowed=None if allowed is None else tuple(allowed),
        timeout=table.seconds("timeout"),
        start_timeout=table.seconds("start_timeout") or 60.0,
        max_message_bytes=table.count("max_message_bytes") or DEFAULT_MESSAGE_BYTES,
        overrides=overrides,
    )
    table.finish()
    _check(spec, table)
    return spec


def _check(spec: ServerSpec, table: "_Table") -> None:
    for key, value in (*((name, "env") for name in spec.env), *((name, "env_from") for name in spec.env_from)):
        if not _VARIABLE.fullmatch(key):
            raise table.wrong(value, f"{key!r} is no name of an environment variable")
    if spec.token_env and not _VARIABLE.fullmatch(spec.token_env):
        raise table.wrong("token_env", "must be the name of an environment variable, not the token itself")
    for header, value in spec.headers.items():
        if not _HEADER.fullmatch(header) or header.lower() in ("authorization", "host", "cookie"):
            raise table.wrong("headers", f"{header!r} cannot be set here (a token goes by token_env)")
        if any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise table.wrong("headers", f"the value of {header!r} holds a control character")
    if spec.url:
        _check_url(spec, table)
    elif spec.token_env or spec.headers:
        raise table.wrong("token_env" if spec.token_env else "headers", "is for servers with a url")
    for directory in spec.read:
        if not os.path.isabs(directory):
            raise table.wrong("read", f"{directory!r} must be an absolute path")


def _check_url(spec: ServerSpec, table: "_Table") -> None:
    parts = urlsplit(spec.url)
    loopback = parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme != "https" and not (parts.scheme == "http" and loopback):
        raise table.wrong("url", "must be https:// (http:// is for 127.0.0.1 and localhost)")
    if parts.username or parts.password:
        raise table.wrong("url", "holds credentials; give a token by token_env")
    if parts.fragment or not parts.hostname:
        raise table.wrong("url", "must name a host and have no fragment")
    for key, given in (("env", spec.env), ("env_from", spec.env_from), ("read", spec.read), ("cwd", spec.cwd)):
        if given:
            raise table.wrong(key, "is for servers with a command")


def _override(table: "_Table") -> ToolOverride:
    risk = table.word("risk", tuple(RiskLevel), "")
    replay = table.word("replay", tuple(Replay), "")
    found = ToolOverride(
        risk=RiskLevel(risk) if risk else None,
        replay=Replay(replay) if replay else None,
        replay_key=table.text("replay_key") or None,
        timeout=table.seconds("timeout"),
        path_args=tuple(table.texts("path_args")),
    )
    table.finish()
    if found.replay_key is not None and found.replay is not Replay.SAFE:
        raise table.wrong("replay_key", "needs replay = 'safe'")
    return found


def _substituted(text: str, workspace: str | None, table: "_Table") -> str:
    if "{workspace}" not in text:
        return text
    if workspace is None:
        raise table.wrong("", "names {workspace}, but no workspace was given")
    return text.replace("{workspace}", os.path.realpath(workspace))


class _Table:
    """One TOML table, read key by key; what was never asked for is unknown and refused by :meth:`finish`."""

    def __init__(self, values: Mapping[str, Any], path: str, file: str) -> None:
        self._values = values
        self._path = path
        self._file = file
        self._asked: set[str] = set()

    def wrong(self, key: str, why: str) -> CatalogError:
        place = ".".join(part for part in (self._path, key) if part)
        return CatalogError(f"{place}: {why}" if place else why, file=self._file)

    def has(self, key: str) -> bool:
        return key in self._values

    def finish(self) -> None:
        for key in self._values:
            if key not in self._asked:
                raise self.wrong(key, f"is unknown; known here: {', '.join(sorted(self._asked))}")

    def _get(self, key: str, kind: type[Any], default: Any, what: str) -> Any:
        self._asked.add(key)
        value = self._values.get(key, default)
        if type(value) is not kind:
            raise self.wrong(key, f"must be {what}")
        return value

    def text(self, key: str) -> str:
        return self._plain(key, self._get(key, str, "", "a string"))

    def flag(self, key: str) -> bool:
        return self._get(key, bool, default=False, what="true or false")

    def texts(self, key: str) -> list[str]:
        found = cast("list[Any]", self._get(key, list, [], "a list of strings"))
        return [self._plain(key, self._string(key, item)) for item in found]

    def text_map(self, key: str) -> dict[str, str]:
        found = cast("dict[str, Any]", self._get(key, dict, {}, "a table of strings"))
        return {name: self._plain(key, self._string(key, item)) for name, item in found.items()}

    def table(self, key: str) -> dict[str, Any]:
        return self._get(key, dict, {}, "a table")

    def sub(self, key: str) -> "_Table":
        return _Table(self.table(key), ".".join(part for part in (self._path, key) if part), self._file)

    def word(self, key: str, allowed: Sequence[str], default: str) -> str:
        value = self.text(key) or default
        if value and value not in allowed:
            raise self.wrong(key, f"must be one of: {', '.join(allowed)}")
        return value

    def seconds(self, key: str) -> float | None:
        given = self._number(key, require_seconds)
        return None if given is None else float(given)

    def count(self, key: str, *, most: int = MOST) -> int | None:
        return self._number(key, functools.partial(require_whole, most=most))

    def _number(self, key: str, require: Callable[..., None]) -> Any:
        self._asked.add(key)
        value = self._values.get(key)
        if value is not None:
            place = ".".join(part for part in (self._path, key) if part)
            require(place, value, refusal=functools.partial(CatalogError, file=self._file))
        return value

    def _string(self, key: str, value: Any) -> str:
        if type(value) is not str:
            raise self.wrong(key, "must hold strings only")
        return value

    def _plain(self, key: str, value: str) -> str:
        if "\0" in value:
            raise self.wrong(key, "holds a NUL character")
        return value
