"""How soon is a judge trusted, and how often one that should not be? Simulated judges, a look after each turn.

    python -m scripts.bench.signals.trust_errors [--judges 1000] [--turns 200]

A judge turns around a share of its labels. People find half or 30 % of the answers bad. Beside the product's rule
stands the one before it: 50 turns, 10 of each kind, the lower bound of a bootstrap.
Writes benchmarks/trust_errors.json.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from functools import cache
from statistics import median
from typing import Any, Final

import numpy as np

from proxy.signals.trust import DRAWS, EACH, FEWEST, LEAST_KAPPA, TAIL, WINDOW, interval
from scripts.bench.persona import ROOT
from scripts.harness.circumstances import circumstances, machine_name

Cells = tuple[int, int, int, int]  # hits, misses, false alarms, rejections of the judge
FLIPS: Final = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
BAD_SHARES: Final = (0.5, 0.3)
KINDS: Final = ((True, True), (True, False), (False, True), (False, False))
FORMER_LEAST: Final = (50, 10)  # fewest turns, and of each kind


@cache
def posterior_bound(cells: Cells) -> float:
    return interval(cells)[0]


@cache
def bootstrap_bound(cells: Cells) -> float:
    """The lower bound of the percentile bootstrap over the turns."""
    generator, count = np.random.default_rng(0), sum(cells)
    hits, misses, false_alarms, rejections = generator.multinomial(count, np.array(cells) / count, size=DRAWS).T / count
    person, judge = hits + misses, hits + false_alarms
    expected = person * judge + (1 - person) * (1 - judge)
    kappas = np.where(expected < 1, (hits + rejections - expected) / np.maximum(1 - expected, 1e-9), 0.0)
    return float(np.quantile(kappas, TAIL))


def first_trusted(
    turns: list[tuple[bool, bool]], fewest: int, each: int, bound: Callable[[Cells], float]
) -> int | None:
    """Turns until the side of bad answers is trusted; None where it never is."""
    for end in range(fewest, len(turns) + 1):
        window = turns[max(0, end - WINDOW) : end]
        hits, misses, false_alarms, rejections = (window.count(kind) for kind in KINDS)
        cells = hits, misses, false_alarms, rejections
        if min(hits + misses, false_alarms + rejections) >= each and bound(cells) >= LEAST_KAPPA:
            return end
    return None


def measure(flip: float, bad_share: float, judges: int, length: int) -> dict[str, Any]:
    rules = {"now": (FEWEST, EACH, posterior_bound), "before": (*FORMER_LEAST, bootstrap_bound)}
    turns: dict[str, list[int | None]] = {name: [] for name in rules}
    for seed in range(judges):
        draw = random.Random(seed)
        people = [draw.random() < bad_share for _ in range(length)]
        stream = [(bad, bad != (draw.random() < flip)) for bad in people]
        for name, rule in rules.items():
            turns[name].append(first_trusted(stream, *rule))
    return {"flip": flip, "bad_share": bad_share} | {
        name: {
            "trusted": sum(turn is not None for turn in of_rule) / judges,
            "median_turns": median(reached) if (reached := [turn for turn in of_rule if turn is not None]) else None,
        }
        for name, of_rule in turns.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--judges", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=200)
    arguments = parser.parse_args()
    record: dict[str, Any] = {**circumstances(), "machine": machine_name(), "arguments": vars(arguments), "rows": []}
    for bad_share in BAD_SHARES:
        for flip in FLIPS:
            row = measure(flip, bad_share, arguments.judges, arguments.turns)
            record["rows"].append(row)
            print(json.dumps(row), flush=True)
    (ROOT / "benchmarks/trust_errors.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
