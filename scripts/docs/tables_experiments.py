"""The table of docs/lab/experiments.md: simulated experiments.

Owns its rows. Not here: putting them into the page (tables), the simulation (scripts.research.experiment_errors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def experiment_errors(report: Mapping[str, Any]) -> str:
    lines = [
        "| liked, live → candidate | share of the candidate | rated, candidate : live | by 50 | 100 | 200 | promoted "
        "| withdrawn | void | median of decided |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in report["experiments"]:
        stopped = " | ".join(f"{share:.3f}" for share in row["up_by"].values())
        median = "–" if row["median_decided"] is None else f"{row['median_decided']:.0f}"
        rates = f"{row['rates'][1]:g} : {row['rates'][0]:g}"
        lines.append(
            f"| {row['parent']:g} → {row['candidate']:g} | {row['share']:g} | {rates} | {stopped} "
            f"| {row['promoted']:.4f} | {row['withdrawn']:.4f} | {row['ended_void']:.4f} | {median} |"
        )
    times = report["experiments"][0]["times"]
    note = f"{report['date'][:10]}, {times:,} experiments a row, seed {report['seed']}, `{report['commit']}`."
    lines += ["", note]
    return "\n".join(lines)
