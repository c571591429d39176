"""From samples to lessons in four stages: select, score, push, judge. Read `prepare` first.

Owns the order of things, and which samples may train at all. Each stage takes what the one before it has made and
changes nothing of it. Not here: the log-probs themselves (scoring), which way a token is pushed (advantages), how wide
the filter is (acceptance). Nor the mathematics (mis_po, losses) and the optimiser (steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from config.presets import Preset
from trainer import objectives
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons import (
    acceptance,
    advantages,
    anchor,
    critic,
    leaning,
    pairs,
    reply_checks,
    teacher,
    trajectories,
)
from trainer.lessons.acceptance import LateReply, Outcome, ReplyRefusal
from trainer.lessons.chat_template import Template
from trainer.lessons.critic import CriticReading
from trainer.lessons.degenerate import Flag
from trainer.lessons.lesson import HeldBackReply, Lesson, PushedSample, ReadSample, ScoredSample
from trainer.lessons.samples import Sample, UnusableSample
from trainer.lessons.scoring import Scorer
from trainer.lessons.teacher import Imitation, TeacherTargets
from trainer.mis_po import Band
from trainer.objectives import Objective
from trainer.policy.packing import Tokens
from trainer.policy.policy import LogProbs, TokenDistribution

CALIBRATION_ENOUGH = 1000  # tokens; more only cost time: σ is then known to 2 %
# Liked and disliked held-back samples that the gate looks at, newest first: each costs two passes. Where many train
# more are held back, and the gate looks at as many as an eighth of what trains: it stays a small part of the run.
HELD_BACK_EACH = 8
Part = Sequence[Sample | Imitation]  # of what is scored in one pass


@dataclass(frozen=True, slots=True)
class LessonContext:
    """Everything that the stages share. The policy wears what it starts from."""

    preset: Preset
    template: Template
    scorer: Scorer
    progress: Progress
    leaning_budget: float = 0.0  # nats a token of sense that leaning may cost; 0: it does not lean

    @property
    def spec(self) -> RunSpec:
        return self.scorer.spec

    @property
    def objective(self) -> Objective:
        return objectives.of(self.preset)


@dataclass(frozen=True, slots=True)
class Lessons:
    train: list[Lesson]  # in the order of samples.jsonl
    held_back: list[HeldBackReply]
    outcomes: dict[str, Outcome]
    metrics: dict[str, float]
    critic: CriticReading
    is_leaning: bool  # the ratings teach by leaning


def prepare(
    context: LessonContext, samples: Sequence[Sample], unusable: Sequence[UnusableSample], calibration: Sequence[Sample]
) -> Lessons:
    """Turn samples into lessons: everything about them that has no θ in it."""
    for line in unusable:
        context.progress.warning(f"{line.rating} cannot be used: {line.reason}.")
    selection = select(context, samples, calibration)
    scores = score(context, selection)
    pushes = push(context, scores)
    judgement = judge(context, scores, pushes)
    outcomes = {line.rating: Outcome(False, line.cause, 0, 0, False, line.reason) for line in unusable}
    outcomes |= {refusal.sample.rating: refusal.outcome for refusal in (*selection.refused, *scores.refused)}
    return Lessons(
        train=judgement.train,
        held_back=scores.held_back,
        outcomes=outcomes | judgement.outcomes,
        metrics=scores.noise | pushes.counts | judgement.metrics,
        critic=scores.critic,
        is_leaning=any(sample.is_leaning for sample in pushes.samples),
    )


# --- 1. select: which samples train, and which are held back -----------------------------------------------------


class Selection(NamedTuple):
    train: list[Sample]
    held_back: list[Sample]
    calibration: list[Sample]  # as many as are enough
    unrated: Sequence[Sample]  # all of calibration.jsonl
    refused: list[ReplyRefusal]


def select(context: LessonContext, samples: Sequence[Sample], calibration: Sequence[Sample]) -> Selection:
    train, refused = [], []
    for sample in samples:
        if sample.is_held_back:
            continue
        if (refusal := _refusal(context, sample)) is None:
            train.append(sample)
        else:
            refused.append(refusal)
    return Selection(train, _held_back(samples), _up_to(calibration, CALIBRATION_ENOUGH), calibration, refused)


def _refusal(context: LessonContext, sample: Sample) -> ReplyRefusal | None:
    spec = context.spec
    age = spec.parent - sample.version
    if context.objective.is_foreign:
        return None  # no version of ours said it, and nothing has to be recomputed
    if age > context.preset.max_version_gap:
        return ReplyRefusal(sample, "version-gap", f"{age} versions old")
    if not sample.exact and sample.version and sample.version not in spec.adapters:
        reason = f"not exact, and run.json does not name the adapter of version {sample.version}"
        return ReplyRefusal(sample, "unusable", reason)
    if not sample.exact and sample.version not in (0, spec.parent) and not spec.adapters[sample.version].is_dir():
        return ReplyRefusal(sample, "unusable", f"not exact, and the folder of version {sample.version} is gone")
    if sample.truncated and not (sample.human or sample.followed or sample.episode):
        return ReplyRefusal(sample, "truncated", "cut short, and no person rated it or went on from it")
    return None


def _held_back(samples: Sequence[Sample]) -> list[Sample]:
    held_back = [s for s in samples if s.is_held_back]
    count = max(HELD_BACK_EACH, (len(samples) - len(held_back)) // 8)
    return [s for s in held_back if s.reward > 0][:count] + [s for s in held_back if s.reward < 0][:count]


def _up_to(samples: Sequence[Sample], tokens: int) -> list[Sample]:
    chosen: list[Sample] = []
    for sample in samples:
        if sum(len(s.tokens.reply) for s in chosen) >= tokens:
            break
        chosen.append(sample)
    return chosen


# --- 2. score: what every policy that matters makes of them ------------------------------------------------------


class ScoredImitation(NamedTuple):
    reply: Imitation
    old: LogProbs
    ref: LogProbs


class Scores(NamedTuple):
    samples: list[ScoredSample]
    imitations: list[ScoredImitation]
    held_back: list[HeldBackReply]
    targets: TeacherTargets
    band: Band
    noise: dict[str, float]  # of serving, as metrics
    critic: CriticReading
    refused: list[ReplyRefusal]


def score(context: LessonContext, selection: Selection) -> Scores:
    scorer, is_foreign = context.scorer, context.objective.is_foreign
    targets = TeacherTargets()
    if context.objective.has_teacher:
        targets = teacher.make_targets(context.preset, context.template, selection.train, scorer, context.progress)
    # ℓ_old of everything in one go.
    parts: list[Part] = [selection.train, targets.imitations, selection.held_back, selection.calibration]
    remembered = [s.tokens for s in selection.train]
    old, old_imitations, old_held_back, old_calibration = _by_part(
        parts, scorer.score_old(_tokens(parts), remember=remembered)
    )
    samples = [ReadSample(sample, scored) for sample, scored in zip(selection.train, old, strict=True)]
    refused = [] if is_foreign else _odd_replies(context, samples)
    odd = {refusal.sample.rating for refusal in refused}
    samples = [s for s in samples if s.sample.rating not in odd]
    scored_samples, imitations = _with_references(context, samples, targets.imitations, old_imitations)
    judged = [] if is_foreign else [s.sample for s in samples]
    reading = critic.read_run(scorer, judged, selection.unrated, context.progress)
    calibration = [ReadSample(*row) for row in zip(selection.calibration, old_calibration, strict=True)]
    band, noise = acceptance.choose_band(context.preset, context.spec, scored_samples, calibration, context.progress)
    return Scores(
        scored_samples,
        imitations,
        # Only compared under two policies: they need no filter, and no ℓ_β.
        [HeldBackReply(s, scored.plain) for s, scored in zip(selection.held_back, old_held_back, strict=True)],
        targets,
        band,
        noise,
        reading,
        refused,
    )


def _with_references(
    context: LessonContext,
    samples: Sequence[ReadSample],
    imitations: Sequence[Imitation],
    old_imitations: Sequence[LogProbs],
) -> tuple[list[ScoredSample], list[ScoredImitation]]:
    """The samples with ℓ_ref and ℓ_β, and what is imitated with ℓ_ref, all read with ℓ_old before."""
    scorer = context.scorer
    # A new adapter changes nothing yet, so for a first version ℓ_ref is ℓ_old.
    ref, ref_imitations = [s.old for s in samples], list(old_imitations)
    if context.spec.parent:
        parts: list[Part] = [[s.sample for s in samples], imitations]
        ref, ref_imitations = _by_part(parts, scorer.score_reference(_tokens(parts)))
    # A reply that none of our versions wrote has no ratio.
    is_foreign = context.objective.is_foreign
    behaviour = [s.old.plain for s in samples] if is_foreign else scorer.score_behaviour(samples, ref)
    rows = zip(samples, ref, behaviour, strict=True)
    return (
        [ScoredSample(read.sample, read.old, base, served) for read, base, served in rows],
        [ScoredImitation(*row) for row in zip(imitations, old_imitations, ref_imitations, strict=True)],
    )


def _tokens(parts: Sequence[Part]) -> list[Tokens]:
    return [item.tokens for part in parts for item in part]


def _by_part(parts: Sequence[Part], scored: Sequence[LogProbs]) -> list[list[LogProbs]]:
    """Split what was scored in one pass by part."""
    remaining = iter(scored)
    return [[next(remaining) for _ in part] for part in parts]


def _odd_replies(context: LessonContext, samples: Sequence[ReadSample]) -> list[ReplyRefusal]:
    """Replies that this model does not say. A program's reward is of what was said, whatever that is."""
    if trajectories.are_episodes([s.sample for s in samples]):
        return []
    hot = [s.sample for s in samples if s.sample.tokens.temperature > 1 and s.sample.reward > 0]
    calm = {s.sample.rating: s.old for s in samples}
    scored = context.scorer.score_old([Tokens(s.tokens.prompt, s.tokens.reply) for s in hot])
    calm |= {s.rating: log_probs for s, log_probs in zip(hot, scored, strict=True)}
    odds = context.scorer.served_odds(samples)
    reasons = reply_checks.odd_replies(samples, calm, context.spec.parent, odds)
    if reasons:
        _, example = next(iter(reasons.values()))
        context.progress.warning(
            f"{len(reasons)} of {len(samples)} replies do not train; the first one's reason: {example}."
        )
    return [ReplyRefusal(s.sample, *reasons[s.sample.rating]) for s in samples if s.sample.rating in reasons]


