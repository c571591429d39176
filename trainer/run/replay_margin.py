"""How far a run moved its own newest liked and disliked replies apart.

Owns that figure, which the gate's `replay` judges: steps that did not even move those apart went the wrong way. Not
here: the replies that were held back (gate), the steps (steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from trainer.lessons.batch import score
from trainer.lessons.lesson import Lesson
from trainer.mis_po import Floats
from trainer.policy.policy import Policy

REPLAYED = 8  # liked and disliked replies, the newest: no more than the probe again
NO_SCORES: Mapping[int, Floats] = MappingProxyType({})


class ReplayMargin(NamedTuple):
    value: float  # nats a token
    error: float = 0.0  # standard error over replies, where the run leant


def measure(
    policy: Policy, teaching: Sequence[Lesson], scored: Mapping[int, Floats] = NO_SCORES
) -> ReplayMargin | None:
    """How much more the last liked replies rose than the last disliked ones; None without both. Where ratings went by
    token, how much the tokens rose that earned them.

    A run that leans pushes no reply, so chance moves eight of each as far as they move apart. Only such a margin has an
    error.

    `scored`: what the policy as it is gives lessons by index, so that they are not computed twice.
    """
    earners = [index for index, lesson in enumerate(teaching) if lesson.credited and (lesson.advantage > 0).any()]
    if earners := earners[:REPLAYED]:
        weights = np.maximum(np.concatenate([teaching[index].advantage for index in earners]), 0.0)
        rises = np.concatenate(_rise(policy, teaching, earners, scored))
        return ReplayMargin(float(np.average(rises, weights=weights)))
    sides = [
        [index for index, lesson in enumerate(teaching) if lesson.direction * sign > 0][:REPLAYED] for sign in (1, -1)
    ]
    if not all(sides):
        return None
    risen = iter(_rise(policy, teaching, [index for side in sides for index in side], scored))
    liked, disliked = (np.array([next(risen).mean() for _ in side]) for side in sides)
    leans = any(lesson.is_leaning for lesson in teaching)
    return ReplayMargin(float(liked.mean() - disliked.mean()), _error(liked, disliked) if leans else 0.0)


def _error(liked: Floats, disliked: Floats) -> float:
    """Standard error of the difference of two means, nats a token. One reply has no spread and adds nothing."""
    sides = [side for side in (liked, disliked) if len(side) > 1]
    return float(np.sqrt(sum(side.var(ddof=1) / len(side) for side in sides)))


def _rise(
    policy: Policy, teaching: Sequence[Lesson], indices: Sequence[int], scored: Mapping[int, Floats]
) -> list[Floats]:
    """ℓ_θ − ℓ_old (T,) of the lessons at these places, 0 where the policy did not choose."""
    missing = [index for index in indices if index not in scored]
    rescored = score(policy, [teaching[index].tokens for index in missing])
    log_probs = {**scored, **dict(zip(missing, rescored, strict=True))}
    rises = [log_probs[index] - teaching[index].old for index in indices]
    return [np.where(teaching[index].chosen, rise, 0.0) for index, rise in zip(indices, rises, strict=True)]
