"""What figures were taken on, and how fast it is just now."""

import os
import platform
import time
from typing import Any

NOMINAL_MICROSECONDS = 10.0
"""``sum(range(1000))`` on a quiet processor of today."""


def described() -> dict[str, Any]:
    """The machine in words that a reader can compare with his own."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def slowness() -> float:
    """How many times longer than nominal ``sum(range(1000))`` takes: the median of a tenth of a second of trying."""
    taken: list[float] = []
    until = time.perf_counter() + 0.1
    while time.perf_counter() < until:
        started = time.perf_counter()
        sum(range(1000))
        taken.append(time.perf_counter() - started)
    return round(sorted(taken)[len(taken) // 2] * 1e6 / NOMINAL_MICROSECONDS, 2)


def _processor() -> str:
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return models[0] if models else platform.machine()
