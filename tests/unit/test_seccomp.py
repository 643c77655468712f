"""The filters against an emulator and a reference of our own: neither shares a line with the compiler."""

import ctypes
import itertools
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handrail_cell import _libc, frames, seccomp
from handrail_cell._numbers import HIGHEST_KNOWN, NUMBERS

ARCHES = (0xC000003E, 0xC00000B7)
EPERM, ENOSYS, KILL, ALLOW = 0x00050001, 0x00050026, 0x80000000, 0x7FFF0000


def emulate(program: bytes, nr: int, arch: int, arguments: tuple[int, ...]) -> int:
    """Classic BPF as Documentation/networking/filter.rst describes it, over ``struct seccomp_data``."""
    data = struct.pack("<IIQ6Q", nr, arch, 0, *arguments)
    code = [struct.unpack_from("<HBBI", program, at) for at in range(0, len(program), 8)]
    accumulator, at = 0, 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        assert op in (0x15, 0x35) or (yes, no) == (0, 0), "only a conditional jump has targets"
        match op:
            case 0x20:  # ld [k]
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x15:  # jeq
                at += yes if accumulator == k else no
            case 0x35:  # jge
                at += yes if accumulator >= k else no
            case 0x05:  # ja
                at += k
            case 0x54:  # and
                accumulator &= k
            case 0x06:  # ret
                return k
            case _:
                raise AssertionError(f"opcode {op:#x} is not one we emit")


def reference(policy: seccomp.Policy, nr: int, arch: int, arguments: tuple[int, ...], column: int) -> int:
    if arch != ARCHES[column]:
        return KILL
    if nr >= 0x40000000:
        return KILL
    if nr > HIGHEST_KNOWN:
        return ENOSYS
    rule = policy.get(nr, ALLOW)
    if isinstance(rule, int):
        return rule
    for check in rule:
        met = (arguments[check.argument] & 0xFFFFFFFF & check.mask) == check.value
        if met != check.negate:
            return check.answer
    return ALLOW


def policies(column: int) -> list[seccomp.Policy]:
    found = [seccomp.permanent_policy(column)]
    found += [
        seccomp.final_policy(column, may_exec=may_exec, network=network, reduced=reduced, scoped_signals=scoped)
        for may_exec in (False, True)
        for network in (False, True)
        for reduced in (False, True)
        for scoped in (False, True)
    ]
    return found


Compiled = tuple[int, seccomp.Policy, bytes]


@pytest.fixture(scope="session")
def compiled() -> list[Compiled]:
    """Every policy there is: its column, its table, its filter."""
    return [
        (column, policy, seccomp.compile_filter(policy, column)) for column in (0, 1) for policy in policies(column)
    ]


CONSTANTS = [
    *(0, 1, 2, 3, 4, 10, 17, 22, 28, 35, 36, 0xF, 0x5412, 0x541C, 0x541D, 0x5423, 0x8900, 0x8914, 0x10000, 0x20000),
    *(0x10000000, 0x40046602, 0x40086602, 0x401C5820, 0x59616D61, 0x7E020000, 0xFFFFFFFF),
]
POLICIES = 2 * 17
words = st.one_of(
    st.sampled_from(CONSTANTS),
    st.builds(lambda low, high: low | high << 32, st.sampled_from(CONSTANTS), st.integers(0, 2**32 - 1)),
    st.integers(0, 2**64 - 1),
)
numbers = st.one_of(st.integers(0, 600), st.integers(0x3FFFFFF0, 0x40000250), st.integers(0, 2**32 - 1))


@pytest.mark.promise("cell:seccomp:filter-agrees-with-its-table")
@settings(deadline=None, max_examples=400)
@given(st.integers(0, POLICIES - 1), numbers, st.sampled_from([*ARCHES, 0x40000003, 0]), st.tuples(*[words] * 6))
@example(0, 16, ARCHES[0], (0, 0x5412 | 1 << 32, 0, 0, 0, 0))
def test_the_compiled_filter_says_what_the_table_says(compiled, which, nr, arch, arguments):
    column, policy, program = compiled[which]
    assert emulate(program, nr, arch, arguments) == reference(policy, nr, arch, arguments, column)


