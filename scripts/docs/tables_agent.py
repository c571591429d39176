"""The tables of docs/lab/episodes.md: held-out success of agents' tasks over episodes, and many agents at once.

Of benchmarks/agent/*.json (`scripts.demo.agent`) and benchmarks/episodes.json (`scripts.bench.episodes`). Not here:
putting them into the page (tables).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scripts.docs.tables_learning import machines


def agent(records: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| task | seed | episodes | held-out success | groups kept | dropped | base NLL | minutes |",
        "|---" * 8 + "|",
    ]
    lines += [_row(record) for record in records]
    dates = sorted({record["date"][:10] for record in records})
    cpus = machines(f"{record['machine']['cpu']}, {record['machine']['cores']} cores" for record in records)
    lines += [
        "",
        f"Success by round, the base model's first. Groups by round; `rejected` means that the gate said no. "
        f"{', '.join(dates)}; {cpus}.",
    ]
    return "\n".join(lines)


def _row(record: Mapping[str, Any]) -> str:
    setup, rows = record["what"], record["rounds"]
    trained = rows[1:]
    kept_groups = [int((row["metrics"] or {}).get("groups_kept", 0)) for row in trained]
    totals = [row["left_out"].get("no-variance", 0) // setup["members"] for row in rows]
    dropped = [total - previous_total for previous_total, total in pairwise(totals)]
    rise = trained[-1]["base_nll"] if trained else None
    task = setup["task"] + (", rewards shuffled" if setup["shuffle"] else "")
    return (
        f"| {task} | {setup['seed']} | {rows[-1]['episodes']} | {_success(rows)} | {_listed(kept_groups)} "
        f"| {_listed(dropped)} | {'–' if rise is None else f'{rise:+.2f}'} | {record['seconds'] / 60:.1f} |"
    )


def _success(rows: Sequence[Mapping[str, Any]]) -> str:
    """By round; of each mark where a task has several."""
    marks = [row.get("held_marks") or {"": row["held_out"]} for row in rows]
    lines = []
    for name in marks[0]:
        rejected = [" (rejected)" if row.get("status") == "rejected" else "" for row in rows]
        shares = [f"{mark[name]:.2f}{mark_text}" for mark, mark_text in zip(marks, rejected, strict=True)]
        lines.append((f"{name}: " if len(marks[0]) > 1 else "") + " → ".join(shares))
    return "<br>".join(lines)


def _listed(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


def credit(records: Sequence[Mapping[str, Any]]) -> str:
    """The table of credit by turn, for tasks with more than one turn."""
    lines = ["| task | turn | of successes | of failures | samples |", "|---|---|---|---|---|"]
    for record in records:
        runs = [row["credit"] for row in record["rounds"] if row.get("credit")]
        for turn in range(max(map(len, runs), default=0)):
            sides = [run[turn] for run in runs if len(run) > turn]
            if len(runs[0]) > 1:
                up, down = ([f"{side[name]:+.2f}" for side in sides] for name in ("up", "down"))
                samples = sum(side["samples"] for side in sides)
                lines.append(
                    f"| {record['what']['task']} | {turn + 1} | {', '.join(up)} | {', '.join(down)} | {samples} |"
                )
    return "\n".join([*lines, "", "Mean advantage of the turns that are pushed up, and down, by run."])


def rollouts(report: Mapping[str, Any]) -> str:
    baseline, *loaded = report["phases"]
    names = {"queue": "as it comes", "no-queue": "all at the backend"}
    lines = [
        "| beside | a person's answer, median | ÷ alone | rollouts' turns a second |", "|---|---|---|---|",
        f"| nobody | {baseline['median_s']:.1f} s | 1 | – |",
    ]  # fmt: skip
    for phase in loaded:
        ratio = phase["median_s"] / baseline["median_s"]
        label = names[phase["name"]]
        if phase["name"] == "queue":
            label += f" ({phase['requests']['at_once']} at the backend)"
        lines.append(f"| {label} | {phase['median_s']:.1f} s | {ratio:.1f} | {phase['turns_a_second']:.1f} |")
    cpu, cores = report["machine"]["cpu"], report["machine"]["cores"]
    return "\n".join([*lines, "", f"{report['what']['clients']} clients. {report['date'][:10]}, {cpu}, {cores} cores."])


def many_agents(report: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {count}" for name, count in report["episodes_by_version"].items())
    cpu, cores = report["machine"]["cpu"], report["machine"]["cores"]
    return "\n".join([
        "| episodes | turns | by version | two versions in one, rewards lost or doubled |",
        "|---|---|---|---|",
        f"| {report['episodes']:,} | {report['turns']:,} | {versions} | {len(report['wrong'])} |",
        "",
        f"{report['date'][:10]}, {cpu}, {cores} cores, {report['seconds']:g} s, `{report['commit']}`.",
    ])  # fmt: skip
