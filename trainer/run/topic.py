"""Still an answer: is a reply about what was asked, or would it fit any question?

Owns the measure. The base says how much likelier each reply is after its own question than after another one, nats a
token. A reply like "I'm here to help you with that!" has about 0. Candidate and parent answer the same questions with
the same seed, so they are compared question by question. The other question is of the same language: after one of
another, any reply is unlikely. Not here: the questions and the other checks (gate).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from trainer.lessons.batch import score
from trainer.mis_po import Floats
from trainer.policy.packing import Tokens
from trainer.policy.policy import Policy

SHIFT = 3  # questions on: the next one may be near in kind
NOWHERE = 0.1  # nats a token: below it a reply hardly depends on its question


def measure(policy: Policy, *sides: Sequence[Tokens], parts: int = 1) -> list[Floats]:
    """(R,) of each side: mean log-prob a token under the base after its own prompt, minus that after another one of the
    side's. All in one go, where every prompt is read once. `parts`: of equal size, one language each."""
    pairs = [pair for side in sides for pair in zip(side, after_other_prompts(side, parts), strict=True)]
    with policy.wearing(None):
        scored = score(policy, [tokens for pair in pairs for tokens in pair])
    gaps = (first - second for first, second in zip(scored[::2], scored[1::2], strict=True))
    depends = [float(gap.mean()) for gap in gaps]
    ends = np.cumsum([len(side) for side in sides])
    return np.split(np.array(depends), ends[:-1])


def after_other_prompts(replies: Sequence[Tokens], parts: int = 1) -> list[Tokens]:
    """Each reply after the prompt of another one of its part."""
    size = len(replies) // parts
    prompts = [replies[index // size * size + (index + SHIFT) % size].prompt for index in range(len(replies))]
    return [Tokens(prompt, reply.reply, reply.temperature) for prompt, reply in zip(prompts, replies, strict=True)]


def compare(current: Floats, parent: Floats, slack: float) -> tuple[float, float, str]:
    """How much it changed on average, the bound of that, and in words what there is to know. The bound gives way by two
    standard errors: eight questions are few."""
    change = current - parent
    error = float(change.std(ddof=1)) / math.sqrt(len(change)) if len(change) > 1 else 0.0
    note = f"{current.mean():.2f} nats a token, the parent's {parent.mean():.2f}"
    return (
        float(change.mean()),
        -slack - 2 * error,
        f"{note}; {int((current < NOWHERE).sum())} of {len(current)} fit any question",
    )
