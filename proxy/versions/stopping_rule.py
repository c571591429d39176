"""When an experiment ends, and how: promoted, withdrawn, no difference shown, or void.

Owns the bounds and the sentence of what is still needed. Pure: ratings and a clock in, a standing out. Not here: the
evidence (e_process), who acts on it (experiments).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from proxy.versions.e_process import ArmRating, evidence, unequal_rates

PROMOTE: Final = 20.0  # evidence for the candidate: wrong in at most 5 of 100 experiments of equal versions
WITHDRAW: Final = 10.0  # evidence against it
MOST_RATINGS: Final = 200  # nothing sees ten points of a hundred with so few
MOST_DAYS: Final = 14.0
LEAST_RATE_P: Final = 0.001  # below, one arm is rated less often than chance, and no comparison holds
DAY_S: Final = 86400.0

Outcome = Literal["promoted", "withdrawn", "no difference shown", "void"]


class ArmCount(NamedTuple):
    good: int
    rated: int

    @property
    def mean(self) -> float | None:
        return self.good / self.rated if self.rated else None


class Standing(NamedTuple):
    candidate: ArmCount
    parent: ArmCount
    up: float  # evidence that the candidate is liked more
    down: float  # and less
    rate_p: float
    outcome: Outcome | None  # None: it goes on
    needed: str  # what would still decide it, or what has


def standing(ratings: Sequence[ArmRating], share: float, elapsed_s: float) -> Standing:
    """`ratings`: the first of each conversation, oldest first; those beyond a decision are not looked at."""
    ups, downs = evidence(ratings[:MOST_RATINGS], share)
    for index, (up, down) in enumerate(zip(ups, downs, strict=True)):
        counted_ratings = ratings[: index + 1]
        rate_p = unequal_rates(counted_ratings, share)
        if rate_p < LEAST_RATE_P:
            return _standing(counted_ratings, up, down, rate_p, "void")
        if up >= PROMOTE:
            return _standing(counted_ratings, up, down, rate_p, "promoted")
        if down >= WITHDRAW:
            return _standing(counted_ratings, up, down, rate_p, "withdrawn")
    counted_ratings, rate_p = ratings[:MOST_RATINGS], unequal_rates(ratings[:MOST_RATINGS], share)
    is_over = len(counted_ratings) >= MOST_RATINGS or elapsed_s >= MOST_DAYS * DAY_S
    outcome: Outcome | None = "no difference shown" if is_over else None
    remaining_s = max(0.0, MOST_DAYS * DAY_S - elapsed_s)
    return _standing(
        counted_ratings, ups[-1] if ups else 1.0, downs[-1] if downs else 1.0, rate_p, outcome, remaining_s
    )


def _standing(
    ratings: Sequence[ArmRating],
    up: float,
    down: float,
    rate_p: float,
    outcome: Outcome | None,
    remaining_s: float = 0.0,
) -> Standing:
    needed = _needed(len(ratings), up, down, rate_p, outcome, remaining_s)
    return Standing(_count(ratings, True), _count(ratings, False), up, down, rate_p, outcome, needed)


def _count(ratings: Sequence[ArmRating], is_candidate: bool) -> ArmCount:
    of_arm = [rating.is_good for rating in ratings if rating.is_candidate is is_candidate]
    return ArmCount(sum(of_arm), len(of_arm))


def _needed(count: int, up: float, down: float, rate_p: float, outcome: Outcome | None, remaining_s: float) -> str:
    if outcome == "void":
        return f"one version was rated more often than chance allows (p = {rate_p:.1g}): no comparison holds"
    if outcome == "promoted":
        return f"it is liked more (evidence {up:.3g}, {PROMOTE:g} decides)"
    if outcome == "withdrawn":
        return f"it is liked less (evidence {down:.3g}, {WITHDRAW:g} decides)"
    if outcome is not None:
        return f"no difference shown in {count} ratings; a difference of ten points takes more than {MOST_RATINGS}"
    days = math.ceil(remaining_s / DAY_S)
    return (
        f"evidence {up:.3g} of {PROMOTE:g} for it, {down:.3g} of {WITHDRAW:g} against it; else over after "
        f"{MOST_RATINGS - count} more rated conversations or {days} days"
    )
