"""How much of a run one rater may be: pure numbers.

Owns the bound of `train.max_rater_share`, and what a rating counts for in it. That is its part in the training, so
neither a heavy weight nor words are a way past the bound. The owner is not bounded, nor is whoever is the only one to
rate: for one person alone there is no bound at all. Not here: which ratings a run could take (samples).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

OWNER: Final = "owner"  # the rater where nobody says who speaks: one person, one machine
JUDGE: Final = "judge:"  # how raters begin that are no people: `judge:MODEL`
FEW: Final = 4  # full voices of others below which somebody counts as alone: a trial does not stop a run
RECENT_S: Final = 30 * 86400.0  # in which those were given
LEAST_WEIGHT: Final = 0.01  # of a rating: less is next to nothing, and sums and quotients of it vanish
MOST_WEIGHT: Final = 10.0
LEAST_VOICE: Final = 1e-6  # with that of its rater: far above what sums of the heaviest are rounded by
FULL_VOICE: Final = 1.0  # several raters together weigh no more than this, or than the heaviest of them
ROUNDED: Final = 1 + 1e-9  # what sums of fractions may be off by


class QuotaCandidate(NamedTuple):
    """A rating that a run could take."""

    id: str
    completion_id: str
    value: float
    rater: str = OWNER
    weight: float = 1.0  # its `voice`
    teaches: bool = False  # by its words, which train in full, however light it is
    human: bool = True  # False: a program's or a judge's, which is never held back for the gate
    prompt: bytes = b""  # the name of its completion's prompt, where it is known


def voice(weight: float, of_rater: float) -> float:
    """A rating's weight times its rater's, bounded: what is stored may be from an rlproxy that took any number."""
    return max(min(max(weight, LEAST_WEIGHT), MOST_WEIGHT) * of_rater, LEAST_VOICE)


def shared_weight(weights: Sequence[float]) -> float:
    """Voices add up to one full voice and no further; a single heavier one keeps its weight."""
    return min(sum(weights), max(FULL_VOICE, *weights))


def within(
    ratings: Sequence[QuotaCandidate], share: float, voices_of_raters: Mapping[str, float]
) -> list[QuotaCandidate]:
    """These without what a rater has above the bound, the last ones in this order.

    `voices_of_raters` is how much each has said lately, in full voices. It is measured as the share is, or a few light
    ratings would bound somebody who is alone. Whoever floods a run in which nobody else has anything new is not alone
    for that. As the bound is half of a run or more, one rater at most is above it, and is the only one to lose any.
    That rater may then be above it by less than a rating that was left out, and no more is left out. Else two raters
    with weights that do not add up would take turns until nothing is left.
    """
    everybody = sum(voices_of_raters.values())
    bounded = {r.rater for r in ratings if r.rater != OWNER and everybody - voices_of_raters.get(r.rater, 0) >= FEW}
    of_one: dict[str, dict[str, QuotaCandidate]] = {}
    for rating in ratings:
        of_one.setdefault(rating.completion_id, {})[rating.rater] = rating
    now: Counter[str] = Counter()
    for voices in of_one.values():
        now.update(parts(voices))

    def is_above(rater: str) -> bool:
        return now[rater] > share * now.total() * ROUNDED

    excess_rater = next((rater for rater in sorted(bounded) if is_above(rater)), None)
    retained = []
    for rating in reversed(ratings):
        if excess_rater is None or rating.rater != excess_rater or not is_above(excess_rater):
            retained.append(rating)
            continue
        voices = of_one[rating.completion_id]
        now.subtract(parts(voices))
        del voices[excess_rater]
        now.update(parts(voices))  # what the others said of it weighs more now
    return retained[::-1]


def within_judges(ratings: Sequence[QuotaCandidate], share: float) -> list[QuotaCandidate]:
    """These without what judges have above their share of all, by what each counts for; the last ones in this order go.
    No person is left out for it. Where no person has rated anything, judges outvote nobody, and all of them stay."""
    if share >= 1 or all(is_judge(rating.rater) for rating in ratings):
        return list(ratings)
    counts = {rating.id: max(rating.weight, FULL_VOICE if rating.teaches else 0.0) for rating in ratings}
    room = sum(counts[rating.id] for rating in ratings if not is_judge(rating.rater)) * share / (1 - share) * ROUNDED
    retained = []
    for rating in ratings:
        if is_judge(rating.rater):
            room -= counts[rating.id]
            if room < 0:
                continue
        retained.append(rating)
    return retained


def of_judges(ratings: Sequence[QuotaCandidate]) -> list[QuotaCandidate]:
    """A run of what judges have rated alone, while people's ratings wait for more of theirs."""
    return [rating for rating in ratings if is_judge(rating.rater)]


def is_judge(rater: str) -> bool:
    return rater.startswith(JUDGE)


def parts(voices: Mapping[str, QuotaCandidate]) -> dict[str, float]:
    """Each rater's part of one completion in training: a share of its weight, or a full voice by their words."""
    if not voices:
        return {}
    weights = [voice.weight for voice in voices.values()]
    each = shared_weight(weights) / sum(weights)
    return {r: max(voice.weight * each, FULL_VOICE if voice.teaches else 0.0) for r, voice in voices.items()}
