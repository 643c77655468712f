"""System call filters, compiled as data.

A policy is a table ``{call number: rule}``. A rule is one answer for every use of the call, or checks of single
arguments, first match wins, and ``ALLOW`` when none matches. :func:`compile_filter` turns the table into classic BPF
as a balanced tree over the numbers. Nothing here touches the kernel but :func:`install`.

Two filters stand one behind the other and the stricter answer wins:

- the *permanent* one, installed once in the zygote: what neither trusted code nor a tool ever needs;
- the *final* one, installed in the cell just before the tool's code: what building the walls needed (mounts,
  namespaces) and what this call's profile forbids (new processes, sockets).

Rules that the compiler keeps for every policy:

1. another architecture, or the x32 range, kills the process;
2. a number above the highest we have read the meaning of answers ``ENOSYS``, so that a new kernel opens no new door;
3. arguments are compared by their low 32 bits alone, which is all that the kernel reads of them
   (comparing 64 lets a caller set high bits to slip by: CVE-2019-10063);
4. ``clone3`` answers ``ENOSYS``: its flags lie in memory that a filter cannot read, and the C library falls back to
``clone``.
"""

import struct
from typing import NamedTuple

from handrail_cell import _libc, frames
from handrail_cell._numbers import HIGHEST_KNOWN, NUMBERS

ALLOW = 0x7FFF0000
KILL = 0x80000000
NOTIFY = 0x7FC00000
ERRNO = 0x00050000
EPERM = ERRNO | 1
ENOSYS = ERRNO | 38

AUDIT_ARCH = (0xC000003E, 0xC00000B7)
"""``AUDIT_ARCH_X86_64``, ``AUDIT_ARCH_AARCH64``: same columns as the number table."""
X32_BIT = 0x40000000

LD_NR = (0x20, 0, 0, 0)
LD_ARCH = (0x20, 0, 0, 4)
JEQ, JGE, JA, AND, RET, LD = 0x15, 0x35, 0x05, 0x54, 0x06, 0x20

Instruction = tuple[int, int, int, int]
"""One ``struct sock_filter``: code, jump if true, jump if false, operand."""


class Check(NamedTuple):
    """``answer`` when ``(low 32 bits of argument & mask) == value``, or ``!=`` when ``negate``."""

    argument: int
    mask: int
    value: int
    answer: int
    negate: bool = False


Rule = int | tuple[Check, ...]
Policy = dict[int, Rule]

FULL_WORD = 0xFFFFFFFF
NEW_LISTENER = 0x8
NO_SUCH_FLAG = 1 << 31
NAMESPACE_FLAGS = 0x7E020000
"""NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. NEWTIME shares bits with the exit signal in ``clone``."""

# Never needed, by anyone, after the zygote is up.
REFUSED = (
    "ptrace",
    "process_vm_readv",
    "process_vm_writev",
    "process_madvise",
    "process_mrelease",
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
    "create_module",
    "get_kernel_syms",
    "query_module",
    "kexec_load",
    "kexec_file_load",
    "reboot",
    "swapon",
    "swapoff",
    "acct",
    "quotactl",
    "quotactl_fd",
    "iopl",
    "ioperm",
    "modify_ldt",
    "lookup_dcookie",
    "syslog",
    "nfsservctl",
    "uselib",
    "ustat",
    "sysfs",
    "_sysctl",
    "vhangup",
    "setdomainname",
    "settimeofday",
    "clock_settime",
    "clock_adjtime",
    "adjtimex",
    "fanotify_init",
    "fanotify_mark",
    "move_pages",
    "migrate_pages",
    "mbind",
    "set_mempolicy",
    "set_mempolicy_home_node",
    "vmsplice",
    "shmget",
    "shmat",
    "shmctl",
    "shmdt",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "semget",
    "semop",
    "semctl",
    "semtimedop",
    "mq_open",
    "mq_unlink",
    "mq_timedsend",
    "mq_timedreceive",
    "mq_notify",
    "mq_getsetattr",
    "open_by_handle_at",
    "name_to_handle_at",
    "lsm_set_self_attr",
    "afs_syscall",
    "tuxcall",
    "security",
    "putpmsg",
    "getpmsg",
    "vserver",
    "remap_file_pages",
)

# Absent, so that libraries take the road they take on an older kernel.
ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_create", "memfd_secret", "execveat")