@pytest.mark.parametrize("column", [0, 1])
def test_every_number_of_every_policy_is_decided_as_its_table_says(compiled, column):
    assert len(compiled) == POLICIES
    for own, policy, program in compiled:
        if own == column:
            for nr in range(HIGHEST_KNOWN + 200):
                zeros = (0,) * 6
                assert emulate(program, nr, ARCHES[column], zeros) == reference(
                    policy, nr, ARCHES[column], zeros, column
                )


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000])
@pytest.mark.parametrize("high", [0, 1 << 32, 0xFFFFFFFF << 32])
def test_clone_with_any_namespace_flag_is_refused_whatever_the_high_bits_are(column, flag, high):
    for may_exec in (False, True):
        program = seccomp.compile_filter(seccomp.final_policy(column, may_exec=may_exec), column)
        assert emulate(program, NUMBERS["clone"][column], ARCHES[column], (flag | high | 17,) + (0,) * 5) == EPERM


def test_threads_are_allowed_and_processes_are_not_where_the_profile_says_so():
    program = seccomp.compile_filter(seccomp.final_policy(0, may_exec=False), 0)
    thread = 0x3D0F00
    assert emulate(program, 56, ARCHES[0], (thread, 0, 0, 0, 0, 0)) == ALLOW
    assert emulate(program, 56, ARCHES[0], (17, 0, 0, 0, 0, 0)) == EPERM
    for name in ("fork", "vfork", "execve"):
        assert emulate(program, NUMBERS[name][0], ARCHES[0], (0,) * 6) == EPERM


@pytest.mark.parametrize("column", [0, 1])
def test_where_sockets_may_be_made_they_are_tcp_and_udp_alone(column):
    program = seccomp.compile_filter(seccomp.permanent_policy(column), column)
    families, kinds, protocols = (0, 1, 2, 3, 10, 11, 16, 17, 38, 40, 44), (0, 1, 2, 3, 4, 5, 6, 10), (0, 1, 6, 17, 262)
    for family, kind, protocol in itertools.product(families, kinds, protocols):
        arguments = (family | 5 << 32, kind | 0o2004000, protocol | 1 << 32, 0, 0, 0)
        wanted = family in (2, 10) and kind in (0, 1, 2) and protocol in (0, 6, 17)  # kind 0 is nothing to the kernel
        answer = emulate(program, NUMBERS["socket"][column], ARCHES[column], arguments)
        assert answer == (ALLOW if wanted else EPERM), (family, kind, protocol)


@pytest.mark.parametrize("may_exec", [False, True])
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_sockets_are_for_programs_in_a_network_of_their_own_or_where_the_host_granted_its(may_exec, network, reduced):
    policy = seccomp.final_policy(0, may_exec=may_exec, network=network, reduced=reduced)
    answer = emulate(seccomp.compile_filter(policy, 0), NUMBERS["socket"][0], ARCHES[0], (2, 1, 0, 0, 0, 0))
    assert answer == (ALLOW if network or (may_exec and not reduced) else EPERM)


