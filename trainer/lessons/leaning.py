"""A taste that shows all over a reply is taught by the model itself, leaning towards what was liked.

Which words speak to the reader, say, shows in the mean of a reply's states better than at its end. A push by token
teaches such a taste slowly: each token of it earns little. Halfway up the layers, the mean states of liked and of
disliked replies differ, and that difference points to it at once. That is contrastive activation addition (Rimsky et
al., arXiv 2312.06681). The policy that is about to be trained reads its own replies with that difference added. What it
then expects is a teacher, as it is with a comment in its prompt. Owns when that is done, the direction, and what it may
cost. Not here: how much states explain (credit_assignment), the pass (policies), the loss (losses).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from config.presets import Preset
from trainer import objectives
from trainer.io.progress import Progress
from trainer.lessons import credit_assignment, critic, teacher
from trainer.lessons.credit_assignment import BY_CHANCE
from trainer.lessons.critic import Labels
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer
from trainer.policy import packing
from trainer.policy.policy import TokenDistribution

LEAST = 8  # replies of each sign, below which a difference of means points nowhere
SPENDS = 0.6  # share of what is left of the gate's bound on base NLL that a run may spend on leaning


def is_tone(explained_by_means: float, explained_by_ends: float, least: float) -> bool:
    """Tell whether the ratings go by something that is all over a reply, from the shares of them that each explains.

    A tone is there to the end, though the mean shows it better. What the mean alone explains is of another kind, such
    as which question was asked: leaning towards that taught nothing (docs/lab/training-log.md, the thirty-second look).
    """
    return least <= explained_by_ends < explained_by_means


def budget(spent: float, most: float) -> float:
    """Nats a token of base NLL that a run may spend on leaning, by the share of `most` that its parent has `spent`.

    Each spends a share of the rest: a line that has leaned may lean again, and never uses the bound up.
    """
    return SPENDS * (1 - spent) * most


def leaning_targets(
    preset: Preset,
    samples: Sequence[Sample],
    values: Mapping[str, float],
    scorer: Scorer,
    progress: Progress,
    earlier_labels: Labels | None = None,
    explained_by_words: float = 0.0,
) -> Mapping[str, TokenDistribution]:
    """Lessons of the leaning policy on each rated reply; none where the ratings do not ask for it. `values`: the
    advantage of each reply by its rating, 0 for one that may not train. What is liked is the person's word for it, and
    not which side of a baseline it is on. `explained_by_words`: the share of the ratings that a disliked word
    explains (lexical_credit); it teaches faster where that is more."""
    rated = [(s, math.copysign(values[s.rating], s.reward)) for s in samples if values[s.rating] and s.reward]
    may_lean = objectives.of(preset).may_lean and preset.credit < 1 and scorer.policy.leans
    if not may_lean or not _is_uniform(samples):
        return {}
    liked = np.array([a > 0 for _, a in rated], bool)
    if min(liked.sum(), (~liked).sum()) < LEAST:
        return {}
    states, sizes = scorer.states([s.tokens for s, _ in rated]), [a for _, a in rated]
    current = critic.label_replies(states, sizes, [critic.conversation(s) for s, _ in rated])
    explained_by_means, by_chance = credit_assignment.explain_by_means(current, sizes, scorer.spec.seed, earlier_labels)
    if explained_by_means < max(preset.credit, explained_by_words) or by_chance > BY_CHANCE:
        return {}
    explained_by_ends = credit_assignment.credit(states, sizes, current, scorer.spec.seed, earlier_labels).explained
    if not is_tone(explained_by_means, explained_by_ends, preset.credit):
        return {}
    direction = _direction(scorer, [s for s, _ in rated], liked)
    change = f" leaning {direction.tobytes().hex()}"
    with scorer.policy.leaning(direction):
        distributions = scorer.expect([s.tokens for s, _ in rated], preset.teacher_k, change=change)
    reason = (
        f"the mean states of replies it has not seen explain {explained_by_means:.0%} of the ratings, their ends "
        f"{explained_by_ends:.0%}"
    )
    progress.choice("pushed", "by leaning", f"{reason}; as much of {by_chance:.0%} of ratings drawn at random")
    return {s.rating: target for (s, _), target in zip(rated, distributions, strict=True)}


def _is_uniform(samples: Sequence[Sample]) -> bool:
    """Tell whether people's thumbs of one weight, each on a conversation of its own, are all that there is. Where two
    replies are of one conversation, the second one's prompt has the first, and would lean with it."""
    is_personal = all(s.human and not s.labelled and s.correction is None for s in samples)
    conversations = {critic.conversation(s) for s in samples}
    is_uniform = len(conversations) == len(samples) and len({s.weight for s in samples}) == 1
    return is_personal and is_uniform and not any(map(teacher.comment_of, samples))


def _direction(scorer: Scorer, samples: Sequence[Sample], liked: NDArray[np.bool_]) -> NDArray[np.float32]:
    """(H,) from the mean states of disliked replies to those of liked ones, halfway up the layers."""
    sequences = [s.tokens for s in samples]
    means: dict[int, NDArray[np.float32]] = {}
    for members in packing.group(sequences, scorer.policy.budget):
        scorer.stop.check()
        packed = packing.pack([sequences[i] for i in members])
        parts = np.split(scorer.policy.middle(packed), np.cumsum(packed.lengths)[:-1])
        means |= {i: part.mean(0) for i, part in zip(members, parts, strict=True)}
    reply_means = np.stack([means[i] for i in range(len(sequences))])  # (R, H)
    direction: NDArray[np.float32] = (reply_means[liked].mean(0) - reply_means[~liked].mean(0)).astype(np.float32)
    return direction
