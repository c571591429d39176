"""Shares with their intervals, and whether two versions differ on the same prompts.

Owns two formulas. Wilson's interval: E. B. Wilson, "Probable inference, the law of succession, and statistical
inference", JASA 22 (1927). McNemar's test in its exact form: where two versions differ, each is as likely to win. So
the number of wins is binomial with one half (Q. McNemar, Psychometrika 12 (1947)). scipy and
statsmodels have both; they are 100 MB for twenty lines.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

Z95: Final = 1.959963984540054  # the normal distribution's 97.5 % point


class Interval(NamedTuple):
    share: float
    low: float
    high: float


def wilson(good: int, rated: int) -> Interval | None:
    """Wilson's interval: honest for few ratings, and never outside 0 to 1. None of nothing."""
    if not rated:
        return None
    share, z2 = good / rated, Z95 * Z95
    middle = (share + z2 / (2 * rated)) / (1 + z2 / rated)
    half = Z95 / (1 + z2 / rated) * math.sqrt(share * (1 - share) / rated + z2 / (4 * rated * rated))
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def mcnemar(better: int, worse: int) -> float:
    """Two-sided p of so uneven a split of the prompts on which two versions differ; 1 where there are none."""
    changed = better + worse
    tail = sum(math.comb(changed, count) for count in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / (1 << changed))
