"""The anchor: holds the policy's expectations where nothing was earned, while a few tokens are pushed.

A push on one token in one place makes it likelier everywhere. It does so in the middle of a sentence too, where the
model would never have said it. Nothing sampled before the push shows that. So a run by token holds on to the
distributions that its policy had at all its other tokens (docs/lab/training-log.md, the eighth look). That has no
gradient before the first step, and a run has four. So the more sense was lost before, the more it takes back where it
pushed up what was unlikely. It says not this token, but this token here (the ninth and the thirteenth look). Owns which
tokens those distributions are of, and how much is pushed down where. Not here: who earned what (credit_assignment), the
losses (losses), how much of that (attempts), a teacher with a comment (teacher).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from config.presets import Preset
from trainer import objectives
from trainer.lessons.advantages import TokenAdvantages
from trainer.lessons.lesson import Anchor
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer
from trainer.mis_po import Floats
from trainer.policy.policy import TokenDistribution

MOST = 8  # pushed tokens that are looked at everywhere, those that earned most
UNLIKELY = 0.01  # the chance of a pushed token below which its place is no place for it


def make_anchors(
    preset: Preset, samples: Sequence[Sample], pushed: TokenAdvantages, scorer: Scorer
) -> dict[str, Anchor]:
    """Expectations for each rating that went by token; the policy wears what it starts from."""
    if not (preset.w_stay or preset.w_elsewhere) or not objectives.of(preset).has_anchor:
        return {}
    earned = earners([s.tokens.reply for s in samples], [pushed.values[s.rating] for s in samples])
    credited = [s for s in samples if s.rating in pushed.credited]
    required_ids = list(earned)[: preset.teacher_k]
    expected = scorer.expect([s.tokens for s in credited], preset.teacher_k, required_ids=required_ids)
    anchors = anchors_of([pushed.values[s.rating] for s in credited], expected, earned)
    return {s.rating: anchor for s, anchor in zip(credited, anchors, strict=True)}


def anchors_of(
    advantages: Sequence[Floats], expected: Sequence[TokenDistribution], earned: Mapping[int, float]
) -> list[Anchor]:
    """Make the anchor of each reply: the expected tokens, and those pushed down. `advantages`: (T,) of each reply."""
    unlikely = [
        (distribution.log_probs < np.log(UNLIKELY)) & (advantage == 0)[:, None]
        for distribution, advantage in zip(expected, advantages, strict=True)
    ]
    down = [np.zeros(distribution.ids.shape, np.float32) for distribution in expected]
    for token, weight in earned.items():
        masks = [(distribution.ids == token) & mask for distribution, mask in zip(expected, unlikely, strict=True)]
        room = sum(float(mask.sum()) / len(mask) for mask in masks)
        for weights, mask in zip(down, masks, strict=True):
            weights[mask] = weight / max(room, 1e-9)  # without room there is no place either
    return [
        Anchor(distribution.ids, distribution.log_probs, weights)
        for distribution, weights in zip(expected, down, strict=True)
    ]


def earners(replies: Sequence[Sequence[int]], advantages: Sequence[Floats]) -> dict[int, float]:
    """Find the tokens that are pushed up most, summed over replies, each reply's by its mean. `advantages`: (T,) of
    each reply."""
    earned: Counter[int] = Counter()
    for reply, values in zip(replies, advantages, strict=True):
        for token, advantage in zip(reply, np.maximum(values, 0.0).tolist(), strict=True):
            earned[token] += advantage / len(reply)
    return {token: total for token, total in earned.most_common(MOST) if total > 0}
