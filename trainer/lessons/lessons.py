"""The lesson of each sample: its log-probs under the policies that matter, the filter's verdict, its advantage.

Owns the step from samples to lessons. Not here: the log-probs themselves (scoring), how wide the filter is and what
passed it (acceptance), and which way a token is pushed (advantages). Nor the mathematics (objective) and the optimiser
(steps).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from config.presets import Preset
from trainer import objective
from trainer.formats import sidecar_files
from trainer.io.cache import Cache
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import RunSpec
from trainer.lessons import (
    acceptance,
    advantages,
    anchor,
    critic,
    hindsight,
    late,
    leaning,
    pairs,
    reply_checks,
    teacher,
    trajectories,
)
from trainer.lessons.acceptance import Outcome
from trainer.lessons.anchor import Anchor
from trainer.lessons.degenerate import Flag
from trainer.lessons.late import LateReply
from trainer.lessons.pairs import Pair
from trainer.lessons.samples import Sample, Template, Unusable
from trainer.lessons.scoring import Scorer
from trainer.lessons.teacher import Imitation, TeacherTargets
from trainer.objective import OFF, Band, Bools, Floats, Verdict
from trainer.objective_kin import TAUGHT, UNFILTERED
from trainer.policy.packing import Tokens
from trainer.policy.policy import LogProbs, Policy, TokenDistribution

CALIBRATION_ENOUGH = 1000  # more only cost time: σ is then known to 2 %
# Liked and disliked held-back samples that the gate looks at, newest first: each costs two passes. Where many train
# more are held back, and the gate looks at as many as an eighth of what trains: it stays a small part of the run.
HELD_BACK_EACH = 8


@dataclass(frozen=True, slots=True)
class Lesson:
    sample: Sample
    tokens: Tokens  # the rated reply, or one to imitate
    old: Floats  # (T,) ℓ_old at the serving temperature
    ref: Floats  # (T,) ℓ_ref
    behaviour: Floats  # (T,) ℓ_β
    keep: Bools  # (T,) what the filter lets through
    advantage: Floats  # (T,)
    is_own: bool = True  # a version of this model said it
    is_imitated: bool = False  # a correction, or a reply that the teacher wrote
    teacher: TokenDistribution | None = None
    is_leaning: bool = False  # the teacher is the policy itself, leaning towards what was liked
    anchor: Anchor | None = None  # instead: what the policy expected, where no token earned anything
    credited: bool = False  # its rating went by token
    spread: int | None = None  # reply tokens that its share of the loss is spread over; None: its own
    pair: Pair | None = None  # it trains against another reply to its prompt, not by its rating

    @property
    def taught(self) -> bool:
        """By a comment or a correction, not by a rating."""
        return self.has_teacher and not self.is_leaning

    @property
    def has_teacher(self) -> bool:
        return self.is_imitated or self.teacher is not None

    @property
    def direction(self) -> float:
        """Above 0 where it is a reply to say more often."""
        if self.credited and self.pair is None:  # beside what a judge finds bad, what it does not is one to say
            return 1.0 if self.sample.labelled and not self.sample.reward else self.sample.reward
        return self.sample.reward if self.is_leaning else float(self.advantage.mean())

    @property
    def teaches(self) -> bool:
        return (
            self.teacher is not None
            or self.pair is not None
            or bool((self.keep & (self.credited | (self.advantage != 0))).any())
        )


@dataclass(frozen=True, slots=True)
class HeldBack:
    sample: Sample
    old: Floats  # (T,)


@dataclass
class Lessons:
    train: list[Lesson] = field(default_factory=list)  # in the order of samples.jsonl
    held_back: list[HeldBack] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    labels: sidecar_files.Arrays = field(default_factory=dict)  # of this run and earlier ones, for the next critic
    critic: critic.Critic = critic.UNTRUSTED
    is_leaning: bool = False  # the ratings teach by leaning
    guesses: dict[str, float] = field(default_factory=dict)  # of unrated answers, by a trusted critic


def prepare(
    spec: RunSpec,
    preset: Preset,
    policy: Policy,
    template: Template,
    samples: Sequence[Sample],
    unusable: Sequence[Unusable],
    calibration: Sequence[Sample],
    *,
    leaning_budget: float = 0.0,
    cache: Cache,
    progress: Progress,
    stop: Stop,
) -> Lessons:
    """The samples' lessons for a policy that wears what it starts from. `leaning_budget`: nats a token of sense that
    leaning may cost; 0: it does not lean."""
    lessons, is_foreign = Lessons(), preset.objective == "kto"  # another model gave the replies
    for line in unusable:
        lessons.outcomes[line.rating] = Outcome(False, line.cause, 0, 0, False, line.reason)
        progress.warning(f"{line.rating} cannot be used: {line.reason}.")
    held_back = _held_back(samples)
    samples = [s for s in samples if not s.is_held_back and _eligible(s, spec, preset, lessons)]
    unrated, calibration = calibration, _up_to(calibration, CALIBRATION_ENOUGH)
    scorer = Scorer(policy, spec, cache, stop)
    lessons.labels = scorer.critic_arrays()

    # ℓ_old of everything
    taught = TeacherTargets()
    if preset.objective in TAUGHT:
        name = f"{spec.weights} {scorer.parent}"
        taught = teacher.make_targets(
            preset, policy, template, samples, seed=spec.seed, owner=name, cache=cache, progress=progress, stop=stop
        )
    parts: list[Sequence[Sample | Imitation]] = [samples, taught.imitations, held_back, calibration]
    log_probs = scorer.score_old([item.tokens for p in parts for item in p], remember=[s.tokens for s in samples])
    old, old_extras, old_held_back, old_calibration = _by_part(parts, log_probs)
    # Held-back samples are only compared under two policies: they need no filter, and no ℓ_β.
    lessons.held_back = [
        HeldBack(sample, log_probs_now.plain) for sample, log_probs_now in zip(held_back, old_held_back, strict=True)
    ]
    if not is_foreign and not trajectories.are_episodes(
        samples
    ):  # a program's reward is of what was said, whatever that is
        samples, old = _drop_odd_replies(samples, old, spec, lessons, scorer, progress)

    # ℓ_ref, ℓ_β. A new adapter changes nothing yet, so for a first version ℓ_ref is ℓ_old.
    ref, ref_extras = old, old_extras
    if spec.parent:
        parts = [samples, taught.imitations]
        ref, ref_extras = _by_part(parts, scorer.score_reference([item.tokens for p in parts for item in p]))
    # Where no version of ours said it, there is no ratio to speak of.
    behaviour = (
        [log_probs_now.plain for log_probs_now in old] if is_foreign else scorer.score_behaviour(samples, old, ref)
    )

    if not is_foreign:
        labels, lessons.critic = critic.fit_to_run(scorer, samples, progress)
        lessons.guesses = critic.guess(labels, lessons.critic, scorer, unrated)
        lessons.labels = labels.arrays() if labels else lessons.labels

    # the filter, the advantages
    band = acceptance.choose_band(
        preset, spec, samples, old, behaviour, calibration, old_calibration, lessons.metrics, progress
    )
    leaning_targets: Mapping[str, TokenDistribution] = {}
    if trajectories.are_episodes(samples):
        flawed: dict[str, Flag | None] = {}
        pushed = advantages.episode_advantages(spec, preset, samples, lessons.metrics, progress)
    else:
        of_ratings, flawed = advantages.rating_advantages(spec, preset, samples)
        if leaning_budget > 0:
            leaning_values = [
                value
                if s.rating not in flawed and _is_its_own(s, log_probs_now, behaviour_log_probs, spec, preset, band)
                else 0.0
                for s, value, log_probs_now, behaviour_log_probs in zip(
                    samples, of_ratings, old, behaviour, strict=True
                )
            ]
            leaning_targets = leaning.leaning_targets(preset, samples, leaning_values, scorer, progress)
        lessons.is_leaning = bool(leaning_targets)
        pushed = advantages.token_advantages(
            [0.0] * len(samples) if leaning_targets else of_ratings,
            preset,
            samples,
            old,
            ref,
            taught,
            scorer,
            progress,
            trusted=lessons.critic.trusted,
        )
        if preset.objective != "kto":
            hindsight_advantages = hindsight.hindsight_advantages(preset, template, samples, old, scorer, progress)
            each = [hindsight_advantages.get(s.rating, value) for s, value in zip(samples, pushed.values, strict=True)]
            pushed = pushed._replace(values=each)
    staying = anchor.make_anchors(preset, samples, pushed, scorer)
    spreads = dict(zip((s.rating for s in samples), trajectories.spreads(samples), strict=True))
    late_replies = late.late_replies(spec, preset, samples, old, behaviour, pushed.values, progress)
    for sample, log_probs_now, ref_log_probs, behaviour_log_probs, advantage in zip(
        samples, old, ref, behaviour, pushed.values, strict=True
    ):
        late_reply = late_replies.get(sample.rating)
        verdict = _verdict(sample, log_probs_now, behaviour_log_probs, preset, band, late_reply)
        advantage = advantage if late_reply is None else advantage * late_reply.weight
        lesson = Lesson(
            sample,
            sample.tokens,
            log_probs_now.plain,
            ref_log_probs.plain,
            behaviour_log_probs,
            np.isfinite(behaviour_log_probs) if preset.objective in UNFILTERED else verdict.keep,
            advantage,
            is_own=not is_foreign,
            teacher=leaning_targets.get(sample.rating)
            or (taught.distributions.get(sample.rating) if preset.match == "distribution" else None),
            is_leaning=sample.rating in leaning_targets,
            anchor=staying.get(sample.rating),
            credited=sample.rating in pushed.credited,
            spread=spreads[sample.rating],
        )
        _judge(lesson, verdict, flawed.get(sample.rating), spec, preset, lessons)
    lessons.train += [_imitation_lesson(*item) for item in zip(taught.imitations, old_extras, ref_extras, strict=True)]
    if not trajectories.are_episodes(samples):
        lessons.train = pairs.make_pairs(preset, lessons.train, lessons.outcomes, progress)
    acceptance.account(
        [s for s in samples if s.rating not in flawed], spec, lessons.outcomes, lessons.metrics, progress
    )
    _warn(samples, flawed, preset, progress)
    if preset.objective in TAUGHT:
        lessons.metrics["taught"] = float(sum(lesson.teacher is not None for lesson in lessons.train))
        lessons.metrics["corrections"] = float(sum(item.teacher is None for item in taught.imitations))
    return lessons


def _by_part(parts: Sequence[Sequence[Sample | Imitation]], scored: Sequence[LogProbs]) -> list[list[LogProbs]]:
    """Split what was scored in one pass by part."""
    remaining = iter(scored)
    return [[next(remaining) for _ in part] for part in parts]


def _verdict(
    sample: Sample, old: LogProbs, behaviour: Floats, preset: Preset, band: Band, late_reply: LateReply | None
) -> Verdict:
    low, high = preset.token_low, preset.token_high
    verdict = objective.verdict(
        old.sampled, behaviour, token_low=low, token_high=high, band=OFF if late_reply else band
    )
    if late_reply is not None:
        verdict = replace(verdict, tokens=late_reply.keep)
    if sample.captured is None:
        return verdict
    # What was left out of its prompt made these tokens likely, or unlikely.
    unshortened = objective.verdict(old.sampled, sample.captured, token_low=low, token_high=high, band=OFF)
    return replace(verdict, tokens=verdict.tokens & unshortened.tokens)


def _is_its_own(sample: Sample, old: LogProbs, behaviour: Floats, spec: RunSpec, preset: Preset, band: Band) -> bool:
    """Tell whether a reply is of an earlier version, or as likely under the parent as its server found it."""
    return sample.version != spec.parent or _verdict(sample, old, behaviour, preset, band, None).reply


def _imitation_lesson(reply: Imitation, old: LogProbs, ref: LogProbs) -> Lesson:
    """A reply to imitate. ℓ_β is recomputed, so x is 1 and the filter passes by construction."""
    ones = np.ones(len(old.plain))
    return Lesson(
        reply.sample,
        reply.tokens,
        old.plain,
        ref.plain,
        old.plain,
        ones.astype(bool),
        reply.advantage * ones,
        is_own=False,
        is_imitated=True,
        teacher=reply.teacher,
    )


def _drop_odd_replies(
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    spec: RunSpec,
    lessons: Lessons,
    scorer: Scorer,
    progress: Progress,
) -> tuple[list[Sample], list[LogProbs]]:
    """The samples whose replies are what this model says, with their log-probs; the others get their outcome."""
    hot = [s for s in samples if s.tokens.temperature > 1 and s.reward > 0]
    calm_scores = scorer.score_old([Tokens(s.tokens.prompt, s.tokens.reply) for s in hot])
    calm = {s.rating: log_probs for s, log_probs in zip([*samples, *hot], [*old, *calm_scores], strict=True)}
    odds = {samples[index].rating: value for index, value in scorer.served_odds(samples, old).items()}
    odd_replies = reply_checks.odd_replies(samples, old, calm, spec.parent, odds)
    for sample in samples:
        if sample.rating in odd_replies:
            cause, reason = odd_replies[sample.rating]
            length = len(sample.tokens.reply)
            lessons.outcomes[sample.rating] = Outcome(False, cause, length, 0, sample.exact, reason, list(sample.flags))
    if odd_replies:
        example = next(iter(odd_replies.values()))[1]
        progress.warning(
            f"{len(odd_replies)} of {len(samples)} replies do not train; the first one's reason: {example}."
        )
    typical = [(s, log_probs) for s, log_probs in zip(samples, old, strict=True) if s.rating not in odd_replies]
    return [s for s, _ in typical], [log_probs for _, log_probs in typical]


def _held_back(samples: Sequence[Sample]) -> list[Sample]:
    held_back = [s for s in samples if s.is_held_back]
    count = max(HELD_BACK_EACH, (len(samples) - len(held_back)) // 8)
    return [s for s in held_back if s.reward > 0][:count] + [s for s in held_back if s.reward < 0][:count]


def _eligible(sample: Sample, spec: RunSpec, preset: Preset, lessons: Lessons) -> bool:
    cause = reason = None
    if preset.objective == "kto":
        pass  # no version of ours said it, and nothing has to be recomputed
    elif spec.parent - sample.version > preset.max_version_gap:
        cause, reason = "version-gap", f"{spec.parent - sample.version} versions old"
    elif not sample.exact and sample.version and sample.version not in spec.adapters:
        cause, reason = "unusable", f"not exact, and run.json does not name the adapter of version {sample.version}"
    elif sample.truncated and not (sample.human or sample.followed or sample.episode):
        cause, reason = "truncated", "cut short, and no person rated it or went on from it"
    if cause:
        tokens = len(sample.tokens.reply)
        lessons.outcomes[sample.rating] = Outcome(False, cause, tokens, 0, sample.exact, reason, list(sample.flags))
    return cause is None


def _judge(
    lesson: Lesson, verdict: Verdict, flaw: Flag | None, spec: RunSpec, preset: Preset, lessons: Lessons
) -> None:
    sample = lesson.sample
    cause: str | None = flaw
    if cause is None and preset.objective not in UNFILTERED:
        cause = verdict.cause(stale=sample.version != spec.parent)
    lessons.train.append(lesson)
    lessons.outcomes[sample.rating] = Outcome(
        used=False,  # until an optimiser step has used it
        cause=cause,
        tokens=len(lesson.old),
        accepted=0 if flaw else int(lesson.keep.sum()),
        exact=sample.exact,
        flags=list(sample.flags),
        loss=_loss_of(lesson),
    )


def _loss_of(lesson: Lesson) -> float | None:
    """The rating's part of the loss where the run begins: −1/T Σ m M A ℓ_old."""
    if not lesson.is_own or not len(lesson.old):
        return None
    return round(-float(np.where(lesson.keep, lesson.advantage * lesson.old, 0.0).mean()), 6)


def _warn(samples: Sequence[Sample], flawed: Mapping[str, Flag | None], preset: Preset, progress: Progress) -> None:
    if flawed:
        progress.warning(
            f"{len(flawed)} of {len(samples)} replies were liked though they are empty or loop: they are not imitated."
        )
    shortened = sum("shortened" in s.flags for s in samples)
    if shortened:
        progress.warning(
            f"{shortened} of {len(samples)} samples are longer than max_seq_len = {preset.max_seq_len}: they train "
            "without their oldest turns."
        )


def _up_to(samples: Sequence[Sample], tokens: int) -> list[Sample]:
    chosen: list[Sample] = []
    for sample in samples:
        if sum(len(s.tokens.reply) for s in chosen) >= tokens:
            break
        chosen.append(sample)
    return chosen


def metrics_of(value: dict[str, Any]) -> dict[str, float]:
    """Rounded for people and for JSON, which knows no NaN."""
    return {k: round(float(v), 6) for k, v in value.items() if np.isfinite(v)}
