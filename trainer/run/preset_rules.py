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


def comments(preset: Preset, training: Sequence[Sample], progress: Progress) -> Preset:
    """With the objective that this run's comments and corrections ask for."""
    noted, corrected = teacher.count(training)
    if not noted + corrected:
        return preset
    said = " and ".join(
        f"{count} of {len(training)} samples have {what}"
        for count, what in ((noted, "comments"), (corrected, "corrections"))
        if count
    )
    if preset.objective == "mis-po" and preset.w_distill > 0:
        progress.choice("objective", "combine", said)
        return preset.model_copy(update={"objective": "combine"})
    if preset.objective not in objective_kin.TAUGHT:
        why = "w_distill is 0" if preset.objective == "mis-po" else f"objective {preset.objective} does not listen"
        progress.warning(f"{said}, and they teach nothing: {why}.")
    return preset


def episodes(preset: Preset, progress: Progress) -> Preset:
    """With the rate for episodes: rewards of a program, compared within groups."""
    if preset.objective in objective_kin.TAUGHT:
        preset = preset.model_copy(update={"objective": "mis-po"})
    rate = preset.learning_rate * preset.rate_episodes
    progress.choice("learning_rate", float(f"{rate:.3g}"), "rate_episodes times the preset's: a program's rewards")
    return preset.model_copy(update={"learning_rate": rate})


class Liked(NamedTuple):
    """How the replies of one version were rated by people."""

    good: int
    rated: int

    @property
    def share(self) -> float:
        return self.good / self.rated

    @classmethod
    def of(cls, samples: Sequence[Sample], version: int) -> Liked:
        rated = [s.reward > 0 for s in samples if s.version == version and s.human and s.reward and not s.replayed]
        return cls(sum(rated), len(rated))


def no_better(now: Liked, before: Liked) -> bool:
    """Tell if a version is liked no more than the one before it, as far as these ratings can tell. That is by less than
    one standard error. False where there are too few to say."""
    if min(now.rated, before.rated) < FEW:
        return False
    error = math.sqrt(sum(one.share * (1 - one.share) / one.rated for one in (now, before)))
    return now.share - before.share <= error


def ask_less(preset: Preset, now: Liked, before: Liked, progress: Progress) -> tuple[Preset, str | None]:
    """With less of a teacher, and why, where the version that had one already is liked no more than before.

    A comment that is read again runs away. Its teacher is the version itself with the comment before it, as far off as
    the first one was (docs/lab/training-log.md, the fourteenth look).
    """
    if preset.objective not in objective_kin.TAUGHT or not no_better(now, before):
        return preset, None
    said = f"{now.good} of {now.rated} answers are liked after comments taught, {before.good} of {before.rated} before"
    progress.choice("rate_taught", preset.rate_taught / 2, said)
    progress.choice("passes_taught", preset.passes, said)
    return preset.model_copy(update={"rate_taught": preset.rate_taught / 2, "passes_taught": preset.passes}), said


def listens(preset: Preset, training: Sequence[Sample]) -> bool:
    """Tell whether there is something to learn from besides the ratings."""
    return preset.objective in objective_kin.TAUGHT and bool(sum(teacher.count(training)))


def only_teachers(preset: Preset, why: str, progress: Progress) -> Preset:
    """With ratings that do not train, and comments and corrections that still do."""
    progress.warning(f"only comments and corrections train in this run: {why}.")
    return preset.model_copy(update={"w_rl": 0.0})


def weak(preset: Preset, evidence: float, why: str, progress: Progress) -> Preset:
    """With ratings that weigh less beside comments and corrections, which say what they mean. Without those the weight
    of ratings means nothing: how far they may move is bounded instead (trainer.run.reach)."""
    if preset.objective not in objective_kin.TAUGHT or preset.objective == "distill":
        return preset
    progress.choice("w_rl", float(f"{preset.w_rl * evidence:.2g}"), f"beside a teacher the ratings weigh less: {why}")
    return preset.model_copy(update={"w_rl": preset.w_rl * evidence})


def pace(preset: Preset, lessons: Sequence[Lesson], progress: Progress) -> Preset:
    """Set the rate that this mixture of ratings and teachers bears. A teacher says more a token, and so does a rating
    that went by token. Where those are mostly likes, less is left to change: what is liked is what it says already."""
    rated = [lesson for lesson in lessons if lesson.own and not lesson.extra]
    disliked = sum((lesson.sample.reward if lesson.has_teacher else lesson.way) < 0 for lesson in rated)
    left = min(1.0, 2 * disliked / len(rated)) if rated else 1.0
    few = f", and only {disliked} of {len(rated)} rated ones are disliked" if left < 1 else ""
    taught = sum(lesson.has_teacher for lesson in lessons)
    credited = sum(lesson.credited and not lesson.has_teacher for lesson in lessons)
    even = sum(not (lesson.credited or lesson.has_teacher) for lesson in rated)
    shares = (
        (taught, "have a teacher", preset.rate_taught),
        (credited, f"go by token{few}", preset.rate_credited * left),
        (even, f"push all their tokens alike{few}", left),
    )
    less = sum((1 - share) * count for count, _, share in shares)
    if not less:
        return preset
    rate = preset.learning_rate * (1 - less / len(lessons))
    said = [
        f"{count} of {len(lessons)} samples {what}; it would be {share:.2g} of it if all did"
        for count, what, share in shares
        if count and share < 1
    ]
    progress.choice("learning_rate", float(f"{rate:.3g}"), ", ".join(said))
    return preset.model_copy(update={"learning_rate": rate})