IOCTLS = (0x5412, 0x541C, 0x5423, 0x541D, 0x40086602, 0x40046602, 0x401C5820)
"""TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS, FS_IOC_SETFLAGS (64, 32), FS_IOC_FSSETXATTR."""

AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
SOCK_DGRAM, SOCK_RAW, SOCK_TYPE_MASK = 2, 3, 0xF
IPPROTO_TCP, IPPROTO_UDP = 6, 17

# What building the walls needed, and nobody needs afterwards.
BUILDERS = (
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
    "statmount",
    "listmount",
)

PRCTLS = (0x59616D61, 35, 28, 4, 22)
"""PR_SET_PTRACER, PR_SET_MM, PR_SET_SECUREBITS, PR_SET_DUMPABLE, PR_SET_SECCOMP."""

PRCTLS_REDUCED = (1, 36)
"""PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER: without a PID namespace these carry the complete kill."""

# Without a mount namespace, Landlock is the file wall, and it does not govern these.
METADATA = (
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
)

# Without a PID namespace, other processes of the same user are in reach.
SIGNALS = ("kill", "tkill", "tgkill", "pidfd_send_signal", "rt_sigqueueinfo", "rt_tgsigqueueinfo")
OTHERS = ("sched_setscheduler", "sched_setparam", "sched_setattr", "sched_setaffinity")


def permanent_policy(column: int) -> Policy:
    """What the zygote gives up for itself and every cell."""
    rules: dict[str, Rule] = dict.fromkeys(REFUSED, EPERM)
    rules |= dict.fromkeys(ABSENT, ENOSYS)
    return _table(
        column,
        rules
        | {
            "socket": _internet_only(),
            # Half of a datagram pair can be turned towards any socket file: only connections stay between the two.
            "socketpair": (
                Check(0, FULL_WORD, AF_UNIX, EPERM, negate=True),
                *(Check(1, SOCK_TYPE_MASK, kind, EPERM) for kind in (SOCK_DGRAM, SOCK_RAW)),
            ),
            "ioctl": tuple(Check(1, FULL_WORD, request, EPERM) for request in IOCTLS),
            "personality": (Check(0, FULL_WORD, 0, ALLOW), Check(0, FULL_WORD, FULL_WORD, ALLOW), _always(EPERM)),
            "prlimit64": (Check(0, FULL_WORD, 0, EPERM, negate=True),),
        },
    )


def final_policy(
    column: int, *, may_exec: bool, network: bool = False, reduced: bool = False, scoped_signals: bool = True
) -> Policy:
    """What is taken away just before a tool's code runs.

    ``may_exec``: new processes and programs are allowed, and Internet sockets within the cell's own network namespace.
    ``network``: the host granted its network. ``reduced``: no namespaces stand behind this filter.
    ``scoped_signals``: Landlock keeps signals inside the cell (ABI 6), so ``kill`` may stay.
    """
    clone = [Check(0, NAMESPACE_FLAGS, 0, EPERM, negate=True)]
    rules: dict[str, Rule] = dict.fromkeys(BUILDERS, EPERM)
    if not (network or (may_exec and not reduced)):
        rules["socket"] = EPERM
    rules["prctl"] = tuple(Check(0, FULL_WORD, option, EPERM) for option in PRCTLS)
    rules["ioctl"] = (Check(1, 0xFFFFFF00, 0x8900, EPERM),)  # SIOC*: network configuration
    rules["seccomp"] = (
        Check(1, NEW_LISTENER, NEW_LISTENER, EPERM),
    )  # a listener would answer system calls in the kernel's place
    if not may_exec:
        clone.append(Check(0, _libc.CLONE_THREAD, 0, EPERM))
        rules |= dict.fromkeys(("fork", "vfork", "execve"), EPERM)
    rules["clone"] = tuple(clone)
    if reduced:
        rules["prctl"] = tuple(Check(0, FULL_WORD, option, EPERM) for option in (*PRCTLS, *PRCTLS_REDUCED))
        rules |= dict.fromkeys((*METADATA, "setsid", "setpgid"), EPERM)
        rules |= dict.fromkeys(OTHERS, (Check(0, FULL_WORD, 0, EPERM, negate=True),))
        rules |= dict.fromkeys(("setpriority", "ioprio_set"), (Check(1, FULL_WORD, 0, EPERM, negate=True),))
        if not scoped_signals:
            rules |= dict.fromkeys(SIGNALS, EPERM)
    return _table(column, rules)