def test_no_conditional_jump_reaches_further_than_a_byte_and_all_land_inside(compiled):
    for _, _, program in compiled:
        length = len(program) // 8
        assert length <= 4096
        for at in range(length):
            op, yes, no, k = struct.unpack_from("<HBBI", program, at * 8)
            if op in (0x15, 0x35):
                assert at + 1 + max(yes, no) < length
            if op == 0x05:
                assert at + 1 + k < length


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("highest", [1, 2, 200, HIGHEST_KNOWN])
def test_a_table_with_another_answer_for_every_number_is_compiled_too(column, highest):
    """So many that its halves are too far apart for a conditional jump."""
    policy: seccomp.Policy = {
        number: (
            0x00050000 | 100 + number if number % 3 else (seccomp.Check(2, 0xF0, number & 0xF0, 0x00050000 | number),)
        )
        for number in range(highest + 1)
    }
    program = seccomp.compile_filter(policy, column, highest=highest)
    for number in range(highest + 3):
        for argument in (0, number, 0xFFFFFFFF):
            arguments = (7, 7, argument, 7, 7, 7)
            if number > highest:
                wanted = ENOSYS
            elif number % 3:
                wanted = 0x00050000 | 100 + number
            else:
                wanted = 0x00050000 | number if argument & 0xF0 == number & 0xF0 else ALLOW
            assert emulate(program, number, ARCHES[column], arguments) == wanted, (number, argument)


# ── what the tables are meant to say, written down once more ─────────────────────────────────────────────────────

REDUCED_ONLY = [
    "chmod",
    "fchmod",
    "fchmodat",
    "fchmodat2",
    "chown",
    "fchown",
    "lchown",
    "fchownat",
    "utime",
    "utimes",
    "utimensat",
    "futimesat",
    "setxattr",
    "lsetxattr",
    "fsetxattr",
    "setxattrat",
    "removexattr",
    "lremovexattr",
    "fremovexattr",
    "removexattrat",
    "file_setattr",
    "inotify_add_watch",
    "setsid",
    "setpgid",
]
FOREVER = [
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "pidfd_getfd",
    "kcmp",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "keyctl",
    "add_key",
    "request_key",
    "init_module",
    "finit_module",
    "delete_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "iopl",
    "ioperm",
    "modify_ldt",
    "syslog",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "fanotify_init",
    "shmget",
    "shmat",
    "msgget",
    "semget",
    "mq_open",
    "open_by_handle_at",
    "name_to_handle_at",
]
GONE = ["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "execveat"]
BUILDING = [
    "mount",
    "umount2",
    "pivot_root",
    "chroot",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "open_tree",
    "open_tree_attr",
    "move_mount",
    "mount_setattr",
    "unshare",
    "setns",
    "sethostname",
]
JUNK = 0xDEADBEEF


def answers(policy: seccomp.Policy, column: int, name: str, *arguments: int) -> int | None:
    """What the compiled policy says of a call by name; ``None`` where this machine's kernel has no such call."""
    number = NUMBERS[name][column]
    if number is None:
        return None
    padded = (*arguments, *[JUNK] * (6 - len(arguments)))
    return emulate(seccomp.compile_filter(policy, column), number, ARCHES[column], padded)


@pytest.mark.parametrize("column", [0, 1])
def test_what_nobody_needs_after_the_start_is_refused_for_ever(column):
    policy = seccomp.permanent_policy(column)
    assert {answers(policy, column, name) for name in FOREVER} <= {EPERM, None}
    assert {answers(policy, column, name) for name in GONE} <= {ENOSYS, None}


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        ("socketpair", (1, 1), ALLOW),  # a connection between two ends of our own
        ("socketpair", (1, 5), ALLOW),
        ("socketpair", (1, 1 | 0o2004000), ALLOW),
        ("socketpair", (1, 2), EPERM),
        ("socketpair", (1, 3), EPERM),
        ("socketpair", (2, 1), EPERM),
        ("socketpair", (16, 1), EPERM),
        ("ioctl", (1, 0x5401), ALLOW),  # TCGETS
        *(("ioctl", (1, request), EPERM) for request in (0x5412, 0x541C, 0x5423, 0x541D)),
        *(("ioctl", (1, request), EPERM) for request in (0x40086602, 0x40046602, 0x401C5820)),
        ("ioctl", (0x5412, 0x5401, 0x5412), ALLOW),  # only the request counts
        ("personality", (0, 1), ALLOW),
        ("personality", (0xFFFFFFFF, 1), ALLOW),
        ("personality", (1, 0), EPERM),
        ("personality", (0x40000, 0xFFFFFFFF), EPERM),  # ADDR_NO_RANDOMIZE
        ("prlimit64", (0, 7), ALLOW),
        ("prlimit64", (1, 0), EPERM),
        ("prlimit64", (4321, 0), EPERM),
    ],
)
def test_what_the_permanent_filter_says_of_single_arguments(column, name, arguments, wanted):
    assert answers(seccomp.permanent_policy(column), column, name, *arguments) == wanted


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("may_exec", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_what_built_the_walls_is_gone_in_every_profile(column, may_exec, reduced):
    policy = seccomp.final_policy(column, may_exec=may_exec, reduced=reduced)
    assert {answers(policy, column, name) for name in BUILDING} <= {EPERM, None}


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    ("name", "arguments", "wanted"),
    [
        *(("prctl", (option, 0), EPERM) for option in (0x59616D61, 35, 28, 4, 22)),
        ("prctl", (15, 4), ALLOW),  # PR_SET_NAME
        ("ioctl", (3, 0x8900), EPERM),
        ("ioctl", (3, 0x8914), EPERM),  # SIOCSIFFLAGS
        ("ioctl", (3, 0x89FF), EPERM),
        ("ioctl", (3, 0x88FF, 0x8914), ALLOW),
        ("ioctl", (3, 0x8A00, 0x8914), ALLOW),
        ("seccomp", (1, 8, 0), EPERM),  # SECCOMP_FILTER_FLAG_NEW_LISTENER
        ("seccomp", (1, 9, 0), EPERM),
        ("seccomp", (8, 1, 8), ALLOW),
    ],
)
def test_what_the_final_filter_says_of_single_arguments(column, reduced, name, arguments, wanted):
    assert answers(seccomp.final_policy(column, may_exec=True, reduced=reduced), column, name, *arguments) == wanted


