"""How wide the filter's band is, by what is known of the noise between the server's log-probs and the trainer's.

Owns the rule: which measurements count, when they are too few, and when they are more than noise. A run asks it, and so
does the look at the newest answers before one (rehearsal), so that both say the same. Not here: whose tokens are
measured (acceptance), what the band lets through (mis_po).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from trainer import mis_po
from trainer.mis_po import Band, Floats

ENOUGH: Final = 200  # tokens of one kind, which calibrate the band alone: σ is then known to 5 %
FEWEST: Final = 32  # tokens of all kinds together; of fewer the deviation alone is off by more than 12 %
COMPARISON: Final = "the comparison of the server with the weights"


class NoiseMeasurement(NamedTuple):
    """Mean and deviation of log x over tokens that the model itself had just sampled."""

    source: str
    mean: float  # nats
    deviation: float  # nats
    tokens: int


@dataclass(frozen=True, slots=True)
class BandChoice:
    """The band, and why it is this one; without a band nobody can tell yet."""

    band: Band | None
    reason: str
    is_calibrated: bool = False
    is_too_noisy: bool = False  # more than noise: another model, template, or quantisation
    missing_tokens: int = 0  # until the band can be calibrated


def measure(source: str, ratios: Sequence[Floats]) -> NoiseMeasurement:
    """Measure log x, (T,) a reply. The clip itself is a token outside the support, and says nothing about noise."""
    log_x = np.concatenate([*ratios, np.empty(0)])
    log_x = log_x[np.abs(log_x) < mis_po.CLIP]
    if not len(log_x):
        return NoiseMeasurement(source, 0.0, 0.0, 0)
    return NoiseMeasurement(source, float(log_x.mean()), float(log_x.std()), len(log_x))


def from_comparison(noise: Mapping[str, Any] | None) -> NoiseMeasurement:
    """Read what the proxy measured as it compared the server with the weights (run.json, `comparison`)."""
    if noise is None:
        return NoiseMeasurement(COMPARISON, 0.0, 0.0, 0)
    return NoiseMeasurement(COMPARISON, float(noise["mean"]), float(noise["deviation"]), int(noise["tokens"]))


def choose(
    paper: Band, replies: Sequence[NoiseMeasurement], comparison: NoiseMeasurement, *, fits_paper: bool
) -> BandChoice:
    """Choose the band. The first of `replies` with ENOUGH tokens decides; else all measurements do together.

    `fits_paper`: the paper's own band lets every reply through. Then nothing waits for more tokens.
    """
    sufficient = next((measurement for measurement in replies if measurement.tokens >= ENOUGH), None)
    noise = sufficient or _pool([*replies, comparison])
    if noise.tokens < FEWEST:
        few = f"{noise.tokens} of {FEWEST} tokens are known, which are too few to calibrate on"
        if fits_paper:
            return BandChoice(paper, f"{few}, and the paper's band takes every reply")
        return BandChoice(None, few, missing_tokens=FEWEST - noise.tokens)
    band = mis_po.calibrate(paper, noise.mean, noise.deviation, noise.tokens)
    if band is None:
        reason = (
            f"log-probs of the server and of the trainer differ by {noise.mean:+.2f} ± {noise.deviation:.2f} nats "
            f"a token on {noise.source}: more than numeric noise. Look for another chat template, model or "
            "quantisation; the paper's band is used."
        )
        return BandChoice(paper, reason, is_too_noisy=True)
    reason = f"serving noise {band.mu:+.4f} ± {band.sigma:.4f} nats over {noise.tokens} tokens of {noise.source}"
    return BandChoice(band, reason, is_calibrated=True)


def missing_answers(missing_tokens: int, known_tokens: int, answers: int) -> int:
    """How many more answers like those that are there will have the missing tokens."""
    return math.ceil(missing_tokens * max(answers, 1) / max(known_tokens, answers, 1))


def _pool(measurements: Sequence[NoiseMeasurement]) -> NoiseMeasurement:
    """All of these as one: what is between their means counts as noise, too."""
    measured = [measurement for measurement in measurements if measurement.tokens]
    tokens = sum(measurement.tokens for measurement in measured)
    if not tokens:
        return NoiseMeasurement("nothing", 0.0, 0.0, 0)
    mean = sum(measurement.tokens * measurement.mean for measurement in measured) / tokens
    square = sum(m.tokens * (m.deviation**2 + (m.mean - mean) ** 2) for m in measured) / tokens
    return NoiseMeasurement(", and of ".join(m.source for m in measured), mean, math.sqrt(square), tokens)
