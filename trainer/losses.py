"""Losses beside MIS-PO, over the same flat arrays; for whom and when in docs/lab/training-log.md.

Owns `mis-po-clip` (ReinforceClaw's published variant), `grpo` (several replies to one prompt), and `distill` (a comment
as a teacher). Replies of another model have `kto`, and `kto_combine` where there are comments. Beside them: `hold`
(what is not to move), `push_down_unlikely` (where a push is not meant), and `combine` (these and ratings). Each takes
the array module, θ's log-probs and `Terms`, and returns the loss with sums over tokens. No mask, scale or reference
point has a gradient. Not here: MIS-PO itself and the filter (mis_po).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import numpy as np

from trainer import mis_po
from trainer.mis_po import CLIP, Array, Floats, Terms, drift, k3

LEAST_TAIL = 1e-6  # of the mass outside the teacher's K likeliest: fp32 cannot tell less from 0

Sums = dict[str, Array]


def mis_po_clip(
    xp: Any, theta: Array, terms: Terms, *, kl_ref: float, token_low: float, token_high: float, low: float, high: float
) -> tuple[Array, Sums]:
    """L = actor · scale + β_KL · k3, with π_θ/π_β clipped and scale = min(1, ρ̄/low, high/ρ̄), ρ̄ against the reference.

    The scale is a constant: with its gradient it would cancel the push past `high` exactly and double it below `low`.
    """
    log_x = xp.clip(theta - terms.behaviour, -CLIP, CLIP)  # (N,)
    ratio = xp.clip(xp.exp(log_x), token_low, token_high)
    moved = constant(xp, terms.member @ (theta - terms.ref)) / terms.member.sum(-1)  # (R,) log ρ̄
    rho = xp.exp(xp.clip(moved, -CLIP, CLIP))
    scale = xp.clip(xp.minimum(rho / low, high / rho), 0.0, 1.0) @ terms.member  # (N,)
    kl = k3(xp, terms.ref, theta)
    actor = -(terms.share * terms.keep * scale * ratio * terms.advantage).sum()
    loss = actor + kl_ref * (terms.share * kl).sum()
    return loss, _sums(xp, loss, kl, theta, terms) | {"scale": scale.sum()}


def grpo(
    xp: Any, theta: Array, terms: Terms, *, kl_ref: float, clip_low: float, clip_high: float
) -> tuple[Array, Sums]:
    """PPO's surrogate −min(x·A, clip(x, 1 − low, 1 + high)·A), x = π_θ/π_old, on group-relative advantages."""
    ratio = xp.exp(xp.clip(theta - terms.old, -CLIP, CLIP))  # (N,)
    clipped = xp.clip(ratio, 1 - clip_low, 1 + clip_high)
    gain = xp.minimum(ratio * terms.advantage, clipped * terms.advantage)
    kl = k3(xp, terms.ref, theta)
    loss = kl_ref * (terms.share * kl).sum() - (terms.share * terms.keep * gain).sum()
    guarded = xp.where(clipped * terms.advantage < ratio * terms.advantage, terms.keep, 0.0).sum()
    return loss, _sums(xp, loss, kl, theta, terms) | {"guarded": guarded}


