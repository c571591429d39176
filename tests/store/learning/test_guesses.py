"""Which unrated answers to ask about: the unsure ones first, every fifth drawn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from store.learning.guesses import AT_RANDOM, mixed

SEQS = st.lists(st.integers(1, 60), unique=True)


@given(SEQS, SEQS)
def test_each_stands_once_and_the_unsure_keep_their_order(unsure: list[int], drawn: list[int]) -> None:
    order = mixed(unsure, drawn)
    assert len(order) == len(set(order)) and set(unsure) <= set(order) <= set(unsure) | set(drawn)
    only = [seq for seq in order if seq not in drawn]
    assert only == [seq for seq in unsure if seq not in drawn]


@given(st.integers(5, 40))
def test_every_fifth_place_is_of_those_that_were_drawn(count: int) -> None:
    order = mixed(list(range(count)), list(range(100, 100 + count)))
    drawn = [at for at, seq in enumerate(order) if seq >= 100]
    assert drawn == list(range(AT_RANDOM - 1, len(order), AT_RANDOM))
