"""The filter on a run's samples: how wide it is, what of each passes it, and how much of the data that was.

Owns whose tokens the band is calibrated on, the verdict on each sample, and the shares by cause that say whether
serving is at fault. Replies of earlier versions have a rule of their own (`late_replies`). Not here: the mathematics
(mis_po), when tokens are enough for a band (serving_noise), how old a reply may be (lessons).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from config.presets import Preset
from trainer import mis_po, objectives, serving_noise
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons.degenerate import Flag
from trainer.lessons.lesson import PushedSample, ReadSample, ScoredSample
from trainer.lessons.samples import Sample
from trainer.mis_po import OFF, Band, Bools, Floats, Verdict
from trainer.serving_noise import BandChoice

FRESH_FAULT = 0.7  # acceptance of fresh replies under which serving, not learning, is at fault


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a sample, as result.json has it."""

    used: bool  # by an optimiser step
    cause: str | None
    tokens: int
    accepted: int
    exact: bool
    reason: str | None = None
    flags: list[Flag] = field(default_factory=list)  # what is odd about the reply, whether it trained or not
    loss: float | None = None  # of its rating, where the run began: − mean of mask · A · ℓ_old over its tokens
    taught_by: str | None = None  # what pushed its tokens: LessonKind of `lesson`
    advantage: float | None = None  # where the run began: the mean over the tokens that passed
    up: int | None = None  # of these, how many were pushed up
    down: int | None = None


class ReplyRefusal(NamedTuple):
    """A sample that does not reach the filter."""

    sample: Sample
    cause: str
    reason: str

    @property
    def outcome(self) -> Outcome:
        sample = self.sample
        flags = list(sample.flags)
        return Outcome(False, self.cause, len(sample.tokens.reply), 0, sample.exact, self.reason, flags)


# --- how wide -----------------------------------------------------------------------------------------------------


class NoiseUnknown(Exception):
    """The samples say too little about serving noise to be judged. One sentence; none of them is spent."""

    def __init__(self, message: str, missing_answers: int) -> None:
        super().__init__(message)
        self.missing_answers = missing_answers


def choose_band(
    preset: Preset,
    spec: RunSpec,
    samples: Sequence[ScoredSample],
    calibration: Sequence[ReadSample],
    progress: Progress,
) -> tuple[Band, dict[str, float]]:
    """The band of whole replies that this run filters by, and the serving noise that it was calibrated on.

    Raises NoiseUnknown where the paper's band would refuse replies only for want of that noise.
    """
    choice = find_band(preset, spec.parent, samples, calibration, spec.comparison)
    if choice.band is None:
        answers = _missing_answers(choice, spec.parent, samples)
        raise NoiseUnknown(
            f"The run waits for about {answers} more rated answer{'' if answers == 1 else 's'}: of the noise between "
            f"the server's log-probs and the trainer's {choice.reason}. All ratings stay fresh.",
            answers,
        )
    if choice.is_too_noisy:
        progress.warning(choice.reason)
    elif choice.is_calibrated:
        progress.choice("band", "calibrated", choice.reason)
        return choice.band, {"calibration_mu": choice.band.mu, "calibration_sigma": choice.band.sigma}
    else:
        progress.choice("band", "off" if choice.band is OFF else [choice.band.low, choice.band.high], choice.reason)
    return choice.band, {}


def find_band(
    preset: Preset,
    parent: int,
    samples: Sequence[ScoredSample],
    calibration: Sequence[ReadSample],
    comparison: Mapping[str, Any] | None,
) -> BandChoice:
    """The band that a run from `parent` would filter these samples by. `comparison`: the noise that the proxy saw as
    it compared the server with the weights."""
    paper = Band(preset.band_low, preset.band_high)
    if not objectives.of(preset).is_filtered:
        return BandChoice(OFF, f"objective {preset.objective} has no filter")
    if preset.band != "calibrated":
        return BandChoice(OFF if preset.band == "off" else paper, "the preset says so")
    fresh = [s for s in samples if s.sample.compared and s.sample.version == parent]
    unrated = [
        mis_po.log_ratio(s.old.sampled, s.sample.behaviour) for s in calibration if s.sample.behaviour is not None
    ]
    measurements = [
        serving_noise.measure("unrated completions of the parent version", unrated),
        serving_noise.measure("the fresh rated samples themselves", [_compared_ratios(s) for s in fresh]),
    ]
    fits_paper = all(verdict(preset, paper, s).reply for s in fresh)
    return serving_noise.choose(paper, measurements, serving_noise.from_comparison(comparison), fits_paper=fits_paper)


def _missing_answers(choice: BandChoice, parent: int, samples: Sequence[ScoredSample]) -> int:
    fresh = [_compared_ratios(s) for s in samples if s.sample.compared and s.sample.version == parent]
    return serving_noise.missing_answers(choice.missing_tokens, sum(map(len, fresh)), len(fresh))


def _compared_ratios(scored: ScoredSample) -> Floats:
    """log x of the tokens that the server gave a log-prob of."""
    ratios: Floats = mis_po.log_ratio(scored.old.sampled, scored.behaviour)[_has_log_prob(scored.sample)]
    return ratios


def _has_log_prob(sample: Sample) -> Bools:
    """(T,) which tokens the server gave a log-prob of."""
    mask: Bools = np.isfinite(sample.served) if sample.served is not None else np.ones(len(sample.tokens.reply), bool)
    return mask


