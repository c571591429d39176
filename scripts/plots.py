"""Draws the learning curves of docs/benchmarks.md from the raw JSON in benchmarks/learn.

A thin line a seed, a thick one for their mean; the dashed one is the bound.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
Record = dict[str, Any]
NLL_BOUND = 0.25  # nats a token over the base's own replies


def main() -> None:
    matplotlib.rcParams["svg.hashsalt"] = "rlproxy"  # the same figures draw the same file
    found: dict[str, list[Record]] = defaultdict(list)
    for path in sorted((ROOT / "benchmarks/learn").glob("*-default-seed*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[record["persona"]].append(record)
    figure, (top, bottom) = plt.subplots(2, len(found), figsize=(2.6 * len(found), 4.6), sharex=True, squeeze=False)
    for i, (persona, records) in enumerate(found.items()):
        curves(top[i], records, lambda base, now: now["liked"])
        curves(bottom[i], records, lambda base, now: now["base_nll"] - base["base_nll"])
        top[i].set(title=persona, ylim=(-0.03, 1.03))
        bottom[i].axhline(NLL_BOUND, color="grey", linestyle="--", linewidth=1)
        bottom[i].set(xlabel="ratings", ylim=(-0.3, 0.5))
    top[0].set_ylabel("liked, held out")
    bottom[0].set_ylabel("base NLL, rise")
    for axes in (*top[1:], *bottom[1:]):
        axes.set_yticklabels([])
    figure.tight_layout()
    target = ROOT / "docs/images/learning.svg"
    target.parent.mkdir(exist_ok=True)
    figure.savefig(target, metadata={"Date": None})
    print(f"written: {target.relative_to(ROOT)}")


def curves(axes: Any, records: list[Record], value: Any) -> None:
    whole = []
    for record in records:
        points = [value(record["base"], record["base"])]
        points += [value(record["base"], r["eval"]) for r in record["rounds"]]
        ratings = [n * record["arguments"]["ratings"] for n in range(len(points))]
        axes.plot(ratings, points, color="tab:blue", linewidth=0.8, alpha=0.6)
        whole.append(points)
    shortest = min(map(len, whole))
    mean = [sum(points[n] for points in whole) / len(whole) for n in range(shortest)]
    axes.plot(ratings[:shortest], mean, color="tab:blue", linewidth=2.4)
    axes.set_xticks(ratings)
    axes.grid(alpha=0.3)


if __name__ == "__main__":
    main()
