"""The table of goals in docs/lab/benchmarks.md: issue 7's goals for relay, store and start, beside what was measured.

Owns which figure of which shape answers which goal. Figures are of benchmarks/relay.json and, where there are any,
start.json and workers.json; a goal without a figure says so. Not here: measuring (bench/relay, bench/start,
bench/workers), other tables (tables).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
START = ROOT / "benchmarks/start.json"
WORKERS = ROOT / "benchmarks/workers.json"
LARGE = "serve, large home"


class Goal(NamedTuple):
    title: str
    figure: float | None
    limit: float
    unit: str = "×"
    least: bool = False  # the limit is the least, not the most

    def row(self) -> str:
        bound = f"{'≥' if self.least else '≤'} {self.limit:g} {self.unit}"
        if self.figure is None:
            return f"| {self.title} | {bound} | not measured | – |"
        is_met = self.figure >= self.limit if self.least else self.figure <= self.limit
        return f"| {self.title} | {bound} | {self.figure:.2f} {self.unit} | {'met' if is_met else '**not met**'} |"


def table(report: dict[str, Any]) -> str:
    lines = ["| goal | asked | measured | |", "|---|---|---|---|"]
    return "\n".join([*lines, *(goal.row() for goal in (*_relay(report), *_start(), *_workers()))])


def _relay(report: dict[str, Any]) -> Iterator[Goal]:
    summary = report["summary"]

    def figure(shape: str, part: str, target: str = "rlproxy") -> float | None:
        value: float | None = summary.get(shape, {}).get(target, {}).get(part)
        return value

    def of_bare(shape: str, part: str) -> float | None:
        return _ratio(figure(shape, part), figure(shape, part, "bare"))

    yield Goal("added p50 ÷ the bare relay's, 1 kB, whole", of_bare("plain-1k-1", "added_p50_ms"), 1.5)
    yield Goal("first token ÷ the bare relay's, one stream", of_bare("stream-1k-1", "first_p50_ms"), 1.2)
    yield Goal(
        "gap between chunks, p99, added to direct, 16 streams", figure("paced-16", "added_gap_p99_ms"), 0.3, "ms"
    )
    first = _ratio(figure("stream-1k-1", "first_p50_ms"), figure("stream-1k-1", "first_p50_ms", "tensorzero"))
    yield Goal("first token of a stream ÷ TensorZero's", first, 1.0)
    whole = _ratio(figure("stream-1k-1", "p50_ms"), figure("stream-1k-1", "p50_ms", "tensorzero"))
    yield Goal("a stream to its end ÷ TensorZero's", whole, 1.0)
    for name, peer, times in (("LiteLLM", "litellm", 5.0), ("Portkey", "portkey", 3.0)):
        added = _ratio(figure("plain-1k-1", "added_p50_ms", peer), figure("plain-1k-1", "added_p50_ms"))
        yield Goal(f"{name}'s added p50 ÷ ours, 1 kB", added, times, least=True)
        rate = _ratio(figure("plain-1k-16", "per_s"), figure("plain-1k-16", "per_s", peer))
        yield Goal(f"answers a second at 16 ÷ {name}'s", rate, times, least=True)
    yield Goal("answers a second at 16 ÷ the bare relay's", of_bare("plain-1k-16", "per_s"), 0.7, least=True)
    yield Goal("added p50 of a 1 MB prompt ÷ the bare relay's", of_bare("plain-1M-1", "added_p50_ms"), 2.0)
    yield Goal("memory with 1,000 idle streams", report["memory"].get("rlproxy", {}).get("rss_mb"), 200.0, "MB")
    exact, plain = figure("stream-1k-16", "cpu_ms", "rlproxy-exact"), figure("stream-1k-16", "cpu_ms")
    chunks = next((s["chunks"] for s in report["shapes"] if s["name"] == "stream-1k-16"), None)
    hidden = (exact - plain) * 1000 / chunks if exact is not None and plain is not None and chunks else None
    yield Goal("log-probs asked for and hidden, CPU a chunk", hidden, 25.0, "µs")
    late, early = (_beyond(figure(f"turn-{n}", "cpu_ms"), figure(f"turn-{n}", "cpu_ms", "bare")) for n in (200, 2))
    yield Goal("CPU beyond the bare relay's, turn 200 ÷ turn 2", _ratio(late, early), 1.3)


def _start() -> Iterator[Goal]:
    report = json.loads(START.read_text(encoding="utf-8")) if START.exists() else {}
    yield Goal("memory at rest", report.get("serve", {}).get("rss_mb"), 70.0, "MB")
    completions, start_s = report.get("large_completions", 0), report.get(LARGE, {}).get("s")
    yield Goal("ready with 1,000,000 completions stored", start_s if completions >= 10**6 else None, 1.0, "s")
    recovery_s = report.get(f"{LARGE}, killed", {}).get("s")
    yield Goal("the same after `kill -9`", recovery_s if completions >= 10**6 else None, 2.0, "s")
    if 0 < completions < 10**6:
        yield Goal(f"the same with {completions:,}", start_s, 1.0, "s")


def _workers() -> Iterator[Goal]:
    report = json.loads(WORKERS.read_text(encoding="utf-8")) if WORKERS.exists() else {}
    gains = [shape["two_by_one"]["rlproxy"] for shape in report.get("shapes", {}).values()]
    title = "`--workers 2` ÷ one: two that share nothing, which is more (left out: performance-log.md)"
    yield Goal(title, min(gains, default=None), 1.6, least=True)


def _ratio(figure: float | None, reference: float | None) -> float | None:
    return None if figure is None or not reference else figure / reference


def _beyond(figure: float | None, reference: float | None) -> float | None:
    return None if figure is None or reference is None else figure - reference
