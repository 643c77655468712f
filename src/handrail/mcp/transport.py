"""Pipes and HTTP as the protocol library wants them, with :mod:`handrail.mcp.wire` between the server and the library.

A transport is an async context manager that yields (read stream, write stream) of the library's messages. Whatever
comes in has passed an :class:`~handrail.mcp.wire.Intake`; whatever goes out was noted by it.
"""

import json
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import httpx2
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from handrail.mcp.direct import DirectCalls
from handrail.mcp.launch import Launched
from handrail.mcp.pipes import CHUNK, LineReader, LineWriter, TooLong
from handrail.mcp.wire import EDGE_BYTES, Intake, Message, Unplaceable

log = logging.getLogger("handrail.mcp")

STDERR_KEPT = 8192
EXIT_GRACE_S = 2.0
LAST_WORDS_S = 0.5
USER_AGENT = "handrail"
SESSION = "mcp-session-id"
GONE = 404

ReadStream = MemoryObjectReceiveStream[SessionMessage | Exception]
WriteStream = MemoryObjectSendStream[SessionMessage]
Streams = tuple[ReadStream, WriteStream]


def encoded(message: SessionMessage) -> bytes:
    """One message as a line of JSON."""
    return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


@asynccontextmanager
async def pipe_transport(
    launched: Launched, intake: Intake, direct: DirectCalls, *, on_end: Callable[[str], None]
) -> AsyncGenerator[Streams, None]:
    """Speak with a started server over its pipes; ends it on the way out.

    ``on_end`` is called with a reason when the server's side ends before ours, and again when its last words are known.
    Answers to calls of ``direct`` go there.
    """
    to_us, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    write_stream, from_us = anyio.create_memory_object_stream[SessionMessage](0)
    errors = _Stderr(launched.stderr)
    writer = LineWriter(launched.stdin)
    direct.begin(writer, intake)

    async def read() -> None:
        """Whoever waits learns of the end after ``on_end`` did, so that a next call opens a new connection."""
        try:
            async with to_us:
                why = await _read_server(launched, intake, direct, to_us)
                on_end(why)
                with anyio.move_on_after(LAST_WORDS_S, shield=True):
                    await errors.ended.wait()
                on_end(why + errors.quoted())
        finally:
            direct.end()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(_write_server, launched, intake, direct, writer, from_us)
        tasks.start_soon(errors.drain)
        try:
            yield read_stream, write_stream
        finally:
            with anyio.CancelScope(shield=True):
                await _end(launched, write_stream, read_stream)
            tasks.cancel_scope.cancel()
    for fd in (launched.stdout, launched.stderr):
        os.close(fd)


async def _end(launched: Launched, write_stream: WriteStream, read_stream: ReadStream) -> None:
    """Close its stdin, give it a moment, then kill it: in the order the protocol asks for."""
    read_stream.close()
    write_stream.close()
    with anyio.move_on_after(EXIT_GRACE_S):
        await launched.wait()
        return
    launched.kill()
    await launched.wait()


async def _read_server(
    launched: Launched, intake: Intake, direct: DirectCalls, to_us: MemoryObjectSendStream[SessionMessage | Exception]
) -> str:
    """Pass on what the server says until it ends; the reason why it did."""
    reader = LineReader(launched.stdout, intake.max_bytes)
    try:
        while (line := await reader.line()) is not None:
            if isinstance(line, bytes) and line.lstrip()[:1] != b"{":
                log.info("an MCP server printed something that is no message; it was dropped")
                continue
            message = intake.too_large(line.head, line.tail, line.size) if isinstance(line, TooLong) else None
            message = intake.read(line, cut=reader.ended) if isinstance(line, bytes) else message
            if message is None or direct.takes(message):
                continue
            if (parsed := _for_library(message)) is not None:
                await to_us.send(parsed)
        return "the server closed its output"
    except Unplaceable as error:
        launched.kill()
        return f"the server sent a message that cannot be read: {error}"
    except (anyio.ClosedResourceError, anyio.BrokenResourceError):
        reader.close()
        await _drain(launched.stdout)  # so that a server stuck in a write can see its end
        return "the connection was closed"
    except OSError as error:
        return f"the server's output cannot be read: {error.strerror}"
    finally:
        reader.close()


async def _drain(fd: int) -> None:
    try:
        while True:
            await anyio.wait_readable(fd)
            if not os.read(fd, CHUNK):
                return
    except OSError:
        return


async def _write_server(
    launched: Launched,
    intake: Intake,
    direct: DirectCalls,
    writer: LineWriter,
    from_us: MemoryObjectReceiveStream[SessionMessage],
) -> None:
    try:
        async with from_us:
            async for item in from_us:
                fields = _fields(item)
                intake.sent(fields)
                direct.learn(fields)
                await writer.write(encoded(item))
    except OSError:
        launched.kill()  # it reads no more: end it, so that what waits for its answers learns of it
    finally:
        writer.close()


def _fields(item: SessionMessage) -> Mapping[str, Any]:
    message = item.message
    if isinstance(message, types.JSONRPCRequest):
        return {"method": message.method, "id": message.id, "params": message.params}
    if isinstance(message, types.JSONRPCNotification):
        return {"method": message.method, "params": message.params}
    return {}


def _for_library(message: Message) -> SessionMessage | None:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(message, by_name=False))
    except ValidationError:
        log.warning("an MCP server sent something that is no JSON-RPC message; it was dropped")
        return None


