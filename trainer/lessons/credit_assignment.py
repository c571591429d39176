"""Which tokens earned a rating. One rating is of a whole reply, and most of its tokens had no part in it.

Owns the critic V, which says of a reply how it is going after each token. The credit of a token is how much it made V
rise. Pure numpy. Not here: what becomes of the credit (advantages), where states come from (policies).

With a few dozen ratings nothing may be fitted closely. V is a projection of the policy's last hidden state on one
direction, scaled once. That is the mean of liked replies' last states minus that of disliked ones' (a mean-difference
probe; Marks and Tegmark, arXiv 2310.06824). It is asked only about replies that it was not made of. What it has learned
shows at their ends. Where that explains too little of the ratings, all tokens of a reply are pushed alike, as ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.objective import Floats
from trainer.policy.packing import States  # here (T + 1, H), H at most WIDEST: one more, after the reply's last token

SIGNS = (1.0, -1.0)
FOLDS = 8
LEAST = 4  # replies of each sign, of this run or an earlier one, below which nothing is explained
FADES = 0.5  # of what was heard, from run to run
SHUFFLES = 99  # of the ratings, to see what a critic explains by chance
CHANCE = 3.0  # medians of a token's change of V: less is no news
WIDEST = 1024  # features that are looked at; of wider states a fixed random projection


class Heard(NamedTuple):
    """The rated replies that critics were made of. They go with a version, so that few ratings of one sign are enough
    where earlier ones knew both."""

    replies: Floats  # (2,) how many: liked and disliked replies
    means: Floats  # (2, H) of their last states

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"replies": self.replies, "means": self.means}


class Credit(NamedTuple):
    tokens: list[Floats]  # (T,) of each reply: T · how much V rose by the token, 0 where it did not, or by chance
    explained: float  # share of the ratings' variance that V explains at the ends of replies it was not made of
    by_chance: float  # how often shuffled ratings are explained as well; 1 where nothing is
    earlier: float  # replies of earlier runs that V was made of, too
    heard: Heard  # for the next run


def heard(arrays: Mapping[str, NDArray[Any]], width: int) -> Heard | None:
    """Read what `Heard.arrays` gave; None where it is of other states, or nothing."""
    replies, means = arrays.get("replies"), arrays.get("means")
    if replies is None or means is None or replies.shape != (2,) or means.shape != (2, width):
        return None
    return Heard(replies.astype(float), means.astype(float))


def credit(
    states: Sequence[States],
    values: Sequence[float],
    seed: int,
    before: Heard | None = None,
    again: Sequence[bool] | None = None,
) -> Credit:
    """`values`: the advantage of each reply, whose sign is the rating and whose size its weight. `again`: whether it
    trained before; what was heard `before` is then made of it, too."""
    y, size = np.sign(np.asarray(values, float)), np.abs(np.asarray(values, float))
    mean, spread = _scale(states)
    ends = np.stack([one[-1] for one in states]).astype(np.float64)  # (R, H)
    new = ~np.asarray(again if again is not None else [False] * len(y), bool)
    now = _and(before, ends[new], y[new])
    none = Credit([np.zeros(len(s) - 1) for s in states], 0.0, 1.0, 0.0, now)
    ends = (ends - mean) / spread
    known = [None] if before is None or not new.all() else [before._replace(means=(before.means - mean) / spread), None]
    tried = [_Ratings(ends, size, seed, one) for one in known]
    best, found, slope = _best(tried, y)
    if found <= 0:
        return none
    shuffle = np.random.default_rng(seed)
    chance = sum(_best(tried, shuffle.permutation(y))[1] >= found for _ in range(SHUFFLES))
    directions, fold = best.directions(y)
    said = (((one - mean) / spread) @ directions[k] for one, k in zip(states, fold, strict=True))
    critic = [np.clip(slope * each, -1.0, 1.0) for each in said]  # (T + 1,) of each reply
    changes = [np.diff(v) for v in critic]
    usual = CHANCE * float(np.median(np.abs(np.concatenate(changes))))
    tokens = [len(c) * np.maximum(c - usual, 0.0) for c in changes]
    earlier = 0.0 if best.before is None else float(best.before.replies.sum())
    return Credit(tokens, found, (1 + chance) / (1 + SHUFFLES), earlier, now)


def _scale(states: Sequence[States]) -> tuple[Floats, Floats]:
    """(H,) mean and deviation of every feature over all of them."""
    tokens = sum(map(len, states))
    mean = sum(one.sum(0, dtype=np.float64) for one in states) / tokens
    variance = sum(((one - mean) ** 2).sum(0) for one in states) / tokens
    return mean, np.sqrt(variance) + 1e-6


def _and(before: Heard | None, ends: Floats, y: Floats) -> Heard:
    """Add these to what was heard; half of it: a taste may change, and the model does."""
    replies, means = np.zeros(2), np.zeros((2, ends.shape[1]))
    for at, sign in enumerate(SIGNS):
        new = ends[y == sign]
        replies[at] = len(new) + (before.replies[at] if before else 0.0)
        if replies[at]:
            means[at] = (new.sum(0) + (before.replies[at] * before.means[at] if before else 0.0)) / replies[at]
    return Heard(replies * FADES, means)


class _Ratings(NamedTuple):
    """Replies that are rated, and what else a critic of them is made of."""

    ends: Floats  # (R, H) their last states
    size: Floats  # (R,) how much each weighs
    seed: int
    before: Heard | None

    def explained(self, y: Floats) -> tuple[float, float]:
        """How much of the ratings y (R,) is explained at the ends, and the critic's scale."""
        own = np.array([(y == sign).sum() for sign in SIGNS])
        if own.min() < 1 or (own + (self.before.replies if self.before else 0.0)).min() < LEAST:
            return 0.0, 0.0
        directions, fold = self.directions(y)
        value, weight = np.einsum("rh,rh->r", self.ends, directions[fold]), _halves(self.size, y)
        spread = float((weight * value**2).sum())
        slope = float((weight * y * value).sum()) / spread if spread else 0.0
        if slope <= 0:
            return 0.0, 0.0
        left = y - np.clip(slope * value, -1.0, 1.0)
        return max(0.0, 1.0 - float((weight * left**2).sum())), slope  # the weights sum to 1, and y² is 1

    def directions(self, y: Floats) -> tuple[Floats, NDArray[np.int64]]:
        """(FOLDS, H), each of all replies but its fold's; and which fold a reply is in, both signs in each."""
        order, fold = np.random.default_rng(self.seed).permutation(len(y)), np.empty(len(y), np.int64)
        found = np.zeros((FOLDS, self.ends.shape[1]))
        for at, sign in enumerate(SIGNS):
            members = [i for i in order if y[i] == sign]
            fold[members] = np.arange(len(members)) % FOLDS
            mine = (y == sign) * self.size * (fold != np.arange(FOLDS)[:, None])  # (FOLDS, R)
            sums, total = mine @ self.ends, mine.sum(1, keepdims=True)
            if self.before is not None:
                weight = self.before.replies[at] * self.size[y == sign].mean()
                sums, total = sums + weight * self.before.means[at], total + weight
            found += sign * sums / total
        return found / self.ends.shape[1], fold


def _best(tried: Sequence[_Ratings], y: Floats) -> tuple[_Ratings, float, float]:
    """The one that explains most, how much, and its critic's scale."""
    found = [one.explained(y) for one in tried]
    at = max(range(len(tried)), key=lambda i: found[i][0])
    return tried[at], *found[at]


def _halves(size: Floats, y: Floats) -> Floats:
    """Both signs weigh one half."""
    found: Floats = size.copy()
    for sign in SIGNS:
        found[y == sign] /= 2 * size[y == sign].sum()  # not times its inverse, which is infinite for the smallest
    return found


def narrow(states: States) -> States:
    """At most WIDEST features: distances stay, nearly (Johnson and Lindenstrauss)."""
    if states.shape[1] <= WIDEST:
        return states
    narrowed: States = states @ _projection(states.shape[1])
    return narrowed


@lru_cache(maxsize=1)  # millions of random numbers, the same for each reply of a run
def _projection(width: int) -> States:
    drawn: States = np.random.default_rng(0).standard_normal((width, WIDEST), np.float32) / np.sqrt(np.float32(WIDEST))
    return drawn
