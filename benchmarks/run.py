"""Every benchmark, one after the other, into one file; then the plots and the figures that the README shows.

    python benchmarks/run.py [--quick] [--only NAME …]

Each part is a program of its own that prints one JSON object; all are kept in ``benchmarks/results.json`` with the
machine that they ran on and how slow it was just then. Sizes follow the machine: where it is slower, fewer rounds are
taken, and every part has a time after which it is stopped. A part that fails is kept with its error, named, and stops
no other. ``--quick`` takes a few rounds, to see that everything runs, and writes ``benchmarks/quick.json`` alone.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import write_figures
from machine import described, slowness
from peers import prepared
from plots import draw

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
QUICK_RESULTS = HERE / "quick.json"

Scale = Callable[[int, int], str]
"""Takes how many rounds a quick machine makes, and how few say something; gives the option's value."""


@dataclass(frozen=True, slots=True)
class Part:
    """One benchmark: its words when it is quick, its words in full, and after how many seconds it is stopped."""

    quick: tuple[str, ...]
    full: Callable[[Scale], tuple[str, ...]]
    seconds: float
    script: str = ""


def _slow(scale: Scale) -> bool:
    """Whether this machine is so slow now that a part leaves out its largest size."""
    return int(scale(10, 1)) < 4


def _staged(scale: Scale) -> tuple[str, ...]:
    sizes = ("10", "10000") if _slow(scale) else ("10", "10000", "100000")
    return ("--repeats", scale(30, 5), "--sizes", *sizes)


PARTS: dict[str, Part] = {
    "isolation": Part(("--rounds", "5"), lambda scale: ("--rounds", scale(200, 40)), 280),
    "cell": Part(("--rounds", "5"), lambda scale: ("--rounds", scale(200, 40)), 280),
    "dispatch": Part(("--rounds", "20"), lambda scale: ("--rounds", scale(800, 150)), 280),
    "growth": Part(("--repeats", "3"), lambda scale: ("--repeats", scale(100, 20)), 240),
    "policy": Part(("--rules", "100"), lambda scale: (), 120),
    "journal": Part(("--quick",), lambda scale: ("--quick",) if _slow(scale) else (), 280),
    "staging": Part(("--repeats", "2", "--sizes", "10", "1000"), _staged, 280),
    "loop": Part(
        ("--turns", "10", "--rounds", "2", "--long", "200"),
        lambda scale: ("--turns", "50", "--rounds", scale(8, 3)),
        200,
    ),
    "mcp_load": Part(
        ("--clients", "4", "--calls", "40"),
        lambda scale: ("--calls", "2000" if _slow(scale) else "10000"),
        600,
    ),
    "mcp_proxy": Part(("--calls", "50"), lambda scale: ("--calls", scale(2000, 400)), 240),
    "contract": Part((), lambda scale: (), 1500),
}
"""In this order. The contract's probes wait for timeouts more than they compute."""


def run(name: str, *, quick: bool, python: str | Exception) -> dict[str, Any]:
    """One part: its JSON, or why there is none. ``python`` is the peers' interpreter, or why that is missing."""
    part = PARTS[name]
    slow = slowness()

    def scale(rounds: int, least: int) -> str:
        return str(max(least, round(rounds / max(1.0, slow))))

    words = [*(part.quick if quick else part.full(scale)), "--json"]
    if name == "contract":
        if isinstance(python, Exception):
            return {"slowness": slow, "seconds": 0.0, "error": f"the peers cannot be installed: {python}"}
        command = [sys.executable, "-m", "handrail_contract.main", "--python", python, *words]
    else:
        command = [sys.executable, str(HERE / f"{name}.py"), *words]
    started = time.monotonic()
    output, error = _finished(command, part.seconds)
    kept = {"slowness": slow, "seconds": round(time.monotonic() - started, 1)}
    try:
        return {**kept, "result": json.loads(output[output.index("[" if name == "contract" else "{") :])}
    except ValueError:
        return {**kept, "error": error[-2000:]}


def _finished(command: list[str], seconds: float) -> tuple[str, str]:
    """What the program printed, and what went wrong. It is stopped with all that it started when its time is over."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "", f"stopped: it took more than {seconds:g} s"
    return output, error.strip() or f"exit status {process.returncode}"


def peers_python() -> str | Exception:
    """The peers' interpreter; without it their parts are named as failed, and the others run."""
    try:
        return prepared()
    except (OSError, subprocess.CalledProcessError) as error:
        return error


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds of everything; leaves the README alone")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="NAME")
    options = parser.parse_args()
    path = QUICK_RESULTS if options.quick else RESULTS
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    results["machine"] = described()
    print("peers …", flush=True)
    python = peers_python()
    for name in options.only:
        print(f"{name} …", end=" ", flush=True)
        results[name] = run(name, quick=options.quick, python=python)
        print(f"{'error' if 'error' in results[name] else 'done'} in {results[name]['seconds']:.0f} s", flush=True)
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if not options.quick:
        draw(results, HERE / "plots")
        write_figures(results)
    failed = [name for name in options.only if "error" in results[name]]
    for name in failed:
        print(f"{name}: {results[name]['error'].splitlines()[-1]}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
