"""What `import handrail` adds to an interpreter that does nothing, in milliseconds of wall time and of CPU.

    python benchmarks/imports.py [--json] [--rounds N]

An empty interpreter, `import handrail`, `import handrail_cell` and `handrail --help` are started in turn, in a random
order each round; the figures are medians over rounds, and what each adds to the empty interpreter's. The aim is at most
150 ms for `import handrail`. `slowness` says how many times longer than on an ordinary machine Python takes here: a sum
of a thousand integers, which takes about ten microseconds there. Where other programs run beside it, only the CPU time
says what the import itself costs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time

from machine import slowness

AIM_MS = 150

STARTS = {
    "empty": "pass",
    "import handrail_cell": "import handrail_cell",
    "import handrail": "import handrail",
    "handrail --help": "from handrail.cli.main import app; app(['--help'])",
}


def started(code: str) -> tuple[float, float]:
    """Milliseconds of wall time and CPU time that a new interpreter took for ``code``."""
    before = os.times()
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False)
    wall = time.perf_counter() - began
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return wall * 1000, spent * 1000


def measured(rounds: int) -> dict[str, object]:
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in STARTS}
    for code in STARTS.values():
        started(code)  # compiled files are there from now on
    for _ in range(rounds):
        for name in random.sample(list(STARTS), len(STARTS)):
            samples[name].append(started(STARTS[name]))
    wall = {name: statistics.median(sample[0] for sample in taken) for name, taken in samples.items()}
    cpu = {name: statistics.median(sample[1] for sample in taken) for name, taken in samples.items()}
    added = wall["import handrail"] - wall["empty"]
    worked = cpu["import handrail"] - cpu["empty"]
    slow = slowness()
    return {
        "wall_ms": {name: round(value, 1) for name, value in wall.items()},
        "cpu_ms": {name: round(value, 1) for name, value in cpu.items()},
        "import_adds_ms": round(added, 1),
        "import_adds_cpu_ms": round(worked, 1),
        "times_an_empty_start": round(wall["import handrail"] / wall["empty"], 2),
        "slowness": slow,
        "aim_ms": AIM_MS,
        "met_here": added <= AIM_MS,
        "met_at_ordinary_speed": worked / max(slow, 1.0) <= AIM_MS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=15, help="starts of each kind")
    options = parser.parse_args()
    result = measured(options.rounds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
