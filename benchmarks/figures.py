"""The figures in the README, made from ``benchmarks/results.json``; a test compares the two.

    python benchmarks/figures.py            writes them
    python benchmarks/figures.py --check    fails where the README says something else

They stand between two comments in the README, and nothing between those is written by hand.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
RESULTS = HERE / "results.json"
BEGIN = "<!-- figures: written by benchmarks/figures.py from benchmarks/results.json -->"
END = "<!-- end of figures -->"

SHOWN = ("isolation", "dispatch", "contract", "growth", "cell", "staging", "policy", "journal", "loop", "mcp_proxy")
Lines = Callable[[Any, Mapping[str, Any]], Iterator[str]]
"""Writes the lines of one part's result; it may look at the other parts too."""
ISOLATION_NAMES = {
    "handrail, parked cell": "**Handrail, parked cell**",
    "handrail, on demand": "**Handrail, on demand**",
}


def rendered(results: Mapping[str, Any]) -> str:
    """The section as Markdown. A part that has no result is named with its error."""
    results = {name: {"error": "it was not run"} for name in SHOWN} | dict(results)
    sections = [_machine(results)] + [_section(results, *section) for section in SECTIONS] + [_own(results)]
    return "\n\n".join("\n".join(section) for section in sections)


def _machine(results: Mapping[str, Any]) -> Iterator[str]:
    machine = results["machine"]
    slow = [part["slowness"] for part in results.values() if "slowness" in part]
    yield _paragraph(
        f"Taken on {machine['date']}: {machine['processor']}, {machine['cores']} cores, {machine['system']} "
        f"{machine['kernel']}, Python {machine['python']}. Meanwhile `sum(range(1000))` took {min(slow):.1f} to "
        f"{max(slow):.1f} times its usual 10 µs, so read the ratios; contenders of one table took turns in one run."
    )


def _section(results: Mapping[str, Any], name: str, title: str, lines: Lines) -> Iterator[str]:
    yield title
    yield ""
    result = results[name].get("result")
    if result is None:
        yield _missing(name, results)
    else:
        yield from lines(result, results)


def _paragraph(text: str) -> str:
    return textwrap.fill(text, width=118, break_long_words=False, break_on_hyphens=False)


def _isolation(result: Mapping[str, Any], _: Mapping[str, Any]) -> Iterator[str]:
    base = result["results"]["posix_spawn /bin/true"]["p50"]
    yield "| | p50 | p90 | p99 | what isolates |"
    yield "|---|---|---|---|---|"
    for name, found in result["results"].items():
        if name == "posix_spawn /bin/true":
            continue
        shown = " | ".join(f"{found[key] / base:.1f}" for key in ("p50", "p90", "p99"))
        yield f"| {ISOLATION_NAMES.get(name, name)} | {shown} | {found['isolates']} |"
    for name, why in result["cannot_run"].items():
        yield f"| {name} | – | – | – | could not run here: {why} |"
    ours = result["results"]["handrail, parked cell"]["p50"]
    ahead = [name for name, found in result["results"].items() if found["p50"] < ours and "handrail" not in name]
    for name in ahead:
        if name != "posix_spawn /bin/true":
            yield ""
            isolates = result["results"][name]["isolates"]
            yield f"Quicker than a parked cell: {name}, which puts no CPython behind kernel walls ({isolates})."


def _dispatch(result: Mapping[str, Any], _: Mapping[str, Any]) -> Iterator[str]:
    kinds = {"async_handler": "async handler", "sync_handler": "sync handler"}
    names = [name for name in result["versions"] if name not in ("python", "handrail")]
    short = {name: name.removesuffix("-slim") for name in names}
    heads = [f"{short[name]} {result['versions'][name]}" for name in names]
    yield f"| | {' | '.join(heads)} |"
    yield "|---|" + "---|" * len(names)
    behind = False
    for kind, words in kinds.items():
        ratios = result[kind]["peer_over_handrail"]
        shown = [_ratio(ratios.get(short[name]), result[kind], short[name]) for name in names]
        yield f"| {words} | {' | '.join(shown)} |"
        behind = behind or any(ratio < 1 for ratio in ratios.values())
    if behind:
        yield ""
        yield _paragraph(
            "Where a peer is quicker, it does less: in Handrail's call are strict decoding, schema, guard, decision "
            "and record; a peer validates leniently or, for raw schemas, not at all (see the contract)."
        )


def _ratio(ratio: float | None, kind: Mapping[str, Any], name: str) -> str:
    return (
        f"{ratio:.2f}" if ratio is not None else f"could not run here: {kind['could_not_run'].get(name, 'no reason')}"
    )


