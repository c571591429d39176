"""Simulated experiments: the script makes the bets of the product, and the table of the facts holds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from proxy.versions.e_process import ArmRating, evidence, unequal_rates
from scripts.research.experiment_errors import bets, simulated, split_p

TIMES, OTHERS = 400, 2000  # simulated here, and those of the table
# Stopped by 50, 100 and 200 ratings: the method's own simulation of 2,000 runs, before it was built.
TABLE = {
    (0.5, 0.5): (0.028, 0.030, 0.037), (0.5, 0.6): (0.07, 0.10, 0.20), (0.5, 0.7): (0.19, 0.36, 0.66),
    (0.5, 0.8): (0.45, 0.78, 0.97), (0.3, 0.7): (0.67, 0.95, 1.0), (0.7, 0.9): (0.26, 0.54, 0.85),
}  # fmt: skip


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_the_bets_are_those_of_the_product(share: float) -> None:
    dice = np.random.default_rng(7)
    arms, good = dice.random((3, 60)) < share, dice.random((3, 60)) < 0.6
    up, down, p = bets(arms, good, share), bets(~arms, good, 1 - share), split_p(arms, share)
    for row in range(3):
        ratings = [ArmRating(bool(a), bool(g)) for a, g in zip(arms[row], good[row], strict=True)]
        own_up, own_down = evidence(ratings, share)
        assert up[row] == pytest.approx(own_up) and down[row] == pytest.approx(own_down)
        assert p[row] == pytest.approx([unequal_rates(ratings[: n + 1], share) for n in range(60)])


@pytest.mark.parametrize(("pair", "stopped"), TABLE.items())
def test_the_table_of_the_facts_within_three_standard_errors(
    pair: tuple[float, float], stopped: tuple[float, ...]
) -> None:
    result = simulated(*pair, times=TIMES)
    for expected, measured in zip(stopped, result["up_by"].values(), strict=True):
        spread = max(expected * (1 - expected), 1 / OTHERS)
        assert abs(measured - expected) <= 3 * math.sqrt(spread * (1 / TIMES + 1 / OTHERS)) + 0.005  # as it is rounded


def test_equal_versions_are_seldom_promoted_and_worse_ones_hardly_ever() -> None:
    assert simulated(0.5, 0.5, times=TIMES)["promoted"] <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / TIMES)
    assert simulated(0.5, 0.3, times=TIMES)["promoted"] <= 0.005 + 3 * math.sqrt(0.005 * 0.995 / TIMES)


def test_an_arm_that_is_rated_half_as_often_is_detected() -> None:
    assert simulated(0.5, 0.5, times=TIMES, rates=(1.0, 0.5))["void"] > 0.85
    assert simulated(0.5, 0.5, times=TIMES)["void"] < 0.03
