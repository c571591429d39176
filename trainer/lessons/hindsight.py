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


def pushes(
    preset: Preset,
    template: Template,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    scorer: Scorer,
    progress: Progress,
) -> dict[str, Floats]:
    """The advantage of each token (T,), by rating, of the samples that have no other."""
    asked: dict[str, tuple[Sample, Floats, Tokens]] = {}
    for sample, now in zip(samples, old, strict=True):
        if sample.hindsight is None:
            continue
        try:
            asked[sample.rating] = sample, now.plain, _in_hindsight(preset, template, sample, sample.hindsight)
        except BadLine as error:
            progress.warning(f"what was said after the reply of {sample.rating} does not teach: {error}.")
    if not asked:
        return {}
    known = scorer.now([tokens for _, _, tokens in asked.values()])
    found = {
        rating: objective_kin.directional(
            after.plain, before, weight=preset.w_distill * sample.weight, clip=preset.advantage_clip
        )
        for (rating, (sample, before, _)), after in zip(asked.items(), known, strict=True)
    }
    # Whatever was said next: an empty or looping reply is not one to say more often.
    found = {rating: np.minimum(one, 0.0) if asked[rating][0].flaw else one for rating, one in found.items()}
    mean = float(np.mean([one.mean() for one in found.values()]))
    progress.choice(
        "hindsight", len(found), f"replies pushed by what was said next, by {mean:+.3f} a token in the mean"
    )
    return found


def _in_hindsight(preset: Preset, template: Template, sample: Sample, said: str) -> Tokens:
    """Raises BadLine."""
    prompt = sample.hinted or template.prompt(
        hint(sample.messages, said, HINDSIGHT), sample.tools, sample.template_kwargs
    )
    if len(prompt) + len(sample.tokens.reply) > preset.max_seq_len:
        raise BadLine("with it the sample is longer than max_seq_len")
    return Tokens(prompt, sample.tokens.reply, sample.tokens.temperature)
