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
SHUFFLES = 99  # of the ratings, to see what a critic explains by chance
CHANCE = 3.0  # medians of a token's change of V: less is no news
WIDEST = 1024  # features that are looked at; of wider states a fixed random projection


class Credit(NamedTuple):
    tokens: list[Floats]  # (T,) of each reply: T · how much V rose by the token, 0 where it did not, or by chance
    explained: float  # share of the ratings' variance that V explains at the ends of replies it was not made of
    by_chance: float  # how often shuffled ratings are explained as well; 1 where nothing is


def credit(states: Sequence[States], values: Sequence[float], seed: int) -> Credit:
    """`values`: the advantage of each reply, whose sign is the rating and whose size its weight."""
    y, size = np.sign(np.asarray(values, float)), np.abs(np.asarray(values, float))
    none = Credit([np.zeros(len(s) - 1) for s in states], 0.0, 1.0)
    if min(int((y > 0).sum()), int((y < 0).sum())) < LEAST:
        return none
    parts = _standard(states)
    ends = np.stack([part[-1] for part in parts])  # (R, H)
    found, slope = _explained(ends, y, size, seed)
    if found <= 0:
        return none
    shuffle = np.random.default_rng(seed)
    chance = sum(_explained(ends, shuffle.permutation(y), size, seed)[0] >= found for _ in range(SHUFFLES))
    directions, fold = _directions(ends, y, size, seed)
    critic = [np.clip(slope * (part @ directions[k]), -1.0, 1.0) for part, k in zip(parts, fold, strict=True)]
    changes = [np.diff(v) for v in critic]
    usual = CHANCE * float(np.median(np.abs(np.concatenate(changes))))
    tokens = [len(c) * np.maximum(c - usual, 0.0) for c in changes]
    return Credit(tokens, found, (1 + chance) / (1 + SHUFFLES))


def _standard(states: Sequence[States]) -> list[Floats]:
    """(T + 1, H) of each reply, every feature with mean 0 and deviation 1 over all of them."""
    x = np.concatenate(states).astype(np.float64)  # (N, H)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    return np.split(x, np.cumsum([len(s) for s in states])[:-1])


def _explained(ends: Floats, y: Floats, size: Floats, seed: int) -> tuple[float, float]:
    """How much of the ratings is explained at the ends (R, H), and the critic's scale."""
    directions, fold = _directions(ends, y, size, seed)
    value, weight = np.einsum("rh,rh->r", ends, directions[fold]), _halves(size, y)
    spread = float((weight * value**2).sum())
    slope = float((weight * y * value).sum()) / spread if spread else 0.0
    if slope <= 0:
        return 0.0, 0.0
    left = y - np.clip(slope * value, -1.0, 1.0)
    return max(0.0, 1.0 - float((weight * left**2).sum())), slope  # the weights sum to 1, and y² is 1


def _directions(ends: Floats, y: Floats, size: Floats, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """(FOLDS, H), each of all replies but its fold's; and which fold a reply is in, both signs in each."""
    order, fold = np.random.default_rng(seed).permutation(len(y)), np.empty(len(y), np.int64)
    for sign in (1.0, -1.0):
        members = [i for i in order if y[i] == sign]
        fold[members] = np.arange(len(members)) % FOLDS
    pull = (_halves(size, y) * y)[:, None] * ends / ends.shape[1]  # (R, H)
    return np.stack([pull[fold != k].sum(0) for k in range(FOLDS)]), fold


def _halves(size: Floats, y: Floats) -> Floats:
    """Both signs weigh one half."""
    found: Floats = size.copy()
    for sign in (1.0, -1.0):
        found[y == sign] *= 0.5 / size[y == sign].sum()
    return found


def narrow(states: States) -> States:
    """At most WIDEST features: distances stay, nearly (Johnson and Lindenstrauss)."""
    width = states.shape[1]
    if width <= WIDEST:
        return states
    projection = np.random.default_rng(0).standard_normal((width, WIDEST), np.float32) / np.sqrt(np.float32(WIDEST))
    narrow: States = states @ projection
    return narrow
