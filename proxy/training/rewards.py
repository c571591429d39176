"""Worth of one completion's ratings in training: one reward, one weight, one comment, one correction.

Owns the schemes of `train.rewards` and what becomes of several raters: the weighted median where they disagree. Pure
functions. Not here: which ratings a run takes (store.learning.samples), what an advantage is made of (trainer).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from store.learning.opinion import Moments
from store.learning.rater_quota import shared_weight, voice
from store.records import Rating

Scheme = Literal["binary", "ordinal", "normalised", "hybrid"]

# The normalised scheme begins as if this many ratings had come, good and bad alike: the first is no z-score of itself.
PRIOR: Final = 16


class Worth(NamedTuple):
    reward: float  # in [-1, 1]
    weight: float
    comment: str | None
    correction: str | None
    ratings: tuple[str, ...]  # the ids that train by this, newest first


def worth(
    fresh: Sequence[Rating],
    standing: Sequence[Rating],
    *,
    scheme: Scheme,
    raters: Mapping[str, float],
    moments: Moments,
) -> Worth:
    """The sample of one completion. `fresh` train now; of `standing`, all live ratings, those of other raters have a
    voice too.

    A rating that trained before still has its say in the median: one late dissenter does not turn around what three
    others found. Weight, comment and correction are of the fresh ones alone, since each rating trains once.
    """
    newest_first = sorted(fresh, key=lambda rating: rating.created_at, reverse=True)
    speaking = {rating.rater for rating in fresh}
    voices = [*newest_first, *(rating for rating in standing if rating.rater not in speaking)]
    reward = _reward(voices, scheme, raters, moments)
    # Words about a reply that is disliked teach, and only those of a dislike count in the share
    # (store.learning.samples).
    commenting = [rating for rating in newest_first if reward >= 0 or rating.value < 0]
    comments = dict.fromkeys(rating.comment for rating in commenting if rating.comment)
    corrections = (rating.correction for rating in newest_first if rating.correction)
    return Worth(
        reward=reward,
        weight=shared_weight([_weight(rating, raters) for rating in fresh]),
        comment="\n".join(comments) or None,
        correction=next(corrections, None),
        ratings=tuple(rating.id for rating in newest_first),
    )


def _reward(voices: Sequence[Rating], scheme: Scheme, raters: Mapping[str, float], moments: Moments) -> float:
    if scheme == "hybrid":
        scales = _by_scale(voices, raters)
        return sum(weighted_median(pairs) for pairs in scales) / len(scales)
    return weighted_median([(_score(r.value, scheme, moments), _weight(r, raters)) for r in voices])


def _by_scale(voices: Sequence[Rating], raters: Mapping[str, float]) -> list[list[tuple[float, float]]]:
    """Pairs of value and weight of the thumbs, and of the stars; a scale that nobody used is left out.

    Thumb and stars of one rater are two values, of which the newer one is the rating.
    """
    thumbs: list[tuple[float, float]] = []
    stars: list[tuple[float, float]] = []
    for rating in voices:
        scale, other_scale = (thumbs, stars) if rating.scale == "thumb" else (stars, thumbs)
        scale.append((rating.value, _weight(rating, raters)))
        if rating.counterpart is not None:
            other_scale.append((rating.counterpart, _weight(rating, raters)))
    return [pairs for pairs in (thumbs, stars) if pairs]


def _score(value: float, scheme: Scheme, moments: Moments) -> float:
    match scheme:
        case "binary":
            return binary(value)
        case "normalised":
            return normalised(value, moments)
        case "ordinal" | "hybrid":
            return value


def _weight(rating: Rating, raters: Mapping[str, float]) -> float:
    return voice(rating.weight, raters.get(rating.rater, 1.0))


def binary(value: float) -> float:
    """Good is 1, bad is -1, however good and however bad."""
    return float((value > 0) - (value < 0))


def normalised(value: float, moments: Moments) -> float:
    """How far above the mean of all ratings so far, in deviations, cut off at -1 and 1.

    For people who give 4 or 5 stars to everything: 4 is then a bad one.
    """
    count = moments.count + PRIOR
    mean = moments.sum / count
    deviation = math.sqrt(max((moments.squares + PRIOR) / count - mean * mean, 0.0))
    return max(-1.0, min(1.0, (value - mean) / deviation)) if deviation > 0 else 0.0


def weighted_median(pairs: Sequence[tuple[float, float]]) -> float:
    """The weighted median of (value, weight above 0): half of the weight is on either side; between two halves, the
    middle."""
    ordered = sorted(pairs)
    half = sum(weight for _, weight in ordered) / 2
    cumulative = 0.0
    for (value, weight), next_pair in zip(ordered, [*ordered[1:], ordered[-1]], strict=True):
        cumulative += weight
        if math.isclose(cumulative, half, rel_tol=1e-9):
            return (value + next_pair[0]) / 2
        if cumulative > half:
            return value
    return ordered[-1][0]  # rounding
