"""What each sample teaches: its log-probs under the policies that matter, the filter's verdict, its advantage.

Owns the step from samples to lessons. Not here: how wide the filter is and what passed it (acceptance), the mathematics
(objective), the optimiser (steps).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from config.presets import Preset
from trainer import acceptance, objective, objective_kin, packing, teacher, typical
from trainer.acceptance import Outcome
from trainer.cache import Cache
from trainer.objective import OFF, Bools, Floats, Verdict
from trainer.objective_kin import TAUGHT, UNFILTERED
from trainer.packing import Tokens
from trainer.policy import LogProbs, Policy, Teaching
from trainer.progress import Progress, Stop
from trainer.run_folder import RunSpec
from trainer.samples import Sample, Template, Unusable
from trainer.sanity import Flag
from trainer.teacher import Taught

CALIBRATION_ENOUGH = 1000  # more only cost time: σ is then known to 2 %
# Liked and disliked held-back samples that the gate looks at, newest first: each costs two passes. Where many train
# more are held back, and the gate looks at as many as an eighth of what trains: it stays a small part of the run.
HELD_EACH = 8


@dataclass(frozen=True, slots=True)
class Lesson:
    sample: Sample
    tokens: Tokens  # the rated reply, or one to imitate
    old: Floats  # (T,) ℓ_old at the serving temperature
    ref: Floats  # (T,) ℓ_ref
    behaviour: Floats  # (T,) ℓ_β
    keep: Bools  # (T,) what the filter lets through
    advantage: Floats  # (T,)
    own: bool = True  # a version of this model said it
    extra: bool = False  # a correction, or a reply that the teacher wrote
    teaching: Teaching | None = None

    @property
    def taught(self) -> bool:
        """By a comment or a correction, not by a rating."""
        return self.extra or self.teaching is not None

    @property
    def teaches(self) -> bool:
        return self.teaching is not None or bool((self.keep & (self.advantage != 0)).any())


@dataclass(frozen=True, slots=True)
class HeldBack:
    sample: Sample
    old: Floats  # (T,)


@dataclass
class Lessons:
    train: list[Lesson] = field(default_factory=list)  # in the order of samples.jsonl
    held: list[HeldBack] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)


def prepare(
    spec: RunSpec,
    preset: Preset,
    policy: Policy,
    template: Template,
    samples: Sequence[Sample],
    unusable: Sequence[Unusable],
    calibration: Sequence[Sample],
    *,
    cache: Cache,
    progress: Progress,
    stop: Stop,
) -> Lessons:
    lessons = Lessons()
    for line in unusable:
        lessons.outcomes[line.rating] = Outcome(False, line.cause, 0, 0, False, line.reason)
        progress.warning(f"{line.rating} cannot be used: {line.reason}.")
    held = _held(samples)
    samples = [s for s in samples if not s.held and _eligible(s, spec, preset, lessons)]
    calibration = _up_to(calibration, CALIBRATION_ENOUGH)

    def score(sequences: Sequence[Tokens], who: str) -> list[LogProbs]:
        return log_probs(policy, sequences, who=f"{spec.weights} {who}", cache=cache, stop=stop)

    # ℓ_old: the policy about to be trained, before its first step.
    parent = str(spec.adapters[spec.parent]) if spec.parent else "base"
    taught = Taught()
    if preset.objective in TAUGHT:
        who = f"{spec.weights} {parent}"
        taught = teacher.prepare(
            preset, policy, template, samples, seed=spec.seed, who=who, cache=cache, progress=progress, stop=stop
        )
    extras = taught.extras
    rows = [s.tokens for s in samples] + [one.tokens for one in extras]
    scored = score(rows + [s.tokens for s in (*held, *calibration)], parent)
    old, scored = scored[: len(samples)], scored[len(samples) :]
    old_extras, scored = scored[: len(extras)], scored[len(extras) :]
    old_held, old_calibration = scored[: len(held)], scored[len(held) :]
    if preset.objective != "kto":  # whose replies another model gave
        samples, old = _typical(samples, old, spec, lessons, score, parent, progress)
    rows = [s.tokens for s in samples] + [one.tokens for one in extras]
    # Held-back samples are only compared under two policies: they need no filter, and no ℓ_β.
    lessons.held = [HeldBack(sample, now.plain) for sample, now in zip(held, old_held, strict=True)]

    # ℓ_ref: the adapter off. A new adapter changes nothing yet, so for a first version it is ℓ_old.
    ref, ref_extras = old, old_extras
    if spec.parent:
        with policy.wearing(None):
            scored = score(rows, "base")
        ref, ref_extras = scored[: len(samples)], scored[len(samples) :]

    behaviour = _behaviour(spec, preset, policy, samples, old, ref, score)
    band = acceptance.band_of(
        preset, spec, samples, old, behaviour, calibration, old_calibration, lessons.metrics, progress
    )
    teaching_of = taught.teaching if preset.match == "distribution" else {}
    advantages = _advantages(spec, preset, samples)
    flawed = {s.rating: s.flaw for s, value in zip(samples, advantages, strict=True) if s.flaw and value > 0}
    advantages = [0.0 if s.rating in flawed else a for s, a in zip(samples, advantages, strict=True)]
    compared = preset.objective not in ("grpo", "kto")  # which have balances of their own
    if preset.balance and compared:
        advantages = objective.balanced(advantages)
    # What should have been said instead is known there: pushing away from what was said as well only does harm.
    advantages = [0.0 if s.rating in teaching_of else a for s, a in zip(samples, advantages, strict=True)]
    likely = likely_now(preset, old, ref, progress)
    pulls = _pulls(preset, samples, old, taught, score, parent)
    for at, (sample, now, base, was) in enumerate(zip(samples, old, ref, behaviour, strict=True)):
        verdict = objective.verdict(
            now.sampled, was, token_low=preset.token_low, token_high=preset.token_high, band=band
        )
        advantage = np.full(len(now.plain), advantages[at])
        if compared:
            advantage = objective.spared(advantage, now.plain, likely)
        if sample.captured is not None:  # what was left out of its prompt made these tokens likely, or unlikely
            unshortened = objective.verdict(
                now.sampled, sample.captured, token_low=preset.token_low, token_high=preset.token_high, band=OFF
            )
            verdict = replace(verdict, tokens=verdict.tokens & unshortened.tokens)
        lesson = Lesson(
            sample,
            sample.tokens,
            now.plain,
            base.plain,
            was,
            np.isfinite(was) if preset.objective in UNFILTERED else verdict.keep,
            advantage + pulls.get(sample.rating, np.zeros(len(now.plain))),
            own=preset.objective != "kto",
            teaching=teaching_of.get(sample.rating),
        )
        _judge(lesson, verdict, flawed.get(sample.rating), spec, preset, lessons)
    for one, now, base in zip(extras, old_extras, ref_extras, strict=True):
        whole = np.ones(len(now.plain))
        # ℓ_β is recomputed, so x is 1 and the filter passes by construction.
        lessons.train.append(
            Lesson(
                one.sample,
                one.tokens,
                now.plain,
                base.plain,
                now.plain,
                whole.astype(bool),
                one.advantage * whole,
                own=False,
                extra=True,
                teaching=one.teaching,
            )
        )
    filtered = [s for s in samples if s.rating not in flawed]
    acceptance.account(filtered, spec, lessons.outcomes, lessons.metrics, progress)
    _warn(samples, flawed, preset, progress)
    if preset.objective in TAUGHT:
        lessons.metrics["taught"] = float(sum(lesson.teaching is not None for lesson in lessons.train))
        lessons.metrics["corrections"] = float(sum(one.teaching is None for one in extras))
    return lessons


def _typical(
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    spec: RunSpec,
    lessons: Lessons,
    score: Callable[[Sequence[Tokens], str], list[LogProbs]],
    parent: str,
    progress: Progress,
) -> tuple[list[Sample], list[LogProbs]]:
    """The samples whose replies are what this model says, with their log-probs; the others get their outcome."""
    hot = [s for s in samples if s.tokens.temperature > 1 and s.reward > 0]
    again = score([Tokens(s.tokens.prompt, s.tokens.reply) for s in hot], parent)
    calm = {s.rating: now for s, now in zip([*samples, *hot], [*old, *again], strict=True)}
    plain = [(s, now) for s, now in zip(samples, old, strict=True) if not s.flaw]  # flaws have a word of their own
    odd = typical.odd([s for s, _ in plain], [now for _, now in plain], calm, spec.parent)
    for sample in samples:
        if sample.rating in odd:
            cause, reason = odd[sample.rating]
            length = len(sample.tokens.reply)
            lessons.outcomes[sample.rating] = Outcome(False, cause, length, 0, sample.exact, reason, list(sample.flags))
    if odd:
        example = next(iter(odd.values()))[1]
        progress.warning(f"{len(odd)} of {len(samples)} replies do not train; the first one's reason: {example}.")
    kept = [(s, now) for s, now in zip(samples, old, strict=True) if s.rating not in odd]
    return [s for s, _ in kept], [now for _, now in kept]


def likely_now(preset: Preset, old: Sequence[LogProbs], ref: Sequence[LogProbs], progress: Progress) -> float:
    """From which probability on a disliked reply's tokens are spared: only where the policy has become vague.

    Pushing all of them down makes it vaguer, pushing down only the unlikely ones surer; so each run takes what
    leads back to the base's own entropy (docs/training-log.md).
    """
    now, base = (float(np.concatenate([one.entropy for one in side] or [np.zeros(1)]).mean()) for side in (old, ref))
    vague = now > base
    why = f"the entropy at these replies is {now:.3f} nats a token, the base's {base:.3f}"
    progress.choice("likely", preset.likely if vague else 1.0, why)
    return preset.likely if vague else 1.0


def _behaviour(
    spec: RunSpec,
    preset: Preset,
    policy: Policy,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    ref: Sequence[LogProbs],
    score: Callable[[Sequence[Tokens], str], list[LogProbs]],
) -> list[Floats]:
    """ℓ_β: as captured; recomputed under the version that produced the reply where that was not exact."""
    if preset.objective == "kto":  # no version of ours: there is no ratio to speak of
        return [now.plain for now in old]
    behaviour = [s.behaviour for s in samples]
    for version in sorted({s.version for s in samples if not s.exact}):
        at = [i for i, s in enumerate(samples) if not s.exact and s.version == version]
        if version == spec.parent:
            again = [old[i] for i in at]
        elif version == 0:
            again = [ref[i] for i in at]
        else:
            with policy.wearing(spec.adapters[version]):
                again = score([samples[i].tokens for i in at], str(spec.adapters[version]))
        for i, recomputed in zip(at, again, strict=True):
            behaviour[i] = recomputed.sampled
    known = [b for b in behaviour if b is not None]
    assert len(known) == len(samples)
    return known


def _advantages(spec: RunSpec, preset: Preset, samples: Sequence[Sample]) -> list[float]:
    """A of each sample under the objective, before a teacher's word."""
    match preset.objective:
        case "distill":
            return [0.0] * len(samples)
        case "grpo":
            rewards = [s.reward for s in samples]
            baselines = objective_kin.group_baselines([s.tokens.prompt for s in samples], rewards, spec.baseline)
        case "kto":
            baselines = [0.0] * len(samples)  # z₀ is what a reply is compared with
        case _:
            baselines = [spec.baseline] * len(samples)
    scale = preset.w_rl if preset.objective == "combine" else 1.0
    return [
        scale * objective.advantage(s.reward, s.weight, b, weight_good=preset.weight_good, clip=preset.advantage_clip)
        for s, b in zip(samples, baselines, strict=True)
    ]


