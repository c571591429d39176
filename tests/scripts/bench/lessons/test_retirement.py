"""Simulated runs that retire lessons: the noise has its mean, and the rule keeps its promise in all kinds of it."""

import numpy as np
import pytest

from scripts.bench.lessons.retirement import by_bound, by_mean, noises, recorded
from trainer.run.lesson_gaps import FEWEST_REPLIES, MOST_PROMPTS

NOISES = noises(recorded())
TIMES = 10_000


@pytest.mark.parametrize("name", NOISES)
def test_replies_have_the_mean_that_is_left(name):
    shares = NOISES[name](0.2, (TIMES, MOST_PROMPTS), np.random.default_rng(1))
    assert shares.mean() == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("count", range(FEWEST_REPLIES, MOST_PROMPTS + 1))
@pytest.mark.parametrize("name", NOISES)
def test_a_lesson_with_a_tenth_left_retires_in_at_most_one_of_twenty_runs(name, count):
    shares = NOISES[name](0.1, (TIMES, count), np.random.default_rng(count))
    assert by_bound(shares).mean() <= 0.05 < by_mean(shares).mean()


def test_a_lesson_that_is_learned_retires_within_two_runs():
    first, second = NOISES["recorded"](0.03, (2, TIMES, MOST_PROMPTS), np.random.default_rng(1))
    assert (by_bound(first) | by_bound(second)).mean() > 0.95