# --- 3. push: how much each of their tokens, and which way -------------------------------------------------------


class Pushes(NamedTuple):
    samples: list[PushedSample]
    counts: dict[str, float]  # of episodes and their groups, as metrics


def push(context: LessonContext, scores: Scores) -> Pushes:
    preset, scorer, progress = context.preset, context.scorer, context.progress
    samples = [s.sample for s in scores.samples]
    targets, flawed, counts = scores.targets, dict[str, Flag](), dict[str, float]()
    leaning_targets: Mapping[str, TokenDistribution] = {}
    if trajectories.are_episodes(samples):
        pushed, counts = advantages.episode_advantages(preset, scores.samples, targets, scorer, progress)
    else:
        by_rating, flawed = advantages.rating_advantages(context.spec, preset, samples)
        leaning_targets = _leaning_targets(context, scores, by_rating)
        values = dict.fromkeys(by_rating, 0.0) if leaning_targets else advantages.balanced(preset, by_rating)
        reading = scores.critic
        targets = advantages.without_separable_hints(
            values, preset, scores.samples, targets, scorer, progress, reading=reading
        )
        pushed = advantages.token_advantages(values, preset, scores.samples, targets, scorer, progress, reading=reading)
    anchors = anchor.make_anchors(preset, samples, pushed, scorer)
    taught = targets.distributions if preset.match == "distribution" else {}
    teachers = {**taught, **leaning_targets}
    return Pushes(
        [
            PushedSample(
                s.sample,
                s.old,
                s.ref,
                s.behaviour,
                advantage=pushed.values[s.sample.rating],
                credited=s.sample.rating in pushed.credited,
                teacher=teachers.get(s.sample.rating),
                is_leaning=s.sample.rating in leaning_targets,
                anchor=anchors.get(s.sample.rating),
                spread=spread,
                flaw=flawed.get(s.sample.rating),
            )
            for s, spread in zip(scores.samples, trajectories.spreads(samples), strict=True)
        ],
        counts,
    )


