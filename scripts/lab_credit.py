"""Which tokens earned a rating: a critic of a few ratings' own hidden states, for scripts/learn_lab.py.

The critic V says from the policy's last hidden state how a reply is going: its projection on the difference between
the mean last states of liked and of disliked replies (a mean-difference probe, arXiv 2310.06824: with a few dozen
ratings nothing that is fitted more closely is as good on replies it has not seen). It is asked only about replies that
it was not made of. A token's credit is the change of V that it made, less what tokens change V by chance; what V does
not explain is shared by all tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FOLDS = 8


def credits(
    states: Sequence[Floats], signs: Sequence[float], seed: int, rest: float, noise: float
) -> tuple[list[Floats], float]:
    """(T + 1, H) of each reply, its last one after its last token, and ±1 -> (T,) credits, and how much of the ratings'
    variance V explains at the ends of replies it has not seen."""
    lengths = [len(s) for s in states]
    x = np.concatenate(states)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6) / np.sqrt(x.shape[1])
    ends = np.cumsum(lengths) - 1
    reply = np.repeat(np.arange(len(states)), lengths)
    y = np.asarray(signs, float)
    each = np.where(y > 0, 0.5 / max((y > 0).sum(), 1), 0.5 / max((y < 0).sum(), 1))  # both signs weigh the same
    order = np.random.default_rng(seed).permutation(len(states))
    fold = np.empty(len(states), int)
    for sign in (1, -1):  # both in each
        of = [i for i in order if np.sign(y[i]) == sign]
        fold[of] = np.arange(len(of)) % FOLDS
    value = np.zeros(len(x))
    for k in range(FOLDS):
        seen, asked = fold != k, fold[reply] == k
        direction = (each[seen] * y[seen]) @ x[ends[seen]]
        value[asked] = x[asked] @ direction
    at_end = value[ends]
    slope = max(0.0, float((each * y * at_end).sum() / (each * at_end**2).sum()))
    value = np.clip(slope * value, -1.0, 1.0)
    explained = 1 - float((each * (y - value[ends]) ** 2).sum() / (each * y**2).sum())
    parts = np.split(value, np.cumsum(lengths)[:-1])
    usual = noise * float(np.median(np.abs(np.concatenate([np.diff(one) for one in parts]))))
    found = []
    for one, sign in zip(parts, y, strict=True):
        steps = np.diff(one)
        steps = np.sign(steps) * np.maximum(np.abs(steps) - usual, 0)
        found.append(len(steps) * steps + rest * (sign - one[-1]))
    return found, explained
