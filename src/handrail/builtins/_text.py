"""What the file tools share: names as people read them, text files as streams, one sentence for each trouble."""

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from typing import Any

from handrail.errors import ToolError
from handrail.tool import Job, Signal
from handrail.workspace import Workspace

CHUNK = 262_144
LOOK_BYTES = 8192  # a NUL byte among the first of these makes a file binary, as git decides it


def workspace_of(job: Job) -> Workspace:
    """The workspace of a job. Raises :class:`ToolError` where the executor has none."""
    if job.workspace is None:
        raise ToolError("This executor has no workspace, so there are no files.")
    return job.workspace


def shown(path: bytes) -> str:
    """A path as text that is always valid Unicode; bytes that are not UTF-8 are written as ``\\xff``."""
    return path.decode("utf-8", "backslashreplace")


def shown_argument(workspace: Workspace, path: str) -> str:
    """A guarded path argument relative to the workspace, for messages."""
    return shown(workspace.relative(path))


def go_on(signal: Signal) -> None:
    """Stop where nobody wants the result any more."""
    if signal.is_set():
        raise ToolError(f"Stopped: {signal.reason}.")


@contextmanager
def explained(name: str) -> Generator[None]:
    """Turn what the system says about a file into one sentence for the model."""
    try:
        yield
    except FileNotFoundError:
        raise ToolError(f"{name} does not exist.") from None
    except NotADirectoryError:
        raise ToolError(f"{name}: a part of this path is a file, not a directory.") from None
    except PermissionError:
        raise ToolError(f"{name}: permission denied.") from None
    except OSError as error:
        raise ToolError(f"{name}: {error.strerror}.") from None


@contextmanager
def opened(workspace: Workspace, path: Any, name: str, *, instead: str) -> Generator[BufferedReader]:
    """A regular file as a stream. ``instead`` says what to do when it is a directory."""
    with explained(name):
        fd = workspace.open(path)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise ToolError(f"{name} is a directory; {instead}.")
    with stream_of(fd) as file:
        yield file


def stream_of(fd: int) -> BufferedReader:
    """A buffered stream that owns ``fd``."""
    return BufferedReader(FileIO(fd), CHUNK)


def refuse_binary(raw: bytes, name: str, size: int) -> None:
    """Raise :class:`ToolError` when ``raw`` holds a NUL byte, which no text does."""
    if b"\0" in raw:
        raise ToolError(f"{name} is a binary file ({size} bytes), and this tool works on UTF-8 text only.")


def as_text(raw: bytes, name: str) -> str:
    """``raw`` as UTF-8. Raises :class:`ToolError` with a sentence when it is not."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ToolError(f"{name} is not UTF-8 text, and this tool works on UTF-8 text only.") from None


def plural(count: int, word: str, many: str = "") -> str:
    """``1 line``, ``2 lines``; ``many`` where it is not the word with an ``s``."""
    return f"{count} {word}" if count == 1 else f"{count} {many or word + 's'}"


def clipped(text: str, most: int) -> str:
    """``text``, or its first ``most`` characters."""
    return text if len(text) <= most else text[:most] + "…"
