"""When an experiment ends, and that nothing after its end changes how."""

from __future__ import annotations

import random

import pytest

from proxy.versions.e_process import ArmRating, evidence
from proxy.versions.stopping_rule import DAY_S, MOST_DAYS, MOST_RATINGS, PROMOTE, WITHDRAW, standing

BETTER = [ArmRating(True, True), ArmRating(False, False)] * 50
WORSE = [ArmRating(True, False), ArmRating(False, True)] * 50


@pytest.mark.parametrize(("ratings", "outcome"), [(BETTER, "promoted"), (WORSE, "withdrawn")])
def test_it_ends_at_the_first_rating_that_decides(ratings: list[ArmRating], outcome: str) -> None:
    whole = standing(ratings, 0.5, 0)
    count = whole.candidate.rated + whole.parent.rated
    assert whole.outcome == outcome and 5 < count < 12
    assert standing(ratings[: count - 1], 0.5, 0).outcome is None
    assert standing([*ratings[:count], *(WORSE if outcome == "promoted" else BETTER)], 0.5, 0) == whole
    up, down = evidence(ratings[:count], 0.5)
    assert (up[-1] >= PROMOTE) if outcome == "promoted" else (down[-1] >= WITHDRAW)


def test_an_arm_that_is_rarely_rated_voids_it_before_anything_else() -> None:
    ratings = [ArmRating(False, index % 2 == 0) for index in range(11)]
    assert standing(ratings[:10], 0.5, 0).outcome is None
    result = standing(ratings, 0.5, 0)
    assert result.outcome == "void" and result.rate_p < 0.001 and "more often than chance" in result.needed


def test_nothing_shown_after_so_many_ratings_or_days() -> None:
    dice = random.Random(3)
    even = [ArmRating(index % 2 == 0, dice.random() < 0.5) for index in range(MOST_RATINGS)]
    assert standing(even[:-1], 0.5, 0).outcome is None
    assert standing(even, 0.5, 0).outcome == "no difference shown"
    assert standing(even[:5], 0.5, MOST_DAYS * DAY_S).outcome == "no difference shown"
    assert standing([], 0.5, MOST_DAYS * DAY_S - 1).outcome is None


def test_what_is_still_needed_is_said() -> None:
    result = standing(BETTER[:3], 0.5, 2.5 * DAY_S)
    assert result.candidate == (2, 2) and result.parent == (0, 1) and result.candidate.mean == 1.0
    assert "of 20 for it" in result.needed and "197 more rated conversations or 12 days" in result.needed
    assert standing([], 0.5, 0).candidate.mean is None
