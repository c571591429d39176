"""How much each token of a reply is pushed, and which way, before a filter or an optimiser has a say.

Owns the advantages of a run's samples: of their ratings, balanced, spared, and with a teacher's word. Not here: the
formulas (objective, objective_kin), who passes the filter (acceptance).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from config.presets import Preset
from trainer import objective, objective_kin
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons import credit_assignment, critic, trajectories
from trainer.lessons.degenerate import Flag
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer
from trainer.lessons.teacher import Taught
from trainer.objective import Floats
from trainer.policy.policy import LogProbs

ALONE = "every disliked reply has a comment, which teaches, and likes alone compare nothing"


class Pushed(NamedTuple):
    """How much each token is pushed, and which way."""

    each: list[Floats]  # (T,) of each sample
    credited: frozenset[str]  # the ratings that went by token; their samples train even where no token earned any


def of_ratings(spec: RunSpec, preset: Preset, samples: Sequence[Sample]) -> tuple[list[float], dict[str, Flag | None]]:
    """A of each sample by its rating alone; and the flaw of those that were liked though empty or looping: 0, then."""
    rated = [s for s in samples if s.hindsight is None]
    by_rating = dict(zip((s.rating for s in rated), _raw(spec, preset, rated), strict=True))
    values = [by_rating.get(s.rating, 0.0) for s in samples]
    flawed: dict[str, Flag | None] = {
        s.rating: s.flaw for s, value in zip(samples, values, strict=True) if s.flaw and value > 0
    }
    return [0.0 if s.rating in flawed else a for s, a in zip(samples, values, strict=True)], flawed


def of_tokens(
    values: Sequence[float],
    preset: Preset,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    ref: Sequence[LogProbs],
    taught: Taught,
    scorer: Scorer,
    progress: Progress,
    *,
    trusted: bool = False,
) -> Pushed:
    """The push of each token: its rating, balanced, by the token's credit or spared, and what a teacher adds. A critic
    of whole replies that is `trusted` is trusted with their tokens, too."""
    compared = preset.objective not in ("grpo", "kto")  # which have balances of their own
    if preset.balance and compared:
        values = objective.balanced(values)
    if preset.match == "distribution" and compared:
        _told_apart(values, preset, samples, taught, scorer, progress, trusted=trusted)
    # What should have been said instead is known there: pushing away from what was said as well only does harm.
    known: Collection[str] = taught.teaching if preset.match == "distribution" else ()
    sizes = [0.0 if s.rating in known else abs(a) for s, a in zip(samples, values, strict=True)]
    # Pushed whole, likes with no dislike beside them only make surer what is said already.
    alone = bool(known) and all(a > 0 for a, size in zip(values, sizes, strict=True) if size)
    earned = None
    if compared and any(sizes):
        earned = _earned(values, preset, samples, scorer, progress, alone=alone, trusted=trusted)
    if earned is not None:
        credited = frozenset(s.rating for s, size in zip(samples, sizes, strict=True) if size)
        each = [size * tokens for size, tokens in zip(sizes, earned, strict=True)]
    else:
        credited = frozenset()
        values = [0.0 if alone else float(np.copysign(size, a)) for size, a in zip(sizes, values, strict=True)]
        each = [np.full(len(now.plain), a) for now, a in zip(old, values, strict=True)]
        likely = likely_now(preset, old, ref, progress)
        if compared:
            each = [objective.spared(a, now.plain, likely) for a, now in zip(each, old, strict=True)]
    pulls = _pulls(preset, samples, old, taught, scorer)
    each = [a + pulls[s.rating] if s.rating in pulls else a for s, a in zip(samples, each, strict=True)]
    return Pushed(each, credited)


def _told_apart(
    values: Sequence[float],
    preset: Preset,
    samples: Sequence[Sample],
    taught: Taught,
    scorer: Scorer,
    progress: Progress,
    *,
    trusted: bool,
) -> None:
    """Leave out hints of a judge where a critic tells what was complained about from what was not.

    A hint is read by the model that is to learn, and what a small one makes of two words costs sense. Tokens that
    earned their labels taught more and cost none (docs/lab/signals.md).
    """
    hints = [s.rating for s in samples if s.labelled and s.rating in taught.teaching]
    both = {v > 0 for v, s in zip(values, samples, strict=True) if s.labelled and v}
    if not hints or len(both) < 2 or preset.credit == 1:
        return
    earned = _earned(values, preset, samples, scorer, progress, alone=False, trusted=trusted)
    if earned is None:
        return
    for rating in hints:
        del taught.teaching[rating]
        taught.hinted.pop(rating, None)
    progress.choice("hints", "left out", f"{len(hints)} of a judge: the labels can be told apart by token")


def of_episodes(
    spec: RunSpec, preset: Preset, samples: Sequence[Sample], metrics: dict[str, float], progress: Progress
) -> Pushed:
    """A of episodes: all tokens of a turn alike."""
    values, groups = trajectories.advantages(
        samples, discount=preset.discount, baseline=spec.episode_baseline, clip=preset.advantage_clip
    )
    told = f"{groups.dropped} had rewards that are all the same and teach nothing"
    if groups.alone:
        told += f"; {groups.alone} episodes on their own are compared with the running baseline"
    progress.choice("groups", groups.kept, told)
    metrics |= {"groups_kept": groups.kept, "groups_dropped": groups.dropped, "episodes_alone": groups.alone}
    metrics["episodes"] = float(trajectories.units(samples))
    return Pushed([np.full(len(s.tokens.reply), a) for s, a in zip(samples, values, strict=True)], frozenset())


def _earned(
    values: Sequence[float],
    preset: Preset,
    samples: Sequence[Sample],
    scorer: Scorer,
    progress: Progress,
    *,
    alone: bool,
    trusted: bool,
) -> list[Floats] | None:
    """(T,) of each sample: its tokens' credit; None where nobody can tell."""
    if preset.credit == 1:
        if alone:
            progress.choice("pushed", "none", ALONE)
        return None
    rated = [i for i, a in enumerate(values) if a]
    states, sizes = scorer.states([samples[i].tokens for i in rated]), [values[i] for i in rated]
    now = critic.labels(states, sizes, [critic.conversation(samples[i]) for i in rated])
    before = critic.read(scorer.kept(), now.features.shape[1])
    found = credit_assignment.credit(states, sizes, now, scorer.spec.seed, before)
    told = trusted or (found.explained >= preset.credit and found.by_chance <= credit_assignment.BY_CHANCE)
    told = told and any(e.any() for e in found.tokens)
    of = f"these replies and {found.earlier} earlier ones" if found.earlier else "these replies"
    why = f"a critic of {of} explains {found.explained:.0%} of the ratings at the ends of replies it has not seen"
    if found.explained:
        why += f", and as much of {found.by_chance:.0%} of ratings drawn at random"
    if told:
        progress.choice("pushed", "by token", why)
    else:
        progress.choice("pushed", *(("none", f"{why}; {ALONE}") if alone else ("even", why)))
        return None
    earned = [np.zeros(len(s.tokens.reply)) for s in samples]
    for i, tokens in zip(rated, found.tokens, strict=True):
        earned[i] = tokens
    return earned


