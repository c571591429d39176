"""How much each token of a reply is pushed, and which way, before a filter or an optimiser has a say.

Owns the advantages of a run's samples: of their ratings, balanced, spared, and with a teacher's word. Not here: the
formulas (mis_po, losses), what a rating is compared with (objectives), who passes the filter (acceptance).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from config.presets import Preset
from trainer import losses, mis_po, objectives
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons import credit_assignment, critic, lexical_credit, trajectories
from trainer.lessons.critic import NO_CRITIC, CriticReading
from trainer.lessons.degenerate import Flag
from trainer.lessons.lesson import ReadSample, ScoredSample
from trainer.lessons.lexical_credit import LexicalCredit
from trainer.lessons.samples import Sample
from trainer.lessons.scoring import Scorer
from trainer.lessons.teacher import TeacherTargets
from trainer.mis_po import Floats
from trainer.objectives import RatedPrompt

NOTHING_TO_COMPARE = "every disliked reply has a comment, which teaches, and likes alone compare nothing"


class TokenAdvantages(NamedTuple):
    """How much each token is pushed, and which way."""

    values: Mapping[str, Floats]  # (T,) of each sample, by its rating
    credited: frozenset[str]  # the ratings that went by token; their samples train even where no token earned any


# --- by rating ----------------------------------------------------------------------------------------------------


def rating_advantages(
    spec: RunSpec, preset: Preset, samples: Sequence[Sample]
) -> tuple[dict[str, float], dict[str, Flag]]:
    """A of each rating alone; and the flaw of those that were liked though empty or looping: their A is 0."""
    raw = dict(zip((s.rating for s in samples), _raw_advantages(spec, preset, samples), strict=True))
    flawed = {s.rating: s.flaw for s in samples if s.flaw and raw[s.rating] > 0}
    return {rating: 0.0 if rating in flawed else value for rating, value in raw.items()}, flawed


def _raw_advantages(spec: RunSpec, preset: Preset, samples: Sequence[Sample]) -> list[float]:
    objective = objectives.of(preset)
    if objective.baselines is None:
        return [0.0] * len(samples)
    prompts = [RatedPrompt(s.reward, s.tokens.prompt, s.labelled) for s in samples]
    scale = objective.rating_weight(preset)
    return [
        scale * mis_po.advantage(reward, s.weight, base, weight_good=preset.weight_good, clip=preset.advantage_clip)
        for s, (reward, base) in zip(samples, objective.baselines(prompts, spec.baseline), strict=True)
    ]


def balanced(preset: Preset, values: Mapping[str, float]) -> Mapping[str, float]:
    """Both signs made to weigh the same, where the preset and the objective balance them."""
    if not (preset.balance and objectives.of(preset).balances):
        return values
    return dict(zip(values, mis_po.balance(list(values.values())), strict=True))


# --- by token -----------------------------------------------------------------------------------------------------


def token_advantages(
    values: Mapping[str, float],
    preset: Preset,
    samples: Sequence[ScoredSample],
    targets: TeacherTargets,
    scorer: Scorer,
    progress: Progress,
    *,
    reading: CriticReading = NO_CRITIC,
) -> TokenAdvantages:
    """The push of each token: its rating by the token's credit or spared, and what a teacher adds. A critic of whole
    replies that is trusted, by its `reading`, is trusted with their tokens, too."""
    balances = objectives.of(preset).balances  # the others have balances of their own
    # What should have been said instead is known there: pushing away from what was said as well only does harm.
    taught: Collection[str] = targets.distributions if preset.match == "distribution" else ()
    sizes = {rating: 0.0 if rating in taught else abs(value) for rating, value in values.items()}
    # Pushed whole, likes with no dislike beside them only make surer what is said already. Not those of another model.
    is_own = not objectives.of(preset).is_foreign
    only_likes = is_own and bool(taught) and all(values[rating] > 0 for rating, size in sizes.items() if size)
    credit = None
    if balances and any(sizes.values()):
        credit = _token_credit(values, preset, samples, scorer, progress, only_likes=only_likes, reading=reading)
    if credit is not None:
        pushed = {rating: size * credit[rating] for rating, size in sizes.items()}
    else:
        signed = {r: 0.0 if only_likes else float(np.copysign(size, values[r])) for r, size in sizes.items()}
        pushed = _even_push(signed, preset, samples, progress)
    pulls = _teacher_advantages(preset, samples, targets, scorer)
    return TokenAdvantages(
        {rating: value + pulls[rating] if rating in pulls else value for rating, value in pushed.items()},
        frozenset() if credit is None else frozenset(rating for rating, size in sizes.items() if size),
    )


def without_separable_hints(
    values: Mapping[str, float],
    preset: Preset,
    samples: Sequence[ReadSample],
    targets: TeacherTargets,
    scorer: Scorer,
    progress: Progress,
    *,
    reading: CriticReading,
) -> TeacherTargets:
    """The targets without hints of a judge, where a critic tells what was complained about from what was not.

    A hint is read by the model that is to learn, and what a small one makes of two words costs sense. Tokens that
    earned their labels taught more and cost none (docs/lab/signals.md).
    """
    if preset.match != "distribution" or not objectives.of(preset).balances or preset.credit == 1:
        return targets
    labelled = [s.sample.rating for s in samples if s.sample.labelled]
    hints = {rating for rating in labelled if rating in targets.distributions}
    signs = {values[rating] > 0 for rating in labelled if values[rating]}
    if not hints or len(signs) < 2:
        return targets
    if _token_credit(values, preset, samples, scorer, progress, only_likes=False, reading=reading) is None:
        return targets
    progress.choice("hints", "left out", f"{len(hints)} of a judge: the labels can be told apart by token")
    return replace(
        targets,
        hinted={rating: tokens for rating, tokens in targets.hinted.items() if rating not in hints},
        distributions={rating: each for rating, each in targets.distributions.items() if rating not in hints},
    )


def episode_advantages(
    preset: Preset, scored: Sequence[ReadSample], targets: TeacherTargets, scorer: Scorer, progress: Progress
) -> tuple[TokenAdvantages, dict[str, float]]:
    """A of episodes, all tokens of a turn alike, and what a teacher adds; and the counts of groups.

    A turn that the user's own code has said something about is taught by that alone, as a commented answer is.
    """
    samples = [s.sample for s in scored]
    values, groups = trajectories.advantages(
        samples, discount=preset.discount, baseline=scorer.spec.episode_baseline, clip=preset.advantage_clip
    )
    note = f"{groups.equal} had rewards that are all the same and teach nothing"
    if groups.single:
        note += f"; {groups.single} episodes on their own are compared with the running baseline"
    progress.choice("groups", groups.teaching, note)
    counts = {
        "groups_kept": groups.teaching,
        "groups_dropped": groups.equal,
        "episodes_alone": groups.single,
        "episodes": float(trajectories.units(samples)),
    }
    objective = objectives.of(preset)
    scale = 0.0 if objective.baselines is None else objective.rating_weight(preset)
    taught: Collection[str] = targets.distributions if preset.match == "distribution" else ()
    pulls = _teacher_advantages(preset, scored, targets, scorer)
    pushed = {
        s.rating: np.full(len(s.tokens.reply), 0.0 if s.rating in taught else scale * value) + pulls.get(s.rating, 0.0)
        for s, value in zip(samples, values, strict=True)
    }
    return TokenAdvantages(pushed, frozenset()), counts


def credit_words(
    values: Mapping[str, float], preset: Preset, samples: Sequence[ReadSample], scorer: Scorer
) -> LexicalCredit:
    """Credit the words that these ratings go by, those of `values` that are not 0."""
    tokenizer = scorer.policy.tokenizer
    rated = [s.sample for s in samples if values[s.sample.rating]]
    if preset.credit == 1 or not objectives.of(preset).balances:
        return LexicalCredit([], [])
    return lexical_credit.credit(
        [s.tokens.reply for s in rated],
        [values[s.rating] for s in rated],
        [critic.conversation(s) for s in rated],
        lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=True)),
        chances=[np.exp(s.old.plain) for s in samples if values[s.sample.rating]],
        chosen=[s.chosen for s in rated],
        least=preset.credit,
        seed=scorer.spec.seed,
    )


def _token_credit(
    values: Mapping[str, float],
    preset: Preset,
    samples: Sequence[ReadSample],
    scorer: Scorer,
    progress: Progress,
    *,
    only_likes: bool,
    reading: CriticReading,
) -> dict[str, Floats] | None:
    """(T,) of each sample by its rating: its tokens' credit; None where nobody can tell."""
    if preset.credit == 1:
        if only_likes:
            progress.choice("pushed", "none", NOTHING_TO_COMPARE)
        return None
    rated = [s.sample for s in samples if values[s.sample.rating]]
    nothing = {s.sample.rating: np.zeros(len(s.sample.tokens.reply)) for s in samples}
    words = credit_words(values, preset, samples, scorer)
    states, sizes = scorer.states([s.tokens for s in rated]), [values[s.rating] for s in rated]
    current = critic.label_replies(states, sizes, [critic.conversation(s) for s in rated])
    credit = credit_assignment.credit(states, sizes, current, scorer.spec.seed, reading.relevant)
    has_no_push = only_likes and words.is_disliked  # the disliked replies have a teacher
    if words.marks and words.explained >= credit.explained and not has_no_push:
        progress.choice("pushed", "by token", words.reason)
        return nothing | dict(zip((s.rating for s in rated), words.tokens, strict=True))
    is_explained = credit.explained >= preset.credit and credit.by_chance <= credit_assignment.BY_CHANCE
    is_trusted = reading.trusted or is_explained
    reason = _critic_reason(credit)
    if not is_trusted or not any(tokens.any() for tokens in credit.tokens):
        progress.choice("pushed", *(("none", f"{reason}; {NOTHING_TO_COMPARE}") if only_likes else ("even", reason)))
        return None
    progress.choice("pushed", "by token", reason)
    return nothing | dict(zip((s.rating for s in rated), credit.tokens, strict=True))


