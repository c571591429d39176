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
from trainer.lessons.teacher import TeacherTargets
from trainer.objective import Floats
from trainer.policy.policy import LogProbs

NOTHING_TO_COMPARE = "every disliked reply has a comment, which teaches, and likes alone compare nothing"


class TokenAdvantages(NamedTuple):
    """How much each token is pushed, and which way."""

    values: list[Floats]  # (T,) of each sample
    credited: frozenset[str]  # the ratings that went by token; their samples train even where no token earned any


def rating_advantages(
    spec: RunSpec, preset: Preset, samples: Sequence[Sample]
) -> tuple[list[float], dict[str, Flag | None]]:
    """A of each sample by its rating alone; and the flaw of those that were liked though empty or looping: 0, then."""
    rated = [s for s in samples if s.hindsight is None]
    by_rating = dict(zip((s.rating for s in rated), _raw_advantages(spec, preset, rated), strict=True))
    values = [by_rating.get(s.rating, 0.0) for s in samples]
    flawed: dict[str, Flag | None] = {
        s.rating: s.flaw for s, value in zip(samples, values, strict=True) if s.flaw and value > 0
    }
    return [0.0 if s.rating in flawed else a for s, a in zip(samples, values, strict=True)], flawed


def token_advantages(
    values: Sequence[float],
    preset: Preset,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    ref: Sequence[LogProbs],
    taught: TeacherTargets,
    scorer: Scorer,
    progress: Progress,
    *,
    trusted: bool = False,
) -> TokenAdvantages:
    """The push of each token: its rating, balanced, by the token's credit or spared, and what a teacher adds. A critic
    of whole replies that is `trusted` is trusted with their tokens, too."""
    has_baseline = preset.objective not in ("grpo", "kto")  # which have balances of their own
    if preset.balance and has_baseline:
        values = objective.balance(values)
    if preset.match == "distribution" and has_baseline:
        _drop_hints(values, preset, samples, taught, scorer, progress, trusted=trusted)
    # What should have been said instead is known there: pushing away from what was said as well only does harm.
    taught_ratings: Collection[str] = taught.distributions if preset.match == "distribution" else ()
    sizes = [0.0 if s.rating in taught_ratings else abs(a) for s, a in zip(samples, values, strict=True)]
    # Pushed whole, likes with no dislike beside them only make surer what is said already.
    only_likes = bool(taught_ratings) and all(a > 0 for a, size in zip(values, sizes, strict=True) if size)
    credit = None
    if has_baseline and any(sizes):
        credit = _token_credit(values, preset, samples, scorer, progress, only_likes=only_likes, trusted=trusted)
    if credit is not None:
        credited = frozenset(s.rating for s, size in zip(samples, sizes, strict=True) if size)
        each = [size * token_credit for size, token_credit in zip(sizes, credit, strict=True)]
    else:
        credited = frozenset()
        values = [0.0 if only_likes else float(np.copysign(size, a)) for size, a in zip(sizes, values, strict=True)]
        each = [np.full(len(now.plain), a) for now, a in zip(old, values, strict=True)]
        likely = likely_now(preset, old, ref, progress)
        if has_baseline:
            each = [objective.spare_likely(a, now.plain, likely) for a, now in zip(each, old, strict=True)]
    pulls = _teacher_advantages(preset, samples, old, taught, scorer)
    each = [a + pulls[s.rating] if s.rating in pulls else a for s, a in zip(samples, each, strict=True)]
    return TokenAdvantages(each, credited)


def _drop_hints(
    values: Sequence[float],
    preset: Preset,
    samples: Sequence[Sample],
    taught: TeacherTargets,
    scorer: Scorer,
    progress: Progress,
    *,
    trusted: bool,
) -> None:
    """Leave out hints of a judge where a critic tells what was complained about from what was not.

    A hint is read by the model that is to learn, and what a small one makes of two words costs sense. Tokens that
    earned their labels taught more and cost none (docs/lab/signals.md).
    """
    hints = [s.rating for s in samples if s.labelled and s.rating in taught.distributions]
    signs = {v > 0 for v, s in zip(values, samples, strict=True) if s.labelled and v}
    if not hints or len(signs) < 2 or preset.credit == 1:
        return
    earned = _token_credit(values, preset, samples, scorer, progress, only_likes=False, trusted=trusted)
    if earned is None:
        return
    for rating in hints:
        del taught.distributions[rating]
        taught.hinted.pop(rating, None)
    progress.choice("hints", "left out", f"{len(hints)} of a judge: the labels can be told apart by token")


def episode_advantages(
    spec: RunSpec, preset: Preset, samples: Sequence[Sample], metrics: dict[str, float], progress: Progress
) -> TokenAdvantages:
    """A of episodes: all tokens of a turn alike."""
    values, groups = trajectories.advantages(
        samples, discount=preset.discount, baseline=spec.episode_baseline, clip=preset.advantage_clip
    )
    note = f"{groups.equal} had rewards that are all the same and teach nothing"
    if groups.single:
        note += f"; {groups.single} episodes on their own are compared with the running baseline"
    progress.choice("groups", groups.teaching, note)
    metrics |= {"groups_kept": groups.teaching, "groups_dropped": groups.equal, "episodes_alone": groups.single}
    metrics["episodes"] = float(trajectories.units(samples))
    return TokenAdvantages([np.full(len(s.tokens.reply), a) for s, a in zip(samples, values, strict=True)], frozenset())


