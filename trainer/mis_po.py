"""MIS-PO: policy gradient on samples of a slightly different policy, behind a hard two-level filter.

Owns the mathematics: advantage, filter, loss. Pure functions on flat arrays, one entry a reply token (N,), with every
mask a named number. Not here: other losses (losses), where log-probs come from (samples, policies), when to step
(loop). `verdict` and what feeds it has no θ in it and is plain numpy. `loss` has, so it takes the array module
(`torch`, `mlx.core`, `numpy`). Its gradient goes through `theta` alone: the masks are comparisons, which have none.

Step 3.5 Flash, arXiv 2602.10604v2 §5.2.1, as changed for single rated replies: facts in docs/lab/training-log.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = Any  # numpy, torch or mlx
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Cause = Literal["fresh-mismatch", "stale", "token"]

KNEE = 1.0  # nats
CLIP = 20.0  # nats: exp(20) is finite in fp32 and far outside every bound
# Serving noise of a 4-bit server is about 0.2 nats a token. Past this it is not noise but another model or template,
# and a band as wide as that would let it through.
MAX_SIGMA = 0.5


def advantage(reward: float, weight: float, baseline: float, *, weight_good: float, clip: float) -> float:
    """A = w · (r − b), clipped. No z-score: it makes the baseline meaningless and a batch of one a zero."""
    scale = weight * (weight_good if reward > 0 else 1.0)
    return max(-clip, min(clip, scale * (reward - baseline)))


def balance(advantages: Sequence[float], *, most: float = 3.0) -> list[float]:
    """Both signs made to weigh the same in sum, the sum of all staying what it was; a sign at most `most` times itself.

    Mostly one sign (a first run is mostly dislikes) only pushes everything down, which is drift and no direction. A
    fixed weight fits one share of good ratings, and that share is what learning changes.
    """
    up = sum(a for a in advantages if a > 0)
    down = -sum(a for a in advantages if a < 0)
    if not up or not down:
        return list(advantages)
    half = (up + down) / 2
    factors = {True: min(most, half / up), False: min(most, half / down)}
    return [a * factors[a > 0] for a in advantages]


def spare_likely(advantage: Floats, old: Floats, likely: float) -> Floats:
    """The advantages (T,) of one reply, 0 at the tokens of a disliked one that the policy gave more than `likely`.

    Those are grammar more than taste, and pushing them down flattens the model everywhere: it lost its sense before it
    lost the habit (docs/lab/training-log.md). What was a choice among several is pushed down as before.
    """
    spared_advantage: Floats = np.where((advantage < 0) & (old > math.log(likely)), 0.0, advantage)
    return spared_advantage


def ema(baseline: float, rewards: Sequence[float], decay: float) -> float:
    """The baseline after these rewards, in order. It starts at 0, which stands for 1/(1 − decay) neutral ones."""
    for reward in rewards:
        baseline = decay * baseline + (1 - decay) * reward
    return baseline


# --- the filter: which tokens and replies train ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Band:
    """Bounds of log ρ̄ of a reply: the given band, widened to three deviations of serving noise and never narrowed.

    Mean μ and deviation σ of log x are known from n tokens. The mean over the T tokens of a reply is within
    3σ√(1/T + 1/n) of μ. σ is taken larger by its own standard error, 1/√(2n).
    """

    low: float  # of ρ̄, not its log
    high: float
    mu: float = 0.0  # mean and deviation of log x over tokens, nats
    sigma: float = 0.0
    calibration_tokens: float = math.inf  # from how many tokens these are known

    def limits(self, tokens: int) -> tuple[float, float]:
        sigma = self.sigma * (1 + 1 / math.sqrt(2 * self.calibration_tokens))
        noise = 3 * sigma * math.sqrt(1 / max(tokens, 1) + 1 / self.calibration_tokens)
        low = -math.inf if self.low <= 0 else math.log(self.low)
        return min(low, self.mu - noise), max(math.log(self.high), self.mu + noise)


OFF = Band(0.0, math.inf)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The filter's verdict on one reply."""

    tokens: Bools  # (T,) inside [token_low, token_high]
    log_rho: float  # mean log x
    reply: bool  # log ρ̄ inside the band

    @property
    def keep(self) -> Bools:
        return self.tokens & self.reply  # (T,)

    def cause(self, *, stale: bool) -> Cause | None:
        """Why nothing of this reply trains; None when something does."""
        if not self.reply:
            return "stale" if stale else "fresh-mismatch"
        return None if self.tokens.any() else "stale" if stale else "token"


