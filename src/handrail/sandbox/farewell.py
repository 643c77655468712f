"""How a cell ends, heard from the kernel before it has taken the cell's memory apart.

A cell's init leaves by an ``exit_group`` that its filter shows to the host. The status is then an argument that the
kernel read, and the task waits inside the kernel: it is killed there and never comes back to its program. A cell that
is killed or crashes makes no such call; of its end the warm parent tells.
"""

import contextlib
import fcntl
import os
import struct
import time

from handrail.sandbox.ending import Verdict

NOTIFICATION = struct.Struct("=QIIiIQ6Q")
"""``struct seccomp_notif``: id, process, flags; in it ``seccomp_data``: number, architecture, address, arguments."""
RECEIVE = 0xC0000000 | NOTIFICATION.size << 16 | ord("!") << 8
"""``SECCOMP_IOCTL_NOTIF_RECV``: ``_IOWR('!', 0, struct seccomp_notif)``."""

NO_SUBDIRECTORY = 2
"""Links of a directory without subdirectories. Below ``task`` there is one for each thread."""


def read_farewell(listener: int, init: int) -> Verdict | None:
    """The end that process ``init`` asks for. ``None`` when it was another's call, or the caller is dead already.

    Call it only when the listener is readable. Any process of a cell may make such a call; only init's ends the cell,
    and who else makes one waits for nothing until the cell ends.
    """
    if init < 0:
        return None
    notification = bytearray(NOTIFICATION.size)
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, RECEIVE, notification)
        _, caller, _, _, _, _, status, *_ = NOTIFICATION.unpack(notification)
        if caller == init:
            return Verdict((status & 0xFF) << 8, _cpu_seconds(init))
    return None


def is_single_thread(view: int) -> bool:
    """Whether a cell's init, seen through the cell's own ``/proc``, has no second thread. It must be held meanwhile."""
    with contextlib.suppress(OSError):
        return os.stat("1/task", dir_fd=view).st_nlink == NO_SUBDIRECTORY + 1
    return False


def _cpu_seconds(process: int) -> float:
    """Processor time of another process, by the clock that ``clock_getcpuclockid(3)`` names."""
    try:
        return time.clock_gettime(~process << 3 | 2)
    except OSError:
        return 0.0