def _token_credit(
    values: Sequence[float],
    preset: Preset,
    samples: Sequence[Sample],
    scorer: Scorer,
    progress: Progress,
    *,
    only_likes: bool,
    trusted: bool,
) -> list[Floats] | None:
    """(T,) of each sample: its tokens' credit; None where nobody can tell."""
    if preset.credit == 1:
        if only_likes:
            progress.choice("pushed", "none", NOTHING_TO_COMPARE)
        return None
    rated = [i for i, a in enumerate(values) if a]
    states, sizes = scorer.states([samples[i].tokens for i in rated]), [values[i] for i in rated]
    current = critic.label_replies(states, sizes, [critic.conversation(samples[i]) for i in rated])
    earlier_labels = critic.read(scorer.critic_arrays(), current.features.shape[1])
    credit = credit_assignment.credit(states, sizes, current, scorer.spec.seed, earlier_labels)
    is_trusted = trusted or (credit.explained >= preset.credit and credit.by_chance <= credit_assignment.BY_CHANCE)
    is_trusted = is_trusted and any(e.any() for e in credit.tokens)
    source = f"these replies and {credit.earlier_replies} earlier ones" if credit.earlier_replies else "these replies"
    reason = (
        f"a critic of {source} explains {credit.explained:.0%} of the ratings at the ends of replies it has not seen"
    )
    if credit.explained:
        reason += f", and as much of {credit.by_chance:.0%} of ratings drawn at random"
    if is_trusted:
        progress.choice("pushed", "by token", reason)
    else:
        progress.choice("pushed", *(("none", f"{reason}; {NOTHING_TO_COMPARE}") if only_likes else ("even", reason)))
        return None
    by_sample = [np.zeros(len(s.tokens.reply)) for s in samples]
    for i, tokens in zip(rated, credit.tokens, strict=True):
        by_sample[i] = tokens
    return by_sample


def _raw_advantages(spec: RunSpec, preset: Preset, samples: Sequence[Sample]) -> list[float]:
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
            compared = _with_baselines(samples, spec)
    scale = preset.w_rl if preset.objective == "combine" else 1.0
    return [
        scale * objective.advantage(r, s.weight, b, weight_good=preset.weight_good, clip=preset.advantage_clip)
        for s, (r, b) in zip(samples, compared, strict=True)
    ]


def _with_baselines(samples: Sequence[Sample], spec: RunSpec) -> list[tuple[float, float]]:
    """Reward and baseline of each: people's and the running mean, a judge's labels and nothing.

    A judge finds what is bad. Above a running mean of its labels would be whatever nothing was found against, also
    where nothing bad is there to compare it with. So that counts as much as what is bad beside it, and alone nothing.
    """
    has_complaint = any(s.labelled and s.reward < 0 for s in samples)
    return [
        ((s.reward or float(has_complaint)), 0.0)
        if s.labelled and (has_complaint or not s.reward)
        else (s.reward, spec.baseline)
        for s in samples
    ]


def likely_now(preset: Preset, old: Sequence[LogProbs], ref: Sequence[LogProbs], progress: Progress) -> float:
    """From which probability on a disliked reply's tokens are spared: only where the policy has become vague.

    Pushing all of them down makes it vaguer, pushing down only the unlikely ones surer. So each run takes what leads
    back to the base's own entropy (docs/lab/training-log.md).
    """
    entropy, base_entropy = (
        float(np.concatenate([log_probs.entropy for log_probs in scored] or [np.zeros(1)]).mean())
        for scored in (old, ref)
    )
    is_vague = entropy > base_entropy
    reason = f"the entropy at these replies is {entropy:.3f} nats a token, the base's {base_entropy:.3f}"
    progress.choice("likely", preset.likely if is_vague else 1.0, reason)
    return preset.likely if is_vague else 1.0


def _teacher_advantages(
    preset: Preset,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    taught: TeacherTargets,
    scorer: Scorer,
) -> dict[str, Floats]:
    """With match = "token": what the teacher adds to the advantage of each token of the replies it was asked about."""
    if preset.match != "token" or not taught.hinted:
        return {}
    plain_scores = {s.rating: log_probs.plain for s, log_probs in zip(samples, old, strict=True)}
    hinted_scores = scorer.score_old(list(taught.hinted.values()))
    return {
        rating: objective_kin.directional(
            log_probs.plain, plain_scores[rating], weight=preset.w_distill, clip=preset.advantage_clip
        )
        for rating, log_probs in zip(taught.hinted, hinted_scores, strict=True)
        if rating in plain_scores
    }
