"""How many cells wait parked, and which warm parents stay: decisions alone, told by the clock they are given."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeVar

REST_S = 5.0
FORKS_EACH = 20_000
PARENTS_KEPT = 6


@dataclass(slots=True)
class Target:
    """How many cells should wait for one warm parent's calls.

    It starts at ``least``. Whenever a call finds none waiting it grows by one, up to ``most``; each ``REST_S`` seconds
    in which no call did it shrinks by one again. Times are seconds of one clock.
    """

    least: int
    most: int
    changed: float
    wanted: int = 0

    def __post_init__(self) -> None:
        self.most = max(self.most, self.least)
        self.wanted = self.least

    def missed(self, now: float) -> None:
        """A call found no cell waiting. Without a pool there is nothing to find, and nothing to learn."""
        if self.least:
            self.wanted = min(self.wanted + 1, self.most)
        self.changed = now

    def at(self, now: float) -> int:
        """How many are wanted now."""
        rests = int((now - self.changed) // REST_S)
        if rests > 0:
            self.wanted = max(self.least, self.wanted - rests)
            self.changed += rests * REST_S
        return self.wanted

    def next_change(self) -> float | None:
        """When to look again though nothing happens; ``None`` when it is as small as it gets."""
        return self.changed + REST_S if self.wanted > self.least else None


class Parent(Protocol):
    """A warm parent, as far as keeping it is concerned."""

    running: int
    used: float
    started: int


P = TypeVar("P", bound=Parent)


def is_worn(parent: Parent) -> bool:
    """Whether it has forked so often that another should take over: every fork of one has the same memory layout."""
    return parent.started >= FORKS_EACH


def to_let_go(parents: Iterable[P], newest: P) -> list[P]:
    """Those to end so that at most ``PARENTS_KEPT`` stay: the ones unused for longest.

    Never the newest, which a call is about to use, and never one whose calls run.
    """
    all_of = list(parents)
    waiting = [parent for parent in all_of if parent.running == 0 and parent is not newest]
    return sorted(waiting, key=lambda each: each.used)[: max(0, len(all_of) - PARENTS_KEPT)]
