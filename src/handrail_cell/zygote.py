"""The warm parent of all cells: executed by the host, never forked from it.

Two processes come to be. The *keeper* stays outside the private root, hands out copies of the workspace's mount and
is the zygote's parent. The *zygote* is PID 1 of its own PID namespace, so that its end is the end of every cell, by
the kernel; it warms up, freezes its heap and then only forks, reaps and reports. Neither ever reads a byte of a call.

Both end when the host does: their sockets close, and a descriptor of the host process itself tells them when a stray
copy of a socket would not.
"""

import contextlib
import gc
import json
import linecache
import marshal
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterable
from typing import Any

from handrail_cell import _libc, contain, frames, limits, namespaces, runner, seccomp

OVERFLOW = 65534
REHEARSALS = 16
AT_A_TIME = 16
ALL_DESCRIPTORS = 0x7FFFFFFF
REST_S = 0.02
"""A job that comes so soon finds its cell without a rehearsal: under load that would cost more than it saves."""

NO_ID_MAP = (
    "its file system takes no id-mapped mount; start the host as the user who owns the workspace, "
    "or keep the workspace on another file system"
)

Config = dict[str, Any]


# ---------------------------------------------------------------------------------------------- the keeper


def main() -> None:
    """Read the configuration, start the zygote, then keep: answer for workspace mounts until the host is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    data, fds, _, _ = socket.recv_fds(control, 1 << 20, 2)
    config: Config = json.loads(data)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    host_alive = fds[0] if fds else -1
    try:
        keeper = Keeper(config, control, host_alive)
        keeper.start_zygote()
    except OSError as error:
        control.send(json.dumps({"failed": str(error), "errno": error.errno}).encode())
        os._exit(1)
    keeper.serve()
    os._exit(0)


class Keeper:
    """Outside the private root: makes copies of workspace mounts, owned by the caller, for the cells to attach."""

    def __init__(self, config: Config, control: socket.socket, host_alive: int) -> None:
        self.config = config
        self.control = control
        self.host_alive = host_alive
        self.zygote_fd = -1
        self.reduced = config["tier"] == "reduced"
        self.uid, self.gid = os.getuid(), os.getgid()
        self.root = self.uid == 0
        self.id_maps: dict[tuple[int, int], int] = {}
        self.cell_ids = self._choose_ids()

    def _choose_ids(self) -> tuple[int, int]:
        """As root a user that no file and no other process belongs to; otherwise the caller itself."""
        if not self.root or self.reduced or self.config.get("own_identity"):
            return self.uid, self.gid
        return _free_id("/proc/self/uid_map"), _free_id("/proc/self/gid_map")

    def start_zygote(self) -> None:
        """Fork the zygote into its namespaces and tell the host that it is up."""
        if self.reduced:
            _libc.prctl(_libc.PR_SET_CHILD_SUBREAPER, 1)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        go_read, go_write = os.pipe()
        _libc.prepare_clone()
        if not self.reduced and not self.root:
            _libc.call("unshare", _libc.CLONE_NEWUSER | _libc.CLONE_NEWNS)
            procfs = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            namespaces.write_maps("self", procfs, self.uid, self.gid, inside=(self.uid, self.gid), deny_groups=True)
        flags = 0 if self.reduced else namespaces.WALLS
        if not self.reduced and not self.config["network"]:
            flags |= _libc.CLONE_NEWNET
        pid, self.zygote_fd = _libc.clone(flags)
        if pid == 0:
            os.close(go_write)
            ours.close()
            self.control.close()
            run_zygote(self.config, theirs, go_read, self.host_alive, self.cell_ids)
        theirs.close()
        os.close(go_read)
        if not self.reduced:
            procfs = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            namespaces.write_maps(str(pid), procfs, *self.cell_ids, inside=self.cell_ids, deny_groups=not self.root)
            os.close(procfs)
        os.write(go_write, b"g")
        os.close(go_write)
        socket.send_fds(self.control, [json.dumps({"pid": pid, "ids": self.cell_ids}).encode()], [ours.fileno()])
        ours.close()

    def serve(self) -> None:
        """Answer requests for mounts until the host or the zygote ends; then see the zygote dead."""
        poll = select.poll()
        for fd in (self.control.fileno(), self.zygote_fd, self.host_alive):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self.host_alive in ready or self.zygote_fd in ready:
                break
            data, fds, _, _ = socket.recv_fds(self.control, 8192, 1)
            if not data:
                break
            self._answer(data, fds)
        self.end()

    def end(self) -> None:
        """See the zygote dead. Without a PID namespace it ends its cells itself; what it left undone is done here."""
        if self.reduced:
            patience = select.poll()
            patience.register(self.zygote_fd, select.POLLIN)
            patience.poll(2000)
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(self.zygote_fd, signal.SIGKILL)
        if not self.reduced:
            os.waitpid(-1, 0)
            return
        while children := _children_of(os.getpid()):
            for pid in children:
                _kill_group_of(pid)
            if sum(_reap_now(pid) for pid in children) == 0:
                select.select([], [], [], 0.001)
        _remove_tree(self.config["scratch_base"])

    def _answer(self, data: bytes, fds: list[int]) -> None:
        magic, count = frames.KEEPER_ASK.unpack_from(data)
        trees: list[int] = []
        try:
            if magic == frames.KEEPER_MAGIC and fds:
                path = data[frames.KEEPER_ASK.size :]
                trees = [self._copy_mount(fds[0], path) for _ in range(count)]
            socket.send_fds(self.control, [b"ok"], trees)
        except OSError as error:
            self.control.send(json.dumps({"failed": str(error), "errno": error.errno}).encode())
        for fd in (*fds, *trees):
            os.close(fd)

    def _copy_mount(self, directory: int, path: bytes) -> int:
        """A detached copy of the mounts at a directory, through which the cell's user is the directory's owner."""
        if not self.root:
            return self._copy_by_path(directory, path)
        status = os.fstat(directory)
        owner = (status.st_uid, status.st_gid)
        same = owner == self.cell_ids or self.config.get("own_identity")
        # Something mounted below may refuse to be mapped: then leave out what is mounted below.
        for flags in (_libc.AT_RECURSIVE, 0):
            tree = _libc.open_tree(directory, b"", _libc.OPEN_TREE_CLONE | flags | _libc.AT_EMPTY_PATH)
            try:
                if not same:
                    self._map_owner(tree, owner, flags)
                return tree
            except OSError as error:
                os.close(tree)
                if not flags:
                    raise OSError(error.errno, NO_ID_MAP) from error
        raise AssertionError("unreachable")

    def _copy_by_path(self, directory: int, path: bytes) -> int:
        """In our own mount table the host's descriptor is a stranger's: open the path again and compare the two."""
        mine = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            theirs, ours = os.fstat(directory), os.fstat(mine)
            if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
                raise OSError(116, "the workspace is no longer at its path")
            return _libc.open_tree(mine, b"", namespaces.TREE | _libc.AT_EMPTY_PATH)
        finally:
            os.close(mine)

    def _map_owner(self, tree: int, owner: tuple[int, int], flags: int) -> None:
        if owner not in self.id_maps:
            self.id_maps[owner] = _user_namespace(owner, self.cell_ids)
        _libc.mount_setattr(
            tree, b"", _libc.AT_EMPTY_PATH | flags, add=_libc.MOUNT_ATTR_IDMAP, userns=self.id_maps[owner]
        )


def _free_id(table: str) -> int:
    """An id that this machine maps and that nothing is likely to own."""
    with open(table, encoding="ascii") as file:
        ranges = [tuple(int(word) for word in line.split()) for line in file]
    for wanted in (namespaces.UNOWNED_ID, OVERFLOW):
        if any(first <= wanted < first + count for first, _, count in ranges):
            return wanted
    first, _, count = ranges[-1]
    return first + count - 1


def _user_namespace(owner: tuple[int, int], becomes: tuple[int, int]) -> int:
    """A user namespace whose only content is the map ``owner -> becomes``; the descriptor keeps it alive."""
    ready_read, ready_write = os.pipe()
    pid, pidfd = _libc.clone(_libc.CLONE_NEWUSER)
    if pid == 0:
        os.close(ready_write)
        os.read(ready_read, 1)
        os._exit(0)
    try:
        procfs = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        namespaces.write_maps(str(pid), procfs, *becomes, inside=owner, deny_groups=False)
        os.close(procfs)
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (ready_read, ready_write, pidfd):
            os.close(fd)
        os.waitpid(pid, 0)


# ---------------------------------------------------------------------------------------------- the zygote


def run_zygote(config: Config, host: socket.socket, go: int, host_alive: int, ids: tuple[int, int]) -> None:
    """Never returns."""
    try:
        os.read(go, 1)
        os.close(go)
        facts = settle(config, ids)
        warm_up(config, facts)
        host.send(json.dumps({"up": True, "landlock": facts.landlock_abi, "ids": ids}).encode())
        zygote = Zygote(facts, host, host_alive)
        zygote.serve()
        zygote.close()
    except BaseException as error:
        with contextlib.suppress(OSError):
            host.send(json.dumps({"failed": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(0)


def settle(config: Config, ids: tuple[int, int]) -> contain.Facts:
    """Build the private root, become the cells' user, and give up what no cell will need."""
    reduced = config["tier"] == "reduced"
    network: bool = config["network"]
    facts = contain.Facts(
        ids=ids,
        network=network,
        reduced=reduced,
        sealed=config["sealed"],
        scratch=config.get("scratch", namespaces.SCRATCH_BYTES),
    )
    os.umask(0o022)
    limits.apply(limits.STANDING)
    if not reduced:
        roots: list[tuple[str, str]] = [(path, real) for path, real in config["roots"]]
        trees = namespaces.collect(roots, network=network)
        etc = namespaces.read_etc(network=network)
        if os.getuid() != ids[0]:
            os.setgroups([])
            os.setresgid(ids[1], ids[1], ids[1])
            os.setresuid(ids[0], ids[0], ids[0])
        facts.below = namespaces.build_root(trees, roots, config["tops"], etc, ids)
        _libc.call("sethostname", b"cell", 4)
        facts.procfs = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        facts.open_granted()
    else:
        facts.readable = [real for _, real in config["roots"]]
        facts.scratch_base = config["scratch_base"]
        os.mkdir(facts.scratch_base, 0o700)
        _libc.prctl(_libc.PR_SET_CHILD_SUBREAPER, 1)
    _libc.prctl(_libc.PR_SET_DUMPABLE, 0)
    _libc.prctl(_libc.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(seccomp.prepare(seccomp.permanent_policy(facts.column), facts.column))
    return facts


def warm_up(config: Config, facts: contain.Facts) -> None:
    """Import, touch and freeze everything a call will need, so that no cell pays for it again."""
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(os.path.dirname(__file__))]
    sys.path.extend(config["path"])
    for name in config["preload"]:
        __import__(name)
    os.environ.clear()
    os.environ.update(config["environment"])
    runner.open_streams()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _hear_nothing(facts)
    facts.trial = facts.harmless()
    if facts.procfs >= 0:
        rehearse_parking(facts)
    results = runner.ResultMemory(None)
    failing = b"1/0", marshal.dumps(compile(b"1/0", "warm", "exec"))
    for _ in range(REHEARSALS):  # often enough for the interpreter to have specialised the code on the way
        rehearse(results, facts)
        runner.run_inline(*failing, b"", "warm", results)
    facts.stale = runner.stale_after_fork()
    linecache.cache.clear()
    os.chdir("/")
    _libc.limit_arenas(2)
    _libc.prepare_clone()
    gc.collect()
    gc.freeze()
    gc.disable()
    _libc.trim_heap()
    _libc.use_up_holes()
    if len(os.listdir("/proc/self/task")) != 1:
        raise RuntimeError("an import started a thread; a zygote cannot be forked from")