def log_ratio(old: Floats, behaviour: Floats) -> Floats:
    """log x_t = ℓ_old − ℓ_β, clipped so that its exp is finite. (T,)"""
    clipped: Floats = np.clip(old - behaviour, -CLIP, CLIP)
    return clipped


def verdict(old: Floats, behaviour: Floats, *, token_low: float, token_high: float, band: Band) -> Verdict:
    """The two-level filter on one reply; both (T,), both under the distribution that was sampled from.

    ℓ_old is −inf where the token is outside the truncated support (top-p, top-k), and a recomputed ℓ_β may be. Such a
    token is masked and left out of ρ̄, where one of them would outweigh all the others.
    """
    inside = np.isfinite(old) & np.isfinite(behaviour)
    log_x = log_ratio(np.where(inside, old, 0.0), np.where(inside, behaviour, 0.0))
    x = np.exp(log_x)
    log_rho = float(log_x[inside].mean()) if inside.any() else -CLIP
    low, high = band.limits(int(inside.sum()))
    return Verdict(
        tokens=inside & (x >= token_low) & (x <= token_high),
        log_rho=log_rho,
        reply=low <= log_rho <= high,
    )


def calibrate(band: Band, mu: float, sigma: float, tokens: int) -> Band | None:
    """The band widened by the noise seen in log x of so many fresh tokens; None when that is more than noise."""
    if sigma > MAX_SIGMA or abs(mu) > MAX_SIGMA / 2:
        return None
    return Band(band.low, band.high, mu, sigma, tokens)


def trust_tokens(log_x: Sequence[Floats], advantages: Sequence[Floats], *, most: float) -> list[Bools]:
    """Which tokens of late replies train: second-moment trust (M2PO, arXiv 2510.01161), over all of them together.

    `log_x` (T,) of each reply, NaN outside the support of either policy: such a token never trains. A push may go on in
    the direction in which the policy has moved already (A > 0 and x > 1, A < 0 and x < 1). There the tokens with the
    largest (log x)² are dropped until the mean of the others is at most `most`. Any other token is kept.
    """
    flat, pushed = np.concatenate([*log_x, np.empty(0)]), np.concatenate([*advantages, np.empty(0)])
    keep = np.isfinite(flat)
    onward = np.flatnonzero(keep & (flat * pushed > 0))
    order = onward[np.argsort(flat[onward] ** 2, kind="stable")]  # the smallest first
    means = np.cumsum(flat[order] ** 2) / np.arange(1, len(order) + 1)  # never falling: each is at least those before
    keep[order[np.searchsorted(means, most, side="right") :]] = False
    return list(np.split(keep, np.cumsum([len(each) for each in log_x])[:-1])) if log_x else []


def importance(log_x: Floats, *, most: float) -> Floats:
    """min(x, most) of each token: what the policy that trains makes of what another one said. (T,)"""
    weight: Floats = np.exp(np.minimum(log_x, math.log(most)))
    return weight


