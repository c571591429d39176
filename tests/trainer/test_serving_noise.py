"""How wide the band is, by how much is known of serving noise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainer import serving_noise
from trainer.mis_po import CLIP, Band
from trainer.serving_noise import COMPARISON, ENOUGH, FEWEST, NoiseMeasurement, choose, measure

PAPER = Band(0.996, 1.001)
NOTHING = serving_noise.from_comparison(None)


def known(tokens: int, mean: float = -0.01, deviation: float = 0.05, source: str = "x") -> NoiseMeasurement:
    return NoiseMeasurement(source, mean, deviation, tokens)


def test_one_kind_of_tokens_is_enough_where_there_are_many() -> None:
    choice = choose(PAPER, [known(10, 0.2), known(ENOUGH, source="rated")], known(96, 0.2), fits_paper=False)
    assert choice.band == Band(0.996, 1.001, -0.01, 0.05, ENOUGH) and choice.is_calibrated
    assert "200 tokens of rated" in choice.reason


def test_few_tokens_are_taken_together_with_the_comparison() -> None:
    """Short answers of a quantised server: 0.03 nats, which the paper's band refuses."""
    comparison = {"mean": -0.02, "deviation": 0.03, "tokens": 90.0}
    choice = choose(
        PAPER, [known(0), known(40, 0.01, 0.03)], serving_noise.from_comparison(comparison), fits_paper=False
    )
    assert choice.band is not None and choice.band.calibration_tokens == 130
    assert choice.band.mu == pytest.approx((40 * 0.01 - 90 * 0.02) / 130)
    assert 0.03 < choice.band.sigma < 0.04, "what is between the two means counts as noise, too"
    assert COMPARISON in choice.reason
    low, high = choice.band.limits(3)
    assert low < -0.05 and high > 0.03


def test_where_too_little_is_known_the_run_waits_and_says_how_much_is_missing() -> None:
    choice = choose(PAPER, [known(0), known(20)], NOTHING, fits_paper=False)
    assert choice.band is None and choice.missing_tokens == FEWEST - 20 and "20 of 32 tokens" in choice.reason
    assert serving_noise.missing_answers(12, 20, 10) == 6
    assert serving_noise.missing_answers(32, 0, 0) == 32, "an answer has at least a token"


def test_no_run_waits_for_what_would_change_nothing() -> None:
    choice = choose(PAPER, [known(0), known(20, 0.0, 0.0)], NOTHING, fits_paper=True)
    assert choice.band == PAPER and not choice.is_calibrated


@pytest.mark.parametrize("noise", [known(40, -0.3, 0.1), known(40, 0.0, 0.6)])
def test_another_model_is_not_noise_however_few_its_tokens(noise: NoiseMeasurement) -> None:
    choice = choose(PAPER, [known(0), noise], NOTHING, fits_paper=False)
    assert choice.band == PAPER and choice.is_too_noisy and "more than numeric noise" in choice.reason


def test_tokens_outside_the_support_say_nothing_of_noise() -> None:
    found = measure("x", [np.array([0.1, -0.1, CLIP]), np.array([-CLIP])])
    assert (found.tokens, found.mean) == (2, 0.0) and math.isclose(found.deviation, 0.1)
    assert measure("x", []).tokens == 0