def _leaning_targets(
    context: LessonContext, scores: Scores, values: Mapping[str, float]
) -> Mapping[str, TokenDistribution]:
    """Teach by leaning where the ratings ask for it.

    Replies that the parent finds less likely than their server did have no say: another model may have given them.
    """
    if context.leaning_budget <= 0:
        return {}
    own = {
        s.sample.rating
        for s in scores.samples
        if s.sample.version != context.spec.parent or acceptance.verdict(context.preset, scores.band, s).reply
    }
    own_values = {rating: value if rating in own else 0.0 for rating, value in values.items()}
    samples = [s.sample for s in scores.samples]
    earlier_labels = scores.critic.relevant
    words = advantages.credit_words(own_values, context.preset, scores.samples, context.scorer)
    # A liked word stands in few places, which alone would be pushed. Leaning teaches it everywhere.
    explained_by_words = words.explained if words.is_disliked else 0.0
    return leaning.leaning_targets(
        context.preset, samples, own_values, context.scorer, context.progress, earlier_labels, explained_by_words
    )


# --- 4. judge: what the filter lets through -----------------------------------------------------------------------


class Judgement(NamedTuple):
    train: list[Lesson]
    outcomes: dict[str, Outcome]
    metrics: dict[str, float]


def judge(context: LessonContext, scores: Scores, pushes: Pushes) -> Judgement:
    late = acceptance.late_replies(context.spec, context.preset, pushes.samples, context.progress)
    rows = [_lesson(context, scores.band, s, late.get(s.sample.rating)) for s in pushes.samples]
    outcomes = {lesson.sample.rating: outcome for lesson, outcome in rows}
    train = [lesson for lesson, _ in rows] + [_imitation_lesson(*row) for row in scores.imitations]
    samples = [s.sample for s in pushes.samples]
    if not trajectories.are_episodes(samples):
        train = pairs.make_pairs(context.preset, train, outcomes, context.progress)
    outcomes |= {
        lesson.sample.rating: _with_push(outcomes[lesson.sample.rating], lesson)
        for lesson in train
        if not lesson.is_imitated
    }
    sound = [s.sample for s in pushes.samples if s.flaw is None]
    is_foreign = context.objective.is_foreign
    metrics = acceptance.shares(sound, context.spec, outcomes, context.progress, is_foreign=is_foreign)
    _warn(context, samples, len(samples) - len(sound))
    if context.objective.has_teacher:
        metrics["taught"] = float(sum(lesson.teacher is not None for lesson in train))
        metrics["corrections"] = float(sum(row.reply.teacher is None for row in scores.imitations))
    return Judgement(train, outcomes, metrics)


