"""ROUGE-L against its definition, and the measures on a real small policy."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.bench.exam.collapse import longest_common, rouge_l

WORDS = st.lists(st.sampled_from("abc"), max_size=7)


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(word in rest for word in part)


@given(WORDS, WORDS)
def test_longest_common_subsequence_is_the_longest(a, b):
    lengths = [n for n in range(len(a) + 1) for part in combinations(a, n) if is_subsequence(part, b)]
    assert longest_common(a, b) == max(lengths) == longest_common(b, a)


def test_likeness_of_texts():
    assert rouge_l(["the", "cat", "sat"], ["the", "cat", "sat"]) == 1.0
    assert rouge_l(["the", "cat", "sat"], ["the", "dog", "sat"]) == pytest.approx(2 / 3)
    assert rouge_l([], ["a"]) == rouge_l(["b"], ["a"]) == rouge_l([], []) == 0.0
