"""Bar charts as SVG, made of nothing but text: a plot that needs no plotting library can be made anywhere."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

_FONT = 'font-family="sans-serif" font-size="13"'
WIDTH, BAR, GAP, LABEL = 760, 22, 10, 230


def draw(results: Mapping[str, Any], directory: Path) -> None:
    """Draw what ``results`` holds; what is missing is left out."""
    directory.mkdir(exist_ok=True)
    isolation = results.get("isolation", {}).get("result")
    if isolation:
        bars = {name: found["p50"] for name, found in isolation["results"].items()}
        _write(
            directory / "isolation.svg", bar_chart("Start isolated code and get its output (median, ms)", bars, "ms")
        )
    dispatch = results.get("dispatch", {}).get("result")
    if dispatch:
        for kind in ("async_handler", "sync_handler"):
            bars = {name: found["median"] for name, found in dispatch[kind]["microseconds"].items()}
            title = f"One read-only call, {kind.replace('_', ' ')} (median, µs)"
            _write(directory / f"dispatch-{kind.split('_')[0]}.svg", bar_chart(title, bars, "µs"))
    growth = results.get("growth", {}).get("result")
    if growth:
        bars = {f"{size} at once": found["p50"] for size, found in growth["ms_per_call_at_once"].items()}
        bars |= {f"{size} tools": found["p50"] / 1000 for size, found in growth["us_per_call_with_tools"].items()}
        _write(directory / "growth.svg", bar_chart("One call as load and tools grow (median, ms)", bars, "ms"))
    contract = results.get("contract", {}).get("result")
    if contract:
        bars = {f"{column['name']} {column['version'] or ''}": _score(column) for column in contract}
        _write(directory / "contract.svg", bar_chart("Promises of the contract that held", bars, ""))


def _score(column: Mapping[str, Any]) -> float:
    return float(sum(row["verdict"] == "held" for row in column["rows"]))


def bar_chart(title: str, bars: Mapping[str, float], unit: str) -> str:
    """Horizontal bars, longest value to the right edge; Handrail's own are darker."""
    height = 44 + len(bars) * (BAR + GAP)
    most = max(bars.values(), default=1.0) or 1.0
    room = WIDTH - LABEL - 90
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {_FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="22" font-weight="bold">{escape(title)}</text>',
    ]
    for index, (name, value) in enumerate(bars.items()):
        top = 36 + index * (BAR + GAP)
        colour = "#1f5f8b" if name.startswith("handrail") else "#a9b8c4"
        length = max(1.0, room * value / most)
        lines.append(f'<text x="{LABEL - 8}" y="{top + 16}" text-anchor="end">{escape(name)}</text>')
        lines.append(f'<rect x="{LABEL}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
        lines.append(f'<text x="{LABEL + length + 6:.1f}" y="{top + 16}">{value:.4g} {unit}</text>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