def _raw(spec: RunSpec, preset: Preset, samples: Sequence[Sample]) -> list[float]:
    """A of each sample under the objective."""
    match preset.objective:
        case "distill":
            return [0.0] * len(samples)
        case "grpo":
            rewards = [s.reward for s in samples]
            baselines = objective_kin.group_baselines([s.tokens.prompt for s in samples], rewards, spec.baseline)
            compared = list(zip(rewards, baselines, strict=True))
        case "kto":
            compared = [(s.reward, 0.0) for s in samples]  # z₀ is what a reply is compared with
        case _:
            compared = _compared(samples, spec)
    scale = preset.w_rl if preset.objective == "combine" else 1.0
    return [
        scale * objective.advantage(r, s.weight, b, weight_good=preset.weight_good, clip=preset.advantage_clip)
        for s, (r, b) in zip(samples, compared, strict=True)
    ]


def _compared(samples: Sequence[Sample], spec: RunSpec) -> list[tuple[float, float]]:
    """Reward and baseline of each: people's and the running mean, a judge's labels and nothing.

    A judge finds what is bad. Above a running mean of its labels would be whatever nothing was found against, also
    where nothing bad is there to compare it with. So that counts as much as what is bad beside it, and alone nothing.
    """
    beside = any(s.labelled and s.reward < 0 for s in samples)
    return [
        ((s.reward or float(beside)), 0.0) if s.labelled and (beside or not s.reward) else (s.reward, spec.baseline)
        for s in samples
    ]


def likely_now(preset: Preset, old: Sequence[LogProbs], ref: Sequence[LogProbs], progress: Progress) -> float:
    """From which probability on a disliked reply's tokens are spared: only where the policy has become vague.

    Pushing all of them down makes it vaguer, pushing down only the unlikely ones surer. So each run takes what leads
    back to the base's own entropy (docs/lab/training-log.md).
    """
    now, base = (float(np.concatenate([one.entropy for one in side] or [np.zeros(1)]).mean()) for side in (old, ref))
    vague = now > base
    why = f"the entropy at these replies is {now:.3f} nats a token, the base's {base:.3f}"
    progress.choice("likely", preset.likely if vague else 1.0, why)
    return preset.likely if vague else 1.0


def _pulls(
    preset: Preset,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    taught: Taught,
    scorer: Scorer,
) -> dict[str, Floats]:
    """With match = "token": what the teacher adds to the advantage of each token of the replies it was asked about."""
    if preset.match != "token" or not taught.hinted:
        return {}
    plain = {s.rating: now.plain for s, now in zip(samples, old, strict=True)}
    told = scorer.now(list(taught.hinted.values()))
    return {
        rating: objective_kin.directional(now.plain, plain[rating], weight=preset.w_distill, clip=preset.advantage_clip)
        for rating, now in zip(taught.hinted, told, strict=True)
        if rating in plain
    }
