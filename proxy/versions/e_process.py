"""Which of two versions is liked more, with a look after every rating: the mathematics, and nothing else.

Owns the e-process and the test of rating rates. Each conversation has one of two arms, drawn with a known probability.
Its first rating says whether the answer was liked. The evidence is a bet against "the arm makes no difference".
Before each rating a posterior over both arms' liked shares says what it expects. Under equal arms the product of
these bets has an expected value of at most 1 at any time. So it passes 1/α in at most α of all experiments, however
often somebody looks (Ville). Sources: Grünwald, de Heide, Koolen (arXiv 1906.07801); Turner, Grünwald (2203.09785).

It holds where both arms have equal chances of being rated. `unequal_rates` tests that. Not here: whose ratings, and
what follows (experiments).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb
from typing import Final, NamedTuple

GRID: Final = tuple(step / 20 for step in range(1, 20))  # liked shares of an arm: 19 values, 0.05 to 0.95


class ArmRating(NamedTuple):
    """The first rating of a conversation."""

    is_candidate: bool
    is_good: bool


class EProcess:
    """Evidence that the candidate's liked share is higher than the parent's."""

    def __init__(self, share: float) -> None:
        """`share`: probability of the candidate's arm, in (0, 1)."""
        self._share = share
        self._points = [(parent, candidate) for parent in GRID for candidate in GRID if candidate > parent]
        self._weights = [1.0 / len(self._points)] * len(self._points)
        self.value = 1.0

    def update(self, rating: ArmRating) -> float:
        """Take one rating in; returns the evidence. At most 19 · 18 / 2 points are looked at."""
        parent = sum(weight * point[0] for weight, point in zip(self._weights, self._points, strict=True))
        candidate = sum(weight * point[1] for weight, point in zip(self._weights, self._points, strict=True))
        either = self._share * candidate + (1 - self._share) * parent
        expected = candidate if rating.is_candidate else parent
        self.value *= expected / either if rating.is_good else (1 - expected) / (1 - either)
        chances = (point[rating.is_candidate] for point in self._points)
        likelihoods = (chance if rating.is_good else 1 - chance for chance in chances)
        weights = [weight * likelihood for weight, likelihood in zip(self._weights, likelihoods, strict=True)]
        total = sum(weights)
        self._weights = [weight / total for weight in weights]
        return self.value


def evidence(ratings: Iterable[ArmRating], share: float) -> tuple[list[float], list[float]]:
    """Evidence after each rating that the candidate is liked more, and that it is liked less."""
    up, down = EProcess(share), EProcess(1 - share)
    pairs = [
        (up.update(rating), down.update(rating._replace(is_candidate=not rating.is_candidate))) for rating in ratings
    ]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def unequal_rates(ratings: Sequence[ArmRating], share: float) -> float:
    """p of so uneven a split of the rated conversations, where both arms are rated equally often: exact, two-sided."""
    count, of_candidate = len(ratings), sum(rating.is_candidate for rating in ratings)

    def tail(numbers: Iterable[int]) -> float:
        return sum(comb(count, number) * share**number * (1 - share) ** (count - number) for number in numbers)

    return min(1.0, 2 * min(tail(range(of_candidate + 1)), tail(range(of_candidate, count + 1))))
