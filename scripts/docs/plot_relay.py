"""Draws the pictures of the relay in docs/lab/benchmarks.md from benchmarks/relay.json. `--check` only compares."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.etree import ElementTree

from proxy.web.pages.svg import MARGIN_LEFT, MARGIN_TOP, WIDTH, Plot
from scripts.docs.canvas import Canvas, write
from scripts.docs.filling import settle

ROOT = Path(__file__).resolve().parents[2]
ROW: Final = 24  # pixels
EDGES: Final = 42  # above and below the rows


class Panel(NamedTuple):
    title: str
    shape: str
    figure: str
    unit: str


ADDED = (
    Panel("added to an answer of a 1 kB prompt", "plain-1k-1", "added_p50_ms", "ms"),
    Panel("added to one of 100 kB", "plain-100k-1", "added_p50_ms", "ms"),
    Panel("added to one of 1 MB", "plain-1M-1", "added_p50_ms", "ms"),
    Panel("first token of a stream", "stream-1k-1", "first_p50_ms", "ms"),
    Panel("answers a second, 16 at once", "plain-1k-16", "per_s", "a second"),
    Panel("CPU of an answer, 16 at once", "plain-1k-16", "cpu_ms", "ms"),
)


def main() -> int:
    return settle({ROOT / "docs/images" / name: text for name, text in drawn().items()})


def drawn() -> dict[str, str]:
    return {"relay.svg": relay(json.loads((ROOT / "benchmarks/relay.json").read_text(encoding="utf-8")))}


def relay(report: dict[str, Any]) -> str:
    """A bar for each of the targets, in each panel on a logarithmic scale of its own."""
    names = [name for name, about in report["targets"].items() if "error" not in about and name != "direct"]
    height = ROW * len(names) + EDGES
    label = "What stands between agent and model: time added, first tokens, answers a second and CPU of each"
    canvas = Canvas(label, 2 * WIDTH, (height + 12) * math.ceil(len(ADDED) / 2))
    for n, panel in enumerate(ADDED):
        rows = {name: report["summary"][panel.shape].get(name, {}).get(panel.figure) for name in names}
        plot = bars(panel, {name: float(value) for name, value in rows.items() if value}, height)
        canvas.panel(plot, f"{panel.title} ({panel.unit})", n % 2 * WIDTH, n // 2 * (height + 12), height)
    return canvas.text()


def bars(panel: Panel, rows: dict[str, float], height: int) -> Plot:
    low, high = math.log10(min(rows.values())) - 0.3, math.log10(max(rows.values()))
    plot = Plot(f"{panel.title}, {panel.unit}, median", (low, high + 0.6 * (high - low)), (0, 1), height=height)
    best_first = sorted(rows.items(), key=lambda row: row[1], reverse=panel.figure == "per_s")
    for n, (name, value) in enumerate(best_first):
        y = MARGIN_TOP - 12 + ROW * n
        wide = plot.across(math.log10(value)) - MARGIN_LEFT
        box = {"x": str(MARGIN_LEFT), "y": str(y), "width": f"{wide:.1f}", "height": "14", "rx": "2"}
        kind = "good" if name.startswith("rlproxy") else "still"
        ElementTree.SubElement(plot.element, "rect", {"class": kind, **box})
        figure = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        write(plot, f"{name}  {figure}", MARGIN_LEFT + wide + 6, y + 11)
    return plot


if __name__ == "__main__":
    sys.exit(main())