def _contract(columns: Sequence[Mapping[str, Any]], _: Mapping[str, Any]) -> Iterator[str]:
    yield "| " + " | ".join(f"{column['name']} {column['version'] or 'not installed'}" for column in columns) + " |"
    yield "|" + "---|" * len(columns)
    yield "| " + " | ".join(_score(column) for column in columns) + " |"


def _score(column: Mapping[str, Any]) -> str:
    verdicts = [row["verdict"] for row in column["rows"]]
    return f"{verdicts.count('held')} of {verdicts.count('held') + verdicts.count('broke')}"


def _growth(result: Mapping[str, Any], results: Mapping[str, Any]) -> Iterator[str]:
    rows = {
        "a call's share of N at once": result["ms_per_call_at_once"],
        "a call with N tools": result["us_per_call_with_tools"],
    }
    for words, sizes in rows.items():
        yield f"- {words}: " + ", ".join(f"{int(size):,} → {found['ratio']:.2f}" for size, found in sizes.items())
    staging = results["staging"].get("result")
    if staging is None:
        yield f"- {_missing('staging', results)}"
        return
    base = staging["one_file"][0]["staged_ms"]
    grown = ", ".join(f"{row['files']:,} → {row['staged_ms'] / base:.2f}" for row in staging["one_file"])
    yield f"- a staged call in a workspace of N files: {grown}"


def _own(results: Mapping[str, Any]) -> Iterator[str]:
    yield "And on their own:"
    yield ""
    for name, words in OWN.items():
        result = results[name].get("result")
        yield f"- {words(result) if result is not None else _missing(name, results)}"


def _cell_words(result: Mapping[str, Any]) -> str:
    memory = result["parked private MB"]
    held = f"a parked cell holds {memory:.1f} MB of its own; " if memory is not None else ""
    forks = result["goals"]["calls / bare forks (>= 0.5)"]
    return f"cells: {held}calls a second, as a share of bare forks of the warm parent: {forks:.2f}"


def _staging_words(result: Mapping[str, Any]) -> str:
    row = result["one_file"][0]
    return f"staging: a staged call takes {row['staged_over_unstaged']:.2f} times the same call unstaged"


def _policy_words(result: Mapping[str, Any]) -> str:
    worst = max(case["cpu_us"] for case in result["cases"].values())
    simple = worst / result["calibration_us"]
    return f"policy: the worst decision against {result['rules']:,} rules takes {simple:.1f} times `sum(range(1000))`"


def _journal_words(result: Mapping[str, Any]) -> str:
    alone, many = result["sqlite"]["1"], result["sqlite"]["64"]
    return (
        f"journal: it adds {alone['over_bare']:.1f} times two bare `fdatasync` appends to a call alone; with 64 calls "
        f"at once, {many['calls_per_flush']:.1f} calls share a flush"
    )


def _loop_words(result: Mapping[str, Any]) -> str:
    turn, call = (result["results"][name]["wall_ms"] for name in ("turn", "the call alone"))
    return f"agent loop: a turn takes {turn / call:.2f} times its one call with the same journal"


def _proxy_words(result: Mapping[str, Any]) -> str:
    ratio = result["proxy_median_ms"] / result["direct_median_ms"]
    return f"MCP firewall: a call through `handrail proxy` takes {ratio:.1f} times the call to the server itself"


SECTIONS = (
    (
        "isolation",
        "Starting isolated code and getting its output, as a multiple of `posix_spawn /bin/true` (its median):",
        _isolation,
    ),
    (
        "dispatch",
        "One read-only call, a peer's median as a multiple of Handrail's (below 1 the peer is quicker):",
        _dispatch,
    ),
    (
        "contract",
        "Promises of the contract that held, of those that could be tried (`handrail-contract --json` says why):",
        _contract,
    ),
    ("growth", "How cost grows, as a multiple of the smallest in its row:", _growth),
)
OWN = {
    "cell": _cell_words,
    "staging": _staging_words,
    "policy": _policy_words,
    "journal": _journal_words,
    "loop": _loop_words,
    "mcp_proxy": _proxy_words,
}


def _missing(name: str, results: Mapping[str, Any]) -> str:
    return f"{name} could not be measured here: {results[name]['error'].splitlines()[-1]}"


def placed(readme: str, section: str) -> str:
    """``readme`` with ``section`` between its two comments."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{section}\n\n{END}{after}"


def write_figures(results: Mapping[str, Any]) -> None:
    """Put the figures of ``results`` into the README."""
    README.write_text(placed(README.read_text(encoding="utf-8"), rendered(results)), encoding="utf-8")


def main() -> int:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        write_figures(results)
        return 0
    text = README.read_text(encoding="utf-8")
    if placed(text, rendered(results)) != text:
        print("the README's figures are not those of benchmarks/results.json", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
