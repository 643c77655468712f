"""How fast a cell is, beside what else one could start: all interleaved in one run, in the same weather.

    python benchmarks/cell.py [--rounds 100] [--json]

Milliseconds. A *parked* call sends its code to a cell that waits ready; *on demand* none waits. The goals: parked p50
no higher than ``/bin/true``'s; on demand at most a third of ``python -I -S -c pass``; sustained calls at least half
as many a second as bare forks of the warm parent; a parked cell's private memory under 3 MB.
"""

import argparse
import functools
import itertools
import json
import os
import platform
import select
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from machine import slowness

import handrail_cell
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import InlineCode, Supervisor
from handrail.sandbox.zygotes import interpreter

CODE = InlineCode("import math; print(math.sqrt(2))")
"""The same each time, as a tool's is, so that it is compiled once. See ``NEW_CODE``."""
NEW_CODE = "8, code new each time"
"""As from an agent that writes it anew: every call compiles its own."""
NUMPY = InlineCode("import numpy; print(float(numpy.sqrt(2.0)))")
TURNS = 10
"""So often are calls at once and bare forks measured in turns: what either takes is not the same from one second to the
next, and a quotient is of what was measured side by side."""
SUSTAINED = 2
"""Each turn's calls at once go on for so many times the rounds: the pool has found its size long before they end."""

REHEARSED_S = 0.1
"""Cells that were parked just now rehearse a while later, and then wait."""

SAME = itertools.repeat(CODE)
ANSWER = b"1.4142135623730951\n"

FORKER = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from handrail_cell import contain, zygote
facts = contain.Facts(ids=(0, 0), network=False, reduced=False, scratch=0)
zygote.warm_up({"path": [], "preload": [], "environment": {}}, facts)
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        begun = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        times.append(time.perf_counter() - begun)
    os.write(1, (repr(times) + "\\n").encode())
"""


HOST = """
from handrail.sandbox.profile import SandboxProfile
from handrail.sandbox.supervisor import InlineCode, Supervisor
profile = SandboxProfile()
with Supervisor(pool_size=1) as supervisor:
    supervisor.warm(profile)
    cell = supervisor.parked(profile)[0].pid
    supervisor.run_sync(InlineCode("print(1)\\nwhile True: pass"), profile, on_output=lambda _: print(cell, flush=True))
