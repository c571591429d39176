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
    said = [f"{row['held_out']:.2f}" + (" (rejected)" if row.get("status") == "rejected" else "") for row in rows]
    rise = trained[-1]["base_nll"] if trained else None
    task = what["task"] + (", rewards shuffled" if what["shuffle"] else "")
    return (
        f"| {task} | {what['seed']} | {rows[-1]['episodes']} | {' → '.join(said)} | {_each(kept)} | {_each(dropped)} "
        f"| {'–' if rise is None else f'{rise:+.2f}'} | {one['seconds'] / 60:.1f} |"
    )


def _each(counts: Sequence[int]) -> str:
    return ", ".join(map(str, counts))


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
