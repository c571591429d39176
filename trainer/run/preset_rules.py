"""The preset gives way to what a run's samples bring: comments, corrections, ratings that may not train.

Owns these decisions, each said with its reason. Not here: what a comment teaches (teacher), which ratings may not train
(ratings), what follows from the model (autoscale).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from config.presets import Preset
from trainer import objective_kin
from trainer.io.progress import Progress
from trainer.lessons import teacher
from trainer.lessons.lessons import Lesson
from trainer.lessons.samples import Sample

FEW = 8  # ratings of a version, below which it is not compared with the one before


def listen_to_comments(preset: Preset, training: Sequence[Sample], progress: Progress) -> Preset:
    """With the objective that this run's comments and corrections ask for."""
    comment_count, correction_count = teacher.count(training)
    if not comment_count + correction_count:
        return preset
    reason = " and ".join(
        f"{count} of {len(training)} samples have {words}"
        for count, words in ((comment_count, "comments"), (correction_count, "corrections"))
        if count
    )
    if preset.objective == "mis-po" and preset.w_distill > 0:
        progress.choice("objective", "combine", reason)
        return preset.model_copy(update={"objective": "combine"})
    if preset.objective not in objective_kin.TAUGHT:
        cause = "w_distill is 0" if preset.objective == "mis-po" else f"objective {preset.objective} does not listen"
        progress.warning(f"{reason}, and they teach nothing: {cause}.")
    return preset


def fit_episodes(preset: Preset, progress: Progress) -> Preset:
    """With the rate for episodes: rewards of a program, compared within groups."""
    if preset.objective in objective_kin.TAUGHT:
        preset = preset.model_copy(update={"objective": "mis-po"})
    rate = preset.learning_rate * preset.rate_episodes
    progress.choice("learning_rate", float(f"{rate:.3g}"), "rate_episodes times the preset's: a program's rewards")
    return preset.model_copy(update={"learning_rate": rate})


class RatingCount(NamedTuple):
    """How the replies of one version were rated by people."""

    good: int
    rated: int

    @property
    def share(self) -> float:
        return self.good / self.rated

    @classmethod
    def of(cls, samples: Sequence[Sample], version: int) -> RatingCount:
        rated = [s.reward > 0 for s in samples if s.version == version and s.human and s.reward and not s.replayed]
        return cls(sum(rated), len(rated))


def is_no_better(current: RatingCount, previous: RatingCount) -> bool:
    """Tell if a version is liked no more than the one before it, as far as these ratings can tell. That is by less than
    one standard error. False where there are too few to say."""
    if min(current.rated, previous.rated) < FEW:
        return False
    error = math.sqrt(sum(version.share * (1 - version.share) / version.rated for version in (current, previous)))
    return current.share - previous.share <= error


def weaken_teacher(
    preset: Preset, current: RatingCount, previous: RatingCount, progress: Progress
) -> tuple[Preset, str | None]:
    """With less of a teacher, and why, where the version that had one already is liked no more than before.

    A comment that is read again runs away. Its teacher is the version itself with the comment before it, as far off as
    the first one was (docs/lab/training-log.md, the fourteenth look).
    """
    if preset.objective not in objective_kin.TAUGHT or not is_no_better(current, previous):
        return preset, None
    reason = (
        f"{current.good} of {current.rated} answers are liked after comments taught, {previous.good} of "
        f"{previous.rated} before"
    )
    progress.choice("rate_taught", preset.rate_taught / 2, reason)
    progress.choice("passes_taught", preset.passes, reason)
    return preset.model_copy(update={"rate_taught": preset.rate_taught / 2, "passes_taught": preset.passes}), reason


def has_teachers(preset: Preset, training: Sequence[Sample]) -> bool:
    """Tell whether there is something to learn from besides the ratings."""
    return preset.objective in objective_kin.TAUGHT and bool(sum(teacher.count(training)))


def only_teachers(preset: Preset, reason: str, progress: Progress) -> Preset:
    """With ratings that do not train, and comments and corrections that still do."""
    progress.warning(f"only comments and corrections train in this run: {reason}.")
    return preset.model_copy(update={"w_rl": 0.0})


def weaken_ratings(preset: Preset, evidence: float, reason: str, progress: Progress) -> Preset:
    """With ratings that weigh less beside comments and corrections, which say what they mean. Without those the weight
    of ratings means nothing: how far they may move is bounded instead (trainer.run.reach)."""
    if preset.objective not in objective_kin.TAUGHT or preset.objective == "distill":
        return preset
    progress.choice(
        "w_rl", float(f"{preset.w_rl * evidence:.2g}"), f"beside a teacher the ratings weigh less: {reason}"
    )
    return preset.model_copy(update={"w_rl": preset.w_rl * evidence})


def fit_rate(preset: Preset, lessons: Sequence[Lesson], progress: Progress) -> Preset:
    """Set the rate that this mixture of ratings and teachers bears. A teacher says more a token, and so does a rating
    that went by token. Where those are mostly likes, less is left to change: what is liked is what it says already."""
    rated = [lesson for lesson in lessons if lesson.is_own and not lesson.is_imitated]
    disliked = sum((lesson.sample.reward if lesson.has_teacher else lesson.direction) < 0 for lesson in rated)
    dislike_share = min(1.0, 2 * disliked / len(rated)) if rated else 1.0
    caveat = f", and only {disliked} of {len(rated)} rated ones are disliked" if dislike_share < 1 else ""
    taught_count = sum(lesson.has_teacher for lesson in lessons)
    credited_count = sum(lesson.credited and not lesson.has_teacher for lesson in lessons)
    unchanged = sum(not (lesson.credited or lesson.has_teacher) for lesson in rated)
    shares = (
        (taught_count, "have a teacher", preset.rate_taught),
        (credited_count, f"go by token{caveat}", preset.rate_credited * dislike_share),
        (unchanged, f"push all their tokens alike{caveat}", dislike_share),
    )
    reduction = sum((1 - share) * count for count, _, share in shares)
    if not reduction:
        return preset
    rate = preset.learning_rate * (1 - reduction / len(lessons))
    reasons = [
        f"{count} of {len(lessons)} samples {words}; it would be {share:.2g} of it if all did"
        for count, words, share in shares
        if count and share < 1
    ]
    progress.choice("learning_rate", float(f"{rate:.3g}"), ", ".join(reasons))
    return preset.model_copy(update={"learning_rate": rate})