"""


class BareForks:
    """The warm parent's own heap, forked and waited for with no wall at all."""

    def __init__(self) -> None:

        source = os.path.dirname(os.path.dirname(handrail_cell.__file__))
        self.process = subprocess.Popen(
            [interpreter(), "-I", "-S", "-c", FORKER, source], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def measure(self, count: int) -> list[float]:
        """Seconds of each fork, exit and wait."""
        self.process.stdin.write(b"%d\n" % count)
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def spawn(*argv: str) -> None:
    """Start a program and wait for it."""
    pid = os.posix_spawn(argv[0], list(argv), {"PATH": "/usr/bin:/bin"})
    _, status = os.waitpid(pid, 0)
    if status:
        raise OSError(f"{argv[0]} ended with status {status}")


def bubblewrap() -> tuple[list[str] | None, str]:
    """A command that starts Python in bubblewrap, or why there is none."""
    program = shutil.which("bwrap")
    if program is None:
        return None, "bubblewrap is not installed"
    base = sys.base_prefix
    argv = [program, "--unshare-all", "--die-with-parent", "--ro-bind", "/usr", "/usr"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for name in ("bin", "lib", "lib64"):
        argv += ["--symlink", f"usr/{name}", f"/{name}"]
    if not base.startswith("/usr"):
        argv += ["--ro-bind", base, base]
    argv += [interpreter(), "-I", "-S", "-c", "import math; print(math.sqrt(2))"]
    done = subprocess.run(argv, capture_output=True, check=False)
    return (argv, "") if done.returncode == 0 else (None, f"bubblewrap cannot run here: {done.stderr.decode().strip()}")


def quantiles(seconds: list[float]) -> dict[str, float]:
    """p50, p90, p99 in milliseconds."""
    ordered = sorted(seconds)
    return {f"p{q}": round(ordered[min(len(ordered) - 1, len(ordered) * q // 100)] * 1000, 3) for q in (50, 90, 99)}


def timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def wait_idle(supervisor: Supervisor, profile: SandboxProfile) -> None:
    """Let the pool fill and what was used be closed, so that the next measurement stands alone."""
    deadline = time.monotonic() + 30
    while not supervisor.idle(profile) and time.monotonic() < deadline:
        time.sleep(0.002)


def latencies(rounds: int, supervisor: Supervisor, bare: Supervisor, forks: BareForks) -> dict[str, dict[str, float]]:
    """One of each kind, round after round."""
    lean, packed = SandboxProfile(), SandboxProfile(preload=("numpy",))
    wrapped, why = bubblewrap()
    python = interpreter()
    samples: dict[str, list[float]] = {}

    def call(keeper: Supervisor, code: InlineCode, profile: SandboxProfile) -> None:
        result = keeper.run_sync(code, profile)
        if result.output != ANSWER:
            raise RuntimeError(f"{result.error or result.output!r}")

    kinds: dict[str, Callable[[], float]] = {
        "posix_spawn /bin/true": lambda: timed(lambda: spawn("/bin/true")),
        "python -I -S -c pass": lambda: timed(lambda: spawn(python, "-I", "-S", "-c", "pass")),
        "bare fork of the zygote": lambda: forks.measure(1)[0],
        "parked": lambda: timed(lambda: call(supervisor, CODE, lean)),
        "on demand": lambda: timed(lambda: call(bare, CODE, lean)),
        "parked, numpy preloaded": lambda: timed(lambda: call(supervisor, NUMPY, packed)),
    }
    if wrapped is not None:
        quiet = {"stdout": subprocess.DEVNULL, "check": True}
        kinds["bubblewrap starting python"] = lambda: timed(lambda: subprocess.run(wrapped, **quiet))
    for profile in (lean, packed):
        supervisor.warm(profile)
    bare.run_sync(CODE, lean)
    for _ in range(rounds):
        for name, measure in kinds.items():
            for profile in (lean, packed):
                wait_idle(supervisor, profile)
            samples.setdefault(name, []).append(measure())
    found = {name: quantiles(values) for name, values in samples.items()}
    if wrapped is None:
        found["bubblewrap starting python"] = {"missing": why}
    return found


@dataclass(slots=True)
class Crowd:
    """Calls of so many threads at once: seconds of each call, calls a second and bare forks a second in each turn."""

    times: list[float] = field(default_factory=list[float])
    rates: list[float] = field(default_factory=list[float])
    forks: list[float] = field(default_factory=list[float])

    def report(self) -> dict[str, Any]:
        shares = [rate / forks for rate, forks in zip(self.rates, self.forks, strict=True)]
        low, _, high = statistics.quantiles(shares, n=4)
        return {
            **quantiles(self.times),
            "calls a second": round(statistics.median(self.rates), 1),
            "bare forks a second": round(statistics.median(self.forks), 1),
            "calls / bare forks": round(statistics.median(shares), 3),
            "calls / bare forks, quartiles": [round(low, 3), round(high, 3)],
        }


def crowds(rounds: int, supervisor: Supervisor, forks: BareForks) -> dict[str, dict[str, Any]]:
    """1, 8 and 64 calls at once, and 8 of new code, in turns.

    Before and after each, when nothing else is being done, come bare forks.
    """
    found = {"1": Crowd(), "8": Crowd(), "64": Crowd(), NEW_CODE: Crowd()}
    new = (InlineCode(f"{CODE.source}  # {number}") for number in itertools.count())
    count = max(rounds // 2, 2)

    def alone() -> list[float]:
        wait_idle(supervisor, SandboxProfile())
        time.sleep(REHEARSED_S)
        return forks.measure(count)

    for _ in range(TURNS):
        before = alone()
        for n, one in found.items():
            codes = new if n == NEW_CODE else SAME
            times, rate = crowd(supervisor, int(n.partition(",")[0]), SUSTAINED * rounds, codes)
            after = alone()
            one.times += times
            one.rates.append(rate)
            one.forks.append(2 * count / (sum(before) + sum(after)))
            before = after
    return {n: one.report() for n, one in found.items()}


def crowd(
    supervisor: Supervisor, at_once: int, calls: int, codes: Iterator[InlineCode] = SAME
) -> tuple[list[float], float]:
    """Seconds of each call, and calls a second, with ``at_once`` threads calling."""
    profile = SandboxProfile()
    times: list[float] = []
    left = iter(range(calls))
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                if next(left, None) is None:
                    return
                code = next(codes)
            taken = timed(functools.partial(supervisor.run_sync, code, profile))
            with lock:
                times.append(taken)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, calls / (time.perf_counter() - begun)


def private_megabytes(supervisor: Supervisor) -> float:
    """Private memory of one parked cell."""
    profile = SandboxProfile()
    wait_idle(supervisor, profile)
    cell = supervisor.parked(profile)[0]
    with open(f"/proc/self/fdinfo/{cell.pidfd}", encoding="ascii") as file:
        pid = next(int(line.split()[1]) for line in file if line.startswith("Pid:"))
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        fields = {line.split(":")[0]: int(line.split()[1]) for line in file if line.endswith("kB\n")}
    return round((fields["Private_Dirty"] + fields["Private_Clean"]) / 1024, 2)


def host_death() -> float:
    """Seconds from the host's death by SIGKILL to that of a cell which computes."""
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE) as host:
        cell = os.pidfd_open(int(host.stdout.readline()))
        poll = select.poll()
        poll.register(cell, select.POLLIN)
        host.kill()
        taken = timed(lambda: poll.poll(30_000))
        os.close(cell)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    forks = BareForks()
    with Supervisor(pool_size=2) as supervisor, Supervisor(pool_size=0) as bare:
        found = latencies(options.rounds, supervisor, bare, forks)
        grown = crowds(options.rounds, supervisor, forks)
        memory = private_megabytes(supervisor) if os.geteuid() == 0 else None
        deaths = [host_death() for _ in range(10)]
    forks.close()
    best = max((grown[n] for n in ("1", "8", "64")), key=lambda one: one["calls / bare forks"])
    report = {
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}",
        "milliseconds": found,
        "calls at once": grown,
        "bare forks a second": best["bare forks a second"],
        "parked private MB": memory,
        "a cell outlives its killed host by, ms": quantiles(deaths),
        "slowness": slowness(),
        "goals": {
            "parked / true (<= 1)": round(found["parked"]["p50"] / found["posix_spawn /bin/true"]["p50"], 2),
            "on demand / python (<= 0.33)": round(found["on demand"]["p50"] / found["python -I -S -c pass"]["p50"], 2),
            "calls / bare forks (>= 0.5)": round(best["calls / bare forks"], 2),
        },
    }
    if options.json:
        print(json.dumps(report, indent=2))
        return
    print(report["machine"])
    for name, values in found.items():
        print(f"  {name:28} " + "  ".join(f"{key} {value}" for key, value in values.items()))
    for name, values in grown.items():
        print(f"  {name:>21} at once " + "  ".join(f"{key} {value}" for key, value in values.items()))
    print(f"  a parked cell's private memory {memory} MB")
    print(f"  a cell outlives its killed host by {quantiles(deaths)} ms; the machine is {slowness()} times slow")
    for name, value in report["goals"].items():
        print(f"  {name}: {value}")


if __name__ == "__main__":
    main()
