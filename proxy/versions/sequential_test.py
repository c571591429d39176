"""Is a new version worse than the one before, beyond chance?

Owns one sequential test and its error rates. It looks at people's ratings and, by itself, at evaluation episodes, where
success takes the place of a good rating. After each rating of the new version, Fisher's exact test (one-sided) compares
its share of good ratings with that of the old one. A look calls the new one worse at p ≤ LEVEL. LEVEL is far below
ALPHA, so that all looks of one comparison together raise a false alarm in at most ALPHA of the cases. That holds
whatever the share they have in common. `scripts/research/watch_errors.py` computes that exactly. Not here: whose
ratings (rollback_monitor).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final, NamedTuple

ALPHA: Final = 0.05  # of the comparisons of two equal versions end in a false alarm, at most
LEVEL: Final = 0.01  # of a single look
OLD: Final = 200  # newest ratings of the old version that count; with more, LEVEL would have to be lower
NEW: Final = 100  # ratings of the new version after which the comparison is over


class Share(NamedTuple):
    good: int
    rated: int

    def __str__(self) -> str:
        return f"{self.good} of {self.rated} good"


class Comparison(NamedTuple):
    old: Share
    new: Share
    p: float  # how likely so few good ones of the new version are where both are equally good
    over: bool  # nothing more is looked at

    @property
    def worse(self) -> bool:
        return self.p <= LEVEL


def compare(old: Sequence[bool], new: Sequence[bool]) -> Comparison:
    """`old` and `new` say of each rated answer whether it was good, oldest first."""
    old_share, new_share = _share(old[-OLD:]), _share(new[:NEW])
    return Comparison(old_share, new_share, fisher(old_share, new_share), over=new_share.rated == NEW)


def fisher(old: Share, new: Share) -> float:
    """The chance of no more good ones among the new than there are, if old and new were shuffled."""
    good, rated = old.good + new.good, old.rated + new.rated
    as_few = range(max(0, good - old.rated), new.good + 1)
    return sum(comb(new.rated, k) * comb(old.rated, good - k) for k in as_few) / comb(rated, good)


def _share(votes: Sequence[bool]) -> Share:
    return Share(sum(votes), len(votes))
