"""The HTTP door of our server: loopback only, and nobody gets as far as a request without host, origin and token.

A web page can make a browser send requests to this machine. Three checks, in this order, before anything is parsed:

1. ``Host`` names this door itself (a rebound DNS name does not): else 403.
2. ``Origin``, where there is one, is this door's own: else 403.
3. ``Authorization: Bearer`` carries the token (compared in constant time): else 401.
"""

import hmac
import secrets
import socket
from collections.abc import Iterable

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from handrail.mcp.server import CorridorServer

PATH = "/mcp"
LOOPBACK = "127.0.0.1"
# A request that meets a connection just as the server closes it for being idle is lost (a reset at the client). So the
# server waits longer than clients keep idle connections (at most 90 s), and an agent thinks for minutes between calls.
KEEP_ALIVE_S = 300


def new_token() -> str:
    """A token nobody can guess."""
    return secrets.token_urlsafe(32)


def listening(port: int) -> socket.socket:
    """A loopback socket; port 0 takes a free one."""
    return socket.create_server((LOOPBACK, port), backlog=128)


def guarded_app(door: CorridorServer, *, token: str, port: int) -> ASGIApp:
    """The server's ASGI application behind the three checks."""
    hosts = [f"{name}:{port}" for name in (LOOPBACK, "localhost", "[::1]")]
    inner = door.server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=hosts,
            allowed_origins=[f"http://{host}" for host in hosts],
        ),
    )
    return Guarded(inner, token=token, hosts=hosts)


async def serve_http(door: CorridorServer, *, token: str, bound: socket.socket) -> None:
    """Serve until the process is told to end."""
    app = guarded_app(door, token=token, port=bound.getsockname()[1])
    config = uvicorn.Config(
        app,
        http=Connection,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    await uvicorn.Server(config).serve(sockets=[bound])


class Connection(H11Protocol):
    """One connection, of which nothing is left when it is over.

    The library lets the idle timer of a connection that the client reset run on, and the timer keeps the connection:
    many clients that leave early would fill the memory for ``KEEP_ALIVE_S``.
    """

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is over, in whatever way."""
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None


class Guarded:
    """An ASGI application in front of which the three checks stand."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        if scope["type"] == "http":
            refusal = self.refusal(scope["headers"])
            if refusal is not None:
                status, why = refusal
                headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
                await PlainTextResponse(why, status, headers)(scope, receive, send)
                return
        elif scope["type"] != "lifespan":
            return
        await self._app(scope, receive, send)

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """The status and reason of a refusal, or ``None``. Pure. A header given twice counts as wrong."""
        found = {name: [value for key, value in headers if key.lower() == name] for name in _READ}
        if len(found[b"host"]) != 1 or _text(found[b"host"][0]) not in self._hosts:
            return 403, "This host name is not served here."
        origins = found[b"origin"]
        if len(origins) > 1 or any(_text(origin).removeprefix("http://") not in self._hosts for origin in origins):
            return 403, "This origin is not served here."
        given = found[b"authorization"]
        kind, _, token = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        if kind.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            return 401, "A bearer token is needed."
        return None


_READ = (b"host", b"origin", b"authorization")


def _text(raw: bytes) -> str:
    return raw.decode("latin-1").strip().lower()
