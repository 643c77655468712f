"""Host side of the warm parents: start one, park cells in it, ask its keeper for workspace mounts.

The host never forks itself: a zygote is executed by ``subprocess`` and everything after that travels over sockets.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Any

import handrail_cell
from handrail.errors import SandboxError, SandboxUnavailable
from handrail.sandbox.pool import Target
from handrail_cell import frames
from handrail_cell.namespaces import TOPS
from handrail_cell.wire import Tier

START_SECONDS = 30.0
SCRATCH = "/tmp"  # noqa: S108 - the cell's own, an empty tmpfs
PRELOAD_SECONDS = 300.0  # importing a large library for the first time, on a busy machine
MOUNTS_AT_ONCE = 4
WORKSPACES_KEPT = 8
THREAD_LIMITS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class ZygoteKey:
    """What makes one warm parent different from another."""

    tier: Tier = "full"
    network: bool = False
    preload: tuple[str, ...] = ()
    read_only_dirs: tuple[str, ...] = ()
    tops: tuple[str, ...] = ()
    sealed: bool = False
    """All walls of its cells stand before they wait: for calls without a workspace that start no program."""


def interpreter() -> str:
    """The real interpreter behind a virtual environment's."""
    return getattr(sys, "_base_executable", None) or sys.executable


def library_roots(extra: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    """``(path, real path)`` of the directories that the interpreter and its libraries live in."""
    paths = [sys.base_prefix, sys.base_exec_prefix, sys.prefix, sysconfig.get_path("stdlib"), *library_path(), *extra]
    paths.append(os.path.dirname(os.path.dirname(os.path.realpath(interpreter()))))
    if any(os.path.realpath(path).startswith("/nix/store/") for path in paths):
        paths.append("/nix/store")
    pairs = {(os.path.normpath(path), os.path.realpath(path)) for path in paths if os.path.isdir(path)}
    return sorted(pair for pair in pairs if pair[1] != "/" and not pair[1].startswith(("/usr/", "/proc/", "/dev/")))


def library_path() -> list[str]:
    """Where installed packages are imported from."""
    found = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return [path for path in found if path and os.path.isdir(path)]


def default_path() -> str:
    """The ``PATH`` of a cell: the environment's and the interpreter's programs, then the system's."""
    own = dict.fromkeys([os.path.join(sys.prefix, "bin"), os.path.join(sys.base_prefix, "bin")])
    return ":".join([*own, "/usr/local/bin", "/usr/bin", "/bin"])


@dataclass(slots=True)
class ParkedCell:
    """The host's ends of one cell that waits for its job, or of one that will be ready soon.

    ``job`` carries the job and then trusted frames; ``output`` is the read end of the cell's output; ``memory``
    holds the result; ``status`` brings the kernel's verdict in the end. With the ready frame come ``pidfd``; ``view``,
    ``scratch`` and ``mounts``: the cell's own ``/proc``, its ``/tmp``, and its mount namespace, held so that taking
    that apart is not waited for; and ``farewell``, where the kernel says that it ends. ``pid`` is its process here.
    """

    job: socket.socket
    output: int
    memory: int
    status: int
    pidfd: int = -1
    pid: int = -1
    view: int = -1
    scratch: int = -1
    mounts: int = -1
    farewell: int = -1
    parked: bytes = b""

    def close(self) -> None:
        """Close every descriptor. The cell, if it still waits, ends by itself."""
        self.job.close()
        for name in ("status", "output", "memory", "pidfd", "view", "scratch", "mounts", "farewell"):
            fd: int = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)

    def stop_listening(self) -> None:
        """Let the cell end without us: whoever is shown to nobody goes on."""
        if self.farewell >= 0:
            os.close(self.farewell)
            self.farewell = -1

    def kill(self) -> None:
        """Kill the cell, and with it, by the kernel, everything it started."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)


class Zygote:
    """One warm parent, and its keeper. Thread-safe."""

    def __init__(self, key: ZygoteKey, target: Target) -> None:
        self.key = key
        self.target = target
        self.running = 0
        self.used = 0.0
        self.dead = False
        self.started = 0
        self.landlock_abi = 0
        self.ready: deque[ParkedCell] = deque()
        self._lock = threading.Lock()
        self._stock: OrderedDict[tuple[str, int, int], list[int]] = OrderedDict()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control = control
        self._errors = os.memfd_create("zygote", os.MFD_CLOEXEC)
        self._scratch_base = ""
        if key.tier == "reduced":
            base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()  # noqa: S108
            self._scratch_base = os.path.join(base, f"handrail-{os.getpid()}-{secrets.token_hex(8)}")
        try:
            self._process = self._execute(theirs)
        finally:
            theirs.close()
        try:
            self._configure()
        except BaseException:
            self.close()
            raise

    def _execute(self, theirs: socket.socket) -> subprocess.Popen[bytes]:
        program = os.path.join(os.path.dirname(os.path.abspath(handrail_cell.__file__)), "start_zygote.py")
        environment = {"LANG": "C.UTF-8", "PATH": "/usr/bin:/bin"} | dict.fromkeys(THREAD_LIMITS, "1")
        environment["LD_BIND_NOW"] = "1"  # no cell looks up the C library's functions again
        return subprocess.Popen(
            [interpreter(), "-I", "-S", "-X", "utf8", program, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            env=environment,
            cwd="/",
            close_fds=True,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )

    def _configure(self) -> None:
        config = {
            "tier": self.key.tier,
            "network": self.key.network,
            "sealed": self.key.sealed,
            "preload": self.key.preload,
            "roots": library_roots(self.key.read_only_dirs),
            "tops": self.key.tops,
            "path": library_path(),
            "scratch_base": self._scratch_base,
            "environment": {
                "HOME": SCRATCH,
                "TMPDIR": SCRATCH,
                "LANG": "C.UTF-8",
                "PATH": default_path(),
                "MALLOC_ARENA_MAX": "2",
            }
            | (dict.fromkeys(THREAD_LIMITS, "1") if self.key.preload else {}),
        }
        alive = os.pidfd_open(os.getpid())
        try:
            socket.send_fds(self._control, [json.dumps(config).encode()], [alive])
        finally:
            os.close(alive)
        _, fds = self._hear(self._control)
        self._zygote = socket.socket(fileno=fds[0])
        answer, _ = self._hear(self._zygote)
        self.ids: tuple[int, int] = tuple(answer["ids"])
        self.landlock_abi = answer["landlock"]

    def _hear(self, link: socket.socket) -> tuple[dict[str, Any], list[int]]:
        patience = PRELOAD_SECONDS if self.key.preload else START_SECONDS
        link.settimeout(patience)
        try:
            data, fds, _, _ = socket.recv_fds(link, 1 << 16, 1)
        except TimeoutError:
            raise SandboxError(f"a zygote did not start within {patience:g} s") from None
        except ConnectionResetError:
            data, fds = b"", []
        finally:
            link.settimeout(None)
        answer: dict[str, Any] = json.loads(data) if data else {"failed": self._last_words()}
        if "failed" in answer:
            raise SandboxUnavailable(f"the cells' warm parent cannot start: {answer['failed']}")
        return answer, fds

    def _last_words(self) -> str:
        text = os.pread(self._errors, 1 << 16, 0).decode("utf-8", "replace").strip()
        return text.splitlines()[-1] if text else "it ended without a word"

    def begin_park(self) -> ParkedCell:
        """Ask for one cell. It may be sent its job at once: it reads it when its walls are ready."""
        job, cell_job = socket.socketpair()
        output, cell_output = os.pipe()
        memory = os.memfd_create("result", os.MFD_CLOEXEC)
        status, cell_status = os.pipe()
        cell = ParkedCell(job, output, memory, status)
        try:
            os.ftruncate(memory, frames.RESULT_BYTES)
            os.set_blocking(output, False)
            request = frames.PARK.pack(frames.PARK_MAGIC)
            given = [cell_job.fileno(), cell_output, memory, cell_status]
            socket.send_fds(self._zygote, [request], given)
        except OSError as error:
            self.dead = True
            cell.close()
            raise SandboxError(f"the cells' warm parent is gone: {error}") from error
        finally:
            cell_job.close()
            os.close(cell_output)
            os.close(cell_status)
        self.started += 1
        return cell

    def take(self) -> ParkedCell:
        """A parked cell, or a new one."""
        try:
            return self.ready.popleft()
        except IndexError:
            self.target.missed(time.monotonic())
            return self.begin_park()

    def mount(self, path: str) -> int:
        """A detached copy of the workspace's mount for one cell to attach. The caller closes it."""
        try:
            directory = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SandboxError(f"the workspace {path} cannot be opened: {error.strerror}") from error
        try:
            status = os.fstat(directory)
            key = (path, status.st_dev, status.st_ino)
            with self._lock:
                stock = self._stock.setdefault(key, [])
                self._stock.move_to_end(key)
                if not stock:
                    stock.extend(self._ask_keeper(directory, path))
                tree = stock.pop()
                self._forget_old_workspaces()
            return tree
        finally:
            os.close(directory)

    def _ask_keeper(self, directory: int, path: str) -> list[int]:
        question = frames.KEEPER_ASK.pack(frames.KEEPER_MAGIC, MOUNTS_AT_ONCE) + os.fsencode(path)
        socket.send_fds(self._control, [question], [directory])
        data, trees, _, _ = socket.recv_fds(self._control, 1 << 16, MOUNTS_AT_ONCE)
        if data != b"ok" or not trees:
            reason = json.loads(data)["failed"] if data else self._last_words()
            raise SandboxUnavailable(f"the workspace {path} cannot be shown to a cell: {reason}")
        return trees

    def _forget_old_workspaces(self) -> None:
        while len(self._stock) > WORKSPACES_KEPT:
            _, trees = self._stock.popitem(last=False)
            for tree in trees:
                os.close(tree)

    def close(self) -> None:
        """End the zygote and, by the kernel, every cell of it. Waits until they are gone. Safe to call again."""
        self.dead = True
        while self.ready:
            self.ready.popleft().close()
        self._control.close()
        if hasattr(self, "_zygote"):
            self._zygote.close()
        with self._lock:
            for trees in self._stock.values():
                for tree in trees:
                    os.close(tree)
            self._stock.clear()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1


