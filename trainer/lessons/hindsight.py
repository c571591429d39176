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
from trainer import losses
from trainer.io.progress import Progress
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import ReadSample
from trainer.lessons.line_members import BadLine
from trainer.lessons.prompts import HINDSIGHT
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer
from trainer.lessons.teacher import hint
from trainer.mis_po import Floats
from trainer.policy.packing import Tokens


def hindsight_advantages(
    preset: Preset, template: Template, samples: Sequence[ReadSample], scorer: Scorer, progress: Progress
) -> dict[str, Floats]:
    """The advantage of each token (T,), by rating, of the samples that have no other."""
    prompted: list[tuple[ReadSample, Tokens]] = []
    for read in samples:
        if read.sample.hindsight is None:
            continue
        try:
            prompted.append((read, _in_hindsight(preset, template, read.sample, read.sample.hindsight)))
        except BadLine as error:
            rating = read.sample.rating
            progress.warning(f"what was said after the reply of {rating} does not teach: {error}.")
    if not prompted:
        return {}
    scored = scorer.score_old([tokens for _, tokens in prompted])
    advantages = {}
    for (read, _), hinted in zip(prompted, scored, strict=True):
        advantage = losses.directional(
            hinted.plain,
            read.old.plain,
            weight=preset.w_distill * read.sample.weight,
            clip=preset.advantage_clip,
        )
        # Whatever was said next: an empty or looping reply is not one to say more often.
        advantages[read.sample.rating] = np.minimum(advantage, 0.0) if read.sample.flaw else advantage
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
