"""Replies of earlier versions: which of their tokens still train, and how much each weighs.

A rating that comes after a newer version went live is as honest as any. No band is asked of such a reply. Its tokens
are taken as long as the policy that trains and the one that spoke are near each other where it matters. That is
second-moment trust (objective.trusted). Each weighs what the policy makes of it now. Owns the choice for a run's late
replies. Not here: the mathematics (objective), how old a reply may be (lessons), fresh ones (acceptance).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from config.presets import Preset
from trainer import objective
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons.samples import Sample
from trainer.objective import Bools, Floats
from trainer.objective_kin import UNFILTERED
from trainer.policy.policy import LogProbs


class LateReply(NamedTuple):
    keep: Bools  # (T,)
    weight: Floats  # (T,) what the advantage is multiplied with


def late_replies(
    spec: RunSpec,
    preset: Preset,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    behaviour: Sequence[Floats],
    advantages: Sequence[Floats],
    progress: Progress,
) -> dict[str, LateReply]:
    """By rating, of the replies that another version than the parent gave."""
    if preset.objective in UNFILTERED:
        return {}
    rows = [row for row in zip(samples, old, behaviour, advantages, strict=True) if row[0].version != spec.parent]
    if not rows:
        return {}
    masks = [
        np.isfinite(log_probs.sampled) & np.isfinite(behaviour_log_probs)
        for _, log_probs, behaviour_log_probs, _ in rows
    ]
    log_x = [
        objective.log_ratio(np.where(mask, log_probs.sampled, 0.0), np.where(mask, behaviour_log_probs, 0.0))
        for mask, (_, log_probs, behaviour_log_probs, _) in zip(masks, rows, strict=True)
    ]
    keep_masks = objective.trust_tokens(
        [np.where(mask, ratio, np.nan) for mask, ratio in zip(masks, log_x, strict=True)],
        [advantage for _, _, _, advantage in rows],
        most=preset.late_moment,
    )
    late = {
        sample.rating: LateReply(keep, objective.importance(ratio, most=preset.token_high))
        for (sample, *_), keep, ratio in zip(rows, keep_masks, log_x, strict=True)
    }
    tokens = np.concatenate([reply.keep for reply in late.values()])
    progress.choice("late", len(late), f"replies of earlier versions; {tokens.mean():.0%} of their tokens train")
    return late
