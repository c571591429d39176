"""Do a run's ratings tell its replies apart, or could they as well have been drawn at random?

Owns a permutation test on what anybody can see of a reply. That is its length, whether it ended by itself, its lay-out,
its words, and how it begins. Where replies answer pictures, it also looks at each of these beside the picture. No model
takes part but the part that sees. Not here: what follows from it (ratings), the checks on a candidate (gate).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from config.languages import split_words

Floats = NDArray[np.float64]

SHUFFLES = 9999  # p is known to 0.001 near 0.01, in some 50 ms
LOOKS = 5  # of a reply by itself; each comes once more beside pictures
FEWEST_PICTURES = 16  # replies that answer one; fewer say nothing about what looks good beside which picture
LIST_LINE = re.compile(r"^[^\S\n]*(?:(?:[-*•]|\d+[.)]) |[・、]|\d+[．、])", re.M)
QUESTIONS, CRIES = re.compile("[?？]"), re.compile("[!！]")  # also as Chinese and Japanese have them


@dataclass(frozen=True, slots=True)
class RatedReply:
    text: str
    tokens: int
    ended: bool  # by itself
    reward: float
    picture: Floats | None = field(default=None, compare=False)  # (H,) features of what it answers


def p_value(replies: Sequence[RatedReply], seed: int = 0) -> float:
    """How often ratings drawn at random go with the looks of these replies as closely as the given ones do.

    For each look, how alike equally rated replies are (yᵀKy, a kernel two-sample test). The best look is compared with
    the best look of each shuffle, so that looking at several things at once costs what it should.
    """
    return p_value_by(kernels(replies), [reply.reward for reply in replies], seed)


def p_value_by(kernels: Sequence[Floats], values: Sequence[float], seed: int = 0) -> float:
    """The same of these looks, (n, n) each, and these ratings."""
    rewards = np.array(values)
    rng = np.random.default_rng(seed)
    shuffled = rng.permuted(np.tile(rewards - rewards.mean(), (SHUFFLES, 1)), axis=1)  # (S, n)
    orders = np.vstack([rewards - rewards.mean(), shuffled])  # the given order is one of them
    best = np.ones(len(orders))
    for kernel in kernels:
        alike = np.round(np.einsum("sn,nm,sm->s", orders, kernel, orders, optimize=True), 9)
        ranks = np.searchsorted(np.sort(alike), alike, side="left")  # ties count as at least as good
        best = np.minimum(best, 1 - ranks / len(alike))
    return float((best <= best[0]).mean())


def p_value_beside_pictures(replies: Sequence[RatedReply], seed: int = 0) -> float:
    """The same of the looks beside pictures alone; 1 where too few replies answer one. What is liked whatever the
    picture, and pictures that are liked whatever the reply, do not lower it: the features of both are centred."""
    return p_value_by(kernels(replies)[LOOKS:], [reply.reward for reply in replies], seed)


def smallest_p(rewards: Sequence[float]) -> float:
    """The smallest p that these ratings could have: one over the number of ways to deal them out."""
    ways = math.lgamma(len(rewards) + 1) - sum(math.lgamma(n + 1) for n in Counter(rewards).values())
    return math.exp(-ways)


def kernels(replies: Sequence[RatedReply]) -> list[Floats]:
    """(n, n) each: how alike the replies are by their length, end, lay-out, words and beginning. Where enough of them
    answer pictures, five more: alike replies count by how alike their pictures are, and against where these differ."""
    looks = [
        _standardise([[math.log(reply.tokens + 1)] for reply in replies]),
        _standardise([[reply.ended] for reply in replies]),
        _standardise([_layout(reply.text) for reply in replies]),
        _word_features([list(split_words(reply.text.lower())) for reply in replies]),
        _word_features([list(islice(split_words(reply.text.lower()), 1)) for reply in replies]),
    ]
    alike = [look @ look.T for look in looks]
    pictures = _picture_features(replies)
    return alike if pictures is None else [*alike, *(kernel * (pictures @ pictures.T) for kernel in alike)]


def _layout(text: str) -> list[float]:
    letters = [c for c in text if c.isalpha()]
    return [
        math.log(1 + text.count("\n")),
        math.log(1 + len(LIST_LINE.findall(text))),
        math.log(1 + len(QUESTIONS.findall(text))),
        math.log(1 + len(CRIES.findall(text))),
        sum(c.isupper() for c in letters) / max(len(letters), 1),
        sum(c.isdigit() for c in text) / max(len(text), 1),
        text.rstrip()[-1:] in ("?", "？"),
    ]


def _picture_features(replies: Sequence[RatedReply]) -> Floats | None:
    """(n, H) each of length 1, or 0 for a reply to none; None where too few answer one."""
    rows = [index for index, reply in enumerate(replies) if reply.picture is not None]
    if len(rows) < FEWEST_PICTURES:
        return None
    values = _standardise([reply.picture for reply in replies if reply.picture is not None])
    norm = np.linalg.norm(values, axis=1, keepdims=True)
    features = np.zeros((len(replies), values.shape[1]))
    features[rows] = values / np.where(norm > 0, norm, 1.0)
    return features


def _standardise(rows: Sequence[Sequence[float] | Floats]) -> Floats:
    """(n, d), each column with mean 0 and deviation 1, or 0 throughout."""
    values = np.array(rows, np.float64)
    values -= values.mean(0)
    deviation = values.std(0)
    scaled: Floats = np.where(deviation > 0, values / np.where(deviation > 0, deviation, 1.0), 0.0)
    return scaled


def _word_features(texts: Sequence[Sequence[str]]) -> Floats:
    """(n, words), 1 where a reply has a word that others have too, rarer words heavier, each row of length 1."""
    counts = Counter(word for text in texts for word in set(text))
    columns = {word: index for index, word in enumerate(sorted(w for w, n in counts.items() if 1 < n < len(texts)))}
    features = np.zeros((len(texts), max(len(columns), 1)))
    for row, text in zip(features, texts, strict=True):
        for word in set(text) & columns.keys():
            row[columns[word]] = math.log(len(texts) / counts[word])
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    features /= np.where(norm > 0, norm, 1.0)
    centred: Floats = features - features.mean(0)
    return centred
