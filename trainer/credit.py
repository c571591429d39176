"""Which tokens earned a rating. One rating is of a whole reply, and most of its tokens had no part in it.

Owns the critic V, which says of a reply how it is going after each token, and the credit of a token: how much it made V
rise. Pure numpy. Not here: what becomes of the credit (advantages), where states come from (policies).

With a few dozen ratings nothing may be fitted closely. V is a projection of the policy's last hidden state on one
direction, the mean of liked replies' last states minus that of disliked ones' (a mean-difference probe; Marks and
Tegmark, arXiv 2310.06824), scaled once. It is asked only about replies that it was not made of. What it has learned
shows at their ends: where that explains too little of the ratings, all tokens of a reply are pushed alike, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainer.objective import Floats

States = NDArray[np.float32]  # (T + 1, H), H at most WIDEST, of a reply: before each of its tokens, and after the last
FOLDS = 8
LEAST = 4  # replies of each sign, below which nothing is explained
CHANCE = 3.0  # medians of a token's change of V: less is no news
WIDEST = 1024  # features that are looked at; of wider states a fixed random projection


class Credit(NamedTuple):
    tokens: list[Floats]  # (T,) of each reply: T · how much V rose by the token, 0 where it did not, or by chance
    explained: float  # share of the ratings' variance that V explains at the ends of replies it was not made of


def credit(states: Sequence[States], values: Sequence[float], seed: int) -> Credit:
    """`values`: the advantage of each reply, whose sign is the rating and whose size its weight."""
    y = np.sign(np.asarray(values, float))
    none = Credit([np.zeros(len(s) - 1) for s in states], 0.0)
    if min(int((y > 0).sum()), int((y < 0).sum())) < LEAST:
        return none
    weight = _halves(np.abs(np.asarray(values, float)), y)
    critic = _critic(states, y, weight, seed)
    ends = np.array([v[-1] for v in critic])
    size = float((weight * ends**2).sum())
    slope = float((weight * y * ends).sum()) / size if size else 0.0
    if slope <= 0:
        return none
    critic = [np.clip(slope * v, -1.0, 1.0) for v in critic]
    ends = np.array([v[-1] for v in critic])
    explained = 1.0 - float((weight * (y - ends) ** 2).sum() / (weight * y**2).sum())
    changes = [np.diff(v) for v in critic]
    chance = CHANCE * float(np.median(np.abs(np.concatenate(changes))))
    return Credit([len(c) * np.maximum(c - chance, 0.0) for c in changes], max(explained, 0.0))


def _halves(weight: Floats, y: Floats) -> Floats:
    """Both signs weigh one half."""
    found: Floats = weight.copy()
    for sign in (1.0, -1.0):
        found[y == sign] *= 0.5 / weight[y == sign].sum()
    return found


def _critic(states: Sequence[States], y: Floats, weight: Floats, seed: int) -> list[Floats]:
    """(T + 1,) of each reply, unscaled, by a direction of which it is no part."""
    ends = np.cumsum([len(s) for s in states]) - 1
    x = np.concatenate(states).astype(np.float64)  # (N, H)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    fold = _folds(y, seed)
    parts = np.split(x, ends[:-1] + 1)
    found: list[Floats] = [np.zeros(0)] * len(states)
    for k in range(FOLDS):
        seen = fold != k
        direction = (weight[seen] * y[seen]) @ x[ends[seen]] / x.shape[1]  # (H,)
        for i in np.flatnonzero(~seen):
            found[i] = parts[i] @ direction
    return found


def _folds(y: Floats, seed: int) -> NDArray[np.int64]:
    """Which fold each reply is in: both signs in all of them, as far as there are enough."""
    order = np.random.default_rng(seed).permutation(len(y))
    fold = np.empty(len(y), np.int64)
    for sign in (1.0, -1.0):
        members = [i for i in order if y[i] == sign]
        fold[members] = np.arange(len(members)) % FOLDS
    return fold


def narrow(states: States) -> States:
    """At most WIDEST features: distances stay, nearly (Johnson and Lindenstrauss)."""
    width = states.shape[1]
    if width <= WIDEST:
        return states
    projection = np.random.default_rng(0).standard_normal((width, WIDEST), np.float32) / np.sqrt(np.float32(WIDEST))
    narrow: States = states @ projection
    return narrow
