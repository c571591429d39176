"""The sequential test after a swap: its p, and its error rates as docs/reference/learning-rules.md states them."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.versions.sequential_test import ALPHA, LEVEL, NEW, OLD, Share, compare, fisher
from scripts.research.watch_errors import SHARES, alarm_by, bounds, until_found

votes = st.lists(st.booleans(), max_size=40)


def test_p_is_that_of_every_shuffle() -> None:
    old, new = (True, True, True, False), (False, True, False)
    good = sum(old + new)
    as_few = total = 0
    for way in product((True, False), repeat=7):
        if sum(way) == good:
            total += 1
            as_few += sum(way[4:]) <= sum(new)
    assert compare(old, new).p == pytest.approx(as_few / total)


@given(votes, votes)
def test_p_falls_with_each_bad_one_and_rises_with_each_good_one(old: list[bool], new: list[bool]) -> None:
    now = compare(old, new).p
    assert 0 < now <= 1
    assert compare(old, [*new, False]).p <= now * (1 + 1e-12)
    assert compare(old, [*new, True]).p >= now * (1 - 1e-12)


def test_nothing_is_said_without_ratings() -> None:
    for old, new in (([], []), ([True] * 50, []), ([], [False] * 50)):
        found = compare(old, new)
        assert found.p == 1.0 and not found.worse and not found.over


def test_the_newest_of_the_old_and_the_first_of_the_new_count() -> None:
    found = compare([False] * 50 + [True] * OLD, [True] * NEW + [False] * 500)
    assert found.old == Share(OLD, OLD) and found.new == Share(NEW, NEW) and found.over and not found.worse


def test_a_clear_case_is_found() -> None:
    assert compare([True] * 22 + [False] * 10, [False] * 8).worse
    assert not compare([True] * 22 + [False] * 10, [True] * 5 + [False] * 3).worse


@pytest.mark.parametrize("old_rated", [8, 32, 128])
def test_false_alarms_over_the_whole_comparison_are_rare_whatever_the_share(old_rated: int) -> None:
    shares = np.array(SHARES)
    by_look = alarm_by(old_rated, shares, shares)
    assert (np.diff(by_look, axis=0) >= -1e-12).all(), "an alarm once raised stays"
    assert by_look[-1].max() <= ALPHA
    assert by_look[-1].max() > LEVEL * 0.5, "a test that never speaks proves nothing"


def test_false_alarms_simulated_agree_with_those_computed() -> None:
    """Peeked at after every rating, with the module's own comparison rather than its bounds."""
    dice = np.random.default_rng(7)
    times, old_rated, share = 400, 32, 0.7
    alarms = 0
    for _ in range(times):
        old, new = (dice.random(old_rated) < share).tolist(), (dice.random(NEW) < share).tolist()
        before = sum(old)
        alarms += any(
            good <= bound for good, bound in zip(np.cumsum(new), bounds(Share(before, old_rated)), strict=True)
        )
    exact = float(alarm_by(old_rated, np.array([share]), np.array([share]))[-1, 0])
    assert abs(alarms / times - exact) < 4 * math.sqrt(exact * (1 - exact) / times)


@given(st.integers(0, 32), st.integers(1, 60), st.data())
def test_the_bounds_are_those_of_the_comparison(old_good: int, rated: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(0, rated))
    old = Share(old_good, 32)
    assert (good <= bounds(old)[rated - 1]) == (fisher(old, Share(good, rated)) <= LEVEL)


def test_a_much_worse_version_is_found_soon() -> None:
    found = until_found(32, 0.7, 0.4, times=400)
    assert found["found"] > 0.7 and found["median"] <= 40
    found = until_found(128, 0.7, 0.4, times=400)
    assert found["found"] > 0.95 and found["median"] <= 20
