"""Error rates of the watch after a swap: false alarms under equal shares, and how soon a worse version is found.

`python -m scripts.research.watch_errors [--quick]` writes benchmarks/watch_errors.json. False alarms are computed
exactly: every path that the ratings of the new version can take, with a look after each of them. The number of ratings
until a worse version is found is simulated. Needs numpy, and a few minutes.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proxy.versions.sequential_test import ALPHA, LEVEL, NEW, OLD, Share, fisher
from scripts.harness.circumstances import commit, now

ROOT = Path(__file__).resolve().parents[2]
Floats = NDArray[np.float64]

SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
OLDS = (4, 8, 16, 32, 64, 128, OLD)
WORSE = ((0.7, 0.4), (0.7, 0.5), (0.9, 0.7))
SEED = 20261121


def bounds(old: Share) -> list[int]:
    """For each number of ratings of the new version, the most good ones that still raise the alarm; -1 for none."""
    most_good: list[int] = []
    good = -1
    for rated in range(1, NEW + 1):
        while good < rated and fisher(old, Share(good + 1, rated)) <= LEVEL:
            good += 1
        most_good.append(good)
    return most_good


def alarm_by(old_rated: int, old_share: Floats, new_share: Floats) -> Floats:
    """(NEW, shares): the chance that the alarm has been raised by each look. Exact."""
    total = np.zeros((NEW, len(old_share)))
    chance = np.zeros((old_rated + 1, len(old_share)))  # of each number of good ones among the old
    chance[0] = 1.0
    for _ in range(old_rated):
        chance[1:] = chance[1:] * (1 - old_share) + chance[:-1] * old_share
        chance[0] *= 1 - old_share
    for old_good in range(old_rated + 1):
        quiet = np.zeros((NEW + 1, len(new_share)))  # of each number of good ones, no alarm so far
        quiet[0] = 1.0
        alarm = np.zeros(len(new_share))
        for look, bound in enumerate(bounds(Share(old_good, old_rated))):
            step = quiet * (1 - new_share)
            step[1:] += quiet[:-1] * new_share
            alarm = alarm + step[: bound + 1].sum(axis=0)
            step[: bound + 1] = 0.0
            quiet = step
            total[look] += chance[old_good] * alarm
    return total


def until_found(old_rated: int, old_share: float, new_share: float, *, times: int, seed: int = SEED) -> dict[str, Any]:
    """Simulated: the ratings of the new version until the alarm, and how often it comes at all."""
    dice = np.random.default_rng(seed)
    bounds_by_good = {good: np.array(bounds(Share(good, old_rated))) for good in range(old_rated + 1)}
    ratings_until = np.full(times, np.inf)
    for index in range(times):
        bound = bounds_by_good[int(dice.binomial(old_rated, old_share))]
        alarms = np.flatnonzero(np.cumsum(dice.random(NEW) < new_share) <= bound)
        ratings_until[index] = alarms[0] + 1 if len(alarms) else np.inf
    raised = np.isfinite(ratings_until)
    median = float(np.median(ratings_until))
    return {
        "old_rated": old_rated, "old_share": old_share, "new_share": new_share, "times": times,
        "found": float(raised.mean()), "median": median if np.isfinite(median) else None,
        "median_of_found": float(np.median(ratings_until[raised])) if raised.any() else None,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer numbers of old ratings, less simulation")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "watch_errors.json")
    args = parser.parse_args()
    olds = OLDS[1:4] if args.quick else OLDS
    shares = np.array(SHARES)
    false: list[dict[str, Any]] = []
    for old_rated in olds:
        rates = alarm_by(old_rated, shares, shares)[-1]
        print(f"{old_rated} old ratings: at most {rates.max():.4f} false alarms", flush=True)
        false.append({"old_rated": old_rated, "rates": [round(float(rate), 5) for rate in rates]})
    times = 1000 if args.quick else 10_000
    rows = [until_found(old, *pair, times=times) for pair in WORSE for old in olds]
    for row in rows:
        print(row, flush=True)
    worst = max(rate for row in false for rate in row["rates"])
    report = {
        "date": now(), "commit": commit(),
        "python": platform.python_version(), "seed": SEED, "alpha": ALPHA, "level": LEVEL, "most_old": OLD,
        "most_new": NEW, "shares": SHARES, "false_alarms": false, "worst": worst, "found": rows,
    }  # fmt: skip
    args.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if worst <= ALPHA else 1


if __name__ == "__main__":
    sys.exit(main())