def _pulls(
    preset: Preset,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    taught: Taught,
    score: Callable[[Sequence[Tokens], str], list[LogProbs]],
    parent: str,
) -> dict[str, Floats]:
    """With match = "token": what the teacher adds to the advantage of each token of the replies it was asked about."""
    if preset.match != "token" or not taught.hinted:
        return {}
    plain = {s.rating: now.plain for s, now in zip(samples, old, strict=True)}
    told = score(list(taught.hinted.values()), parent)
    return {
        rating: objective_kin.directional(now.plain, plain[rating], weight=preset.w_distill, clip=preset.advantage_clip)
        for rating, now in zip(taught.hinted, told, strict=True)
        if rating in plain
    }


def log_probs(policy: Policy, sequences: Sequence[Tokens], *, who: str, cache: Cache, stop: Stop) -> list[LogProbs]:
    """(T,) a sequence under what the policy wears now, from the cache when these very tokens are in it."""
    if not sequences:
        return []
    content = repr(("with entropy", who, [(s.prompt, s.reply, s.temperature, s.top_p, s.top_k) for s in sequences]))
    name = f"{hashlib.sha256(content.encode()).hexdigest()[:24]}.npz"
    bounds = np.cumsum([0] + [len(s.reply) for s in sequences])
    if (kept := cache.arrays(name)) is not None:
        flat = kept["flat"]  # (3, N)
    else:
        flat = np.empty((3, bounds[-1]))
        for members in packing.group(sequences, policy.budget):
            stop.check()
            packed = packing.pack([sequences[i] for i in members])
            every = np.stack(policy.log_probs(packed))  # (3, n)
            ends = np.cumsum(packed.lengths)
            for i, part in zip(members, np.split(every, ends[:-1], axis=1), strict=True):
                flat[:, bounds[i] : bounds[i + 1]] = part
        cache.keep_arrays(name, flat=flat)
    return [LogProbs(*flat[:, a:b]) for a, b in pairwise(bounds)]


def _held(samples: Sequence[Sample]) -> list[Sample]:
    back = [s for s in samples if s.held]
    each = max(HELD_EACH, (len(samples) - len(back)) // 8)
    return [s for s in back if s.reward > 0][:each] + [s for s in back if s.reward < 0][:each]


def _eligible(sample: Sample, spec: RunSpec, preset: Preset, lessons: Lessons) -> bool:
    cause = reason = None
    if preset.objective == "kto":
        pass  # no version of ours said it, and nothing has to be recomputed
    elif spec.parent - sample.version > preset.max_version_gap:
        cause, reason = "version-gap", f"{spec.parent - sample.version} versions old"
    elif not sample.exact and sample.version and sample.version not in spec.adapters:
        cause, reason = "unusable", f"not exact, and run.json does not name the adapter of version {sample.version}"
    elif sample.truncated and not sample.human:
        cause, reason = "truncated", "cut short, and no person rated it"
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
    """What its rating adds to the loss where the run begins: −1/T Σ m M A ℓ_old."""
    if not lesson.own or not len(lesson.old):
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