def farewell_policy(column: int) -> Policy:
    """Shows one call to whoever holds the filter's listener: ``exit_group`` with our mark, made by a cell's init.

    Without it the host would learn of the end when the kernel has taken the cell's memory apart, page by page. The
    answer is weaker than any refusal of the other filters, and without a listener the call fails.
    """
    return _table(column, {"exit_group": (Check(0, 0xFFFFFF00, frames.FAREWELL, NOTIFY),)})


def _internet_only() -> tuple[Check, ...]:
    """TCP and UDP over IPv4 and IPv6. Any other kind is refused, named Unix sockets first of all: the workspace may
    hold one that a process of the host listens on.
    """
    protocols = (Check(2, FULL_WORD, number, ALLOW) for number in (0, IPPROTO_TCP, IPPROTO_UDP))
    return (
        Check(0, FULL_WORD & ~(AF_INET ^ AF_INET6), AF_INET & AF_INET6, EPERM, negate=True),
        Check(1, SOCK_TYPE_MASK, SOCK_RAW, EPERM),
        Check(1, SOCK_TYPE_MASK & ~SOCK_RAW, 0, EPERM, negate=True),
        *protocols,
        _always(EPERM),
    )


def _always(answer: int) -> Check:
    return Check(0, 0, 0, answer)


def _table(column: int, rules: dict[str, Rule]) -> Policy:
    numbered = ((NUMBERS[name][column], rule) for name, rule in rules.items())
    return {number: rule for number, rule in numbered if number is not None and number <= HIGHEST_KNOWN}


def compile_filter(policy: Policy, column: int, *, highest: int = HIGHEST_KNOWN) -> bytes:
    """The policy as an array of ``struct sock_filter``."""
    program: list[Instruction] = [
        LD_ARCH,
        (JEQ, 1, 0, AUDIT_ARCH[column]),
        (RET, 0, 0, KILL),
        LD_NR,
        *_tree(_intervals(policy, highest)),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _intervals(policy: Policy, highest: int) -> list[tuple[int, Rule]]:
    """Neighbouring numbers with one answer become one interval: ``(first number, rule)``, ascending."""
    intervals: list[tuple[int, Rule]] = []
    for number in range(highest + 1):
        rule = policy.get(number, ALLOW)
        if not intervals or intervals[-1][1] != rule:
            intervals.append((number, rule))
    return [*intervals, (highest + 1, ENOSYS), (X32_BIT, KILL)]


def _tree(intervals: list[tuple[int, Rule]]) -> list[Instruction]:
    """A balanced decision tree. Each subtree ends in returns on all its paths, so subtrees can be laid side by side."""
    if len(intervals) == 1:
        return _leaf(intervals[0][1])
    middle = len(intervals) // 2
    lower, upper = _tree(intervals[:middle]), _tree(intervals[middle:])
    border = intervals[middle][0]
    if len(lower) <= 255:
        return [(JGE, len(lower), 0, border), *lower, *upper]
    return [(JGE, 0, 1, border), (JA, 0, 0, len(lower)), *lower, *upper]


def _leaf(rule: Rule) -> list[Instruction]:
    if isinstance(rule, int):
        return [(RET, 0, 0, rule)]
    program: list[Instruction] = []
    for check in rule:
        program.append((LD, 0, 0, 16 + 8 * check.argument))
        if check.mask != FULL_WORD:
            program.append((AND, 0, 0, check.mask))
        program.append((JEQ, 1, 0, check.value) if check.negate else (JEQ, 0, 1, check.value))
        program.append((RET, 0, 0, check.answer))
    return [*program, (RET, 0, 0, ALLOW)]


def prepare(policy: Policy, column: int) -> _libc.Filter:
    """The policy as :func:`install` and :func:`listen` take it."""
    return _libc.Filter(compile_filter(policy, column))


NO_FILTER = _libc.Filter(b"")
"""A program without an instruction: the kernel refuses it."""


def install(prepared: _libc.Filter) -> None:
    """Install a filter for this process and all it will start. Needs ``no_new_privs``. There is no way back."""
    _libc.install_filter(prepared, 0)


def listen(prepared: _libc.Filter) -> int:
    """The same for a filter that notifies. Returns the listener, or -1 where there can be none (another one above)."""
    try:
        return _libc.install_filter(prepared, NEW_LISTENER)
    except OSError:
        return -1
