"""How far apart two versions of a line are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.learning.line_reach import reach

VERSIONS = st.integers(min_value=0, max_value=60)


@given(live=VERSIONS, gap=st.integers(min_value=0, max_value=20))
def test_in_a_home_of_one_line_it_is_the_distance_of_the_numbers(live: int, gap: int) -> None:
    assert reach(live, gap, ()) == (max(live - gap, 0), live + gap)


@given(live=VERSIONS, gap=st.integers(min_value=0, max_value=20), others=st.sets(VERSIONS))
def test_versions_of_other_lines_between_two_do_not_count(live: int, gap: int, others: set[int]) -> None:
    near = reach(live, gap, others)
    for version in range(91):
        between = range(min(live, version) + 1, max(live, version))
        distance = abs(live - version) - sum(number in others for number in between)
        assert (near.oldest <= version <= near.newest) is (distance <= gap)


def test_a_gap_that_says_never_costs_no_time() -> None:
    """It was counted version by version, on the event loop: five minutes for 10**9."""
    assert reach(3, 10**15, {1, 5}) == (0, 2**31 - 1)
