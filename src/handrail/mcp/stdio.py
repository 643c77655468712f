"""Our side of a stdio connection: strict lines in, and answers out, on plain descriptors without worker threads."""

import os
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import anyio
import mcp_types as types
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from handrail.mcp.transport import LineReader, ReadStream, TooLong, WriteStream, encoded, write_all
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


@asynccontextmanager
async def server_streams(read_fd: int, write_fd: int) -> AsyncGenerator[tuple[ReadStream, WriteStream]]:
    """The streams that the library's server runs on."""
    to_server, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    write_stream, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    writing = anyio.Lock()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_read_client, read_fd, write_fd, to_server, writing)
        tasks.start_soon(_write_client, write_fd, from_server, writing)
        yield read_stream, write_stream
        tasks.cancel_scope.cancel()


async def _read_client(
    read_fd: int, write_fd: int, to_server: MemoryObjectSendStream[SessionMessage | Exception], writing: anyio.Lock
) -> None:
    reader = LineReader(read_fd, MAX_REQUEST_BYTES)
    async with to_server:
        while (line := await reader.line()) is not None:
            try:
                await to_server.send(_parsed(line))
            except _Refused as refused:
                async with writing:
                    await write_all(write_fd, refused.answer)


async def _write_client(
    write_fd: int, from_server: MemoryObjectReceiveStream[SessionMessage], writing: anyio.Lock
) -> None:
    async with from_server:
        async for item in from_server:
            async with writing:
                await write_all(write_fd, encoded(item))


class _Refused(Exception):
    def __init__(self, identity: int | str | None, code: int, why: str) -> None:
        error = types.ErrorData(code=code, message=why)
        answer = types.JSONRPCError(jsonrpc="2.0", id=identity, error=error)
        self.answer = answer.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _parsed(line: bytes | TooLong) -> SessionMessage:
    """One request. Text that two readers could read differently is answered with an error and never reaches a tool."""
    if isinstance(line, TooLong):
        raise _Refused(None, types.INVALID_REQUEST, f"a message may have at most {MAX_REQUEST_BYTES} bytes")
    try:
        message = decode_json(line, max_bytes=MAX_REQUEST_BYTES)
    except ArgumentsInvalid as error:
        raise _Refused(_identity(line), types.PARSE_ERROR, str(error)) from None
    try:
        return SessionMessage(types.jsonrpc_message_adapter.validate_python(message, by_name=False))
    except ValidationError:
        raise _Refused(_identity(line), types.INVALID_REQUEST, "this is no JSON-RPC message") from None


def _identity(line: bytes) -> int | str | None:
    try:
        found = decode_json(dict(members(line.decode("utf-8", "replace"))).get("id", "null"))
    except ArgumentsInvalid:
        return None
    return found if type(found) in (int, str) else None
