"""The plan of a run: the preset's numbers, as the model, the samples, and the lessons change them.

Owns these decisions, each said with its reason. They are made once, in the order of this page: `start`, `for_model`,
`for_samples`, `for_ratings`, `for_lessons`. From there on the plan is frozen; only a second try halves some of it
(attempts). Not here: what a comment teaches (teacher), which ratings may not train (ratings), the names of the layers
(autoscale).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from config import presets
from config.presets import Preset
from trainer import objectives
from trainer.formats.model_info import Profile
from trainer.io.progress import Progress
from trainer.io.run_folder import RunError, RunSpec
from trainer.lessons import leaning, teacher, trajectories
from trainer.lessons.lesson import Lesson, goes_by_token
from trainer.lessons.lessons import Lessons
from trainer.lessons.samples import Sample
from trainer.policy import autoscale
from trainer.run import gate, ratings, reach
from trainer.run.context import RunModel
from trainer.run.gate import Bounds, Check
from trainer.run.reach import MoveBound

FEW = 8  # ratings of a version, below which it is not compared with the one before


class NothingToLearn(Exception):
    """No optimiser step is taken, and why."""


@dataclass(frozen=True, slots=True)
class Plan:
    preset: Preset
    bounds: Bounds  # of the gate
    evidence: float = 1.0  # how much the ratings say, 0 to 1 (reach)
    weak_reason: str | None = None  # why that is little
    less_teacher_reason: str | None = None  # why a teacher is asked for less
    leaning_budget: float = 0.0  # nats a token of base NLL that it may spend on leaning

    def with_preset(self, **changes: Any) -> Plan:
        return replace(self, preset=self.preset.model_copy(update=changes))

    @property
    def has_teacher(self) -> bool:
        return objectives.of(self.preset).has_teacher


# --- 1. the request ----------------------------------------------------------------------------------------------


def start(spec: RunSpec) -> Plan:
    """Raises RunError or SettingsError for what does not exist."""
    plan = Plan(presets.resolve(spec.preset, spec.overrides), Bounds.of(spec.gate))
    objectives.of(plan.preset)
    return plan


# --- 2. the model ------------------------------------------------------------------------------------------------


def for_model(plan: Plan, spec: RunSpec, profile: Profile, progress: Progress) -> Plan:
    """With the rates and sizes that this model asks for."""
    preset, choices = autoscale.fit(plan.preset, spec.preset, spec.overrides, profile)
    for name, choice in choices.items():
        progress.choice(name, *choice)
    return replace(plan, preset=preset)


def for_tinker(plan: Plan, progress: Progress) -> Plan:
    """With what can be done by log-probs of tokens alone: no distribution teaches, and none is held."""
    if plan.preset.objective not in ("mis-po", "mis-po-tokens"):
        raise RunError(
            f"train.overrides.objective is {plan.preset.objective!r}; at a Tinker server there is mis-po: leave it out."
        )
    reason = "a Tinker server tells log-probs of tokens, so comments and corrections teach nothing there"
    progress.choice("objective", "mis-po-tokens", reason)
    return plan.with_preset(objective="mis-po-tokens", credit=1.0)


# --- 3. the samples ----------------------------------------------------------------------------------------------


class RatingCount(NamedTuple):
    """How the replies of one version were rated by people. Those to prompts with lessons say nothing of the version."""

    good: int
    rated: int

    @property
    def share(self) -> float:
        return self.good / self.rated

    @classmethod
    def of(cls, samples: Sequence[Sample], version: int) -> RatingCount:
        candidates = (s for s in samples if s.version == version and not s.lessons)
        rated = [s.reward > 0 for s in candidates if s.human and s.reward]
        return cls(sum(rated), len(rated))


def for_samples(plan: Plan, samples: Sequence[Sample], spec: RunSpec, parent: Path | None, progress: Progress) -> Plan:
    """With the objective and the teacher's weight that these samples ask for."""
    budget = leaning.budget(gate.spent_sense(parent, plan.bounds), plan.bounds.base_nll_rise)
    plan = replace(plan, leaning_budget=budget)
    training = [s for s in samples if not s.is_held_back]
    if trajectories.are_episodes(training):
        return _for_episodes(plan, training, progress)
    plan = _for_comments(plan, training, progress)
    previous = gate.ratings_before_teaching(parent)
    if previous is None:
        return plan
    return weaken_teacher(plan, RatingCount.of(samples, spec.parent), RatingCount(*previous), progress)


