"""The README's figures are those of the last measurement, and the plots are drawn from it."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import figures  # noqa: E402 - programs that stand alone, not a package
import plots  # noqa: E402

RESULTS = json.loads((BENCHMARKS / "results.json").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.promise("docs:figures:come-from-the-measurement")
def test_the_figures_in_the_readme_are_those_of_the_last_measurement() -> None:
    assert figures.placed(README, figures.rendered(RESULTS)) == README


def test_every_contender_and_every_peer_is_named() -> None:
    section = README.partition(figures.BEGIN)[2].partition(figures.END)[0]
    isolation = RESULTS["isolation"]["result"]
    for name in {*isolation["results"], *isolation["cannot_run"]} - {"handrail, parked cell", "handrail, on demand"}:
        assert name in section
    for column in RESULTS["contract"]["result"]:
        assert f"{column['name']} {column['version'] or 'not installed'}" in section


def test_a_part_that_failed_is_named_with_its_reason() -> None:
    broken = {**RESULTS, "growth": {"slowness": 1.0, "seconds": 1.0, "error": "stopped: it took more than 1 s"}}
    assert "growth could not be measured here: stopped: it took more than 1 s" in figures.rendered(broken)


def test_the_plots_are_drawn_from_the_last_measurement(tmp_path: Path) -> None:
    plots.draw(RESULTS, tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text(encoding="utf-8") for path in (BENCHMARKS / "plots").iterdir()}
    assert drawn == kept
    assert {"isolation.svg", "contract.svg"} <= set(drawn)


def test_the_machine_is_named() -> None:
    machine = RESULTS["machine"]
    for key in ("processor", "cores", "kernel", "python", "date"):
        assert str(machine[key]) in README