@pytest.mark.parametrize("column", [0, 1])
def test_what_stands_for_namespaces_where_there_are_none(column):
    full, reduced = (seccomp.final_policy(column, may_exec=True, reduced=reduced) for reduced in (False, True))
    for name in REDUCED_ONLY:
        assert answers(reduced, column, name, 0) in (EPERM, None), name
        assert answers(full, column, name, 0) in (ALLOW, None), name
    for option in (1, 36):  # PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER
        assert answers(reduced, column, "prctl", option, 0) == EPERM
        assert answers(full, column, "prctl", option, 0) == ALLOW
    for name in ("sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity"):
        assert answers(reduced, column, name, 0, 9) == ALLOW
        assert answers(reduced, column, name, 9, 0) == EPERM
        assert answers(full, column, name, 9, 0) == ALLOW
    for name in ("setpriority", "ioprio_set"):
        assert answers(reduced, column, name, 9, 0, 9) == ALLOW
        assert answers(reduced, column, name, 0, 9, 0) == EPERM
        assert answers(full, column, name, 0, 9, 0) == ALLOW


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize(
    "name", ["kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo"]
)
def test_signals_are_refused_only_where_nothing_else_keeps_them_inside(column, name):
    refused = seccomp.final_policy(column, may_exec=True, reduced=True, scoped_signals=False)
    assert answers(refused, column, name, 9) == EPERM
    assert answers(refused, column, "mount") == EPERM  # with all the rest
    for options in ({}, {"scoped_signals": False}, {"reduced": True}, {"reduced": True, "scoped_signals": True}):
        assert answers(seccomp.final_policy(column, may_exec=True, **options), column, name, 9) == ALLOW


@pytest.mark.parametrize("column", [0, 1])
def test_unless_more_is_said_a_cell_has_namespaces_and_no_network(column):
    assert answers(seccomp.final_policy(column, may_exec=False), column, "socket", 2, 1, 0) == EPERM
    assert answers(seccomp.final_policy(column, may_exec=True), column, "socket", 2, 1, 0) == ALLOW  # of its own


