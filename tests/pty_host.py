"""Starts programs, each at a terminal of its own, from one process that has imported already what they need.

``pty_host.py SOCKET MODULE…``: imports the modules, says so with one byte, then takes requests from the inherited
socket: JSON with ``words``, ``environment`` and ``target`` (``module:function``, run in a fork of this process; empty:
``words`` are executed), and two descriptors with it: the terminal, and a pipe that is told the program's process id
and, at its end, its status.
"""

import fcntl
import importlib
import json
import os
import signal
import socket
import sys
import termios
import traceback
from typing import Any, NoReturn


def main() -> None:
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    requests.send(b"!")  # ready
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the minders
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 2)
        if not data:
            return
        if os.fork() == 0:
            requests.close()
            mind(json.loads(data), *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def mind(request: dict[str, Any], terminal: int, report: int) -> NoReturn:
    """Start the program, say which process it is, and how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        os.close(report)
        become(request, terminal)
    os.close(terminal)
    os.write(report, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(report, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)


def become(request: dict[str, Any], terminal: int) -> NoReturn:
    """The program itself, as the first process of its terminal."""
    status = 1
    try:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for descriptor in (0, 1, 2):
            os.dup2(terminal, descriptor)
        os.close(terminal)
        words: list[str] = request["words"]
        if not request["target"]:
            os.execvpe(words[0], words, request["environment"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = words
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, closefd=False)
        module, _, function = request["target"].partition(":")
        getattr(importlib.import_module(module), function)()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


main()
