"""Two checks on a run's ratings before they train: they are not all the same, and how easily chance would fit as well.

Chance stops a run only where `max_chance` asks for it; else it only decides how far the run may move (reach). Owns both
checks, in the gate's form and with its bounds. Of the model they need what it sees of pictures. Not here: the
statistics (permutation_test), the replies themselves (reply_checks), the checks on a candidate (gate).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trainer.lessons.chat_template import Template
from trainer.lessons.line_members import newest_pictures
from trainer.lessons.samples import Sample
from trainer.run import permutation_test, reach
from trainer.run.gate import Bounds, Check
from trainer.run.permutation_test import Floats, RatedReply

PictureFeatures = Callable[[Sequence[str]], Floats]  # names of pictures -> (n, H), what a model sees of each

FEW = 16  # ratings; with fewer, chance explains all but the plainest taste, and who starts runs so early wants them


def judge(
    samples: Sequence[Sample], template: Template, bounds: Bounds, features: PictureFeatures | None = None
) -> dict[str, Check]:
    """The samples to train on that people rated or a judge labelled: a program's reward is measured elsewhere. How
    well a judge agrees with people says nothing about how much these few labels say. Comments and corrections teach
    whatever comes of this. `features`: of pictures, where the samples have some."""
    samples = [sample for sample in samples if sample.opinion]
    checks = {"contrast": contrast(samples)}
    if checks["contrast"].ok:
        checks["chance"] = chance(samples, template, bounds, features)
    return checks


def contrast(samples: Sequence[Sample]) -> Check:
    """Ratings that are all the same say nothing about what is better; trained on, they only push or pull everything."""
    rewards = [s.reward for s in samples]
    if not rewards:
        return Check(None, 0.0, True, "skipped: no ratings")
    spread = max(rewards) - min(rewards)
    return Check(round(spread, 6), 0.0, spread > 0, None if spread > 0 else f"all {len(rewards)} ratings are the same")


def chance(
    samples: Sequence[Sample], template: Template, bounds: Bounds, features: PictureFeatures | None = None
) -> Check:
    """How often ratings drawn at random would go with the looks of these replies as closely as these do. Each look is
    of a reply by itself, and beside the pictures that it answers."""
    rewards = [s.reward for s in samples]
    bound = bounds.max_chance
    good, bad = sum(r > 0 for r in rewards), sum(r < 0 for r in rewards)
    if len(rewards) < FEW or bound < permutation_test.smallest_p(rewards):
        return Check(None, bound, True, f"skipped: {good} good and {bad} bad ratings are too few to tell from chance")
    p = permutation_test.p_value(_rated_replies(samples, template, features))
    return Check(round(p, 6), bound, p <= bound, f"{good} good and {bad} bad ratings")


def go_by_pictures(samples: Sequence[Sample], template: Template, features: PictureFeatures) -> bool:
    """Tell whether what people like depends plainly on the picture that is answered."""
    samples = [sample for sample in samples if sample.opinion]
    if not any(newest_pictures(sample.messages) for sample in samples) or not contrast(samples).ok:
        return False
    return permutation_test.p_value_beside_pictures(_rated_replies(samples, template, features)) <= reach.PLAIN


def _rated_replies(samples: Sequence[Sample], template: Template, features: PictureFeatures | None) -> list[RatedReply]:
    return [
        RatedReply(
            template.text(s.tokens.reply), len(s.tokens.reply), s.tokens.reply[-1] == template.end, s.reward, picture
        )
        for s, picture in zip(samples, _pictures_of(samples, features), strict=True)
    ]


def _pictures_of(samples: Sequence[Sample], features: PictureFeatures | None) -> list[Floats | None]:
    """(H,) each: what a model sees of the pictures that a reply answers; None where it answers none."""
    names = [newest_pictures(sample.messages) for sample in samples]
    if features is None or not any(names):
        return [None] * len(samples)
    pictures = sorted({name for of_one in names for name in of_one})
    rows = dict(zip(pictures, features(pictures), strict=True))
    return [sum(rows[name] for name in of_one) / len(of_one) if of_one else None for of_one in names]


def problem(checks: Mapping[str, Check]) -> str | None:
    """In words, why these ratings may not train; None: they may."""
    if not checks["contrast"].ok:
        return f"{checks['contrast'].note}, so there is nothing to compare"
    check = checks["chance"]
    if check.ok:
        return None
    return (
        f"ratings drawn at random would fit these replies as well in {check.value:.1%} of all draws, and at most "
        f"{check.bound:.1%} are let through; more ratings would show a taste, if there is one"
    )