class Zygote:
    """Forks, reaps, reports."""

    def __init__(self, facts: contain.Facts, host: socket.socket, host_alive: int) -> None:
        self.facts = facts
        self.host = host
        self.host_alive = host_alive
        # pidfd -> (pid, descriptor for its end, what it was lent)
        self.waiting: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        self.lender = None if facts.reduced else namespaces.Lender(facts.procfs, network=not facts.network)
        self.epoll = select.epoll()
        self.epoll.register(host.fileno(), select.EPOLLIN)
        if host_alive >= 0:
            self.epoll.register(host_alive, select.EPOLLIN)

    def serve(self) -> None:
        """Until the host is gone."""
        while True:
            for fd, _ in self.epoll.poll(maxevents=AT_A_TIME):
                if fd in self.waiting:
                    self._reap(fd)
                elif fd == self.host_alive or not self._park():
                    return

    def _reap(self, pidfd: int) -> None:
        pid, report, lent = self.waiting.pop(pidfd)
        if self.facts.reduced:
            self._end_group(pid)
        status, cpu_s = _libc.reap(pid)
        try:
            os.write(report, frames.ENDED.pack(frames.ENDED_MAGIC, status, cpu_s))
        except OSError:  # nobody is interested any more
            pass
        os.close(report)
        if self.lender is not None:
            self.lender.give_back(lent)
        self.epoll.unregister(pidfd)  # closing is not enough: a cell that is being born has it too
        os.close(pidfd)

    def _end_group(self, leader: int) -> None:
        """Without a PID namespace: kill the dead leader's whole group and wait until nothing of it is left.

        The leader is still a zombie, so its number cannot mean anybody else. A group is signalled as one: a member that
        is about to fork dies before its child is born. Orphans come to us, their subreaper, to be reaped.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
        while others := _members(leader):
            if sum(_reap_now(pid) for pid in others) == 0:
                select.select([], [], [], 0.001)  # their parents are still dying
        _remove_tree(f"{self.facts.scratch_base}/{leader}")

    def close(self) -> None:
        """End what the kernel would not end with us: the reduced tier's groups."""
        if not self.facts.reduced:
            return
        for pidfd, (pid, _, _) in list(self.waiting.items()):
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
                self._end_group(pid)
        _remove_tree(self.facts.scratch_base)

    def _park(self) -> bool:
        """Begin every cell that is asked for by now. False when the host is gone.

        They are forked one right after another: what this process writes to between two forks it must copy first.
        Each has the others' descriptors then, and closes them with its own before it waits for its job.
        """
        asked, there = self._asked_for()
        born = [self._fork(fds) for fds in asked]
        for fds, child in zip(asked, born, strict=True):
            for fd in fds[:REPORT]:
                os.close(fd)
            if child is None:
                os.close(fds[REPORT])
                continue
            pid, pidfd, lent = child
            self.waiting[pidfd] = (pid, fds[REPORT], lent)
            self.epoll.register(pidfd, select.EPOLLIN)
        return there

    def _asked_for(self) -> tuple[list[tuple[int, ...]], bool]:
        """The descriptors for each cell that the host wants, and whether the host is there still."""
        asked: list[tuple[int, ...]] = []
        while len(asked) < AT_A_TIME:
            try:
                data, extra, _, _ = self.host.recvmsg(frames.PARK_BYTES, ROOM_FOR_DESCRIPTORS, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            if len(data) != frames.PARK_BYTES or len(extra) != 1:
                return asked, False
            asked.append(DESCRIPTORS[frames.PARK_DESCRIPTORS].unpack(extra[0][2]))
        return asked, True

    def _fork(self, fds: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]] | None:
        """Fork one cell: its process id, a descriptor of it, and what it was lent. ``None``, reported, if it cannot
        be.
        """
        lent: tuple[int, ...] = ()
        try:
            if self.lender is not None:
                lent = self.lender.enter()
            pid, pidfd = _libc.clone(0 if self.facts.reduced else namespaces.OWN_WALLS)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(fds[REPORT], frames.UNBORN.pack(frames.UNBORN_MAGIC, error.errno or 0))
            if self.lender is not None and lent:
                self.lender.give_back(lent)
            return None
        if pid == 0:
            live(self.facts, fds[0], fds[1], fds[2])
        return pid, pidfd, lent


