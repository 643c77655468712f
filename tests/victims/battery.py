"""One attack after the other, in one process, each with what the kernel answered. Standard library only.

Runs as a tool's code (``input_data`` is bound, ``result`` is read) and as a program (a JSON file is its argument, the
answers go to standard output). Each attack returns a JSON value or raises; ``OSError`` becomes its errno's name.

An attack is a ``control`` when it leaves no trace on a machine that lets it succeed: only those are ever run outside of
the walls, to show that they would. The others aim at what is not there, wherever a wall answers before it looks.
"""

# ruff: noqa: E501, SIM115 - tables of system calls; files that are only to be refused

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import socket
import struct
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
NOWHERE = b"/handrail/is/not/here"
X86 = platform.machine() == "x86_64"
NUMBERS = {  # x86-64, aarch64
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "kcmp": (312, 272), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "execveat": (322, 281), "mount": (165, 40),
    "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "fsopen": (430, 430), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsmount": (432, 432), "mount_setattr": (442, 442), "unshare": (272, 97),
    "setns": (308, 268), "clone": (56, 220), "clone3": (435, 435), "init_module": (175, 105),
    "finit_module": (313, 273), "kexec_load": (246, 104), "reboot": (169, 142), "swapon": (167, 224), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116), "fanotify_init": (300, 262), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "personality": (135, 92), "shmget": (29, 194), "msgget": (68, 186),
    "semget": (64, 190), "mq_open": (240, 180), "seccomp": (317, 277), "prlimit64": (302, 261), "prctl": (157, 167),
    "capset": (126, 91), "capget": (125, 90), "vmsplice": (278, 75), "settimeofday": (164, 170),
    "sethostname": (170, 161), "move_pages": (279, 239), "mbind": (237, 235), "setpriority": (141, 140),
    "sched_setscheduler": (144, 119), "ioctl": (16, 29), "lookup_dcookie": (212, 18), "statmount": (457, 457),
    "iopl": (172, None), "modify_ldt": (154, None), "uselib": (134, None), "sysfs": (139, None),
    "mknodat": (259, 33), "listmount": (458, 458), "process_madvise": (440, 440), "socketpair": (53, 199),
}  # fmt: skip
ATTACKS = {}
CONTROLS = {}


def attack(function):
    ATTACKS[function.__name__] = function
    return function


def control(function):
    CONTROLS[function.__name__] = function
    return attack(function)


def call(name, *args):
    number = NUMBERS[name][0 if X86 else 1]
    if number is None:
        raise OSError(errno.ENOSYS, name)
    words = [ctypes.c_long(arg) if isinstance(arg, int) else ctypes.c_char_p(arg) for arg in args]
    ctypes.set_errno(0)
    answer = LIBC.syscall(ctypes.c_long(number), *words)
    if answer == -1:
        raise OSError(ctypes.get_errno(), name)
    return answer


