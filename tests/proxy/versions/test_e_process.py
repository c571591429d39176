"""The evidence of an experiment: what makes it valid, and the same bets by another way."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.versions.e_process import GRID, ArmRating, EProcess, evidence, unequal_rates

RATINGS = st.lists(st.builds(ArmRating, st.booleans(), st.booleans()), max_size=40)
SHARES = st.floats(0.05, 0.95)


def after(history: list[ArmRating], share: float, rating: ArmRating | None = None) -> float:
    process = EProcess(share)
    for each in [*history, *([rating] if rating else [])]:
        process.update(each)
    return process.value


@given(RATINGS, SHARES, st.floats(0, 1))
def test_under_equal_arms_the_next_bet_is_fair_whatever_came_before(
    history: list[ArmRating], share: float, liked: float
) -> None:
    mean = sum(
        (share if arm else 1 - share) * (liked if good else 1 - liked) * after(history, share, ArmRating(arm, good))
        for arm in (True, False)
        for good in (True, False)
    )
    assert mean == pytest.approx(after(history, share), rel=1e-9)


@given(RATINGS, SHARES)
def test_evidence_for_one_arm_is_evidence_against_the_other(history: list[ArmRating], share: float) -> None:
    up, down = evidence(history, share)
    swapped = [rating._replace(is_candidate=not rating.is_candidate) for rating in history]
    mirrored = evidence(swapped, 1 - share)
    assert up == pytest.approx(mirrored[1]) and down == pytest.approx(mirrored[0])
    assert all(value > 0 for value in (*up, *down))


@given(RATINGS, SHARES)
def test_each_bet_is_the_posterior_mean_against_the_mean_of_both_arms(history: list[ArmRating], share: float) -> None:
    """By brute force: the likelihood of all that came before, at each point of the grid."""
    expected, points = 1.0, [(a, b) for a in GRID for b in GRID if b > a]
    for index, rating in enumerate(history):
        weights = []
        for point in points:
            weight = 1.0
            for earlier in history[:index]:
                chance = point[earlier.is_candidate]
                weight *= chance if earlier.is_good else 1 - chance
            weights.append(weight)
        means = [sum(w * p[arm] for w, p in zip(weights, points, strict=True)) / sum(weights) for arm in (0, 1)]
        either, own = share * means[1] + (1 - share) * means[0], means[rating.is_candidate]
        expected *= own / either if rating.is_good else (1 - own) / (1 - either)
    assert after(history, share) == pytest.approx(expected, rel=1e-6)


def test_a_rating_moves_the_evidence_its_way() -> None:
    up, down = evidence([ArmRating(True, True), ArmRating(False, False)] * 20, 0.5)
    assert all(later > earlier for earlier, later in pairwise(up)) and up[-1] > 1e4 and down[-1] < 0.1


@pytest.mark.parametrize(
    ("of_candidate", "count", "share", "p"), [(0, 10, 0.5, 2 / 1024), (5, 10, 0.5, 1.0), (10, 10, 0.5, 2 / 1024)]
)
def test_the_split_of_the_rated_conversations(of_candidate: int, count: int, share: float, p: float) -> None:
    ratings = [ArmRating(index < of_candidate, True) for index in range(count)]
    assert unequal_rates(ratings, share) == pytest.approx(p)


@given(st.integers(0, 60), SHARES)
def test_the_split_test_is_wrong_no_more_often_than_it_says(count: int, share: float) -> None:
    from math import comb

    for level in (0.001, 0.05):
        wrong = sum(
            comb(count, n) * share**n * (1 - share) ** (count - n)
            for n in range(count + 1)
            if unequal_rates([ArmRating(index < n, True) for index in range(count)], share) < level
        )
        assert wrong <= level * (1 + 1e-9)