def _for_episodes(plan: Plan, training: Sequence[Sample], progress: Progress) -> Plan:
    """With the rate for episodes: rewards of a program, compared within groups, and its words as a teacher."""
    plan = _for_comments(plan, training, progress)
    if plan.has_teacher and not sum(teacher.count(training)):
        plan = plan.with_preset(objective=objectives.RATINGS_ALONE)
    rate = plan.preset.learning_rate * plan.preset.rate_episodes
    progress.choice("learning_rate", float(f"{rate:.3g}"), "rate_episodes times the preset's: a program's rewards")
    return plan.with_preset(learning_rate=rate)


def _for_comments(plan: Plan, training: Sequence[Sample], progress: Progress) -> Plan:
    """With the objective that this run's comments and corrections ask for."""
    counts = teacher.count(training)
    if not sum(counts):
        return plan
    reason = " and ".join(
        f"{count} of {len(training)} samples have {words}"
        for count, words in zip(counts, ("comments", "corrections", "lessons that were followed"), strict=True)
        if count
    )
    objective = objectives.of(plan.preset)
    if objective.with_teacher and plan.preset.w_distill > 0:
        progress.choice("objective", objective.with_teacher, reason)
        return plan.with_preset(objective=objective.with_teacher)
    if not objective.has_teacher:
        cause = "w_distill is 0" if objective.with_teacher else f"objective {objective.name} does not listen"
        progress.warning(f"{reason}, and they teach nothing: {cause}.")
    return plan


def weaken_teacher(plan: Plan, current: RatingCount, previous: RatingCount, progress: Progress) -> Plan:
    """With less of a teacher where the version that had one already is liked no more than before.

    A comment that is read again runs away. Its teacher is the version itself with the comment before it, as far off as
    the first one was (docs/lab/training-log.md, the fourteenth look).
    """
    if not plan.has_teacher or not is_no_better(current, previous):
        return plan
    rate, steps = plan.preset.rate_taught / 2, math.ceil(plan.preset.steps_taught / 2)
    reason = (
        f"{current.good} of {current.rated} answers are liked after comments taught, {previous.good} of "
        f"{previous.rated} before"
    )
    progress.choice("rate_taught", rate, reason)
    progress.choice("steps_taught", steps, reason)
    return replace(plan.with_preset(rate_taught=rate, steps_taught=steps), less_teacher_reason=reason)


def is_no_better(current: RatingCount, previous: RatingCount) -> bool:
    """Tell if a version is liked no more than the one before it, as far as these ratings can tell. That is by less than
    one standard error. False where there are too few to say."""
    if min(current.rated, previous.rated) < FEW:
        return False
    error = math.sqrt(sum(version.share * (1 - version.share) / version.rated for version in (current, previous)))
    return current.share - previous.share <= error


# --- 4. what the ratings say -------------------------------------------------------------------------------------


def for_ratings(plan: Plan, samples: Sequence[Sample], checks: Mapping[str, Check], progress: Progress) -> Plan:
    """With as much weight as the ratings have evidence. Raises NothingToLearn where nothing is left to learn from."""
    training = [s for s in samples if not s.is_held_back]
    if problem := ratings.problem(checks):
        if not plan.has_teacher or not sum(teacher.count(training)):
            raise NothingToLearn(f"These ratings do not train: {problem}.")
        progress.warning(f"only comments and corrections train in this run: {problem}.")
        return plan.with_preset(w_rl=0.0)
    evidence = reach.evidence(checks)
    if sum(s.opinion for s in training) * 2 < len(training):
        evidence = 1.0  # mostly a program's rewards, which that test says nothing about
    if evidence == 1:
        return plan
    plan = replace(plan, evidence=evidence, weak_reason=reach.describe(checks["chance"]))
    if not objectives.of(plan.preset).weighs_ratings:
        return plan  # how far they may move is bounded instead
    weight = plan.preset.w_rl * evidence
    reason = f"beside a teacher the ratings weigh less: {plan.weak_reason}"
    progress.choice("w_rl", float(f"{weight:.2g}"), reason)
    return plan.with_preset(w_rl=weight)


def for_pictures(plan: Plan, progress: Progress) -> Plan:
    """With all tokens of a reply pushed alike, where what is liked depends on the picture that is answered."""
    if plan.preset.credit == 1 or plan.weak_reason is not None:
        return plan
    reason = (
        "what is liked depends on the picture that is answered, so no one direction points to it: all tokens of a "
        "reply are pushed alike"
    )
    progress.choice("credit", 1.0, reason)
    return plan.with_preset(credit=1.0)