@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0xF], ids=["whole word", "masked"])  # of one instruction more
@pytest.mark.parametrize("numbers", range(246, 258, 2))
def test_halves_as_far_apart_as_a_jump_can_reach_or_farther_are_compiled_alike(numbers, mask):
    """A conditional jump passes over 255 instructions at most."""
    policy: seccomp.Policy = dict.fromkeys(range(0, numbers, 2), EPERM)
    policy[0] = (seccomp.Check(0, mask, 0, EPERM),)
    program = seccomp.compile_filter(policy, 0, highest=numbers)
    for nr in range(numbers + 2):
        wanted = ENOSYS if nr > numbers else EPERM if nr in policy else ALLOW
        assert emulate(program, nr, ARCHES[0], (0,) * 6) == wanted


def said_by_a_child(act: Callable[[], str]) -> str:
    """What ``act`` says in a process of its own, which may give up what it has for ever."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
            os.write(writer, act().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as said:
        text = said.read().decode()
    os.waitpid(child, 0)
    return text


def tried() -> str:
    try:
        os.sched_setaffinity(os.getppid(), {0})
    except PermissionError:
        return "refused"
    return "done"


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize(
    "names",
    [
        ("shmget", "shmat", "shmctl", "shmdt"),
        ("semget", "semop", "semctl", "semtimedop"),
        ("msgget", "msgsnd", "msgrcv", "msgctl"),
        ("mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"),
    ],
)
def test_nothing_can_be_left_in_an_ipc_namespace_that_is_lent(column, names):
    policy = seccomp.permanent_policy(column)
    for name in names:
        assert answers(policy, column, name) == EPERM


def filters() -> str:
    """How many filters hold this process."""
    return Path("/proc/self/status").read_text().partition("Seccomp_filters:")[2].split()[0]


@pytest.mark.walls
def test_a_filter_binds_the_process_that_installs_it_and_one_that_the_kernel_refuses_binds_nobody():
    mine, before = os.sched_getaffinity(0), filters()
    with pytest.raises(OSError, match="Invalid argument"):
        seccomp.install(seccomp.NO_FILTER)
    assert filters() == before
    policy = seccomp.final_policy(_libc.COLUMN, may_exec=True, reduced=True)
    prepared = seccomp.prepare(policy, _libc.COLUMN)

    def walled() -> str:
        seccomp.install(prepared)
        return tried()

    assert said_by_a_child(tried) == "done"
    os.sched_setaffinity(0, mine)
    assert said_by_a_child(walled) == "refused"
    assert os.sched_getaffinity(0) == mine


@pytest.mark.walls
def test_who_installs_a_filter_that_notifies_holds_its_listener_unless_there_is_one_above():
    before = filters()
    assert seccomp.listen(seccomp.NO_FILTER) == -1
    assert filters() == before
    prepared = seccomp.prepare(seccomp.farewell_policy(_libc.COLUMN), _libc.COLUMN)

    def listening() -> str:
        listener = seccomp.listen(prepared)
        return "none" if listener == -1 else os.readlink(f"/proc/self/fd/{listener}")

    assert said_by_a_child(listening) in ("anon_inode:seccomp notify", "none")


@pytest.mark.parametrize("column", [0, 1])
def test_only_the_marked_end_of_an_init_is_shown_to_the_host(column):
    policy = seccomp.farewell_policy(column)
    for status in (0, 1, 137, 255):
        assert answers(policy, column, "exit_group", frames.FAREWELL | status) == 0x7FC00000
    for status in (0, 1, 255, frames.FAREWELL ^ 0x100, frames.FAREWELL ^ 0x80000000):
        assert answers(policy, column, "exit_group", status, frames.FAREWELL) == ALLOW