REPORT = 3
"""Which of a cell's descriptors the warm parent keeps, to say how the cell ended. The others are the cell's own."""


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


def _children_of(parent: int) -> list[int]:
    found: list[int] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
            if int(file.read().rpartition(b")")[2].split()[1]) == parent:
                found.append(int(name))
    return found


def _kill_group_of(pid: int) -> None:
    group = _group_of(pid)
    if group > 0 and group != os.getpgid(0):
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


def _members(leader: int) -> list[int]:
    """Everybody but the leader in its group, zombies whose parents are still dying included."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in numbers if pid != leader and _group_of(pid) == leader]


def _reap_now(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # not ours yet
        return False


def _remove_tree(path: str) -> None:
    """Remove a scratch directory, walking by descriptors and following no link."""
    with contextlib.suppress(OSError):
        for _, directories, files, here in os.fwalk(path, topdown=False, follow_symlinks=False):
            for name in (*files, *directories):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=here)
            for name in directories:
                with contextlib.suppress(OSError):
                    os.rmdir(name, dir_fd=here)
        os.rmdir(path)


# ---------------------------------------------------------------------------------------------- the cell


def live(facts: contain.Facts, job: int, output: int, memory: int) -> None:
    """A cell's whole life. Never returns."""
    status = 125
    try:
        status = _live(facts, job, output, memory)
    except BaseException as error:
        body = f"{type(error).__name__}: {error}".encode()
        with contextlib.suppress(OSError):
            os.write(job, frames.FRAME.pack(frames.FAILED, len(body)) + body)
    finally:
        leave(status)


