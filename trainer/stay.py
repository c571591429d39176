"""What stays as it is while a few tokens are pushed: what the policy expected where nothing was earned.

A push on one token in one place makes it likelier everywhere, in the middle of a sentence too, where the model would
never have said it. Nothing sampled before the push shows that. So a run by token holds on to the distributions that
its policy had at all its other tokens (docs/training-log.md, the eighth look). Owns which tokens those distributions
are of. Not here: who earned what (credit), the loss (objective_kin.stay), a teacher with a comment (teacher).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from config.presets import Preset
from trainer import teacher
from trainer.advantages import Pushed
from trainer.objective import Floats
from trainer.policy import Teaching
from trainer.samples import Sample
from trainer.scoring import Scorer

OBJECTIVES = ("mis-po", "combine")  # whose loss has a place for it
MOST = 8  # pushed tokens that are looked at everywhere, those that earned most


def staying(preset: Preset, samples: Sequence[Sample], pushed: Pushed, scorer: Scorer) -> dict[str, Teaching]:
    """Of each rating that went by token; the policy wears what it starts from."""
    if not preset.w_stay or preset.objective not in OBJECTIVES:
        return {}
    here = [s for s in samples if s.rating in pushed.credited]
    found = teacher.teachings(
        scorer.policy,
        [s.tokens for s in here],
        preset.teacher_k,
        who=f"{scorer.spec.weights} {scorer.parent}",
        cache=scorer.cache,
        stop=scorer.stop,
        also=earners([s.tokens.reply for s in samples], pushed.each)[: preset.teacher_k],
    )
    return {s.rating: one for s, one in zip(here, found, strict=True)}


def earners(replies: Sequence[Sequence[int]], pushed: Sequence[Floats]) -> list[int]:
    """The tokens that are pushed up most, all their places together; `pushed`: (T,) of each reply."""
    earned: Counter[int] = Counter()
    for reply, each in zip(replies, pushed, strict=True):
        for token, advantage in zip(reply, np.maximum(each, 0.0).tolist(), strict=True):
            earned[token] += advantage
    return [token for token, sum_of_it in earned.most_common(MOST) if sum_of_it > 0]
