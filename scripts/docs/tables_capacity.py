"""The tables of docs/explain/scale.md: what each part carries, and what 1,000 lines take.

Owns their rows. Not here: putting them into the page (tables), the simulation (scripts.research.capacity).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def carried(report: Mapping[str, Any]) -> str:
    parts, large = report["carried"], report["qwen3_8b"]
    completions, size = f"{parts['store_completions_s']:,.0f}", f"{parts['bytes_a_completion']:,}"
    stored, served = large["version_stored_bytes"] / 1e6, large["version_served_bytes"] / 1e6
    rows = [
        (
            "one relay, 1 kB",
            f"{parts['relay_answers_s']:.0f} answers a second, {parts['relay_streams_s']:.0f} streamed",
        ),
        ("its SQLite", f"{completions} completions a second, {size} bytes each"),
        ("its start", f"{parts['start_s']:.2f} s with {parts['start_completions']:,} completions"),
        ("one trainer", f"{parts['run_135m_cpu_s']:.0f} s of one core a run of a 135M model"),
        ("a version of an 8B model*", f"{stored:.0f} MB kept, {served:.0f} served"),
        ("a run of an 8B model*", f"{large['run_s']:.0f} s on a card of 80 GB"),
    ]
    return "\n".join(["| part | carries |", "|---|---|", *(f"| {part} | {figure} |" for part, figure in rows)])


def lines(report: Mapping[str, Any]) -> str:
    loads, run_s = report["loads"], f"{report['qwen3_8b']['run_s']:.0f}"
    heads = [f"{row['answers_a_day']}" for row in loads]
    busiest = [(row["requests_s"]["busiest minute"], row["requests_s"]["busiest second"]) for row in loads]
    cells: list[tuple[str, list[str]]] = [
        ("requests a second, mean", [f"{row['requests_s']['mean']}" for row in loads]),
        ("busiest minute, second", [f"{minute}, {second}" for minute, second in busiest]),
        ("runs a day", [f"{row['runs_a_day']:.0f}" for row in loads]),
        (f"trainers, a run of {run_s} s", [f"{row['trainers'][run_s]}" for row in loads]),
        ("of 5 minutes", [f"{row['trainers']['300']}" for row in loads]),
        ("of 15 minutes", [f"{row['trainers']['900']}" for row in loads]),
        ("database, GB a week", [f"{row['database_gb_a_week']}" for row in loads]),
        ("versions, TB", [f"{report['adapters_gb'] / 1000:.1f}" for _ in loads]),
    ]
    return "\n".join(
        [
            f"| answers a day each | {' | '.join(heads)} |",
            "|---|" + "---:|" * len(heads),
            *(f"| {name} | {' | '.join(values)} |" for name, values in cells),
        ]
    )
