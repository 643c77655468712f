"""The moment a staged call begins, told from every later change of a file by the kernel's own stamps."""

import os
import time
from dataclasses import dataclass

from handrail.errors import ChangeError

_CLOCK_SLACK_NS = 2_000_000
_REALTIME_COARSE = 5  # CLOCK_REALTIME_COARSE (clock_gettime(2)): the clock that stamps files
_ATTEMPTS = 4  # a tick may end, or another process take a finer stamp, between two looks
_GRAINS_NS = (2 * 10**9, 10**9, 10**7, 10**6, 10**3, 100, 1)  # what filesystems keep: FAT, ext3, exFAT … NTFS, all


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment that every later change of a file can be told from, by the file's change time.

    Filesystems stamp changes with a clock that moves in ticks (1 to 10 ms), so a stamp alone does not tell a change
    just before a call from one just after it. Since Linux 6.13 a stamp that somebody has looked at is followed by a
    finer one, and no later stamp on the whole machine lies before it ("multigrain timestamps"). So a file of our own,
    in memory, is changed, looked at and changed again: its last stamp parts before from after, and nobody waits.
    Where that does not hold (it is tried, not guessed), :meth:`now` waits for the tick to be over.

    ``realtime_ns`` is the last instant that counts as before, in nanoseconds since 1970.

    Not covered: a network filesystem that stamps with a server's clock, if that clock is behind this machine's.
    """

    realtime_ns: int
    monotonic_ns: int

    @classmethod
    def now(cls) -> "Moment":
        """This moment; where the kernel's stamps are coarse it returns at most one tick later."""
        return cls.at_once() or cls.after_the_tick()

    @classmethod
    def at_once(cls) -> "Moment | None":
        """This moment, without waiting; ``None`` where the kernel's stamps are too coarse to tell it."""
        try:
            witness = os.memfd_create("handrail-moment")
        except OSError:
            return None
        try:
            for _ in range(_ATTEMPTS):
                first, second = _touched(witness), _touched(witness)
                if second > first and second > time.clock_gettime_ns(_REALTIME_COARSE):  # finer than the tick
                    return cls(second - 1, time.monotonic_ns())
        finally:
            os.close(witness)
        return None

    @classmethod
    def after_the_tick(cls) -> "Moment":
        """A moment whose tick is over when this returns."""
        moment = cls(time.time_ns(), time.monotonic_ns())
        while time.clock_gettime_ns(_REALTIME_COARSE) <= moment.realtime_ns:
            time.sleep(0.0003)
        return moment

    def may_precede(self, changed_ns: int) -> bool:
        """Whether a change stamped ``changed_ns`` may have been made after this moment.

        A filesystem that keeps fewer digits cuts them off, so a round stamp stands for all the time up to the next.
        """
        grain = next(grain for grain in _GRAINS_NS if changed_ns % grain == 0)
        return changed_ns + grain - 1 > self.realtime_ns

    def require_steady_clock(self) -> None:
        """Raise :class:`~handrail.errors.ChangeError` if the clock was set back since, so that stamps say nothing."""
        passed = time.monotonic_ns() - self.monotonic_ns
        if time.time_ns() - self.realtime_ns < passed - _CLOCK_SLACK_NS:
            raise ChangeError("the machine's clock was set back while the call ran; run it again")


def _touched(fd: int) -> int:
    """The change time of ``fd`` after a change made now; looking at it makes the kernel stamp the next one finer."""
    os.fchmod(fd, 0o600)
    return os.fstat(fd).st_ctime_ns
