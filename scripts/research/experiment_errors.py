"""Simulated experiments on live traffic: how often equal versions are promoted, and how soon better ones.

`python -m scripts.research.experiment_errors [--times N]` writes benchmarks/experiment_errors.json. Each of 10,000
experiments has up to 200 ratings, a look after every one, and the bounds of proxy.versions.stopping_rule. The same bets
as proxy.versions.e_process, for many experiments at once. Needs numpy, and some minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from proxy.versions.e_process import GRID
from proxy.versions.stopping_rule import LEAST_RATE_P, MOST_RATINGS, PROMOTE, WITHDRAW
from scripts.harness.circumstances import commit, now

ROOT: Final = Path(__file__).resolve().parents[2]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SEED: Final = 20261127
# Liked shares of the parent and the candidate. The first six are the table of facts/experiments.md.
PAIRS: Final = ((0.5, 0.5), (0.5, 0.6), (0.5, 0.7), (0.5, 0.8), (0.3, 0.7), (0.7, 0.9), (0.5, 0.3), (0.2, 0.6))
EQUAL: Final = ((0.1, 0.1), (0.2, 0.2), (0.5, 0.5), (0.8, 0.8), (0.9, 0.9))
LOOKS: Final = (50, 100, 200)
BLOCK: Final = 500  # experiments at once: their weights fit into a processor's cache


def bets(candidate: Bools, good: Bools, share: float) -> Floats:
    """(times, ratings): evidence after each rating that the candidate is liked more. `candidate`, `good`: (times,
    ratings)."""
    blocks = range(0, len(candidate), BLOCK)
    return np.concatenate(
        [_bets(candidate[start : start + BLOCK], good[start : start + BLOCK], share) for start in blocks]
    )


def _bets(candidate: Bools, good: Bools, share: float) -> Floats:
    points = np.array([(a, b) for a in GRID for b in GRID if b > a])
    likelihoods = np.stack([1 - points[:, 0], points[:, 0], 1 - points[:, 1], points[:, 1]])
    times, count = candidate.shape
    weights = np.full((times, len(points)), 1.0 / len(points))
    value, values = np.ones(times), np.empty((times, count))
    for index in range(count):
        is_candidate, is_good = candidate[:, index], good[:, index]
        means = weights @ points
        either = share * means[:, 1] + (1 - share) * means[:, 0]
        expected = np.where(is_candidate, means[:, 1], means[:, 0])
        value = value * np.where(is_good, expected / either, (1 - expected) / (1 - either))
        values[:, index] = value
        weights *= likelihoods[2 * is_candidate + is_good]
        weights /= weights.sum(axis=1, keepdims=True)
    return values


def split_p(candidate: Bools, share: float) -> Floats:
    """(times, ratings): p of the split of rated conversations after each rating, as e_process.unequal_rates."""
    times, count = candidate.shape
    counts = np.cumsum(candidate, axis=1)
    out = np.empty((times, count))
    chance = np.array([1.0])
    for index in range(count):
        chance = np.append(chance, 0.0) * (1 - share) + np.append(0.0, chance) * share
        lower, upper = np.cumsum(chance), np.cumsum(chance[::-1])[::-1]
        out[:, index] = np.minimum(1.0, 2 * np.minimum(lower, upper))[counts[:, index]]
    return out


def simulated(
    parent: float,
    candidate: float,
    *,
    times: int,
    share: float = 0.5,
    rates: tuple[float, float] = (1.0, 1.0),
    seed: int = SEED,
) -> dict[str, Any]:
    """`rates`: how often a conversation of the parent and of the candidate is rated, relative to each other."""
    dice = np.random.default_rng([seed, round(1000 * parent), round(1000 * candidate), round(1000 * rates[1])])
    rated_share = share * rates[1] / (share * rates[1] + (1 - share) * rates[0])
    arms = dice.random((times, MOST_RATINGS)) < rated_share
    good = dice.random((times, MOST_RATINGS)) < np.where(arms, candidate, parent)
    up = _first(bets(arms, good, share) >= PROMOTE)
    down = _first(bets(~arms, good, 1 - share) >= WITHDRAW)
    void = _first(split_p(arms, share) < LEAST_RATE_P)
    ends = np.minimum(np.minimum(up, down), void)
    promoted, withdrawn = (
        (up == ends) & np.isfinite(up) & (void > ends),
        (down == ends) & np.isfinite(down) & (void > ends),
    )
    decided = ends[promoted | withdrawn]
    return {
        "parent": parent, "candidate": candidate, "times": times, "share": share, "rates": list(rates),
        "up_by": {str(look): float((up <= look).mean()) for look in LOOKS},  # as if nothing else ended it
        "median_up_of_stopped": {str(look): _median(up[up <= look]) for look in LOOKS},
        "promoted": float(promoted.mean()), "withdrawn": float(withdrawn.mean()),
        "void": float(np.isfinite(void).mean()), "ended_void": float(((void <= ends) & np.isfinite(void)).mean()),
        "median_decided": _median(decided),
        "median_promoted_all": _median(np.where(promoted, ends, np.inf)),
    }  # fmt: skip


def _first(hits: Bools) -> Floats:
    """The rating at which each experiment hits first, from 1; infinite where none does."""
    return np.where(hits.any(axis=1), hits.argmax(axis=1) + 1.0, np.inf)


def _median(values: Floats) -> float | None:
    median = float(np.median(values)) if len(values) else np.inf
    return median if np.isfinite(median) else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Error rates of experiments on live traffic.")
    parser.add_argument("--times", type=int, default=10_000)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "experiment_errors.json")
    arguments = parser.parse_args()
    shares = sorted({*EQUAL, *PAIRS, (0.9, 0.7), (0.3, 0.1), (0.6, 0.4)})
    rows = [simulated(*pair, times=arguments.times) for pair in shares]
    rows += [simulated(0.5, 0.5, times=arguments.times, rates=(1.0, rate)) for rate in (0.5, 0.75)]
    rows += [simulated(*pair, times=arguments.times, share=0.2) for pair in ((0.5, 0.5), (0.5, 0.8))]
    result = {"commit": commit(), "date": now(), "machine": platform.machine(), "seed": SEED, "experiments": rows}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    for row in rows:
        print({key: value for key, value in row.items() if key != "times"})


if __name__ == "__main__":
    main()