# --- 5. the lessons ----------------------------------------------------------------------------------------------


def for_lessons(
    plan: Plan, lessons: Lessons, teaching: Sequence[Lesson], tuned_rate: float | None, progress: Progress
) -> Plan:
    """With the rate for these lessons, and how far they may move the policy. `tuned_rate`: a sweep has found it."""
    if tuned_rate is not None:
        plan = plan.with_preset(learning_rate=tuned_rate)
    if not trajectories.are_episodes([lesson.sample for lesson in lessons.train]):
        plan = fit_rate(plan, teaching, progress)
    if plan.weak_reason is None:
        return plan
    if lessons.critic.trusted or lessons.is_leaning or goes_by_token(teaching):
        return replace(plan, evidence=1.0, weak_reason=None)  # a critic sees what that test does not
    if objectives.of(plan.preset).is_foreign and not any(lesson.taught for lesson in teaching):
        rate = plan.preset.learning_rate * reach.rate_share(plan.preset, plan.evidence)
        progress.choice("learning_rate", float(f"{rate:.3g}"), f"a smaller step: {plan.weak_reason}")
        return plan.with_preset(learning_rate=rate)
    if not any(lesson.taught for lesson in teaching):
        moves = reach.free_nats(plan.preset, plan.evidence, credited=False)
        reason = f"a smaller step, or one that costs no sense: {plan.weak_reason}"
        progress.choice("reach", moves and float(f"{moves:.2g}"), reason)
    return plan


def careful_rate(plan: Plan, progress: Progress) -> Plan:
    """For a policy that cannot go back on its way: with steps as small as that way would have been short."""
    rate = plan.preset.learning_rate * reach.rate_share(plan.preset, plan.evidence)
    if rate == plan.preset.learning_rate:
        return plan
    progress.choice("learning_rate", float(f"{rate:.3g}"), f"a smaller step: {plan.weak_reason}")
    return plan.with_preset(learning_rate=rate)


def fit_rate(plan: Plan, lessons: Sequence[Lesson], progress: Progress) -> Plan:
    """With the rate that this mixture of ratings and teachers bears. A teacher says more a token, and so does a rating
    that went by token. Where those are mostly likes, less is left to change: what is liked is what it says already."""
    preset = plan.preset
    rated = [lesson for lesson in lessons if lesson.is_own and not lesson.is_imitated]
    disliked = sum((lesson.sample.reward if lesson.has_teacher else lesson.direction) < 0 for lesson in rated)
    dislike_share = min(1.0, 2 * disliked / len(rated)) if rated else 1.0
    caveat = f", and only {disliked} of {len(rated)} rated ones are disliked" if dislike_share < 1 else ""
    taught = sum(lesson.has_teacher for lesson in lessons)
    credited = sum(lesson.credited and not lesson.has_teacher for lesson in lessons)
    unchanged = sum(not (lesson.credited or lesson.has_teacher) for lesson in rated)
    shares = (
        (taught, "have a teacher", preset.rate_taught),
        (credited, f"go by token{caveat}", preset.rate_credited * dislike_share),
        (unchanged, f"push all their tokens alike{caveat}", dislike_share),
    )
    reduction = sum((1 - share) * count for count, _, share in shares)
    if not reduction:
        return plan
    rate = preset.learning_rate * (1 - reduction / len(lessons))
    reasons = [
        f"{count} of {len(lessons)} samples {words}; it would be {share:.2g} of it if all did"
        for count, words, share in shares
        if count and share < 1
    ]
    progress.choice("learning_rate", float(f"{rate:.3g}"), ", ".join(reasons))
    return plan.with_preset(learning_rate=rate)


def move_bound(plan: Plan, preset: Preset, teaching: Sequence[Lesson], model: RunModel) -> MoveBound | None:
    """How far a try with this preset may move the policy, which wears what it starts from; None: as far as its steps
    go."""
    if any(lesson.is_leaning for lesson in teaching):
        return MoveBound(0.0, plan.leaning_budget, model.parent_answers.questions)
    if any(lesson.taught for lesson in teaching):
        return None
    credited = goes_by_token(teaching)
    if not model.policy.interpolates:
        return None  # it cannot go back, so it takes smaller steps (careful_rate)
    replies = model.parent_answers.questions if plan.evidence < 1 and not credited else ()
    most = plan.bounds.base_nll_rise
    return reach.move_bound(preset, plan.evidence, credited=credited, most=most, replies=replies)
