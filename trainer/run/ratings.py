"""Two checks on a run's ratings before they train: they are not all the same, and how easily chance would fit as well.

Chance stops a run only where `max_chance` asks for it; else it only decides how far the run may move (reach). Owns both
checks, in the gate's form and with its bounds; they need no model. Not here: the statistics (permutation_test), the
replies themselves (reply_checks), the checks on a candidate (gate).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainer.lessons.chat_template import Template
from trainer.lessons.samples import Sample
from trainer.run import permutation_test
from trainer.run.gate import Bounds, Check
from trainer.run.permutation_test import RatedReply

FEW = 16  # ratings; with fewer, chance explains all but the plainest taste, and who starts runs so early wants them


def judge(samples: Sequence[Sample], template: Template, bounds: Bounds) -> dict[str, Check]:
    """The samples to train on that people rated or a judge labelled: a program's reward is measured elsewhere. How
    well a judge agrees with people says nothing about how much these few labels say. Comments and corrections teach
    whatever comes of this."""
    samples = [sample for sample in samples if sample.opinion]
    checks = {"contrast": contrast(samples)}
    if checks["contrast"].ok:
        checks["chance"] = chance(samples, template, bounds)
    return checks


def contrast(samples: Sequence[Sample]) -> Check:
    """Ratings that are all the same say nothing about what is better; trained on, they only push or pull everything."""
    rewards = [s.reward for s in samples]
    if not rewards:
        return Check(None, 0.0, True, "skipped: no ratings")
    spread = max(rewards) - min(rewards)
    return Check(round(spread, 6), 0.0, spread > 0, None if spread > 0 else f"all {len(rewards)} ratings are the same")


def chance(samples: Sequence[Sample], template: Template, bounds: Bounds) -> Check:
    """How often ratings drawn at random would go with the looks of these replies as closely as these do."""
    rewards = [s.reward for s in samples]
    bound = bounds.max_chance
    good, bad = sum(r > 0 for r in rewards), sum(r < 0 for r in rewards)
    if len(rewards) < FEW or bound < permutation_test.smallest_p(rewards):
        return Check(None, bound, True, f"skipped: {good} good and {bad} bad ratings are too few to tell from chance")
    rated = [
        RatedReply(template.text(s.tokens.reply), len(s.tokens.reply), s.tokens.reply[-1] == template.end, s.reward)
        for s in samples
    ]
    p = permutation_test.p_value(rated)
    return Check(round(p, 6), bound, p <= bound, f"{good} good and {bad} bad ratings")


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