def in_child(work):
    """The answer of ``work`` in a child; where children are forbidden, that is the answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(answer_of(work)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    said = b"".join(iter(lambda: os.read(reading, 65536), b""))
    os.close(reading)
    os.waitpid(child, 0)
    answer = json.loads(said)
    if "errno" in answer:
        raise OSError(getattr(errno, answer["errno"]), "in a child")
    return answer.get("ok")


# ── host files ───────────────────────────────────────────────────────────────────────────────────────────────────


@control
def reads_a_host_secret(facts):
    return open(facts["secret"]).read()


@control
def reads_a_host_secret_from_the_workspace_upwards(facts):
    return open(facts["workspace"] + "/" + "../" * 20 + facts["secret"]).read()


@control
def reads_a_host_secret_through_a_link_in_the_workspace(facts):
    return open(facts["workspace"] + "/link-to-secret").read()


@attack
def reads_a_host_secret_through_the_root_of_init(facts):
    return open("/proc/1/root" + facts["secret"]).read()


@control
def reads_a_host_secret_through_the_working_directory(facts):
    return open("/proc/self/cwd/" + "../" * 20 + facts["secret"]).read()


@attack
def reads_the_password_hashes(facts):
    return len(open("/etc/shadow").read())


@attack
def lists_the_home_directories(facts):
    homes = [home for home in ("/root", "/home") if os.path.isdir(home)]
    return [name for home in homes for name in os.listdir(home) if name.startswith(".")]


@control
def sees_files_of_the_machine(facts):
    wanted = ("/etc/hostname", "/etc/machine-id", "/var/log", "/boot", "/sys/kernel", "/var/lib/dpkg", "/run/systemd")
    return [path for path in wanted if os.path.exists(path) and open_text(path) != "cell\n"]


def open_text(path):
    return open(path).read() if os.path.isfile(path) else ""


@control
def makes_a_hard_link_to_a_system_file(facts):
    target = facts["workspace"] + "/hard-link"
    os.link(sys.executable if facts.get("inside") else facts["secret"], target)
    os.unlink(target)


@attack
def changes_the_interpreter_through_proc_self_exe(facts):
    with open("/proc/self/exe", "r+b"):
        return "opened"


@attack
def changes_the_standard_library(facts):
    with open(json.__file__, "r+b"):
        return "opened"


@attack
def changes_the_permissions_of_a_system_file(facts):
    os.chmod(os.path.realpath(json.__file__), os.stat(json.__file__).st_mode & 0o7777)


@attack
def changes_the_times_of_a_system_file(facts):
    state = os.stat(json.__file__)
    os.utime(os.path.realpath(json.__file__), ns=(state.st_atime_ns, state.st_mtime_ns))


@attack
def changes_the_attributes_of_a_system_file(facts):
    os.removexattr(os.path.realpath(json.__file__), "user.handrail-is-not-here")


@attack
def writes_beside_the_root(facts):
    os.mkdir("/handrail-evil")
    os.rmdir("/handrail-evil")


@attack
def writes_into_etc(facts):
    with open("/etc/passwd", "a"):
        return "written"


@control
def writes_in_a_workspace_that_it_may_only_read(facts):
    with open(facts["workspace"] + "/evil.txt", "w"):
        return "written"


@control
def removes_a_file_of_a_workspace_that_it_may_only_read(facts):
    os.rename(facts["workspace"] + "/kept.txt", facts["workspace"] + "/gone.txt")
    os.rename(facts["workspace"] + "/gone.txt", facts["workspace"] + "/kept.txt")


@control
def changes_permissions_in_a_workspace_that_it_may_only_read(facts):
    os.chmod(facts["workspace"] + "/kept.txt", 0o600)


@attack
def makes_a_device(facts):
    path = b"/tmp/handrail-device"
    call("mknodat", -100, path, 0o20600, 0x103)
    os.unlink(path)
    return "made"


@attack
def opens_a_device_of_the_machine(facts):
    return [path for path in ("/dev/mem", "/dev/kvm", "/dev/vda", "/dev/sda", "/dev/fuse", "/dev/vsock") if opens(path)]


def opens(path):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


# ── /proc ────────────────────────────────────────────────────────────────────────────────────────────────────────


@control
def sees_a_process_of_the_host(facts):
    os.stat(f"/proc/{facts['host_pid']}/cmdline")
    return "seen"


@control
def reads_the_environment_of_a_host_process(facts):
    return facts["token"] in open(f"/proc/{facts['host_pid']}/environ").read()


@control
def signals_a_host_process(facts):
    os.kill(facts["host_pid"], 0)
    return "signalled"


@attack
def takes_over_core_dumps(facts):
    with open("/proc/sys/kernel/core_pattern", "r+"):
        return "opened"


@attack
def presses_magic_keys(facts):
    with open("/proc/sysrq-trigger", "w"):
        return "opened"


@attack
def changes_a_kernel_setting(facts):
    with open("/proc/sys/kernel/hostname", "r+"):
        return "opened"


@control
def avoids_the_killer_of_memory_hogs(facts):
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1")


@attack
def reads_the_memory_of_init(facts):
    if os.getpid() == 1:
        raise OSError(errno.EACCES, "we are init")
    with open("/proc/1/mem", "rb"):
        return "opened"


@attack
def reads_the_environment_of_init(facts):
    if os.getpid() == 1:
        raise OSError(errno.EACCES, "we are init")
    return facts["token"] in open("/proc/1/environ").read()


@attack
def reads_the_kernel_log(facts):
    return call("syslog", 10, None, 0)


# ── descriptors, environment, names ──────────────────────────────────────────────────────────────────────────────


@attack
def finds_open_descriptors(facts):
    found = []
    for fd in range(4096):
        try:
            fcntl.fcntl(fd, fcntl.F_GETFD)
        except OSError:
            continue
        found.append(fd)
    return found


@attack
def finds_a_directory_behind_a_descriptor(facts):
    return [fd for fd in range(256) if os.path.isdir(f"/proc/self/fd/{fd}")]


@control
def finds_the_hosts_environment(facts):
    own = facts["token"] in "".join(os.environ.values())
    names = sorted(
        set(os.environ)
        - {"HOME", "TMPDIR", "LANG", "LC_ALL", "PATH", "MALLOC_ARENA_MAX", "PWD", "SHLVL", "_", "OLDPWD"}
    )
    return {"token": own, "names": names}


@control
def learns_the_name_of_the_machine(facts):
    return os.uname().nodename == facts["hostname"]


@control
def starts_outside_of_the_workspace(facts):
    return os.getcwd() != facts["workspace"]


# ── sockets ──────────────────────────────────────────────────────────────────────────────────────────────────────


@control
def connects_to_a_port_of_the_host(facts):
    with socket.create_connection(("127.0.0.1", facts["port"]), timeout=5) as stream:
        return stream.recv(64).decode()


@control
def connects_to_an_abstract_socket_of_the_host(facts):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(5)
        stream.connect("\0" + facts["abstract"])
        return stream.recv(64).decode()


@control
def connects_to_a_socket_file_of_the_host(facts):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(5)
        stream.connect(facts["socket"])
        return stream.recv(64).decode()


@control
def connects_to_a_socket_file_in_the_workspace(facts):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.settimeout(5)
        stream.connect(facts["workspace"] + "/stream.socket")
        return stream.recv(64).decode()


@control
def turns_half_of_a_pair_towards_a_socket_in_the_workspace(facts):
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with first, second:
        first.connect(facts["workspace"] + "/datagram.socket")
        return first.send(b"hello")


@control
def sends_from_half_of_a_pair_to_an_abstract_socket(facts):
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with first, second:
        return first.sendto(b"hello", "\0" + facts["abstract"] + "-datagram")


@control
def listens_on_an_abstract_socket(facts):
    with socket.socket(socket.AF_UNIX) as stream:
        stream.bind("\0handrail-covert")
        return "bound"


@attack
def opens_a_socket_to_the_hypervisor(facts):
    socket.socket(40, socket.SOCK_STREAM).close()  # AF_VSOCK
    return "opened"


@control
def opens_an_internet_socket(facts):
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    return "opened"


@attack
def reaches_out_of_its_network(facts):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.connect(("192.0.2.1", 53))
        return out.send(b"hello")


@attack
def configures_its_network(facts):
    first, second = socket.socketpair()
    with first, second:
        fcntl.ioctl(first, 0x8914, struct.pack("16sh14x", b"lo", 0))  # SIOCSIFFLAGS
        return "configured"


@control
def opens_a_netlink_socket(facts):
    socket.socket(16, socket.SOCK_RAW).close()
    return "opened"


@attack
def opens_a_packet_socket(facts):
    socket.socket(17, socket.SOCK_RAW).close()
    return "opened"


@attack
def opens_a_socket_to_the_kernels_cryptography(facts):
    socket.socket(38, socket.SOCK_SEQPACKET).close()  # AF_ALG
    return "opened"


@control
def opens_any_family_of_sockets(facts):
    opened = []
    for family in range(64):
        for kind in (1, 2, 3, 5):
            try:
                socket.socket(family, kind).close()
            except OSError:
                continue
            opened.append(family)
            break
    return opened


@attack
def makes_a_pair_of_another_family(facts):
    slots = (ctypes.c_int * 2)()
    if LIBC.syscall(NUMBERS["socketpair"][0 if X86 else 1], 30, 1, 0, slots) == -1:  # AF_TIPC
        raise OSError(ctypes.get_errno(), "socketpair")
    return "made"


# ── other processes, keys, shared memory ─────────────────────────────────────────────────────────────────────────


@control
def traces(facts):
    return in_child(lambda: call("ptrace", 0, 0, 0, 0)) if not facts.get("inside") else call("ptrace", 16, 1, 0, 0)


@control
def reads_memory_of_another_process(facts):
    buffer = ctypes.create_string_buffer(16)
    words = struct.pack("QQ", ctypes.addressof(buffer), 16)
    return call("process_vm_readv", os.getpid() if not facts.get("inside") else 1, words, 1, words, 1, 0)


@control
def takes_a_descriptor_of_another_process(facts):
    return call("pidfd_getfd", call("pidfd_open", os.getpid(), 0), 1, 0)


@attack
def compares_itself_with_another_process(facts):
    return call("kcmp", os.getpid(), os.getpid(), 0, 0, 0)


@control
def leaves_a_key_in_a_keyring(facts):
    return call("add_key", b"user", b"handrail-covert", b"token", 5, -2) > 0  # the process's own keyring


@attack
def asks_for_a_key(facts):
    return call("keyctl", 0, -2, 1) > 0


@control
def leaves_shared_memory(facts):
    identity = call("shmget", 0, 4096, 0o1600)
    LIBC.shmctl(identity, 0, None)
    return "made"


@control
def leaves_a_message_queue(facts):
    identity = call("msgget", 0, 0o1600)
    LIBC.msgctl(identity, 0, None)
    return "made"


@control
def leaves_a_semaphore(facts):
    identity = call("semget", 0, 1, 0o1600)
    LIBC.semctl(identity, 0, 0)
    return "made"


@attack
def opens_a_posix_queue(facts):
    os.close(call("mq_open", b"handrail-covert", 0o102, 0o600, None))
    return "opened"


@control
def keeps_bytes_in_an_anonymous_file(facts):
    os.close(call("memfd_create", b"x", 0))
    return "made"


@attack
def keeps_bytes_in_secret_memory(facts):
    os.close(call("memfd_secret", 0))
    return "made"


@attack
def runs_a_program_that_has_no_name(facts):
    return in_child(lambda: call("execveat", -1, b"", None, None, 0x1000))


@attack
def makes_a_ring(facts):
    os.close(call("io_uring_setup", 4, bytes(120)))
    return "made"


@attack
def enters_a_ring(facts):
    return call("io_uring_enter", -1, 0, 0, 0, None, 0)


# ── namespaces and mounts ────────────────────────────────────────────────────────────────────────────────────────

NAMESPACES = {
    "mount": 0x20000, "cgroup": 0x2000000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000,
    "net": 0x40000000,
}  # fmt: skip


def refused(work):
    """Names for which ``work`` was not refused with an errno, and the errnos of the others."""
    made, codes = [], set()
    for name, flag in NAMESPACES.items():
        try:
            work(flag)
        except OSError as error:
            codes.add(errno.errorcode[error.errno])
        else:
            made.append(name)
    return {"made": made, "errnos": sorted(codes)}


@control
def makes_namespaces_by_unshare(facts):
    return (
        refused(lambda flag: call("unshare", flag))
        if facts.get("inside")
        else in_child(lambda: call("unshare", 0x10000000))
    )


@control
def makes_namespaces_by_clone(facts):
    def by_clone(flag):
        if call("clone", flag | 17, None, None, None, None) == 0:
            os._exit(0)
        os.wait()

    return refused(by_clone) if facts.get("inside") else by_clone(0x10000000)


@attack
def makes_namespaces_by_clone_with_high_bits(facts):
    def by_clone(flag):
        if call("clone", flag | 17 | (1 << 40), None, None, None, None) == 0:
            os._exit(0)
        os.wait()

    return refused(by_clone) if facts.get("inside") else by_clone(0x10000000)


@attack
def makes_a_namespace_by_clone3(facts):
    words = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
    if call("clone3", words, len(words)) == 0:
        os._exit(0)
    os.wait()
    return "made"


@attack
def joins_a_namespace(facts):
    fd = os.open("/proc/self/ns/user", os.O_RDONLY)
    try:
        return call("setns", fd, 0)
    finally:
        os.close(fd)


@attack
def mounts(facts):
    return call("mount", b"none", NOWHERE, b"tmpfs", 0, None)


@attack
def mounts_by_the_new_calls(facts):
    answers = []
    for name, args in (
        ("fsopen", (b"tmpfs", 0)),
        ("fsmount", (-1, 0, 0)),
        ("open_tree", (-100, NOWHERE, 0)),
        ("move_mount", (-1, b"", -100, b"/tmp", 4)),
        ("mount_setattr", (-100, NOWHERE, 0, bytes(32), 32)),
    ):
        try:
            call(name, *args)
        except OSError as error:
            answers.append(errno.errorcode[error.errno])
        else:
            answers.append("done")
    return answers


@attack
def unmounts(facts):
    return call("umount2", NOWHERE, 2)


@attack
def makes_the_root_writable_again(facts):
    return call("mount", b"none", NOWHERE, None, 4096 | 32, None)


@attack
def moves_its_root(facts):
    return call("pivot_root", NOWHERE, NOWHERE)


@attack
def changes_its_root(facts):
    return call("chroot", NOWHERE)


@attack
def opens_a_file_by_its_handle(facts):
    return call("open_by_handle_at", -100, bytes(136), 0)


# ── privileges and the rest of the kernel ────────────────────────────────────────────────────────────────────────


@attack
def becomes_root(facts):
    os.setresuid(0, 0, 0)
    return os.geteuid()


@attack
def has_capabilities(facts):
    lines = [line for line in open("/proc/self/status") if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))]
    return any(int(line.split()[1], 16) for line in lines)


@attack
def takes_capabilities_back(facts):
    return call("capset", b"\x22\x05\x08\x20\0\0\0\0", b"\xff" * 24)


@control
def may_gain_privileges(facts):
    return "NoNewPrivs:\t0" in open("/proc/self/status").read()


@attack
def answers_its_own_system_calls(facts):
    allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    program = struct.pack("HP", 1, ctypes.addressof(allow))
    return (
        in_child(lambda: call("seccomp", 1, 8, program)) if not facts.get("inside") else call("seccomp", 1, 8, program)
    )


@control
def lets_itself_be_dumped(facts):
    return call("prctl", 4, 1, 0, 0, 0)


@attack
def names_its_own_tracer(facts):
    return call("prctl", 0x59616D61, -1, 0, 0, 0)


@control
def turns_off_randomisation(facts):
    before = call("personality", 0xFFFFFFFF)
    call("personality", before | 0x0040000)
    call("personality", before)
    return "changed"


@attack
def raises_its_own_limits(facts):
    raised = []
    for name in ("AS", "DATA", "CPU", "FSIZE", "NOFILE", "NPROC", "CORE", "MEMLOCK", "MSGQUEUE", "STACK", "RTPRIO"):
        kind = getattr(resource, "RLIMIT_" + name)
        before = resource.getrlimit(kind)
        try:
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        except (ValueError, OSError):
            continue
        if before != (resource.RLIM_INFINITY, resource.RLIM_INFINITY):
            raised.append(name)
    return raised


@attack
def changes_limits_of_another_process(facts):
    return call("prlimit64", os.getppid() or 1, resource.RLIMIT_NOFILE, None, None)


@attack
def asks_for_real_time(facts):
    return call("sched_setscheduler", 0, 1, struct.pack("i", 1))


@attack
def pushes_bytes_into_a_terminal(facts):
    answers = []
    for request in (0x5412, 0x541C, 0x5423, 0x541D, 0x5412 + (1 << 32)):  # STI, LINUX, SETD, CONS, STI with a high bit
        for fd in (0, 1, 2):
            try:
                call("ioctl", fd, request, b"x")
            except OSError as error:
                answers.append(errno.errorcode[error.errno])
            else:
                answers.append("done")
    return sorted(set(answers))


@attack
def opens_the_terminal(facts):
    return [path for path in ("/dev/tty", "/dev/console", "/dev/tty0", "/dev/ptmx", "/dev/pts/0") if opens(path)]


@attack
def uses_doors_that_no_tool_needs(facts):
    """Each with arguments that do nothing where it is open."""
    doors = {
        "bpf": (99, None, 0), "perf_event_open": (None, 0, -1, -1, 0), "userfaultfd": (-1,), "init_module": (None, 0, b""),
        "finit_module": (-1, b"", 0), "kexec_load": (0, 0, None, 1 << 20), "reboot": (0, 0, 0, None),
        "swapon": (NOWHERE, 0), "quotactl": (-1, None, 0, None), "fanotify_init": (1 << 30, 0), "lookup_dcookie": (0, None, 0),
        "iopl": (99,), "modify_ldt": (99, None, 0), "uselib": (None,), "sysfs": (99,), "vmsplice": (-1, None, 0, 0),
        "settimeofday": (-1, None), "sethostname": (None, -1), "move_pages": (1, 0, None, None, None, 0),
        "mbind": (0, 0, 99, None, 0, 0), "process_madvise": (-1, None, 0, 0, 0), "name_to_handle_at": (-1, b"", None, None, 0),
        "io_uring_register": (-1, 99, None, 0), "acct": (NOWHERE,),
    }  # fmt: skip
    answers = {}
    for name, args in doors.items():
        try:
            call(name, *args)
        except OSError as error:
            answers[name] = errno.errorcode[error.errno]
        else:
            answers[name] = "open"
    return {name: code for name, code in answers.items() if code not in ("EPERM", "ENOSYS")}


# ── Python's own ways out ────────────────────────────────────────────────────────────────────────────────────────


@control
def finds_a_way_through_the_class_hierarchy(facts):
    popen = next(kind for kind in ().__class__.__base__.__subclasses__() if kind.__name__ == "Popen")
    with popen(["/bin/cat", facts["secret"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        output, _ = process.communicate()
    if process.returncode:
        raise OSError(errno.ENOENT, "cat said so")
    return output.decode()


@control
def runs_a_shell_by_ctypes(facts):
    if os.WEXITSTATUS(LIBC.system(f"cat {facts['secret']} >/dev/null 2>&1".encode()) & 0xFFFF):
        raise OSError(errno.ENOENT, "the shell failed")
    return "read"


@attack
def gains_by_a_program_with_the_setuid_bit(facts):
    with subprocess.Popen(
        ["/bin/su", "-c", "id -u"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        output, _ = process.communicate()
    if process.returncode:
        raise OSError(errno.EPERM, "su said so")
    return output.decode()


def answer_of(work):
    try:
        return {"ok": work()}
    except OSError as error:
        return {"errno": errno.errorcode.get(error.errno or 0, str(error.errno))}
    except BaseException as error:
        return {"error": f"{type(error).__name__}: {error}"}


def run(facts):
    attacks = ATTACKS if facts.get("inside") else CONTROLS
    return {name: answer_of(lambda attack=attack: attack(facts)) for name, attack in attacks.items()}


if "input_data" in globals():
    result = run(globals()["input_data"])
elif __name__ == "__main__":
    with open(sys.argv[1]) as file:
        told = json.load(file)
    json.dump(run(told), sys.stdout)
