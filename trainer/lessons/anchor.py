"""The anchor: holds the policy's expectations where nothing was earned, while a few tokens are pushed.

A push on one token in one place makes it likelier everywhere. It does so in the middle of a sentence too, where the
model would never have said it. Nothing sampled before the push shows that. So a run by token holds on to the
distributions that its policy had at all its other tokens (docs/lab/training-log.md, the eighth look). That has no
gradient before the first step, and a run has four. So the more sense was lost before, the more it takes back where it
pushed up what was unlikely. It says not this token, but this token here (the ninth and the thirteenth look). Owns which
tokens those distributions are of, and how much is pushed down where. Not here: who earned what (credit_assignment), the
losses (objective_kin.stay, elsewhere), how much of that (retry), a teacher with a comment (teacher).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from config.presets import Preset
from trainer.lessons import teacher
from trainer.lessons.advantages import Pushed
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer
from trainer.objective import Floats
from trainer.policy.policy import Teaching

OBJECTIVES = ("mis-po", "combine")  # whose loss has a place for it
MOST = 8  # pushed tokens that are looked at everywhere, those that earned most
UNLIKELY = 0.01  # the chance of a pushed token below which its place is no place for it


class Hold(NamedTuple):
    """The policy's expectation at each token of a reply before the run."""

    ids: NDArray[np.int32]  # (T, K)
    log_probs: NDArray[np.float32]  # (T, K)
    down: NDArray[np.float32]  # (T, K) how much each is pushed down; over these replies, as much as it is pushed up


def staying(preset: Preset, samples: Sequence[Sample], pushed: Pushed, scorer: Scorer) -> dict[str, Hold]:
    """Expectations for each rating that went by token; the policy wears what it starts from."""
    if not (preset.w_stay or preset.w_elsewhere) or preset.objective not in OBJECTIVES:
        return {}
    earned = earners([s.tokens.reply for s in samples], pushed.each)
    pairs = [(s, each) for s, each in zip(samples, pushed.each, strict=True) if s.rating in pushed.credited]
    found = teacher.teachings(
        scorer.policy,
        [s.tokens for s, _ in pairs],
        preset.teacher_k,
        who=f"{scorer.spec.weights} {scorer.parent}",
        cache=scorer.cache,
        stop=scorer.stop,
        also=list(earned)[: preset.teacher_k],
        known=scorer.known,
    )
    each = holds([push for _, push in pairs], found, earned)
    return {s.rating: hold for (s, _), hold in zip(pairs, each, strict=True)}


def holds(pushed: Sequence[Floats], expected: Sequence[Teaching], earned: Mapping[int, float]) -> list[Hold]:
    """Expected tokens, and those pushed down, at each reply; `pushed`: (T,)."""
    nowhere = [
        (one.log_probs < np.log(UNLIKELY)) & (each == 0)[:, None] for one, each in zip(expected, pushed, strict=True)
    ]
    down = [np.zeros(one.ids.shape, np.float32) for one in expected]
    for token, up in earned.items():
        places = [(one.ids == token) & at for one, at in zip(expected, nowhere, strict=True)]
        room = sum(float(at.sum()) / len(at) for at in places)
        for weights, at in zip(down, places, strict=True):
            weights[at] = up / max(room, 1e-9)  # without room there is no place either
    return [Hold(one.ids, one.log_probs, weights) for one, weights in zip(expected, down, strict=True)]


def earners(replies: Sequence[Sequence[int]], pushed: Sequence[Floats]) -> dict[int, float]:
    """The tokens that are pushed up most, all their places together, each reply's by their mean in it; `pushed`: (T,)
    of each reply."""
    earned: Counter[int] = Counter()
    for reply, each in zip(replies, pushed, strict=True):
        for token, advantage in zip(reply, np.maximum(each, 0.0).tolist(), strict=True):
            earned[token] += advantage / len(reply)
    return {token: of_it for token, of_it in earned.most_common(MOST) if of_it > 0}
