"""Intervals and the paired test, against values of other programs."""

from __future__ import annotations

import pytest

from proxy.checks.statistics import mcnemar, wilson


@pytest.mark.parametrize(
    ("good", "rated", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),  # R: binom::binom.wilson
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (263, 263, 0.9856, 1.0),
    ],
)
def test_the_interval_is_wilsons(good: int, rated: int, low: float, high: float) -> None:
    interval = wilson(good, rated)
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-4)
    assert interval.share == good / rated


def test_nothing_has_no_interval() -> None:
    assert wilson(0, 0) is None


@pytest.mark.parametrize(
    ("better", "worse", "p"),
    [
        (0, 0, 1.0),
        (5, 5, 1.0),
        (9, 1, 0.021484375),  # R: binom.test(1, 10)$p.value
        (1, 9, 0.021484375),
        (0, 5, 0.0625),
        (121, 59, 4.434e-06),  # statsmodels: mcnemar([[101, 121], [59, 33]], exact=True)
    ],
)
def test_the_paired_test_is_exact(better: int, worse: int, p: float) -> None:
    assert mcnemar(better, worse) == pytest.approx(p, rel=1e-3)