def finish_park(cell: ParkedCell, patience: float) -> ParkedCell:
    """Wait, at most so many seconds, until a cell is parked, and take what it hands over. Closes it when it fails."""
    poll = select.poll()
    poll.register(cell.job, select.POLLIN)
    if not poll.poll(patience * 1000):
        cell.close()
        raise SandboxError("a cell did not get ready in time")
    try:
        hear_ready(cell)
    except BaseException:
        cell.close()
        raise
    return cell


def hear_zygote(cell: ParkedCell) -> bytes:
    """Read what the zygote says of a cell's end. Empty when the zygote is gone."""
    return os.read(cell.status, 64)


def _process_of(pidfd: int) -> int:
    """The process id that a pidfd means in our own PID namespace; -1 when the process is gone."""
    info = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(info, 1024).partition(b"\nPid:")[2].split(None, 1)[0])
    finally:
        os.close(info)


def hear_ready(cell: ParkedCell) -> None:
    """Read the ready frame: what parking enforced, and descriptors that let the host look in from outside."""
    kind, body, fds = read_frame(cell.job, len(frames.GIFTS))
    if kind != frames.READY:
        for fd in fds:
            os.close(fd)
        raise SandboxError(f"a cell could not be built: {body.decode('utf-8', 'replace') or 'it ended'}")
    cell.parked = body
    for name, fd in zip(frames.GIFTS, fds, strict=False):
        setattr(cell, name, fd)
    cell.pid = _process_of(cell.pidfd)


def read_frame(link: socket.socket, descriptors: int, room: int = 0) -> tuple[bytes, bytes, list[int]]:
    """One frame that trusted code in a cell wrote. Kind is empty at the end of the stream.

    ``room`` for the body saves a second read; give it for a frame that nothing follows.
    """
    head, fds, _, _ = socket.recv_fds(link, frames.FRAME.size + room, descriptors)
    if len(head) < frames.FRAME.size:
        return b"", b"", fds
    kind, length = frames.FRAME.unpack_from(head)
    body = head[frames.FRAME.size :]
    if len(body) < length:
        body += link.recv(length - len(body), socket.MSG_WAITALL)
    return kind, body, fds


def needed_top(path: str | None) -> tuple[str, ...]:
    """The top directory that a root must have so that ``path`` can be shown, unless every root has it."""
    if path is None:
        return ()
    top = path.split("/")[1]
    return () if top in TOPS or top in {"tmp", "usr"} else (top,)
