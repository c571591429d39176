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
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from config.presets import Preset
from trainer.io.progress import Progress
from trainer.lessons.teacher import comment_of
from trainer.objective import CLIP, Floats
from trainer.objective_kin import TAUGHT

if TYPE_CHECKING:
    from trainer.lessons.acceptance import Outcome
    from trainer.lessons.lessons import Lesson

OBJECTIVES = ("mis-po", "combine")  # the others have comparisons of their own, or none


@dataclass(frozen=True, slots=True)
class Pair:
    """One side of it."""

    name: str  # the same on both sides
    chosen: bool
    weight: float  # half of how far apart the ratings are, times the raters' weight
    besides: float  # what the chosen reply is pushed with in any case: the NLL's weight


def made(
    preset: Preset, lessons: Sequence[Lesson], outcomes: Mapping[str, Outcome], progress: Progress
) -> list[Lesson]:
    """The same lessons in the same order, those of pairs with what their pair pushes where the run begins."""
    found = list(lessons)
    if preset.pair_beta <= 0 or preset.objective not in OBJECTIVES:
        return found
    free = {at for at, one in enumerate(lessons) if _free(one, preset, outcomes)}
    corrected = _corrected(lessons, free)
    trust = preset.w_rl if preset.objective == "combine" else 1.0  # of ratings; words of one's own are a teacher
    picked = _picked(lessons, free - {at for pair in corrected for at in pair}) if trust else []
    for better, worse in [*corrected, *picked]:
        plus, minus = lessons[better], lessons[worse]
        gap = 2.0 if plus.extra else plus.sample.reward - minus.sample.reward
        weight = gap / 2 * (plus.sample.weight + minus.sample.weight) / 2 * (1.0 if plus.extra else trust)
        # A correction is imitated with all its weight, as ever; a reply of the model's own with little.
        besides = float(plus.advantage.mean()) if plus.extra else preset.pair_nll * trust
        name = f"{plus.sample.rating} {minus.sample.rating}"
        both = {
            better: _side(plus, Pair(name, True, weight, besides)),
            worse: _side(minus, Pair(name, False, weight, 0.0)),
        }
        pushed = pushes(list(both.values()), [one.old for one in both.values()], preset.pair_beta)
        for at, lesson in zip(both, pushed, strict=True):
            found[at] = lesson
    if corrected or picked:
        why = f"two replies to one prompt train against each other; {len(corrected)} with the rater's own words"
        progress.choice("pairs", len(corrected) + len(picked), why)
    return found


def pushes(lessons: Sequence[Lesson], now: Sequence[Floats], beta: float) -> list[Lesson]:
    """The lessons of whole pairs, where the policy gives `now` (T,) to each reply. Their advantages make −Σ_t A ℓ_θ/T
    the gradient of DPO."""
    sides: dict[str, float] = {}
    for lesson, theta in zip(lessons, now, strict=True):
        assert lesson.pair is not None
        moved = float((theta - lesson.ref).sum())
        sides[lesson.pair.name] = sides.get(lesson.pair.name, 0.0) + (moved if lesson.pair.chosen else -moved)
    return [replace(lesson, advantage=_advantage(lesson, beta, sides[lesson.pair.name])) for lesson in lessons]  # type: ignore[union-attr]


def _advantage(lesson: Lesson, beta: float, apart: float) -> Floats:
    pair = lesson.pair
    assert pair is not None
    unsure = 1 / (1 + math.exp(max(-CLIP, min(CLIP, beta * apart))))  # σ(−m)
    push = beta * unsure * pair.weight * len(lesson.old)
    return np.full(len(lesson.old), pair.besides + push if pair.chosen else -push)


def _side(lesson: Lesson, pair: Pair) -> Lesson:
    """Without what its rating alone would have meant for its tokens. What the filter masks stays masked."""
    return replace(lesson, pair=pair, keep=lesson.keep & np.isfinite(lesson.old), staying=None, credited=False)


def _free(lesson: Lesson, preset: Preset, outcomes: Mapping[str, Outcome]) -> bool:
    """Tell whether its rating is all that it teaches, and it may train."""
    noted = preset.objective in TAUGHT and comment_of(lesson.sample) is not None
    beside = lesson.extra or lesson.taught or noted or lesson.sample.replayed or not lesson.own
    return not beside and outcomes[lesson.sample.rating].cause is None


def _corrected(lessons: Sequence[Lesson], free: set[int]) -> list[tuple[int, int]]:
    """Corrections and what they correct, by their places."""
    rated = {lessons[at].sample.rating: at for at in sorted(free) if lessons[at].sample.reward < 0}
    corrections = [(at, one) for at, one in enumerate(lessons) if one.extra and one.teaching is None]
    return [(at, rated[one.sample.rating]) for at, one in corrections if one.sample.rating in rated]


def _picked(lessons: Sequence[Lesson], free: set[int]) -> list[tuple[int, int]]:
    """Pair, of all replies to one prompt, the best with the worst, the next best with the next worst, by their
    places."""
    of: dict[tuple[int, ...], list[int]] = {}
    for at in sorted(free):
        of.setdefault(lessons[at].tokens.prompt, []).append(at)
    found = []
    for places in of.values():
        ranked = sorted(places, key=lambda at: (-lessons[at].sample.reward, at))
        for better, worse in zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False):
            if lessons[better].sample.reward > lessons[worse].sample.reward:
                found.append((better, worse))
    return found
