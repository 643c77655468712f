"""Resource limits that the kernel counts for each process of a cell.

What they cannot bound in total (the sum over processes), the host watches from outside, and a cgroup where one is
given.
"""

import resource

from handrail_cell import frames

MEGABYTE = 1 << 20
STACK = 8 * MEGABYTE
ADDRESS_SPACE_FACTOR = 8
"""With programs allowed, address space is a poor measure (runtimes reserve far more than they use): data is limited
instead, and address space only at this multiple, so that shared mappings stay bounded between two looks of the host."""


CEILINGS = {kind: resource.getrlimit(kind)[1] for kind in range(16)}
"""The hard limits this process was born with: asked once, in the warm parent."""


STANDING = [
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_MEMLOCK, 0),
    (resource.RLIMIT_MSGQUEUE, 0),
    (resource.RLIMIT_RTPRIO, 0),
    (resource.RLIMIT_STACK, STACK),
]
"""What is the same for every call: set once, in the warm parent, whose children inherit it."""


def table(numbers: frames.Numbers, *, may_exec: bool) -> list[tuple[int, int]]:
    """``(resource, value)`` for both the soft and the hard limit, whole seconds and bytes."""
    cpu_s, memory_bytes, processes, _, file_bytes, open_files = numbers
    space = memory_bytes * ADDRESS_SPACE_FACTOR if may_exec else memory_bytes
    return [
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_DATA, memory_bytes),
        (resource.RLIMIT_CPU, max(1, cpu_s)),  # soft = hard: as PID 1 a cell would not hear the soft one's signal
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_NOFILE, open_files),
        (resource.RLIMIT_NPROC, processes),
    ]


def apply(values: list[tuple[int, int]]) -> None:
    """Set each limit, never above the hard limit that is already there."""
    for kind, wanted in values:
        ceiling = CEILINGS[kind]
        value = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
        resource.setrlimit(kind, (value, value))