def leave(status: int) -> None:
    """End, and let the kernel tell the host so at once. Where nobody listens, end without that.

    What the code left open goes first: a lock on a file of the workspace must not outlive the call.
    """
    os.closerange(3, ALL_DESCRIPTORS)
    try:
        _libc.call("exit_group", frames.FAREWELL | status)
    except OSError:
        os._exit(status)


def _live(facts: contain.Facts, job: int, output: int, memory: int) -> int:
    results = runner.ResultMemory(memory)
    stream = _stream(job)
    ground = _park(facts, stream, output)
    _close_from(3, (job,) if facts.sealed else sorted(fd for fd in (job, ground.ruleset) if fd >= 0))
    given = _next_job(stream, results, facts)
    if given is None:
        return 0  # never used: the host let go of it
    _confine(ground, given, stream)
    return _run(given, results, facts)


def _stream(descriptor: int) -> socket.SocketType:
    """An end of a stream between host and cell, without what the class in Python adds to the one beneath it."""
    return socket.SocketType(STREAM_FAMILY, STREAM_KIND, 0, descriptor)


STREAM_FAMILY, STREAM_KIND = int(socket.AF_UNIX), int(socket.SOCK_STREAM)


def _park(facts: contain.Facts, stream: socket.SocketType, output: int) -> contain.Ground:
    """Build the walls that need no call, and say so to the host, with what lets it look in."""
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    ground = contain.Ground(facts)
    parked = contain.walk(facts.parking, ground)
    _send(stream, frames.READY, parked, ground.gifts)
    return ground


