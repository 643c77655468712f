"""Which processes belong to a call, as ``/proc`` tells anybody: parents, and process ids in nested PID namespaces."""

import os
from typing import NamedTuple


class Seen(NamedTuple):
    """One process: its parent, its ids from the outermost PID namespace inwards, and when it started (clock ticks)."""

    parent: int
    ids: tuple[int, ...]
    started: int


def processes() -> dict[int, Seen]:
    found: dict[int, Seen] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/status") as file:
                    fields = dict(line.split(":", 1) for line in file)
                with open(f"/proc/{name}/stat") as file:
                    started = int(file.read().rpartition(")")[2].split()[19])
            except (OSError, ValueError):
                continue  # ended while we looked
            if fields["State"].split()[0] not in "ZX":
                ids = tuple(int(word) for word in fields["NSpid"].split())
                found[int(name)] = Seen(int(fields["PPid"]), ids, started)
    return found


def descendants(ancestor: int) -> dict[int, Seen]:
    """Every living process below ``ancestor``."""
    alive = processes()
    below: dict[int, Seen] = {}
    for pid, seen in alive.items():
        above = seen.parent
        while above not in (0, 1, ancestor) and above in alive:
            above = alive[above].parent
        if above == ancestor:
            below[pid] = seen
    return below


def of_a_call(host: int) -> list[int]:
    """Processes of calls beneath ``host``: in a cell's PID namespace, and not its first, which may wait for a call."""
    return [pid for pid, seen in descendants(host).items() if len(seen.ids) >= 3 and seen.ids[-1] != 1]
