"""Two replies to one prompt, one liked better: trained against each other instead of each by its own rating.

A pick in Compare or `chat --vs`, a regenerated answer, `n > 1` and a correction all say the same. They want this rather
than that, to the very same prompt. Owns which replies are a pair, and what a pair pushes while the policy moves. A
reply is in one pair at most, and its rating pushes nothing besides. Not here: where picks come from (the proxy stores
them as two ratings), the other lessons (lessons).

DPO (Rafailov et al., arXiv 2305.18290, equation 7): −log σ(m), m = β(Δ⁺ − Δ⁻), Δ = Σ_t ℓ_θ − ℓ_ref. Its gradient is
that of −Σ_t A ℓ_θ with A = ±β σ(−m) held constant, so a pair need not share a micro-batch. A small NLL on the chosen
reply keeps both from falling together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from config.presets import Preset
from trainer import objectives
from trainer.io.progress import Progress
from trainer.lessons.acceptance import Outcome
from trainer.lessons.lesson import Lesson, Pair
from trainer.lessons.teacher import comment_of
from trainer.mis_po import CLIP, Floats


def make_pairs(
    preset: Preset, lessons: Sequence[Lesson], outcomes: Mapping[str, Outcome], progress: Progress
) -> list[Lesson]:
    """The same lessons in the same order, those of pairs with what their pair pushes where the run begins."""
    objective, paired = objectives.of(preset), list(lessons)
    if preset.pair_beta <= 0 or not objective.has_pairs:
        return paired
    available = {index for index, lesson in enumerate(lessons) if _is_available(lesson, preset, outcomes)}
    corrected = _corrected_pairs(lessons, available)
    trust = objective.rating_weight(preset)  # words of one's own are a teacher
    ranked = _ranked_pairs(lessons, available - {index for pair in corrected for index in pair}) if trust else []
    for better, worse in [*corrected, *ranked]:
        chosen, rejected = lessons[better], lessons[worse]
        gap = 2.0 if chosen.is_imitated else chosen.sample.reward - rejected.sample.reward
        weight = gap / 2 * (chosen.sample.weight + rejected.sample.weight) / 2 * (1.0 if chosen.is_imitated else trust)
        # A correction is imitated with all its weight, as ever; a reply of the model's own with little.
        nll_weight = float(chosen.advantage.mean()) if chosen.is_imitated else preset.pair_nll * trust
        name = f"{chosen.sample.rating} {rejected.sample.rating}"
        sides = {
            better: _side(chosen, Pair(name, True, weight, nll_weight)),
            worse: _side(rejected, Pair(name, False, weight, 0.0)),
        }
        updated = update_pairs(list(sides.values()), [lesson.old for lesson in sides.values()], preset.pair_beta)
        for index, lesson in zip(sides, updated, strict=True):
            paired[index] = lesson
    if corrected or ranked:
        reason = f"two replies to one prompt train against each other; {len(corrected)} with the rater's own words"
        progress.choice("pairs", len(corrected) + len(ranked), reason)
    return paired


def update_pairs(lessons: Sequence[Lesson], scored: Sequence[Floats], beta: float) -> list[Lesson]:
    """Update the lessons of whole pairs, where the policy gives `scored` (T,) to each reply. Their advantages make
    −Σ_t A ℓ_θ/T the gradient of DPO."""
    gaps: dict[str, float] = {}
    for lesson, theta in zip(lessons, scored, strict=True):
        assert lesson.pair is not None
        change = float((theta - lesson.ref)[lesson.chosen].sum())
        gaps[lesson.pair.name] = gaps.get(lesson.pair.name, 0.0) + (change if lesson.pair.chosen else -change)
    return [replace(lesson, advantage=_advantage(lesson, beta, gaps[lesson.pair.name])) for lesson in lessons]  # type: ignore[union-attr]


def _advantage(lesson: Lesson, beta: float, gap: float) -> Floats:
    pair = lesson.pair
    assert pair is not None
    doubt = 1 / (1 + math.exp(max(-CLIP, min(CLIP, beta * gap))))  # σ(−m)
    push = beta * doubt * pair.weight * len(lesson.old)
    return np.full(len(lesson.old), pair.nll_weight + push if pair.chosen else -push)


def _side(lesson: Lesson, pair: Pair) -> Lesson:
    """Without what its rating alone would have meant for its tokens. What the filter masks stays masked."""
    return replace(lesson, pair=pair, keep=lesson.keep & np.isfinite(lesson.old), anchor=None, credited=False)


def _is_available(lesson: Lesson, preset: Preset, outcomes: Mapping[str, Outcome]) -> bool:
    """Tell whether its rating is all that it teaches, and it may train."""
    has_comment = objectives.of(preset).has_teacher and comment_of(lesson.sample) is not None
    teaches_more = lesson.is_imitated or lesson.taught or has_comment or not lesson.is_own
    return not teaches_more and outcomes[lesson.sample.rating].cause is None


def _corrected_pairs(lessons: Sequence[Lesson], available: set[int]) -> list[tuple[int, int]]:
    """Corrections and what they correct, by their places."""
    rated = {lessons[index].sample.rating: index for index in sorted(available) if lessons[index].sample.reward < 0}
    corrections = [
        (index, lesson) for index, lesson in enumerate(lessons) if lesson.is_imitated and lesson.teacher is None
    ]
    return [(index, rated[lesson.sample.rating]) for index, lesson in corrections if lesson.sample.rating in rated]


def _ranked_pairs(lessons: Sequence[Lesson], available: set[int]) -> list[tuple[int, int]]:
    """Pair, of all replies to one prompt, the best with the worst, the next best with the next worst, by their
    places."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index in sorted(available):
        by_prompt.setdefault(lessons[index].tokens.prompt, []).append(index)
    pairs = []
    for indices in by_prompt.values():
        ranked = sorted(indices, key=lambda index: (-lessons[index].sample.reward, index))
        for better, worse in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            if lessons[better].sample.reward > lessons[worse].sample.reward:
                pairs.append((better, worse))
    return pairs