class _Stderr:
    """Keeps the last words of a server, for the person who asks why it died."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._kept = bytearray()
        self.ended = anyio.Event()

    async def drain(self) -> None:
        while True:
            await anyio.wait_readable(self._fd)
            data = os.read(self._fd, CHUNK)
            if not data:
                self.ended.set()
                return
            self._kept += data
            del self._kept[:-STDERR_KEPT]

    def quoted(self) -> str:
        lines = self._kept.decode("utf-8", "replace").strip().splitlines()
        return f"; its last words: {' | '.join(lines[-3:])!r}" if lines else ""


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def http_transport(
    url: str, intake: Intake, *, headers: Mapping[str, str], connect_timeout: float, on_gone: Callable[[], None]
) -> AsyncGenerator[Streams, None]:
    """Speak Streamable HTTP. Nothing of our environment (proxies, netrc) steers where a token goes.

    ``on_gone`` is called when the server does not know our session any more.
    """
    client = httpx2.AsyncClient(
        headers={"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers},
        timeout=httpx2.Timeout(connect_timeout, read=None),
        follow_redirects=False,
        trust_env=False,
        transport=_ReadTransport(intake, on_gone),
    )
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=2 * intake.max_bytes) as (theirs, sink),
    ):
        write_stream, from_us = anyio.create_memory_object_stream[SessionMessage](0)

        async def forward() -> None:
            async with from_us, sink:
                async for item in from_us:
                    intake.sent(_fields(item))
                    await sink.send(item)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(forward)
            try:
                yield theirs, write_stream  # type: ignore[misc] # the library's own stream has the same methods
            finally:
                write_stream.close()
                tasks.cancel_scope.cancel()


class _ReadTransport(httpx2.AsyncHTTPTransport):
    """HTTP whose bodies pass the intake before the library parses them, and are bounded.

    The library would send a request again to where the same host redirects it; a call is sent once, so no redirect is
    seen as one.
    """

    def __init__(self, intake: Intake, on_gone: Callable[[], None]) -> None:
        super().__init__(verify=True, trust_env=False, retries=0)
        self._intake = intake
        self._on_gone = on_gone

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if response.status_code == GONE and SESSION in request.headers:
            self._on_gone()
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the server encoded its answer, which was not asked for", request=request)
        body = response.stream
        assert isinstance(body, httpx2.AsyncByteStream)
        if kind == "text/event-stream":
            stream: httpx2.AsyncByteStream = _Events(body, self._intake, _identity(request))
        else:
            stream = _Body(body, self._intake)
        kept = [pair for pair in response.headers.raw if pair[0].lower() not in (b"content-length", b"location")]
        return httpx2.Response(response.status_code, headers=kept, stream=stream, extensions=response.extensions)


def _identity(request: httpx2.Request) -> Any:
    """The id of the JSON-RPC request that the library posts; ``None`` where it posts no request."""
    if request.method != "POST":
        return None
    message = cast("Message", json.loads(request.content))  # ours: one message, never a batch
    return message.get("id") if "method" in message else None


class _Body(httpx2.AsyncByteStream):
    """One JSON body, read whole within the bound."""

    def __init__(self, inner: httpx2.AsyncByteStream, intake: Intake) -> None:
        self._inner = inner
        self._intake = intake

    async def __aiter__(self) -> AsyncIterator[bytes]:
        data, size = bytearray(), 0
        head = b""
        async for chunk in self._inner:
            size += len(chunk)
            data += chunk
            if size > self._intake.max_bytes:
                head = head or bytes(data[:EDGE_BYTES])
                del data[:-EDGE_BYTES]
        yield _through(self._intake, bytes(data), head, size)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Events(httpx2.AsyncByteStream):
    """A stream of server-sent events, each event's data read as one message.

    ``request_id``: the request that it answers; once that waits no more, nobody has to read what else comes.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, intake: Intake, request_id: Any) -> None:
        self._inner = inner
        self._intake = intake
        self._request_id = request_id

    async def __aiter__(self) -> AsyncIterator[bytes]:
        data: list[bytes] = []
        held = 0
        async for line in self._lines():
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
                held += len(line)
                if held > self._intake.max_bytes:
                    raise httpx2.ReadError(f"one event has more than {self._intake.max_bytes} bytes")
                continue
            if not line and data:
                whole, data, held = b"\n".join(data), [], 0
                read = _through(self._intake, whole, b"", len(whole)) if whole.strip() else whole
                if read or not whole.strip():
                    yield b"data: " + read + b"\n"
            yield line + b"\n"

    async def _lines(self) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._inner:
            if self._request_id is not None and not self._intake.waits_for(self._request_id):
                return
            parts = (rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
            rest = parts.pop()
            if len(rest) > self._intake.max_bytes:
                raise httpx2.ReadError(f"one event has more than {self._intake.max_bytes} bytes")
            for line in parts:
                yield line.rstrip(b"\r")
        if rest:
            yield rest

    async def aclose(self) -> None:
        await self._inner.aclose()


def _through(intake: Intake, whole: bytes, head: bytes, size: int) -> bytes:
    """The message as the library may read it; empty when there is nothing to read."""
    if not whole.strip():
        return whole
    try:
        message = intake.too_large(head, whole, size) if head else intake.read(whole)
    except Unplaceable as error:
        raise httpx2.ReadError(f"the server's answer cannot be read: {error}") from None
    return b"" if message is None else _dumped(message)


def _dumped(message: Message) -> bytes:
    return types.jsonrpc_message_adapter.dump_json(
        types.jsonrpc_message_adapter.validate_python(message, by_name=False), by_alias=True, exclude_unset=True
    )
