"""The next message as a teacher, with no judge between: each token is pushed by how much likelier it makes the reply.

A = w · clip(log p(y | x, o) − log p(y | x)) of each token (arXiv 2603.12273). Here o is the next message, in a block of
its own after the last user message. Both are the policy's, before its first step. Words that have nothing to do with
the reply change little, so they push little. A small model reads them badly, and then they push at random. Such a
sample has no reward: no rating, baseline or critic hears of it. Not here: which replies have it (the proxy).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from config.presets import Preset
from trainer import objective_kin
from trainer.io.progress import Progress
from trainer.lessons.line_members import BadLine
from trainer.lessons.prompts import HINDSIGHT
from trainer.lessons.samples import Sample, Template
from trainer.lessons.scoring import Scorer
from trainer.lessons.teacher import hint
from trainer.objective import Floats
from trainer.policy.packing import Tokens
from trainer.policy.policy import LogProbs


def hindsight_advantages(
    preset: Preset,
    template: Template,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    scorer: Scorer,
    progress: Progress,
) -> dict[str, Floats]:
    """The advantage of each token (T,), by rating, of the samples that have no other."""
    prompted: dict[str, tuple[Sample, Floats, Tokens]] = {}
    for sample, log_probs in zip(samples, old, strict=True):
        if sample.hindsight is None:
            continue
        try:
            prompted[sample.rating] = sample, log_probs.plain, _in_hindsight(preset, template, sample, sample.hindsight)
        except BadLine as error:
            progress.warning(f"what was said after the reply of {sample.rating} does not teach: {error}.")
    if not prompted:
        return {}
    scored = scorer.score_old([tokens for _, _, tokens in prompted.values()])
    advantages = {
        rating: objective_kin.directional(
            hindsight_scores.plain, plain, weight=preset.w_distill * sample.weight, clip=preset.advantage_clip
        )
        for (rating, (sample, plain, _)), hindsight_scores in zip(prompted.items(), scored, strict=True)
    }
    # Whatever was said next: an empty or looping reply is not one to say more often.
    advantages = {
        rating: np.minimum(advantage, 0.0) if prompted[rating][0].flaw else advantage
        for rating, advantage in advantages.items()
    }
    mean = float(np.mean([advantage.mean() for advantage in advantages.values()]))
    progress.choice(
        "hindsight", len(advantages), f"replies pushed by what was said next, by {mean:+.3f} a token in the mean"
    )
    return advantages


def _in_hindsight(preset: Preset, template: Template, sample: Sample, message: str) -> Tokens:
    """Raises BadLine."""
    prompt = sample.hinted or template.prompt(
        hint(sample.messages, message, HINDSIGHT), sample.tools, sample.template_kwargs
    )
    if len(prompt) + len(sample.tokens.reply) > preset.max_seq_len:
        raise BadLine("with it the sample is longer than max_seq_len")
    return Tokens(prompt, sample.tokens.reply, sample.tokens.temperature)
