"""Our side of a stdio connection: strict lines in, and answers out, on plain descriptors without worker threads."""

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, cast

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from handrail.mcp.pipes import LineReader, LineWriter, TooLong
from handrail.mcp.transport import ReadStream, WriteStream, encoded
from handrail.mcp.wire import members
from handrail.schema import ArgumentsInvalid, decode_json

MAX_REQUEST_BYTES = 4 * 1024 * 1024


@contextmanager
def claimed_stdio() -> Generator[tuple[int, int]]:
    """Our own descriptors of standard input and output; whatever else prints meanwhile goes to standard error."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    try:
        yield read_fd, write_fd
    finally:
        os.dup2(read_fd, 0)
        os.dup2(write_fd, 1)
        os.close(read_fd)
        os.close(write_fd)


Steps = Callable[[], Awaitable[bytes | None]]


class Shortcut(Protocol):
    """Answers some requests without the library."""

    def take(self, message: dict[str, Any]) -> Steps | None:
        """The steps that lead to the answer's line (``None``: none is due), or ``None`` to leave it to the library."""
        ...


@asynccontextmanager
async def server_streams(
    read_fd: int, write_fd: int, shortcut: Shortcut | None = None
) -> AsyncGenerator[tuple[ReadStream, WriteStream]]:
    """The streams that the library's server runs on. What ``shortcut`` takes never gets there."""
    to_server, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    write_stream, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    writer = LineWriter(os.dup(write_fd))
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_read_client, read_fd, writer, to_server, shortcut)
            tasks.start_soon(_write_client, writer, from_server)
            yield read_stream, write_stream
            tasks.cancel_scope.cancel()
    finally:
        writer.close()


async def _read_client(
    read_fd: int,
    writer: LineWriter,
    to_server: MemoryObjectSendStream[SessionMessage | Exception],
    shortcut: Shortcut | None,
) -> None:
    reader = LineReader(read_fd, MAX_REQUEST_BYTES)
    try:
        async with to_server, anyio.create_task_group() as tasks:
            while (line := await reader.line()) is not None:
                try:
                    message = _decoded(line)
                    steps = _steps(shortcut, message)
                    if steps is None:
                        await to_server.send(_for_library(message))
                    else:
                        tasks.start_soon(_answer, steps, writer)
                except _Refused as refused:
                    await writer.write(refused.answer)
            tasks.cancel_scope.cancel()  # the client left: nobody reads the answers
    finally:
        reader.close()


def _steps(shortcut: Shortcut | None, message: Any) -> Steps | None:
    if shortcut is None or not isinstance(message, dict):
        return None
    return shortcut.take(cast("dict[str, Any]", message))


async def _answer(steps: Steps, writer: LineWriter) -> None:
    answer = await steps()
    if answer is not None:
        await writer.write(answer)


async def _write_client(writer: LineWriter, from_server: MemoryObjectReceiveStream[SessionMessage]) -> None:
    async with from_server:
        async for item in from_server:
            await writer.write(encoded(item))


class _Refused(Exception):
    def __init__(self, identity: int | str | None, code: int, why: str) -> None:
        error = types.ErrorData(code=code, message=why)
        answer = types.JSONRPCError(jsonrpc="2.0", id=identity, error=error)
        self.answer = answer.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _decoded(line: bytes | TooLong) -> Any:
    """One request. Text that two readers could read differently is answered with an error and never reaches a tool."""
    if isinstance(line, TooLong):
        raise _Refused(None, types.INVALID_REQUEST, f"a message may have at most {MAX_REQUEST_BYTES} bytes")
    try:
        return decode_json(line, max_bytes=MAX_REQUEST_BYTES)
    except ArgumentsInvalid as error:
        raise _Refused(_identity(line), types.PARSE_ERROR, str(error)) from None


def _for_library(message: Any) -> SessionMessage:
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(message, by_name=False))
    except ValidationError:
        identity = cast("dict[str, Any]", message).get("id") if isinstance(message, dict) else None
        known = identity if isinstance(identity, (int, str)) and not isinstance(identity, bool) else None
        raise _Refused(known, types.INVALID_REQUEST, "this is no JSON-RPC message") from None


def _identity(line: bytes) -> int | str | None:
    try:
        found = decode_json(dict(members(line.decode("utf-8", "replace"))).get("id", "null"))
    except ArgumentsInvalid:
        return None
    return found if type(found) in (int, str) else None