# --- what passes --------------------------------------------------------------------------------------------------


class LateReply(NamedTuple):
    """The part that trains of a reply that another version than the parent gave."""

    keep: Bools  # (T,)
    weight: Floats  # (T,) what the advantage is multiplied with


def late_replies(
    spec: RunSpec, preset: Preset, samples: Sequence[PushedSample], progress: Progress
) -> dict[str, LateReply]:
    """Find, by rating, what trains of the replies that another version than the parent gave.

    A rating that comes after a newer version went live is as honest as any. No band is asked of such a reply. Its
    tokens train while the two policies are near each other where it matters (mis_po.trust_tokens). Each token weighs
    what the policy makes of it now.
    """
    late = [s for s in samples if s.sample.version != spec.parent]
    if not late or not objectives.of(preset).is_filtered:
        return {}
    masks = [np.isfinite(s.old.sampled) & np.isfinite(s.behaviour) for s in late]
    log_x = [
        mis_po.log_ratio(np.where(mask, s.old.sampled, 0.0), np.where(mask, s.behaviour, 0.0))
        for mask, s in zip(masks, late, strict=True)
    ]
    keep_masks = mis_po.trust_tokens(
        [np.where(mask, ratio, np.nan) for mask, ratio in zip(masks, log_x, strict=True)],
        [s.advantage for s in late],
        most=preset.late_moment,
    )
    found = {
        s.sample.rating: LateReply(keep, mis_po.importance(ratio, most=preset.token_high))
        for s, keep, ratio in zip(late, keep_masks, log_x, strict=True)
    }
    tokens = np.concatenate(keep_masks)
    progress.choice("late", len(late), f"replies of earlier versions; {tokens.mean():.0%} of their tokens train")
    return found


def verdict(preset: Preset, band: Band, scored: ScoredSample, late_reply: LateReply | None = None) -> Verdict:
    """The filter's verdict on one sample."""
    low, high, old = preset.token_low, preset.token_high, scored.old.sampled
    by_ratio = mis_po.verdict(
        old, scored.behaviour, token_low=low, token_high=high, band=band if late_reply is None else OFF
    )
    tokens = by_ratio.tokens if late_reply is None else late_reply.keep
    if scored.sample.captured is not None:
        # What was left out of its prompt made these tokens likely, or unlikely.
        whole = mis_po.verdict(old, scored.sample.captured, token_low=low, token_high=high, band=OFF)
        tokens = tokens & whole.tokens
    return replace(by_ratio, tokens=tokens)


# --- how much passed ----------------------------------------------------------------------------------------------


def shares(
    samples: Sequence[Sample],
    spec: RunSpec,
    outcomes: Mapping[str, Outcome],
    progress: Progress,
    *,
    is_foreign: bool = False,
) -> dict[str, float]:
    """Acceptance by cause, as shares of all reply tokens of the samples that reached the filter. `is_foreign`: another
    model gave them, so nothing is compared with it."""
    rows = [(s, outcomes[s.rating]) for s in samples]
    total = sum(o.tokens for _, o in rows)
    if not total:
        return {}

    def rejected(chosen: list[tuple[Sample, Outcome]]) -> float:
        return sum(o.tokens - o.accepted for _, o in chosen) / total

    fresh = [row for row in rows if row[0].version == spec.parent]
    result = {
        "acceptance": sum(o.accepted for _, o in rows) / total,
        "rejected_fresh_mismatch": rejected([row for row in rows if row[1].cause == "fresh-mismatch"]),
        "rejected_stale": rejected([row for row in rows if row[0].version != spec.parent]),
        "rejected_token": rejected([row for row in fresh if row[1].cause in (None, "token")]),
        "recomputed": sum(o.tokens for s, o in rows if not s.compared) / total,
    }
    if compared := [o for s, o in fresh if s.compared]:
        result["acceptance_fresh"] = sum(o.accepted for o in compared) / sum(o.tokens for o in compared)
    if not is_foreign:
        _warn_of_mismatch(result.get("acceptance_fresh", 1.0), samples, progress)
    return result


def _warn_of_mismatch(accepted: float, samples: Sequence[Sample], progress: Progress) -> None:
    """Warn where the server does not compute what the trainer does, or where nobody can see whether it does."""
    if accepted < FRESH_FAULT:
        progress.warning(
            f"only {accepted:.0%} of the tokens that this very version produced pass the filter: the server "
            "does not compute what the trainer computes (another chat template, quantisation or model)."
        )
    if recomputed := sum(not s.compared for s in samples):
        progress.warning(
            f"{recomputed} of {len(samples)} samples came without log-probs: their behaviour log-probs are recomputed, "
            "so staleness is filtered and a mismatch of the server is not."
        )


def explain_nothing(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "The run has no samples to train on."
    return f"Nothing to learn from in {len(outcomes)} samples: {count_causes(outcomes, 'with an advantage of 0')}."


def count_causes(outcomes: Sequence[Outcome], otherwise: str) -> str:
    """Why samples do not train, counted."""
    causes: dict[str, int] = {}
    for outcome in outcomes:
        cause = outcome.cause or otherwise
        causes[cause] = causes.get(cause, 0) + 1
    return ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))
