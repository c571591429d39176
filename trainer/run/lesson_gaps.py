"""How much a lesson in the prompt still changes: what a new version says when told, scored told and untold.

Owns which lessons and prompts of a run are asked, and the figures. A gap near 0 says that the version would say the
same untold, so the lesson is of no use in a prompt. Each gap is a share of the base's on the same reply. Not here:
whether a lesson retires (store.learning.lessons, proxy.relay.lessons).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from config.word_marks import mark_of
from trainer.lessons import teacher
from trainer.lessons.batch import score
from trainer.lessons.line_members import BadLine
from trainer.lessons.prompts import with_hint, without_lessons
from trainer.lessons.samples import Sample
from trainer.mis_po import Floats
from trainer.policy.packing import Tokens
from trainer.run.context import RunModel
from trainer.run.gate import GATE_SEED, TEMPERATURE

MOST_LESSONS: Final = 4  # the commonest of a run
MOST_PROMPTS: Final = 8  # of each, those held back before those that trained
REPLY_TOKENS: Final = 64
MOST_PROMPT_TOKENS: Final = 8192  # of a batch, padded
LEAST_GAP: Final = 1.0  # nats; a reply that the base would give untold, too, says nothing
FEWEST_REPLIES: Final = 3  # that say something; two may agree by chance
T_99: Final = (6.965, 4.541, 3.747, 3.365, 3.143, 2.998)  # of Student's t, by replies from the fewest on


@dataclass(frozen=True, slots=True)
class RunLesson:
    """A comment of this run, or a lesson in its prompts, under all names that its text has."""

    text: str
    ratings: tuple[str, ...]
    samples: tuple[Sample, ...]


class PromptPair(NamedTuple):
    hinted: tuple[int, ...]
    bare: tuple[int, ...]


class GapMeasurement(NamedTuple):
    """Means over replies."""

    prompts: int
    remainder: float  # share of what the lesson changed in the base's eyes that it still changes
    bound: float  # so much of it at most, 0 to 1
    gap: float  # nats a reply
    base_gap: float

    def json(self) -> dict[str, Any]:
        return {name: round(value, 3) for name, value in self._asdict().items()}


def measure(model: RunModel, samples: Sequence[Sample]) -> dict[str, dict[str, Any]]:
    """The gap of each lesson of these samples, by every rating that brought it. The policy wears the new version.

    A mark of the words is with it, as an owner may change them. Of several words of one rating the commonest count.
    """
    gaps: dict[str, dict[str, Any]] = {}
    for lesson in lessons_in(samples):
        pairs = prompt_pairs(model, lesson)
        if pairs and (measured := measure_pairs(model, pairs)) is not None:
            gaps = dict.fromkeys(lesson.ratings, measured.json() | {"words": mark_of(lesson.text)}) | gaps
    return gaps


def lessons_in(samples: Sequence[Sample]) -> list[RunLesson]:
    """The commonest lessons of these samples, each text once, in samples that are held back first."""
    by_text: dict[str, list[Sample]] = {}
    ratings: dict[str, set[str]] = {}
    for sample in sorted(samples, key=lambda sample: not sample.is_held_back):
        comment = teacher.comment_of(sample)
        mentions = [*zip(sample.lessons, sample.lesson_ratings, strict=False)]
        if comment is not None:
            mentions.append((comment, sample.rating))
        for text, rating in mentions:
            ratings.setdefault(text, set()).add(rating)
        for text in {text for text, _ in mentions}:
            by_text.setdefault(text, []).append(sample)
    commonest = sorted(by_text, key=lambda text: -len(by_text[text]))[:MOST_LESSONS]
    return [RunLesson(text, tuple(sorted(ratings[text])), tuple(by_text[text])) for text in commonest]


def prompt_pairs(model: RunModel, lesson: RunLesson) -> list[PromptPair]:
    """Prompts with this lesson alone and without any; fewer where they are long or cannot be rendered."""
    pairs: list[PromptPair] = []
    for sample in lesson.samples:
        if len(pairs) == MOST_PROMPTS:
            break
        messages = without_lessons(sample.messages, sample.lessons) if sample.lessons else list(sample.messages)
        hinted = with_hint(messages, lesson.text) if messages is not None else None
        if messages is None or hinted is None:
            continue
        try:
            pair = PromptPair(
                *(model.template.prompt(each, sample.tools, sample.template_kwargs) for each in (hinted, messages))
            )
        except BadLine:
            continue
        width = max(len(each.hinted) for each in (*pairs, pair))
        if width * (len(pairs) + 1) <= MOST_PROMPT_TOKENS:
            pairs.append(pair)
    return pairs


def measure_pairs(model: RunModel, pairs: Sequence[PromptPair]) -> GapMeasurement | None:
    """Have the policy answer when told, and score that told and untold, by itself and by the base. None where the base
    would give all of these replies untold, too: a lesson that nobody heeds is not learned."""
    policy = model.policy
    prompts = [pair.hinted for pair in pairs]
    replies = policy.generate(prompts, max_tokens=REPLY_TOKENS, temperature=TEMPERATURE, seed=GATE_SEED)
    hinted = [Tokens(pair.hinted, tuple(reply), TEMPERATURE) for pair, reply in zip(pairs, replies, strict=True)]
    bare = [Tokens(pair.bare, tuple(reply), TEMPERATURE) for pair, reply in zip(pairs, replies, strict=True)]

    def gaps() -> Floats:
        sums = [float(log_probs.sum()) for log_probs in score(policy, [*hinted, *bare])]
        differences: Floats = np.array(sums[: len(hinted)]) - np.array(sums[len(hinted) :])
        return differences

    policy_gaps = gaps()
    with policy.wearing(None):
        base_gaps = gaps()
    telling = base_gaps > LEAST_GAP
    if not telling.any():
        return None
    shares = policy_gaps[telling] / base_gaps[telling]
    return GapMeasurement(
        len(pairs),
        float(shares.mean()),
        float(remainder_bound(shares)),
        float(policy_gaps.mean()),
        float(base_gaps.mean()),
    )


def remainder_bound(shares: Floats) -> Floats:
    """The upper 99 % bound of the mean of these shares, (..., replies), from 0 to 1. Too few replies bound nothing.

    Shares below 0 stay as they are: cut off there, a few that say little would agree on 0 by chance.
    """
    count = shares.shape[-1]
    if count < FEWEST_REPLIES:
        return np.ones(shares.shape[:-1])
    errors = shares.std(-1, ddof=1) / np.sqrt(count)
    bounds: Floats = np.clip(shares.mean(-1) + T_99[count - FEWEST_REPLIES] * errors, 0.0, 1.0)
    return bounds
