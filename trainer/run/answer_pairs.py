"""Answers to rated prompts by the parent and by a candidate that passed: what a version changed.

Owns which prompts are asked, their order, and the figures of both sides. Both sides are asked anew, with one seed and
one limit: captured answers that somebody disliked would get better by chance alone. Not here: the gate's verdict
(gate), who keeps the answers (the proxy's publisher).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Final

import numpy as np

from trainer.lessons.chat_template import Template
from trainer.lessons.samples import Sample
from trainer.run.context import RunModel
from trainer.run.gate import RATED_SEED, RATED_TOKENS, TEMPERATURE, RatedAnswers

FILE: Final = "answer_pairs.jsonl"
MOST_PROMPTS: Final = 6
MOST_PROMPT_TOKENS: Final = 8192  # of the whole batch, padded: long prompts of agents are asked in smaller number


@dataclass(frozen=True, slots=True)
class AnswerPair:
    sample: Sample
    parent_reply: tuple[int, ...]  # token ids, with the end token where it ended
    reply: tuple[int, ...]

    @property
    def difference(self) -> float:
        """0 for the same tokens, 1 where none is shared."""
        return 1 - SequenceMatcher(None, self.parent_reply, self.reply, autojunk=False).ratio()


def choose(samples: Sequence[Sample]) -> list[Sample]:
    """The prompts to ask: held back before trained on, disliked before liked, the newest first; each once."""
    ranked = sorted(samples, key=lambda sample: (not sample.is_held_back, sample.reward >= 0))
    chosen: dict[tuple[int, ...], Sample] = {}
    for sample in ranked:
        width = max(len(prompt) for prompt in (*chosen, sample.tokens.prompt))
        if len(chosen) < MOST_PROMPTS and width * (len(chosen) + 1) <= MOST_PROMPT_TOKENS:
            chosen.setdefault(sample.tokens.prompt, sample)
    return list(chosen.values())


def ask(model: RunModel, replies: RatedAnswers) -> list[AnswerPair]:
    """Answers of the parent and of what the policy wears now. A side that was not asked beside the gate's questions, as
    the candidate's `replies` were, is asked here. The best to show come first: disliked before liked, and of those the
    most different answers."""
    if not model.rated:
        return []
    replies, parent_replies = replies or _answers(model), model.parent_answers.rated
    if parent_replies is None:
        with model.policy.wearing(model.parent):
            parent_replies = _answers(model)
    pairs = [AnswerPair(*row) for row in zip(model.rated, parent_replies, replies, strict=True)]
    return sorted(pairs, key=lambda pair: (pair.sample.reward >= 0, -pair.difference))


def figures(pairs: Sequence[AnswerPair]) -> dict[str, float]:
    """Counts and mean lengths in tokens, and the standard error of the mean change of length. An answer below the limit
    has ended by itself."""
    parent_lengths = np.array([len(pair.parent_reply) for pair in pairs])
    lengths = np.array([len(pair.reply) for pair in pairs])
    changes = lengths - parent_lengths
    error = float(changes.std(ddof=1) / np.sqrt(len(changes))) if len(changes) > 1 else 0.0
    return {
        "prompts": len(pairs),
        "held_back": sum(pair.sample.is_held_back for pair in pairs),
        "different": sum(pair.parent_reply != pair.reply for pair in pairs),
        "limit": RATED_TOKENS,
        "tokens_before": round(float(parent_lengths.mean()), 2),
        "tokens_after": round(float(lengths.mean()), 2),
        "tokens_error": round(error, 2),
        "ended_before": int((parent_lengths < RATED_TOKENS).sum()),
        "ended_after": int((lengths < RATED_TOKENS).sum()),
    }


def lines(pairs: Sequence[AnswerPair], template: Template) -> list[dict[str, Any]]:
    """Lines of FILE, best first."""
    return [
        {
            "completion": pair.sample.completion,
            "ratings": [pair.sample.rating],
            "parent_answer": template.text(pair.parent_reply).strip(),
            "answer": template.text(pair.reply).strip(),
        }
        for pair in pairs
    ]


def _answers(model: RunModel) -> list[tuple[int, ...]]:
    replies = model.policy.generate(
        model.rated_prompts, max_tokens=RATED_TOKENS, temperature=TEMPERATURE, seed=RATED_SEED
    )
    return [tuple(reply) for reply in replies]
