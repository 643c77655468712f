"""Starting isolated code: Handrail's cells beside what else there is, interleaved in one run.

    python benchmarks/isolation.py [--json] [--rounds N]

Every contender runs ``import math; print(math.sqrt(2))`` and must return its output. They share one process and one
environment (``benchmarks/.peers``, see ``peers.txt``); each round calls every contender once, in a new random order,
after the same short rest. What each isolates differs, and the table says so: a number without its walls means little.
A contender that cannot run here is named with its reason.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from peers import in_peers_environment

CODE = "import math\nprint(math.sqrt(2))\n"
EXPECTED = "1.4142135623730951"
Call = Callable[[], str]


def bare_true() -> Call:
    def call() -> str:
        os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)
        return EXPECTED

    return call


def bare_python() -> Call:
    def call() -> str:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", CODE], capture_output=True, text=True, check=True
        ).stdout

    return call


def bubblewrap() -> Call:
    if shutil.which("bwrap") is None:
        raise RuntimeError("bwrap is not installed")
    places = [word for path in _prefixes() for word in ("--ro-bind", path, path)]
    command = ["bwrap", "--unshare-all", "--die-with-parent", "--proc", "/proc", "--dev", "/dev", *places]
    command += [sys.executable, "-I", "-S", "-c", CODE]

    def call() -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    return call


def _prefixes() -> list[str]:
    wanted = ["/usr", "/lib", "/lib64", "/bin", sys.prefix, sys.base_prefix]
    return [path for path in dict.fromkeys(wanted) if os.path.exists(path)]


def sandlock() -> Call:
    import sandlock as peer

    box = peer.Sandbox(fs_readable=[*_prefixes(), "/etc"], clean_env=True)

    def call() -> str:
        result = box.run([sys.executable, "-I", "-S", "-c", CODE])
        return result.stdout.decode() if isinstance(result.stdout, bytes) else str(result.stdout)

    return call


def monty() -> Call:
    import pydantic_monty as peer

    pool = peer.Monty()
    pool.__enter__()  # for as long as the benchmark runs

    def call() -> str:
        printed = peer.CollectString()
        with pool.checkout() as session:
            session.feed_run(CODE, print_callback=printed)
        return str(printed.output)

    return call


def smolagents() -> Call:
    from smolagents import LocalPythonExecutor

    def call() -> str:
        executor = LocalPythonExecutor(["math"])
        executor.send_tools({})
        return str(executor(CODE).logs)

    return call


def handrail(*, parked: bool) -> Call:
    from handrail.sandbox.profile import profile_for
    from handrail.sandbox.supervisor import InlineCode, Supervisor
    from handrail.tool import Capability
    from handrail_cell.wire import Limits

    supervisor = Supervisor(pool_size=2 if parked else 0)
    profile = profile_for(Capability(reads=False), None, Limits())
    program = InlineCode(CODE, "probe", b"null")

    def call() -> str:
        return supervisor.run_sync(program, profile).output.decode()

    for _ in range(5):
        call()
    return call


CONTENDERS: dict[str, tuple[str, Callable[[], Call]]] = {
    "handrail, parked cell": ("namespaces, Landlock, seccomp, limits; CPython", lambda: handrail(parked=True)),
    "handrail, on demand": ("namespaces, Landlock, seccomp, limits; CPython", lambda: handrail(parked=False)),
    "posix_spawn /bin/true": ("nothing; runs no code", bare_true),
    "python -I -S": ("nothing; CPython", bare_python),
    "bubblewrap + python": ("namespaces; CPython", bubblewrap),
    "sandlock + python": ("Landlock, seccomp; CPython", sandlock),
    "monty": ("an interpreter of a Python subset, in worker processes", monty),
    "smolagents local executor": ("an AST walker in the host process; says it is no boundary", smolagents),
}


def measure(rounds: int) -> dict[str, Any]:
    calls: dict[str, Call] = {}
    cannot: dict[str, str] = {}
    for name, (_, make) in CONTENDERS.items():
        try:
            calls[name] = make()
            got = calls[name]().strip()
            if got != EXPECTED:
                raise RuntimeError(f"returned {got!r}")
        except Exception as error:
            calls.pop(name, None)
            cannot[name] = f"{type(error).__name__}: {error}"[:200]
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            time.sleep(0.02)  # each alike: the next cell parks, and what the one before left is cleaned up
            started = time.perf_counter()
            calls[name]()
            times[name].append((time.perf_counter() - started) * 1000)
    results = {name: figures(found) for name, found in times.items()}
    base = results["posix_spawn /bin/true"]["p50"]
    for name, found in results.items():
        found["ratio_to_true"] = round(found["p50"] / base, 2)
        found["isolates"] = CONTENDERS[name][0]
    return {"benchmark": "isolation", "unit": "ms", "rounds": rounds, "results": results, "cannot_run": cannot}


def figures(found: list[float]) -> dict[str, Any]:
    cuts = statistics.quantiles(found, n=100, method="inclusive")
    return {"p50": round(cuts[49], 4), "p90": round(cuts[89], 4), "p99": round(cuts[98], 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    result = measure(options.rounds)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, found in result["results"].items():
        print(
            f"{name:<28} p50 {found['p50']:8.3f}  p90 {found['p90']:8.3f}  p99 {found['p99']:8.3f} ms  "
            f"{found['ratio_to_true']:7.2f} × true   {found['isolates']}"
        )
    for name, why in result["cannot_run"].items():
        print(f"{name:<28} cannot run here: {why}")


if __name__ == "__main__":
    in_peers_environment()
    main()
