"""The lessons of one optimiser step as its loss takes them: constants by token, and KTO's z₀.

Owns the step from lessons to `Terms`. Not here: the loss (objectives, losses), which lessons (loop).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainer import losses
from trainer.lessons.lesson import Lesson
from trainer.mis_po import Floats, Terms
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.policy import Policy, TokenDistribution


def reference_point(policy: Policy, batch: Sequence[Lesson]) -> float:
    """KTO's z₀: how far the policy has moved on replies to other prompts of the batch."""
    shifted = [*batch[1:], batch[0]]
    pairs = [
        Tokens(lesson.tokens.prompt, neighbour.tokens.reply) for lesson, neighbour in zip(batch, shifted, strict=True)
    ]
    theta = score(policy, pairs)
    with policy.wearing(None):
        ref = score(policy, pairs)
    return losses.reference_point(np.concatenate(theta), np.concatenate(ref), [len(p.reply) for p in pairs])


def make_terms(batch: Sequence[Lesson], replies: int, zero: float | None = None) -> Terms:
    """Constants of the loss for these lessons of a step of `replies`, an episode being one; (N,) each."""
    lengths = [len(lesson.old) for lesson in batch]

    def spread(values: Sequence[float]) -> Any:
        return np.repeat(np.asarray(values, np.float64), lengths)

    result = Terms(
        old=np.concatenate([lesson.old for lesson in batch]),
        ref=np.concatenate([lesson.ref for lesson in batch]),
        keep=np.concatenate([lesson.keep for lesson in batch]).astype(np.float64),
        advantage=np.concatenate([lesson.advantage for lesson in batch]),
        share=spread(
            [1 / ((lesson.spread or length) * replies) for lesson, length in zip(batch, lengths, strict=True)]
        ),
        is_own=np.concatenate([lesson.chosen * float(lesson.is_own) for lesson in batch]),
        behaviour=np.concatenate([lesson.behaviour for lesson in batch]),
        member=np.repeat(np.eye(len(batch)), lengths, axis=1),
        zero=None if zero is None else np.asarray(zero),
    )
    distributions = [lesson.teacher or lesson.anchor for lesson in batch]
    width = next((distribution.ids.shape[1] for distribution in distributions if distribution is not None), None)
    return result if width is None else _with_distributions(result, batch, lengths, width)


def _with_distributions(terms: Terms, batch: Sequence[Lesson], lengths: Sequence[int], width: int) -> Terms:
    """With what the teacher or the anchor expects at each token, (N, width); zeros where there is neither."""
    silent = [TokenDistribution(np.zeros((n, width), np.int32), np.zeros((n, width), np.float32)) for n in lengths]
    expected = [lesson.teacher or lesson.anchor or nothing for lesson, nothing in zip(batch, silent, strict=True)]
    teaches = np.repeat(np.asarray([lesson.teacher is not None for lesson in batch], np.float64), lengths)
    anchored = np.repeat(np.asarray([lesson.anchor is not None for lesson in batch], np.float64), lengths)
    stays = anchored * (terms.advantage == 0)
    down = [
        np.zeros((n, width), np.float32) if lesson.anchor is None else lesson.anchor.down
        for lesson, n in zip(batch, lengths, strict=True)
    ]
    return replace(
        terms,
        teaches=teaches if teaches.any() else None,
        stays=stays if stays.any() else None,
        elsewhere=np.concatenate(down) if stays.any() else None,
        teacher_ids=np.concatenate([distribution.ids for distribution in expected]),
        teacher=np.concatenate([distribution.log_probs for distribution in expected]),
    )


def score(policy: Policy, sequences: Sequence[Tokens]) -> list[Floats]:
    """log-probs (T,) of each reply under what the policy wears, without a gradient."""
    scored: list[Floats] = [np.empty(0)] * len(sequences)
    for members in packing.group(sequences, policy.budget):
        packed = packing.pack([sequences[i] for i in members])
        parts = np.split(policy.log_probs(packed).plain, np.cumsum(packed.lengths)[:-1])
        for i, part in zip(members, parts, strict=True):
            scored[i] = part
    return scored