def _critic_reason(credit: credit_assignment.Credit) -> str:
    """How much the critic of this run explains, in words."""
    source = f"these replies and {credit.earlier_replies} earlier ones" if credit.earlier_replies else "these replies"
    reason = (
        f"a critic of {source} explains {credit.explained:.0%} of the ratings at the ends of replies it has not seen"
    )
    if credit.explained:
        reason += f", and as much of {credit.by_chance:.0%} of ratings drawn at random"
    return reason


def _even_push(
    signed: Mapping[str, float], preset: Preset, samples: Sequence[ScoredSample], progress: Progress
) -> dict[str, Floats]:
    """(T,) of each sample by its rating: the same for all its tokens, but for those that are spared."""
    likely = likely_now(preset, samples, progress)
    even = {s.sample.rating: np.full(len(s.old.plain), signed[s.sample.rating]) for s in samples}
    if not objectives.of(preset).balances:
        return even
    return {s.sample.rating: mis_po.spare_likely(even[s.sample.rating], s.old.plain, likely) for s in samples}


def likely_now(preset: Preset, samples: Sequence[ScoredSample], progress: Progress) -> float:
    """From which probability on a disliked reply's tokens are spared: only where the policy has become vague.

    Pushing all of them down makes it vaguer, pushing down only the unlikely ones surer. So each run takes what leads
    back to the base's own entropy (docs/lab/training-log.md).
    """
    entropy, base_entropy = (
        float(np.concatenate([scored.entropy for scored in side] or [np.zeros(1)]).mean())
        for side in ([s.old for s in samples], [s.ref for s in samples])
    )
    likely = preset.likely if entropy > base_entropy else 1.0
    reason = f"the entropy at these replies is {entropy:.3f} nats a token, the base's {base_entropy:.3f}"
    progress.choice("likely", likely, reason)
    return likely


def _teacher_advantages(
    preset: Preset, samples: Sequence[ReadSample], targets: TeacherTargets, scorer: Scorer
) -> dict[str, Floats]:
    """With match = "token": what the teacher adds to the advantage of each token of the replies it was asked about."""
    if preset.match != "token" or not targets.hinted:
        return {}
    plain = {s.sample.rating: s.old.plain for s in samples}
    hinted = scorer.score_old(list(targets.hinted.values()))
    return {
        rating: losses.directional(log_probs.plain, plain[rating], weight=preset.w_distill, clip=preset.advantage_clip)
        for rating, log_probs in zip(targets.hinted, hinted, strict=True)
        if rating in plain
    }
