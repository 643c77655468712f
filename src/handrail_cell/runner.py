"""What a cell runs once the walls stand: a tool's Python, or a program under a small init.

Results are left in the result memory, a shared mapping without a descriptor. They are data for the host, never a
status: how the call ended is what the kernel says of this process.
"""

import builtins
import contextlib
import errno
import functools
import io
import json
import linecache
import marshal
import os
import signal
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

from handrail_cell import _libc, frames

ENDING = (signal.SIGTERM, signal.SIGHUP)
EMPTY_INPUT = (b"", b"null")


class ResultMemory:
    """The mapping that outlives this process for the host to read."""

    __slots__ = ("_address",)

    def __init__(self, descriptor: int | None) -> None:
        """Map the host's memory; with ``None``, memory that nobody reads."""
        self._address = _libc.map_shared(descriptor, frames.RESULT_BYTES)

    def clear(self) -> None:
        """Leave nothing, as at first."""
        _libc.store(self._address, bytes(frames.RESULT.size))

    def leave(self, kind: int, body: bytes) -> None:
        """Leave one result. What does not fit is not left at all."""
        room = frames.RESULT_BYTES - frames.RESULT.size
        if len(body) > room:
            kind, body = frames.ERROR, error_body("ValueError", f"result is larger than {room} bytes\n", None)
        _libc.store(self._address + frames.RESULT.size, body)
        _libc.store(self._address, frames.RESULT.pack(kind, len(body)))


def open_streams() -> None:
    """Text streams on descriptors 1 and 2 that pass each line on at once, so that the two keep their order."""
    for fd, name in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(fd, "wb", closefd=False)
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)), encoding="utf-8")


def run_inline(source: bytes, compiled: bytes, input_json: bytes, filename: str, results: ResultMemory) -> int:
    """Run a tool's Python as ``__main__``. Returns the exit status a script of it would have had.

    ``compiled`` is what :func:`compile_inline` left in an earlier cell, or nothing.
    """
    module = types.ModuleType("__main__")
    module.__dict__.update(__builtins__=builtins, __file__=filename, input_data=None)
    sys.modules["__main__"] = module
    sys.argv = [filename]
    status = 0
    try:
        text = source.decode("utf-8")
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        module.__dict__["input_data"] = None if input_json in EMPTY_INPUT else json.loads(input_json)
        code = marshal.loads(compiled) if compiled else compile(text, filename, "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except SystemExit as leaving:
        status = _exit_status(leaving.code)
    except BaseException as error:
        _leave_error(error, results)
        status = 1
    _join_threads()
    if status == 0:
        status = _leave_value(module.__dict__, results)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # the code may have put anything there
            pass
    return status


def compile_inline(source: bytes, filename: str, results: ResultMemory) -> int:
    """Compile a tool's Python, run nothing of it, and leave the code for later cells. Returns an exit status.

    Nothing is left of what the compiler warns about or refuses: each call is to hear that itself.
    """
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        code = compile(source.decode("utf-8"), filename, "exec", dont_inherit=True)
    if not heard:
        results.leave(frames.CODE, marshal.dumps(code))
    return 0


def _exit_status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stderr.write(f"{code}\n")
    return 1


def _join_threads() -> None:
    """Wait for the threads that a script would have waited for; the host's clock bounds it."""
    threading: Any = sys.modules.get("threading")
    if threading is not None:
        with contextlib.suppress(BaseException):
            threading._shutdown()


def _leave_value(names: dict[str, Any], results: ResultMemory) -> int:
    if "result" not in names:
        return 0
    try:
        body = json.dumps(names["result"], ensure_ascii=False, allow_nan=False).encode("utf-8")
    except BaseException as error:
        text = f"`result` is not JSON: {type(error).__name__}: {error}\n"
        results.leave(frames.ERROR, error_body(type(error).__name__, text, None))
        return 1
    results.leave(frames.VALUE, body)
    return 0


def _leave_error(error: BaseException, results: ResultMemory) -> None:
    """The traceback, from the tool's first line on: the frames of this file are not the tool's business."""
    number = getattr(error, "errno", None)
    try:
        ours = error.__traceback__.tb_next if error.__traceback__ else None
        text = "".join(traceback.format_exception(type(error), error, ours, limit=40))
    except BaseException:  # no memory left to format it, or the error's own methods fail
        text = f"{type(error).__name__}\n"
    text = text.encode("utf-8", "backslashreplace")[: frames.TRACEBACK_BYTES].decode("utf-8", "ignore")
    results.leave(frames.ERROR, error_body(type(error).__name__, text, number if isinstance(number, int) else None))


def error_body(kind: str, text: str, number: int | None) -> bytes:
    return json.dumps({"type": kind, "traceback": text, "errno": number}).encode()


def run_program(argv: list[str], environment: dict[str, str], results: ResultMemory) -> int:
    """Run a program as this PID namespace's init: start it, reap whatever is orphaned, end when it ends.

    Ending takes everything that is left in the namespace along. The program's own wait status is left as the result:
    init cannot be traced, signalled or written to from inside.
    """
    child = os.fork()
    if child == 0:
        _become(argv, environment)
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except InterruptedError:
            continue
        if pid == child:
            break
    results.leave(frames.STATUS, status.to_bytes(4, "little"))
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def hear_signals(*more: signal.Signals) -> None:
    """What the warm parent ignores is heard again: a program would hand an ignored signal on to all it starts."""
    for number in (*ENDING, *more):
        signal.signal(number, signal.SIG_DFL)


def _become(argv: list[str], environment: dict[str, str]) -> None:
    try:
        hear_signals(signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if error.errno == errno.ENOENT else 126)
    finally:
        os._exit(126)


def stale_after_fork() -> list[Callable[[], object]]:
    """What gives every random source that this warm parent has touched a state of its own, to be called in each cell.

    ``random`` is seeded again by its own fork hook; these have none that hears a raw ``clone``.
    """
    refreshing: dict[str, Callable[[Any], object]] = {
        "numpy.random": lambda module: module.seed(),
        "_ssl": lambda module: module.RAND_add(os.urandom(32), 32.0),
        "tempfile": lambda module: setattr(module, "_name_sequence", None),
        "uuid": lambda module: setattr(module, "_last_timestamp", None),
    }
    return [
        functools.partial(refresh, sys.modules[name]) for name, refresh in refreshing.items() if name in sys.modules
    ]