# --- the loss ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Terms:
    """Inputs of the loss of N tokens besides θ; (N,) unless it says otherwise, all constants.

    From `is_own` on, None where the objective does not ask for it.
    """

    old: Array  # ℓ_old, temperature only
    ref: Array  # ℓ_ref, temperature only
    keep: Array  # 1 where token and reply passed the filter
    advantage: Array  # A of the token's reply
    share: Array  # 1 / (T_i · replies in the batch): a sum with it is a mean of replies' means
    is_own: Array = None  # 1 where the policy itself said the token, 0 where it imitates; None: all its own
    behaviour: Array = None  # ℓ_β (mis-po-clip)
    member: Array = None  # (R, N) 1 where token n is of reply r (mis-po-clip, kto)
    zero: Array = None  # () KTO's reference point z₀
    teaches: Array = None  # 1 where the teacher has a distribution
    stays: Array = None  # 1 where the policy is to stay as it was: what it expected is the distribution then
    elsewhere: Array = None  # (N, K) how much each of these tokens is pushed down
    teacher_ids: Array = None  # (N, K) the distribution's likeliest tokens
    teacher: Array = None  # (N, K) their log-probs under it


def k3(xp: Any, reference: Array, theta: Array) -> Array:
    """Schulman's estimator of KL(θ ‖ other) at each sampled token: never negative, low variance."""
    gap = reference - theta
    return xp.exp(xp.clip(gap, -CLIP, CLIP)) - gap - 1.0


def pull(xp: Any, ref: Array, theta: Array) -> Array:
    """`k3` to the reference as a run is held back by it: past KNEE nats it goes on as a straight line.

    k3 grows with exp(ℓ_ref − ℓ_θ): one token pushed down by 5 nats pulls 150 times as hard as another by 1. The clipped
    gradient of a step is then spent on that token alone (seen: kl_ref 2.1, gradient norm 4.6). The line has the slope
    of the knee, so a token is still held, and no harder than a token one nat away.
    """
    gap = ref - theta
    capped = xp.clip(gap, -CLIP, KNEE)
    slope = math.exp(KNEE) - 1.0
    return xp.exp(capped) - xp.where(gap > KNEE, KNEE, gap) - 1.0 + slope * xp.where(gap > KNEE, gap - KNEE, 0.0)


def drift(xp: Any, old: Array, theta: Array) -> Array:
    """How far θ has moved from θ_old at each token: the unbiased estimator of KL(θ_old ‖ θ), never negative.

    The tokens are θ_old's own. With the roles of `k3` it would estimate KL(θ ‖ θ_old) from the wrong samples. A
    disliked token that fell by 5 nats counts e⁵, and a run stops on three tokens (docs/lab/training-log.md).
    """
    moved = theta - old
    return xp.exp(xp.clip(moved, -CLIP, CLIP)) - moved - 1.0


def loss(
    xp: Any, theta: Array, terms: Terms, *, kl_ref: float, guard_low: float, guard_high: float
) -> tuple[Array, dict[str, Array]]:
    """L = − Σ_i (1/T_i) Σ_t m M A ℓ_θ / n + β_KL · pull(θ‖ref), and what there is to know about it as sums over tokens.

    The guard: this run may have moved a token past the bounds in the direction of its advantage. Such a token has no
    gradient from it any more. It is a comparison, so it has none of its own. What is imitated (`is_own` is 0) may move
    as far as it takes, and says nothing about drift: those are not θ_old's samples.
    """
    moved = theta - terms.old  # (N,) log π_θ/π_old
    is_own = terms.keep * 0 + 1 if terms.is_own is None else terms.is_own
    outside = ((terms.advantage > 0) & (moved > math.log(guard_high))) | (
        (terms.advantage < 0) & (moved < math.log(guard_low))
    )
    guarded = outside & (is_own > 0)
    train = xp.where(guarded, 0.0, terms.keep)  # (N,)
    actor = -(terms.share * train * terms.advantage * theta).sum()
    # A teacher is an anchor of its own, and k3's tail is heaviest at the very tokens that it rules out.
    anchored = terms.share if terms.teaches is None else terms.share * (1 - terms.teaches)
    loss = actor + kl_ref * (anchored * pull(xp, terms.ref, theta)).sum()
    return loss, {
        "loss": loss,
        "kl_ref": k3(xp, terms.ref, theta).sum(),
        "kl_old": (is_own * drift(xp, terms.old, theta)).sum(),
        "guarded": xp.where(guarded, terms.keep, 0.0).sum(),
    }
