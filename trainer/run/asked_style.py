"""A style that comments asked for is not a loss of sense: what the base makes of it once it is told the same.

A lower-case text is unlikely for the base, and so is a German answer to an English question. Both are likely for the
base that reads the comment first; words in any order are not. The parent speaks likewise for its own style, as far as
that was granted to it. A later candidate may keep the style, and may not spend its room on something else. Owns how
much of a candidate's oddness the two explain, and how long the hinted base answers. Not here: the checks (gate).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.lessons import teacher
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import Lesson
from trainer.lessons.prompts import join_lessons, neutral
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.policy import Policy

MOST_COMMENTS = 3  # the commonest ones: together they still leave the question in sight


@dataclass(frozen=True, slots=True)
class AskedStyle:
    """The wishes of people in this run, as the hinted base reads them."""

    policy: Policy
    template: Template
    comment: str  # the commonest comments, joined; "" where none taught

    @classmethod
    def of(cls, policy: Policy, template: Template, lessons: Sequence[Lesson]) -> AskedStyle:
        taught = (teacher.wishes_of(lesson.sample) for lesson in lessons if lesson.taught)
        counts = Counter(wish.strip() for wishes in taught for wish in wishes)
        commonest = [comment for comment, _ in counts.most_common(MOST_COMMENTS)]
        return cls(policy, template, join_lessons(commonest))

    def explains(self, replies: Sequence[Tokens], questions: Sequence[str]) -> float:
        """Nats a token by which the base finds these replies to the questions less odd once it is told; at least 0."""
        if not self.comment:
            return 0.0
        hinted = [
            Tokens(self._hinted(question), reply.reply) for question, reply in zip(questions, replies, strict=True)
        ]
        with self.policy.wearing(None):
            return max(0.0, oddness(self.policy, replies) - oddness(self.policy, hinted))

    def length(self, questions: Sequence[str], tokens: int, temperature: float, seed: int) -> float | None:
        """Mean length in tokens, `tokens` at most, of the hinted base's answers; None where nothing was asked for."""
        if not self.comment:
            return None
        hinted = [self._hinted(question) for question in questions]
        with self.policy.wearing(None):
            replies = self.policy.generate(hinted, max_tokens=tokens, temperature=temperature, seed=seed)
        return float(np.mean([len(reply) for reply in replies]))

    def _hinted(self, question: str) -> tuple[int, ...]:
        return self.template.prompt(teacher.hint(neutral(question), self.comment))


def parent_explains(policy: Policy, parent: Path | None, replies: Sequence[Tokens]) -> float:
    """Nats a token by which the parent finds these replies less odd than the base does; at least 0."""
    if parent is None:
        return 0.0
    with policy.wearing(None):
        base = oddness(policy, replies)
    with policy.wearing(parent):
        return max(0.0, base - oddness(policy, replies))


def oddness(policy: Policy, replies: Sequence[Tokens]) -> float:
    """Mean nats a token by which these replies are less likely than what the policy would say at each position."""
    groups = packing.group(replies, policy.budget)
    parts = [policy.log_probs(packing.pack([replies[i] for i in members])) for members in groups]
    return float(np.concatenate([-part.plain - part.entropy for part in parts]).mean())
