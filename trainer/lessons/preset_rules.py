"""The preset gives way to what a run's samples bring: comments, corrections, ratings that may not train.

Owns these decisions, each said with its reason. Not here: what a comment teaches (teacher), which ratings may not train
(ratings), what follows from the model (autoscale).
"""

from __future__ import annotations

from collections.abc import Sequence

from config.presets import Preset
from trainer import objective_kin
from trainer.io.progress import Progress
from trainer.lessons import teacher
from trainer.lessons.lessons import Lesson
from trainer.lessons.samples import Sample


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


def listens(preset: Preset, training: Sequence[Sample]) -> bool:
    """Whether there is something to learn from besides the ratings."""
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
    """At the rate that this mixture of ratings and teachers bears: a teacher says more a token, and so does a rating
    that went by token. Where those are mostly likes, less is left to change: what is liked is what it says already."""
    rated = [lesson for lesson in lessons if lesson.own and not lesson.extra]
    disliked = sum((lesson.sample.reward if lesson.taught else lesson.way) < 0 for lesson in rated)
    left = min(1.0, 2 * disliked / len(rated)) if rated else 1.0
    few = f", and only {disliked} of {len(rated)} rated ones are disliked" if left < 1 else ""
    taught = sum(lesson.taught for lesson in lessons)
    credited = sum(lesson.credited and not lesson.taught for lesson in lessons)
    even = sum(not (lesson.credited or lesson.taught) for lesson in rated)
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