def group_baselines(groups: Sequence[Hashable], rewards: Sequence[float], baseline: float) -> list[float]:
    """The baseline of each reward: the mean of its group, or `baseline` in a group of one.

    Not divided by the group's deviation: two raters' worth of replies have one that means little (arXiv 2503.20783).
    """
    rewards_of: dict[Hashable, list[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        rewards_of.setdefault(group, []).append(reward)
    return [sum(rewards_of[g]) / len(rewards_of[g]) if len(rewards_of[g]) > 1 else baseline for g in groups]


def distill(xp: Any, top: Array, terms: Terms) -> tuple[Array, Sums]:
    """Forward KL(teacher ‖ θ) at each taught token, over the teacher's K likeliest and one bin for all the others.

    `top` (N, K) are θ's log-probs at `terms.teacher_ids`. Exactly 0 where θ is the teacher, and never negative.
    """
    taught = terms.teaches * _kl(xp, terms.teacher, top)
    return (terms.share * taught).sum(), {"kl_teacher": taught.sum()}


def hold(xp: Any, top: Array, terms: Terms) -> tuple[Array, Sums]:
    """Reverse KL(θ ‖ start) at each token that is to stay, over K tokens and one bin for all the others.

    In this direction it sees what has become likely and was not. The other one hardly does, and an estimate from what
    was sampled at the start not at all.
    """
    moved = terms.stays * _kl(xp, top, terms.teacher)
    return (terms.share * moved).sum(), {"kl_stay": moved.sum()}


def push_down_unlikely(xp: Any, top: Array, terms: Terms, *, guard_low: float) -> tuple[Array, Sums]:
    """Pushes the run's earners down where they were unlikely and earned nothing, until they are below the guard.

    Together with the push up it is a baseline over places: what a token gains is what it gains here rather than there.
    """
    moved = top - terms.teacher  # (N, K)
    down = xp.where(moved > math.log(guard_low), terms.elsewhere, 0.0) * moved
    return (terms.share * down.sum(-1)).sum(), {"elsewhere": (terms.elsewhere * moved).sum()}


def _kl(xp: Any, p: Array, q: Array) -> Array:
    """(N,) KL(p ‖ q) of log-probs (N, K), all that is not among the K as one."""
    weights = xp.exp(p)
    rest_p, rest_q = (xp.clip(1 - xp.exp(each).sum(-1), LEAST_TAIL, 1.0) for each in (p, q))
    return (weights * (p - q)).sum(-1) + rest_p * (xp.log(rest_p) - xp.log(rest_q))


def combine(
    xp: Any,
    theta: Array,
    terms: Terms,
    top: Array | None = None,
    *,
    w_distill: float,
    w_stay: float,
    w_elsewhere: float,
    kl_ref: float,
    guard_low: float,
    guard_high: float,
    actor: Any = None,
) -> tuple[Array, Sums]:
    """MIS-PO on the ratings (w_rl is in their advantages), plus w_distill times the teacher's forward KL. Then w_stay
    times what has moved where nothing was to, and w_elsewhere times what is pushed down there. `actor`: another loss in
    MIS-PO's place.

    `distill` is this with ratings of advantage 0. A batch with neither is MIS-PO's.
    """
    actor = actor or partial(mis_po.loss, kl_ref=kl_ref, guard_low=guard_low, guard_high=guard_high)
    loss, sums = actor(xp, theta, terms)
    push_down = partial(push_down_unlikely, guard_low=guard_low)
    parts = (
        (terms.teaches, w_distill, distill),
        (terms.stays, w_stay, hold),
        (terms.elsewhere, w_elsewhere, push_down),
    )
    for mask, weight, part in parts:
        if top is not None and mask is not None:
            value, part_sums = part(xp, top, terms)
            loss, sums = loss + weight * value, sums | part_sums
    return loss, sums | {"loss": loss}


def directional(teacher: Floats, old: Floats, *, weight: float, clip: float) -> Floats:
    """A teacher's part of the advantage of each token of a reply, w · clip(ℓ_teacher − ℓ_old). (T,)"""
    pull: Floats = weight * np.clip(teacher - old, -clip, clip)
    return pull


def kto(xp: Any, theta: Array, terms: Terms, *, beta: float) -> tuple[Array, Sums]:
    """Ethayarajh et al., arXiv 2402.01306: L = mean(λ − λ σ(±β (r_θ − z₀))), r_θ = log π_θ(y|x)/π_ref(y|x).

    The sign and λ are those of the advantage. z₀ is the KL to the reference, without a gradient: max(0, mean log
    π_θ(y'|x)/π_ref(y'|x)). The loop estimates it on mismatched prompts and replies of the batch.
    """
    reward = terms.member @ (theta - terms.ref)  # (R,) a sum over the reply's tokens
    advantage = (terms.member @ terms.advantage) / terms.member.sum(-1)  # (R,)
    value = beta * (reward - terms.zero) * xp.sign(advantage)
    worth = 1 / (1 + xp.exp(xp.clip(-value, -CLIP, CLIP)))
    mean = terms.member @ terms.share  # (R,) 1 / replies in the batch
    loss = (mean * xp.abs(advantage) * (1 - worth)).sum()
    return loss, _sums(xp, loss, k3(xp, terms.ref, theta), theta, terms)


def kto_combine(
    xp: Any, theta: Array, terms: Terms, top: Array | None = None, *, beta: float, w_distill: float
) -> tuple[Array, Sums]:
    """`kto` on ratings and corrections, plus w_distill times the teacher's forward KL where a comment teaches.

    Neither needs to know which policy gave the replies: KTO compares with the reference, and the teacher is θ's own.
    """
    loss, sums = kto(xp, theta, terms, beta=beta)
    if top is not None and terms.teaches is not None:
        taught, part_sums = distill(xp, top, terms)
        loss, sums = loss + w_distill * taught, sums | part_sums
    return loss, sums | {"loss": loss}


def reference_point(theta: Floats, ref: Floats, lengths: Sequence[int]) -> float:
    """z₀ of `kto` from log-probs (N,) of mismatched replies, one after another; 0 for a reply on its own."""
    if len(lengths) < 2:
        return 0.0
    return max(0.0, float((theta - ref).sum()) / len(lengths))


def constant(xp: Any, value: Array) -> Array:
    """The value without its gradient, in each framework's own words."""
    if hasattr(xp, "stop_gradient"):
        return xp.stop_gradient(value)
    return value.detach() if hasattr(value, "detach") else value


def _sums(xp: Any, loss: Array, kl: Array, theta: Array, terms: Terms) -> Sums:
    moved = drift(xp, terms.old, theta)
    return {"loss": loss, "kl_ref": kl.sum(), "kl_old": (moved if terms.is_own is None else terms.is_own * moved).sum()}