def _send(stream: socket.SocketType, kind: bytes, text: bytes, descriptors: list[int]) -> None:
    """One frame to the host. A cell makes few of them, and each from parts that are there already."""
    frame = frames.FRAME.pack(kind, len(text)) + text
    if descriptors:
        given = DESCRIPTORS[len(descriptors)].pack(*descriptors)
        stream.sendmsg((frame,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, given),))
    else:
        stream.send(frame)


DESCRIPTORS = [struct.Struct(f"={count}i") for count in range(len(frames.GIFTS) + 1)]


def _close_from(low: int, keep: Iterable[int]) -> None:
    """Close every descriptor from ``low`` on but those to ``keep``, which ascend."""
    for fd in keep:
        if fd > low:
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, ALL_DESCRIPTORS)


class Job:
    """What :func:`receive` read: metadata from the host, and the tool's own bytes, not looked at yet."""

    __slots__ = ("compiled", "descriptors", "input_json", "limits", "meta", "name", "source")

    def __init__(
        self,
        meta: dict[str, Any],
        limits: frames.Numbers,
        name: bytes,
        source: bytes,
        compiled: bytes,
        input_json: bytes,
        fds: list[int],
    ) -> None:
        self.meta = meta
        self.limits = limits
        self.name = name
        self.source = source
        self.compiled = compiled
        self.input_json = input_json
        self.descriptors = fds


