"""``handrail-contract``: the matrix, as a table or as JSON.

``handrail-contract`` measures every adapter whose framework is installed here; ``handrail-contract NAME…`` only those.
An adapter of one's own is named by its place, ``module:Class`` (see :class:`handrail_contract.adapter.Adapter`).
Frameworks do not share an environment easily: ``--python PATH`` measures in another interpreter (repeatable as
``NAME=PATH``), to which this package alone is lent by path.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from handrail_contract.adapters import ADAPTERS, load
from handrail_contract.probes import PROBES, Row, run_probe

_SIGN = {"held": "✔", "broke": "✘", "not offered": "·", "cannot run": "?"}


def measure(name: str) -> dict[str, Any]:
    """Every row of one framework, in this process."""
    try:
        adapter = load(name)
    except ImportError as error:
        return _not_measured(name, str(error))
    return {
        "name": name,
        "version": _version(adapter.package),
        "settings": adapter.settings,
        "rows": [run_probe(probe, adapter).to_json() for probe in PROBES],
    }


def _not_measured(name: str, why: str) -> dict[str, Any]:
    rows = [Row(probe, promise, "cannot run", why).to_json() for probe, (promise, _) in PROBES.items()]
    return {"name": name, "version": None, "settings": "", "rows": rows}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _measure_apart(name: str, python: str) -> dict[str, Any]:
    """In a process of its own: a peer that crashes or hangs takes only its own column with it."""
    command = [python, "-m", "handrail_contract.main", "--here", name]
    try:
        with tempfile.TemporaryDirectory() as lent:
            Path(lent, "handrail_contract").symlink_to(Path(__file__).resolve().parent)
            paths = os.pathsep.join(filter(None, (lent, os.environ.get("PYTHONPATH"))))
            environment = {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return _not_measured(name, repr(error)[:200])


def score(column: dict[str, Any]) -> tuple[int, int]:
    """How many promises held, of how many that the framework could be tried on."""
    tried = [row for row in column["rows"] if row["verdict"] in ("held", "broke")]
    return sum(row["verdict"] == "held" for row in tried), len(tried)


def table(columns: list[dict[str, Any]]) -> str:
    """The matrix for people: ✔ held, ✘ broke, · not offered, ? cannot run here."""
    width = max(len(probe) for probe in PROBES)
    heads = [f"{column['name']} {column['version'] or '—'}" for column in columns]
    lines = [" " * width + "  " + "  ".join(heads)]
    for index, probe in enumerate(PROBES):
        signs = [
            _SIGN[column["rows"][index]["verdict"]].center(len(head))
            for column, head in zip(columns, heads, strict=True)
        ]
        lines.append(f"{probe.ljust(width)}  {'  '.join(signs)}")
    scores = ["{}/{}".format(*score(column)).center(len(head)) for column, head in zip(columns, heads, strict=True)]
    lines.append(f"{'held / tried'.ljust(width)}  {'  '.join(scores)}")
    lines.append("✔ held   ✘ broke   · not offered (see --json for the reason)   ? cannot run here")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """The command. Exit status 0 when every named framework could be tried."""
    parser = argparse.ArgumentParser(prog="handrail-contract", description="Measure frameworks against the contract.")
    parser.add_argument(
        "frameworks", nargs="*", metavar="NAME", help=f"of: {', '.join(ADAPTERS)}; or module:Class (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print every row with its evidence")
    parser.add_argument(
        "--python", action="append", default=[], metavar="[NAME=]PATH", help="interpreter to measure in"
    )
    parser.add_argument("--here", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.here:
        print(json.dumps(measure(options.here)))
        return 0
    unknown = [name for name in options.frameworks if name not in ADAPTERS and ":" not in name]
    if unknown:
        parser.error(f"unknown framework {unknown[0]!r}; there are: {', '.join(ADAPTERS)}, and module:Class")
    pythons = _interpreters(options.python)
    columns = [
        _measure_apart(name, pythons.get(name, pythons.get("", sys.executable)))
        for name in options.frameworks or ADAPTERS
    ]
    print(json.dumps(columns, indent=1, ensure_ascii=False) if options.json else table(columns))
    return 0 if all(score(column)[1] for column in columns) else 1


def _interpreters(words: list[str]) -> dict[str, str]:
    found = {"handrail": sys.executable}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or "/" in name:  # a path alone, for all of them
            name, path = "", word
        found[name] = path
    return found


def run() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    run()