def _lesson(
    context: LessonContext, band: Band, pushed: PushedSample, late_reply: LateReply | None
) -> tuple[Lesson, Outcome]:
    sample, objective = pushed.sample, context.objective
    verdict = acceptance.verdict(context.preset, band, pushed, late_reply)
    chosen = sample.chosen
    lesson = Lesson(
        sample,
        sample.tokens,
        pushed.old.plain,
        pushed.ref.plain,
        np.where(chosen, pushed.behaviour, pushed.old.plain),
        keep=(verdict.keep if objective.is_filtered else np.isfinite(pushed.behaviour)) & chosen,
        advantage=pushed.advantage if late_reply is None else pushed.advantage * late_reply.weight,
        is_own=not objective.is_foreign,
        teacher=pushed.teacher,
        is_leaning=pushed.is_leaning,
        anchor=pushed.anchor,
        credited=pushed.credited,
        spread=pushed.spread,
        forced=sample.forced,
    )
    cause: str | None = pushed.flaw
    if cause is None and objective.is_filtered:
        cause = verdict.cause(stale=sample.version != context.spec.parent)
    return lesson, Outcome(
        used=False,  # until an optimiser step has used it
        cause=cause,
        tokens=int(chosen.sum()),
        accepted=0 if pushed.flaw else int(lesson.keep.sum()),
        exact=sample.exact,
        flags=list(sample.flags),
        loss=lesson.loss,
    )


def _with_push(outcome: Outcome, lesson: Lesson) -> Outcome:
    """With what is pushed where the run begins; nothing of a reply that does not train."""
    if not outcome.accepted:
        return outcome
    return replace(outcome, taught_by=lesson.kind, **lesson.push._asdict())


def _imitation_lesson(reply: Imitation, old: LogProbs, ref: LogProbs) -> Lesson:
    """A reply to imitate. ℓ_β is recomputed, so x is 1 and the filter passes by construction."""
    count = len(old.plain)
    return Lesson(
        reply.sample,
        reply.tokens,
        old.plain,
        ref.plain,
        old.plain,
        keep=np.ones(count, bool),
        advantage=np.full(count, reply.advantage),
        is_own=False,
        is_imitated=True,
        teacher=reply.teacher,
    )


def _warn(context: LessonContext, samples: Sequence[Sample], flawed: int) -> None:
    if flawed:
        context.progress.warning(
            f"{flawed} of {len(samples)} replies were liked though they are empty or loop: they are not imitated."
        )
    shortened = sum("shortened" in s.flags for s in samples)
    if shortened:
        context.progress.warning(
            f"{shortened} of {len(samples)} samples are longer than max_seq_len = {context.preset.max_seq_len}: they "
            "train without their oldest turns."
        )