NOT_YET = Job({}, contain.NO_LIMITS, b"", b"", b"", b"", [])
"""The job has not come."""


def _next_job(stream: socket.SocketType, results: runner.ResultMemory, facts: contain.Facts) -> Job | None:
    """Wait for the job, and use the time to rehearse if there is some. ``None`` when none will come."""
    stream.settimeout(REST_S)
    given = receive(stream)
    stream.settimeout(None)
    if given is not NOT_YET:
        return given
    rehearse(results, facts)
    return receive(stream)


def receive(stream: socket.SocketType) -> Job | None:
    """Wait for the job, as long as the stream's timeout says: then it is :data:`NOT_YET`. ``None`` when the host closed
    the stream instead.
    """
    try:
        size, extra, _, _ = stream.recvmsg_into((FIRST_READ,), ROOM_FOR_DESCRIPTORS)
    except TimeoutError:
        return NOT_YET
    fds: list[int] = []
    for _, _, data in extra:
        fds += struct.unpack(f"={len(data) // 4}i", data)
    if size < frames.JOB_BYTES:
        return None
    head = bytes(FIRST_READ[:size])
    _, meta, name, source, compiled, input_json = frames.JOB.unpack_from(head)
    total = frames.JOB_BYTES + meta + name + source + compiled + input_json
    data = head if size == total else _rest(stream, head, total)
    if len(data) != total:
        return None
    a = frames.JOB_BYTES
    b = a + meta
    c = b + name
    d = c + source
    e = d + compiled
    said = data[a + frames.LIMITS_BYTES : b]
    return Job(
        json.loads(said) if said else frames.PLAIN,
        frames.LIMITS.unpack_from(data, a),
        data[b:c],
        data[c:d],
        data[d:e],
        data[e:],
        fds,
    )


FIRST_READ = memoryview(bytearray(8192))
"""Where the beginning of a job is read to: made in the warm parent, which never reads one."""
ROOM_FOR_DESCRIPTORS = socket.CMSG_LEN(4 * frames.JOB_DESCRIPTORS)


def _rest(stream: socket.SocketType, head: bytes, total: int) -> bytes:
    stream.settimeout(None)
    chunks = [head]
    have = len(head)
    while have < total:
        chunk = stream.recv(min(total - have, 1 << 20))
        if not chunk:
            break
        chunks.append(chunk)
        have += len(chunk)
    return b"".join(chunks)


