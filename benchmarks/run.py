"""Every benchmark, one after the other, into one file; then the plots that the README shows.

    python benchmarks/run.py [--quick] [--only NAME …]

Each writes one JSON object; all are kept in ``benchmarks/results.json`` with the machine they ran on. One that fails is
kept with its error: it is named, not dropped. ``--quick`` takes fewer rounds, to see that everything runs.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from plots import draw

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
QUICK: dict[str, list[str]] = {
    "isolation": ["--rounds", "20"],
    "dispatch": ["--rounds", "50"],
    "loop": ["--turns", "10", "--rounds", "2"],
}
NAMES = ("cell", "isolation", "dispatch", "growth", "policy", "journal", "staging", "loop", "mcp_proxy")


def one(name: str, *, quick: bool) -> dict[str, Any]:
    """Run one benchmark and return its JSON, or the reason why there is none."""
    script = HERE / f"{name}.py"
    command = [sys.executable, str(script), "--json", *(QUICK.get(name, []) if quick else [])]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    took = round(time.monotonic() - started, 1)
    try:
        return {"seconds": took, "result": json.loads(done.stdout[done.stdout.index("{") :])}
    except ValueError:
        return {"seconds": took, "error": (done.stderr.strip() or f"exit status {done.returncode}")[-2000:]}


def contract() -> dict[str, Any]:
    """The contract matrix, with the peers in their own environment."""
    from peers import prepared

    command = [sys.executable, "-m", "handrail_contract.main", "--json", "--python", prepared()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    try:
        return {"result": json.loads(done.stdout)}
    except ValueError:
        return {"error": done.stderr.strip()[-2000:]}


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", nargs="*", choices=[*NAMES, "contract"], default=[*NAMES, "contract"])
    options = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["machine"] = machine()
    for name in options.only:
        print(f"{name} …", end=" ", flush=True)
        results[name] = contract() if name == "contract" else one(name, quick=options.quick)
        print("error" if "error" in results[name] else "done", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    draw(results, HERE / "plots")
    failed = [name for name in options.only if "error" in results[name]]
    for name in failed:
        print(f"{name}: {results[name]['error'].splitlines()[-1]}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
