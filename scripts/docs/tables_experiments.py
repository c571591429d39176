"""The tables of docs/lab/experiments.md and checks.md: simulated experiments and evaluations.

Owns their rows. Not here: putting them into the page (tables), the simulations (scripts.research).
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


def slice_errors(report: Mapping[str, Any]) -> str:
    lines = ["| planted | noise | named | 95 % | another named beside |", "|---|---:|---:|---:|---:|"]
    for row in report["named"]:
        others_share = row["another_named_beside"] / row["times"]
        lines.append(f"| a {row['kind']} | {row['noise']:.0%} | {_share_cells(row)} | {others_share:.1%} |")
    lines += ["", "| nothing planted: worse | better | a slice named | 95 % |", "|---:|---:|---:|---:|"]
    lines += [f"| {row['worse']:.0%} | {row['better']:.0%} | {_share_cells(row)} |" for row in report["false_alarms"]]
    times = report["named"][0]["times"]
    lines += ["", f"{report['date'][:10]}, {times} evaluations a row, seed {report['seed']}, `{report['commit']}`."]
    return "\n".join(lines)


def _share_cells(row: Mapping[str, Any]) -> str:
    return f"{row['share']:.1%} | {row['low']:.1%}–{row['high']:.1%}"