def _confine(ground: contain.Ground, given: Job, stream: socket.SocketType) -> None:
    """Build the walls that the call needs, say so, and let go of the last way to the host."""
    ground.job, ground.limits = given.meta, given.limits
    if given.meta["workspace"] is not None and not ground.facts.reduced:
        ground.tree = given.descriptors.pop(0)
    confined = contain.walk(ground.facts.steps_left, ground)
    given.meta = ground.job
    for target, fd in enumerate(given.descriptors):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(given.meta["cwd"])
    _send(stream, frames.CONFINED, confined, [] if ground.upper is None else [ground.upper])
    if ground.upper is not None:
        os.close(ground.upper)
    stream.close()


def _run(job: Job, results: runner.ResultMemory, facts: contain.Facts) -> int:
    environment = job.meta["environment"]
    if environment:
        os.environ.update(environment)
    for refresh in facts.stale:
        refresh()
    gc.enable()
    kind, name = job.meta["kind"], job.name.decode("utf-8", "replace")
    if kind == "compile":
        return runner.compile_inline(job.source, name, results)
    if kind == "inline":
        _libc.hear_signal(INTERRUPT, facts.interrupt)
        if facts.reduced:
            runner.hear_signals()
        return runner.run_inline(job.source, job.compiled, job.input_json, name, results)
    command = json.loads(name)
    if command["cwd"] is not None:
        os.chdir(command["cwd"])
    return runner.run_program(command["argv"], dict(os.environ), results)


# ---------------------------------------------------------------------------------------------- rehearsals


def rehearse_parking(facts: contain.Facts) -> None:
    """Go the way of a cell until it is ready, in the warm parent, so that it changes nothing.

    Code that ran before has been specialised by the interpreter, and then touches far less memory in each cell.
    """
    far = ALL_DESCRIPTORS - 2
    streams = os.dup(1), os.dup(2)
    for _ in range(REHEARSALS):
        here, there = _pair()
        ground = _park(facts.trial, here, streams[1])
        contain.take_back_parking(ground)
        _close_from(far, (far + 1,))
        for fd in ground.gifts:
            os.close(fd)
        here.close()
        there.close()
    for number, fd in enumerate(streams, start=1):
        os.dup2(fd, number)
        os.close(fd)


def _pair() -> tuple[socket.SocketType, socket.SocketType]:
    here, there = socket.socketpair()
    return _stream(here.detach()), _stream(there.detach())


REHEARSAL = b"import math\nprint('', end='')\nresult = [str(math.sqrt(2)), input_data]\n"
MUCH = 1 << 62
PLAIN_META = frames.LIMITS.pack(1 << 30, MUCH, MUCH, MUCH, MUCH, MUCH)  # the kernel counts seconds in nanoseconds
FULL_META = PLAIN_META + json.dumps(frames.PLAIN).encode()
"""As the host writes them, with limits that lift what there is."""


def rehearse(results: runner.ResultMemory, facts: contain.Facts) -> None:
    """Go the way of a call once with nothing in it, while nobody waits.

    The pages that a call writes to are then this cell's own already, and need not be copied when it matters.
    """
    here, there = _pair()
    meta = PLAIN_META if facts.sealed else FULL_META
    head = frames.JOB.pack(frames.JOB_MAGIC, len(meta), 4, len(REHEARSAL), 0, 4)
    there.sendall(head + meta + b"warm" + REHEARSAL + b"null")
    job = receive(here)
    assert job is not None
    ground = contain.Ground(facts.trial)
    _confine(ground, job, there)
    contain.rehearse_confining(ground)
    _run(job, results, facts)
    gc.disable()
    _hear_nothing(facts)
    here.close()
    results.clear()
    linecache.cache.clear()


def _hear_nothing(facts: contain.Facts) -> None:
    """Ignore the signals that a host's end brings. As PID 1 the kernel ignores those of them that end a process."""
    facts.interrupt = _libc.ignore_signal(INTERRUPT)
    for number in runner.ENDING if facts.reduced else ():
        signal.signal(number, signal.SIG_IGN)


INTERRUPT = int(signal.SIGINT)
