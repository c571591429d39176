"""How wide the filter is, and how much of the data passed it.

Owns the band's calibration on serving noise, what became of each sample, and the shares by cause that say whether
serving is at fault. Not here: the filter itself (objective), whom it is applied to (lessons).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from config.presets import Preset
from trainer import objective
from trainer.io.progress import Progress
from trainer.io.run_folder import RunSpec
from trainer.lessons.degenerate import Flag
from trainer.lessons.samples import Sample
from trainer.objective import OFF, Band, Bools, Floats
from trainer.objective_kin import UNFILTERED
from trainer.policy.policy import LogProbs

CALIBRATION_TOKENS = 200  # fewer say too little about σ
FRESH_FAULT = 0.7  # acceptance of fresh replies under which serving, not learning, is at fault


@dataclass
class Outcome:
    """Outcome of a sample, as result.json has it."""

    used: bool
    cause: str | None
    tokens: int
    accepted: int
    exact: bool
    reason: str | None = None
    flags: list[Flag] = field(default_factory=list)  # what is odd about the reply, whether it trained or not
    loss: float | None = None  # of its rating, where the run began: − mean of mask · A · ℓ_old over its tokens


def choose_band(
    preset: Preset,
    spec: RunSpec,
    samples: Sequence[Sample],
    old: Sequence[LogProbs],
    behaviour: Sequence[Floats],
    calibration: Sequence[Sample],
    old_calibration: Sequence[LogProbs],
    metrics: dict[str, float],
    progress: Progress,
) -> Band:
    """The band of whole replies that this run filters by, calibrated where there is enough to calibrate on."""
    paper = Band(preset.band_low, preset.band_high)
    if preset.objective in UNFILTERED:
        progress.choice("band", "off", f"objective {preset.objective} has no filter")
        return OFF
    if preset.band == "off":
        progress.choice("band", "off", "the preset says so")
        return OFF
    if preset.band == "paper":
        progress.choice("band", [paper.low, paper.high], "the preset says so")
        return paper
    sources: list[tuple[str, list[Floats]]] = [
        (
            "unrated completions of the parent version",
            [
                objective.log_ratio(log_probs.sampled, s.behaviour)
                for s, log_probs in zip(calibration, old_calibration, strict=True)
                if s.behaviour is not None
            ],
        ),
        (
            "the fresh rated samples themselves, for want of unrated ones",
            [
                objective.log_ratio(log_probs.sampled, behaviour_log_probs)[_has_log_prob(s)]
                for s, log_probs, behaviour_log_probs in zip(samples, old, behaviour, strict=True)
                if s.compared and s.version == spec.parent
            ],
        ),
    ]
    for source, ratios in sources:
        log_x = np.concatenate(ratios) if ratios else np.empty(0)
        log_x = log_x[np.abs(log_x) < objective.CLIP]  # the clip itself is a token outside the support
        if len(log_x) < CALIBRATION_TOKENS:
            continue
        band = objective.calibrate(paper, log_x)
        if band is None:
            progress.warning(
                f"log-probs of the server and of the trainer differ by {log_x.mean():+.2f} ± {log_x.std():.2f} nats "
                f"a token on {source}: more than numeric noise. Look for another chat template, model or "
                "quantisation; the paper's band is used."
            )
            return paper
        metrics |= {"calibration_mu": band.mu, "calibration_sigma": band.sigma}
        reason = f"serving noise {band.mu:+.4f} ± {band.sigma:.4f} nats over {len(log_x)} tokens of {source}"
        progress.choice("band", "calibrated", reason)
        return band
    reason = f"fewer than {CALIBRATION_TOKENS} fresh tokens to calibrate on"
    progress.choice("band", [paper.low, paper.high], reason)
    return paper


def _has_log_prob(sample: Sample) -> Bools:
    """(T,) which tokens the server gave a log-prob of."""
    mask: Bools = np.isfinite(sample.served) if sample.served is not None else np.ones(len(sample.tokens.reply), bool)
    return mask


def account(
    samples: Sequence[Sample],
    spec: RunSpec,
    outcomes: Mapping[str, Outcome],
    metrics: dict[str, float],
    progress: Progress,
) -> None:
    """Acceptance by cause, as shares of all reply tokens of the samples that reached the filter."""
    rows = [(s, outcomes[s.rating]) for s in samples]
    total = sum(o.tokens for _, o in rows)
    if not total:
        return

    def share(chosen: list[tuple[Sample, Outcome]], accepted: bool = False) -> float:
        return sum(o.accepted if accepted else o.tokens - o.accepted for _, o in chosen) / total

    metrics["acceptance"] = share(rows, accepted=True)
    late_rows = [r for r in rows if r[0].version != spec.parent]
    metrics["rejected_fresh_mismatch"] = share([r for r in rows if r[1].cause == "fresh-mismatch"])
    metrics["rejected_stale"] = share(late_rows)
    metrics["rejected_token"] = share([r for r in rows if r not in late_rows and r[1].cause in (None, "token")])
    metrics["recomputed"] = sum(o.tokens for s, o in rows if not s.compared) / total
    fresh = [o for s, o in rows if s.compared and s.version == spec.parent]
    if fresh:
        accepted = sum(o.accepted for o in fresh) / sum(o.tokens for o in fresh)
        metrics["acceptance_fresh"] = accepted
        if accepted < FRESH_FAULT:
            progress.warning(
                f"only {accepted:.0%} of the tokens that this very version produced pass the filter: the server "
                "does not compute what the trainer computes (another chat template, quantisation or model)."
            )
    recomputed = sum(not s.compared for s in samples)
    if recomputed:
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
