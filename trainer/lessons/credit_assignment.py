"""Which tokens earned a rating. One rating is of a whole reply, and most of its tokens had no part in it.

Owns V, which says of a reply how it is going after each token. The credit of a token is how much it made V rise. Pure
numpy. Not here: what becomes of the credit (advantages), the critic of whole replies (critic).

V is a projection of the policy's last hidden state on one direction, scaled once. The direction is the critic's: the
weights of its ridge-logistic regression on the mean and on the last state of each reply, added up. What speaks to the
reader shows in the mean, how a reply ends in its last state. A very strong ridge would make it the difference of their
means (Marks and Tegmark, arXiv 2310.06824), which explains less. V is asked only about conversations that it
was not made of. What it has learned shows at their ends. Where that explains too little of the ratings, and the critic
is not trusted either, all tokens of a reply are pushed alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.lessons import critic
from trainer.lessons.critic import Labels
from trainer.objective import Floats
from trainer.policy.packing import States  # here (T + 1, H): one more, after the reply's last token

SIGNS = (1.0, -1.0)
LEAST = 4  # replies of each sign, of this run or an earlier one, below which nothing is explained
SHUFFLES = 99  # of the ratings, to see what a critic explains by chance
BY_CHANCE = 0.02  # how often ratings drawn at random may be explained as well as these, for a run to go by it
CHANCE = 3.0  # medians of a token's change of V: less is no news


class Credit(NamedTuple):
    tokens: list[Floats]  # (T,) of each reply: T · how much V rose by the token, 0 where it did not, or by chance
    explained: float  # share of the ratings' variance that V explains at the ends of replies it was not made of
    by_chance: float  # how often shuffled ratings are explained as well; 1 where nothing is
    earlier: int  # replies of earlier runs that V was made of, too


def explained_whole(
    now: Labels, sizes: Sequence[float], seed: int, before: Labels | None = None
) -> tuple[float, float]:
    """Share of the ratings that the mean states of whole replies explain, and how often shuffled ratings are explained
    as well. Like `credit`, it asks only about conversations that a direction was not made of."""
    now, before = _apart(now, before)
    y, size, width = now.sign, np.abs(np.asarray(sizes, float)), now.features.shape[1] // 2
    means = critic.scaled(now.features[:, :width])
    tried = [_Ratings.of(now, one, means, size, seed, whole=True) for one in _with(before)]
    _, found, _ = _best(tried, y)
    return found, _by_chance(tried, y, found, seed, now.group) if found > 0 else 1.0


def credit(
    states: Sequence[States], values: Sequence[float], now: Labels, seed: int, before: Labels | None = None
) -> Credit:
    """`values`: the advantage of each reply, whose sign is the rating and whose size its weight. `now`: these replies
    as the critic sees them; `before`: those of earlier runs. An earlier run's ratings may be of another taste, so V is
    also made without them, and the one that explains more counts."""
    now, before = _apart(now, before)
    y, size = now.sign, np.abs(np.asarray(values, float))
    last = np.stack([one[-1] for one in states]).astype(np.float64)  # (R, H)
    mean, spread = last.mean(0), _spread(states)
    ends = (last - mean) / spread
    tried = [_Ratings.of(now, one, ends, size, seed, whole=False) for one in _with(before)]
    best, found, slope = _best(tried, y)
    if found <= 0:
        return Credit([np.zeros(len(s) - 1) for s in states], 0.0, 1.0, 0)
    directions = best.directions(y)
    said = (((one - mean) / spread) @ each for one, each in zip(states, directions, strict=True))
    values_after = [np.clip(slope * each, -1.0, 1.0) for each in said]  # (T + 1,) of each reply
    changes = [np.diff(v) for v in values_after]
    usual = CHANCE * float(np.median(np.abs(np.concatenate(changes))))
    tokens = [len(c) * np.maximum(c - usual, 0.0) for c in changes]
    return Credit(tokens, found, _by_chance(tried, y, found, seed, now.group), len(best.earlier))


def _apart(now: Labels, before: Labels | None) -> tuple[Labels, Labels | None]:
    """The same labels, each reply by itself where there are few conversations: none can be left out whole then. Earlier
    labels may be of these very replies."""
    if len(np.unique(now.group)) >= min(critic.FOLDS, len(now.sign)):
        return now, before
    return now._replace(group=np.arange(len(now.sign))), None


def _with(before: Labels | None) -> list[Labels | None]:
    return [None] if before is None else [before, None]


def _by_chance(tried: Sequence[_Ratings], y: Floats, found: float, seed: int, group: NDArray[np.int64]) -> float:
    """How often shuffled ratings are explained as well as these."""
    shuffle = np.random.default_rng(seed)
    as_well = sum(_best(tried, critic.dealt(y, group, shuffle))[1] >= found for _ in range(SHUFFLES))
    return (1 + as_well) / (1 + SHUFFLES)


def _spread(states: Sequence[States]) -> Floats:
    """(H,) deviation of every feature over all tokens."""
    tokens = sum(map(len, states))
    mean = sum(one.sum(0, dtype=np.float64) for one in states) / tokens
    variance: Floats = sum(((one - mean) ** 2).sum(0) for one in states) / tokens
    return np.sqrt(variance) + 1e-6


class _Ratings(NamedTuple):
    """Replies that are rated, and what else a direction is made of: E earlier ones, then the R of this run."""

    earlier: Floats  # (E,) their signs
    ends: Floats  # (R, H) last states of this run's; where whole replies count, their means
    size: Floats  # (R,) how much each weighs
    features: Floats  # (E + R, 2 H) as the critic sees them; (E + R, H) their means alone
    kernel: Floats  # (E + R, E + R)
    fold: NDArray[np.int64]  # (E + R,) conversations whole
    ridge: float

    @classmethod
    def of(cls, now: Labels, before: Labels | None, ends: Floats, size: Floats, seed: int, *, whole: bool) -> _Ratings:
        parts = [now] if before is None else [before, now]
        features = critic.scaled(np.concatenate([one.features for one in parts]))
        features = features[:, : ends.shape[1]] if whole else features
        group = np.concatenate([one.group for one in parts])
        earlier = np.empty(0) if before is None else before.sign
        kernel, fold = critic.kernel_of(features), critic.folds(group, seed)
        ridge = critic.likeliest_ridge(kernel, np.concatenate([earlier, now.sign]), fold)
        return cls(earlier, ends, size, features, kernel, fold, ridge)

    def explained(self, y: Floats) -> tuple[float, float]:
        """How much of the ratings y (R,) is explained at the ends, and the scale of V."""
        own, earlier = (np.array([(of == sign).sum() for sign in SIGNS]) for of in (y, self.earlier))
        if own.min() < 1 or (own + earlier).min() < LEAST:
            return 0.0, 0.0
        value, weight = np.einsum("rh,rh->r", self.ends, self.directions(y)), _halves(self.size, y)
        spread = float((weight * value**2).sum())
        slope = float((weight * y * value).sum()) / spread if spread else 0.0
        if slope <= 0:
            return 0.0, 0.0
        left = y - np.clip(slope * value, -1.0, 1.0)
        return max(0.0, 1.0 - float((weight * left**2).sum())), slope  # the weights sum to 1, and y² is 1

    def directions(self, y: Floats) -> Floats:
        """(R, H) for each reply of this run, made without its conversation."""
        sign, width = np.concatenate([self.earlier, y]), self.ends.shape[1]
        found = np.zeros_like(self.ends)
        of = self.fold[len(self.earlier) :]
        for part in np.unique(of):
            rest = np.flatnonzero(self.fold != part)
            # This run's come first, the newest of them before the others; of the earlier ones the newest is the last.
            before = rest < len(self.earlier)
            rest = np.concatenate([rest[~before], rest[before][::-1]])[: critic.MOST]
            if not len(rest):
                continue
            weight, _ = critic.fitted(self.kernel[np.ix_(rest, rest)], sign[rest], self.ridge)
            parts = weight @ self.features[rest] / width
            found[of == part] = parts.reshape(-1, width).sum(0)  # of the mean and of the last state, added up
        return found


def _best(tried: Sequence[_Ratings], y: Floats) -> tuple[_Ratings, float, float]:
    """The one that explains most, how much, and the scale of its V."""
    found = [one.explained(y) for one in tried]
    at = max(range(len(tried)), key=lambda i: found[i][0])
    return tried[at], *found[at]


def _halves(size: Floats, y: Floats) -> Floats:
    """Both signs weigh one half."""
    found: Floats = size.copy()
    for sign in SIGNS:
        found[y == sign] /= 2 * size[y == sign].sum()  # not times its inverse, which is infinite for the smallest
    return found
