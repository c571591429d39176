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
from trainer.mis_po import Floats
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
    earlier_replies: int  # replies of earlier runs that V was made of, too


def explain_by_means(
    current: Labels, sizes: Sequence[float], seed: int, previous: Labels | None = None
) -> tuple[float, float]:
    """Share of the ratings that the mean states of whole replies explain, and how often shuffled ratings are explained
    as well. Like `credit`, it asks only about conversations that a direction was not made of."""
    current, previous = _regrouped(current, previous)
    y, size, width = current.sign, np.abs(np.asarray(sizes, float)), current.features.shape[1] // 2
    means = critic.standardise(current.features[:, :width])
    candidates = [_Regression.of(current, labels, means, size, seed, whole=True) for labels in _label_sets(previous)]
    _, share, _ = _best(candidates, y)
    return share, _chance(candidates, y, share, seed, current.group) if share > 0 else 1.0


def credit(
    states: Sequence[States], values: Sequence[float], current: Labels, seed: int, previous: Labels | None = None
) -> Credit:
    """Give each token its credit.

    `values`: the advantage of each reply, whose sign is the rating and whose size its weight. `current`: these replies
    as the critic sees them; `previous`: those of earlier runs. An earlier run's ratings may be of another taste,
    so V is also made without them, and the one that explains more counts.
    """
    current, previous = _regrouped(current, previous)
    y, size = current.sign, np.abs(np.asarray(values, float))
    last = np.stack([reply_states[-1] for reply_states in states]).astype(np.float64)  # (R, H)
    mean, spread = last.mean(0), _spread(states)
    ends = (last - mean) / spread
    candidates = [_Regression.of(current, labels, ends, size, seed, whole=False) for labels in _label_sets(previous)]
    best, share, slope = _best(candidates, y)
    if share <= 0:
        return Credit([np.zeros(len(reply_states) - 1) for reply_states in states], 0.0, 1.0, 0)
    directions = best.directions(y)
    projections = (((rows - mean) / spread) @ direction for rows, direction in zip(states, directions, strict=True))
    values_after = [np.clip(slope * projection, -1.0, 1.0) for projection in projections]  # (T + 1,) of each reply
    changes = [np.diff(v) for v in values_after]
    noise = CHANCE * float(np.median(np.abs(np.concatenate(changes))))
    tokens = [len(change) * np.maximum(change - noise, 0.0) for change in changes]
    return Credit(tokens, share, _chance(candidates, y, share, seed, current.group), len(best.earlier_signs))


def _regrouped(current: Labels, previous: Labels | None) -> tuple[Labels, Labels | None]:
    """The same labels, each reply by itself where there are few conversations: none can be left out whole then. Earlier
    labels may be of these very replies."""
    group = critic.separate_if_few(current.group)
    return (current, previous) if group is current.group else (current._replace(group=group), None)


def _label_sets(previous: Labels | None) -> list[Labels | None]:
    return [None] if previous is None else [previous, None]


def _chance(candidates: Sequence[_Regression], y: Floats, share: float, seed: int, group: NDArray[np.int64]) -> float:
    """How often shuffled ratings are explained as well as these."""
    shuffle = np.random.default_rng(seed)
    count = sum(_best(candidates, critic.deal(y, group, shuffle))[1] >= share for _ in range(SHUFFLES))
    return (1 + count) / (1 + SHUFFLES)


def _spread(states: Sequence[States]) -> Floats:
    """(H,) deviation of every feature over all tokens."""
    tokens = sum(map(len, states))
    mean = sum(reply_states.sum(0, dtype=np.float64) for reply_states in states) / tokens
    variance: Floats = sum(((reply_states - mean) ** 2).sum(0) for reply_states in states) / tokens
    return np.sqrt(variance) + 1e-6


class _Regression(NamedTuple):
    """Replies that are rated, and what else a direction is made of: E earlier ones, then the R of this run."""

    earlier_signs: Floats  # (E,) their signs
    ends: Floats  # (R, H) last states of this run's; where whole replies count, their means
    size: Floats  # (R,) how much each weighs
    features: Floats  # (E + R, 2 H) as the critic sees them; (E + R, H) their means alone
    kernel: Floats  # (E + R, E + R)
    fold: NDArray[np.int64]  # (E + R,) conversations whole
    ridge: float

    @classmethod
    def of(
        cls, current: Labels, previous: Labels | None, ends: Floats, size: Floats, seed: int, *, whole: bool
    ) -> _Regression:
        parts = [current] if previous is None else [previous, current]
        features = critic.standardise(np.concatenate([labels.features for labels in parts]))
        features = features[:, : ends.shape[1]] if whole else features
        group = np.concatenate([labels.group for labels in parts])
        earlier_signs = np.empty(0) if previous is None else previous.sign
        kernel, fold = critic.kernel_of(features), critic.assign_folds(group, seed)
        ridge = critic.likeliest_ridge(kernel, np.concatenate([earlier_signs, current.sign]), fold)
        return cls(earlier_signs, ends, size, features, kernel, fold, ridge)

    def explained(self, y: Floats) -> tuple[float, float]:
        """How much of the ratings y (R,) is explained at the ends, and the scale of V."""
        sides = (y, self.earlier_signs)
        counts, earlier_counts = (np.array([(signs == sign).sum() for sign in SIGNS]) for signs in sides)
        if counts.min() < 1 or (counts + earlier_counts).min() < LEAST:
            return 0.0, 0.0
        value, weight = np.einsum("rh,rh->r", self.ends, self.directions(y)), _sign_weights(self.size, y)
        spread = float((weight * value**2).sum())
        slope = float((weight * y * value).sum()) / spread if spread else 0.0
        if slope <= 0:
            return 0.0, 0.0
        residual = y - np.clip(slope * value, -1.0, 1.0)
        return max(0.0, 1.0 - float((weight * residual**2).sum())), slope  # the weights sum to 1, and y² is 1

    def directions(self, y: Floats) -> Floats:
        """(R, H) for each reply of this run, made without its conversation."""
        sign, width = np.concatenate([self.earlier_signs, y]), self.ends.shape[1]
        directions = np.zeros_like(self.ends)
        fold = self.fold[len(self.earlier_signs) :]
        for part in np.unique(fold):
            rows = np.flatnonzero(self.fold != part)
            # This run's come first, the newest of them before the others; of the earlier ones the newest is the last.
            is_earlier = rows < len(self.earlier_signs)
            rows = np.concatenate([rows[~is_earlier], rows[is_earlier][::-1]])[: critic.MOST]
            if not len(rows):
                continue
            weight, _ = critic.fit(self.kernel[np.ix_(rows, rows)], sign[rows], self.ridge)
            parts = weight @ self.features[rows] / width
            directions[fold == part] = parts.reshape(-1, width).sum(0)  # of the mean and of the last state, added up
        return directions


def _best(candidates: Sequence[_Regression], y: Floats) -> tuple[_Regression, float, float]:
    """The one that explains most, how much, and the scale of its V."""
    scores = [candidate.explained(y) for candidate in candidates]
    index = max(range(len(candidates)), key=lambda i: scores[i][0])
    return candidates[index], *scores[index]


def _sign_weights(size: Floats, y: Floats) -> Floats:
    """Both signs weigh one half."""
    weights: Floats = size.copy()
    for sign in SIGNS:
        weights[y == sign] /= 2 * size[y == sign].sum()  # not times its inverse, which is infinite for the smallest
    return weights
