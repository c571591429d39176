"""The tables of docs/lab/episodes.md: held-out success of agents' tasks over episodes, and many agents at once.

Of benchmarks/agent/*.json (`scripts.demo.agent`) and benchmarks/episodes.json (`scripts.bench.episodes`). Not here:
putting them into the page (tables).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from scripts.docs.tables_learning import machines


def agent(found: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| task | seed | episodes | held-out success | groups kept | dropped | base NLL | minutes |",
        "|---" * 8 + "|",
    ]
    lines += [_row(one) for one in found]
    dates = sorted({one["date"][:10] for one in found})
    cpus = machines(f"{one['machine']['cpu']}, {one['machine']['cores']} cores" for one in found)
    lines += [
        "",
        f"Success by round, the base model's first. Groups by round; `rejected` means that the gate said no. "
        f"{', '.join(dates)}; {cpus}.",
    ]
    return "\n".join(lines)


def _row(one: Mapping[str, Any]) -> str:
    what, rows = one["what"], one["rounds"]
    trained = rows[1:]
    kept = [int((row["metrics"] or {}).get("groups_kept", 0)) for row in trained]
    out = [row["left_out"].get("no-variance", 0) // what["members"] for row in rows]
    dropped = [now - before for before, now in pairwise(out)]
    rise = trained[-1]["base_nll"] if trained else None
    task = what["task"] + (", rewards shuffled" if what["shuffle"] else "")
    return (
        f"| {task} | {what['seed']} | {rows[-1]['episodes']} | {_success(rows)} | {_each(kept)} | {_each(dropped)} "
        f"| {'–' if rise is None else f'{rise:+.2f}'} | {one['seconds'] / 60:.1f} |"
    )


def _success(rows: Sequence[Mapping[str, Any]]) -> str:
    """By round; of each mark where a task has several."""
    marks = [row.get("held_marks") or {"": row["held_out"]} for row in rows]
    found = []
    for name in marks[0]:
        rejected = [" (rejected)" if row.get("status") == "rejected" else "" for row in rows]
        said = [f"{mark[name]:.2f}{no}" for mark, no in zip(marks, rejected, strict=True)]
        found.append((f"{name}: " if len(marks[0]) > 1 else "") + " → ".join(said))
    return "<br>".join(found)


def _each(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


def credit(found: Sequence[Mapping[str, Any]]) -> str:
    """The table of credit by turn, for tasks with more than one turn."""
    lines = ["| task | turn | of successes | of failures | samples |", "|---|---|---|---|---|"]
    for one in found:
        runs = [row["credit"] for row in one["rounds"] if row.get("credit")]
        for turn in range(max(map(len, runs), default=0)):
            own = [run[turn] for run in runs if len(run) > turn]
            if len(runs[0]) > 1:
                up, down = ([f"{side[name]:+.2f}" for side in own] for name in ("up", "down"))
                samples = sum(side["samples"] for side in own)
                lines.append(
                    f"| {one['what']['task']} | {turn + 1} | {', '.join(up)} | {', '.join(down)} | {samples} |"
                )
    return "\n".join([*lines, "", "Mean advantage of the turns that are pushed up, and down, by run."])


def rollouts(found: Mapping[str, Any]) -> str:
    alone, *beside = found["phases"]
    names = {"queue": "as it comes", "no-queue": "all at the backend"}
    lines = [
        "| beside | a person's answer, median | ÷ alone | rollouts' turns a second |", "|---|---|---|---|",
        f"| nobody | {alone['median_s']:.1f} s | 1 | – |",
    ]  # fmt: skip
    for one in beside:
        at, ratio = one["requests"]["at_once"], one["median_s"] / alone["median_s"]
        said = names[one["name"]] + (f" ({at} at the backend)" if one["name"] == "queue" else "")
        lines.append(f"| {said} | {one['median_s']:.1f} s | {ratio:.1f} | {one['turns_a_second']:.1f} |")
    cpu, cores = found["machine"]["cpu"], found["machine"]["cores"]
    return "\n".join([*lines, "", f"{found['what']['clients']} clients. {found['date'][:10]}, {cpu}, {cores} cores."])


def many(found: Mapping[str, Any]) -> str:
    by = ", ".join(f"{name} {count}" for name, count in found["episodes_by_version"].items())
    cpu, cores = found["machine"]["cpu"], found["machine"]["cores"]
    return "\n".join([
        "| episodes | turns | by version | two versions in one, rewards lost or doubled |",
        "|---|---|---|---|",
        f"| {found['episodes']:,} | {found['turns']:,} | {by} | {len(found['wrong'])} |",
        "",
        f"{found['date'][:10]}, {cpu}, {cores} cores, {found['seconds']:g} s, `{found['commit']}`.",
    ])  # fmt: skip
