"""How far a run may move its policy: the further, the more its ratings say.

An honest rating is never refused for being weak evidence; it moves the policy less. Owns what evidence is, how many
nats a token it is worth, and what a move may cost in sense. Not here: the test behind it (permutation_test), the way
back to the bound (steps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from config.presets import Preset
from trainer.policy.packing import Tokens
from trainer.policy.policy import Policy
from trainer.run.base_surprise import BaseSurprise
from trainer.run.gate import Check

PLAIN = 0.01  # of random ratings that fit as well, at and below which ratings are all the evidence that is asked for
SENSE = 0.04  # nats a token of base NLL that ratings may cost which say no more than a coin
FULL = (
    0.2  # nats a token: where the bound ends as evidence becomes plain; runs on a plain taste have moved 0.04 to 0.35
)


@dataclass(frozen=True, slots=True)
class MoveBound:
    """Where a run's way ends: it has moved no further than `nats`, or has cost no more sense than `cost`.

    The test of evidence sees how replies look, not whether they are right. So a run whose ratings fit no look may move
    on as long as its replies surprise the base no more than before. Sums that become right cost no sense; pushes in
    random directions do.
    """

    nats: float  # a token from the policy that it started at
    cost: float | None = None  # nats a token of base NLL, more than at its start; None: only how far it moved counts
    replies: Sequence[Tokens] = ()  # replies of the start, at which the cost is looked at


def cost(policy: Policy, replies: Sequence[Tokens]) -> float:
    """Mean nats a token by which the base finds the policy odder than itself, at each position of these replies. It is
    the gate's `base_nll`, in expectation over the next token."""
    return BaseSurprise.measure(policy, replies).rise


def evidence(checks: Mapping[str, Check]) -> float:
    """0 (no more than a coin says) to 1 (plain), by how often random ratings would fit the replies as well."""
    p = checks["chance"].value if "chance" in checks else None
    if p is None:  # too few ratings to ask: such runs take a step or two
        return 1.0
    return min(1.0, math.log(max(p, 1e-9)) / math.log(PLAIN))


def move_bound(
    preset: Preset, evidence: float, *, credited: bool, most: float, replies: Sequence[Tokens]
) -> MoveBound | None:
    """The bound of a run whose ratings say this much; None: it goes as far as its steps go. `credited`: by token.
    `most`: nats of base NLL that the gate lets a version lose, which plain evidence may spend. `replies`: those of
    its start."""
    moves = free_nats(preset, evidence, credited=credited)
    if moves is None or credited:
        return None if moves is None else MoveBound(moves)
    return MoveBound(moves, SENSE ** (1 - evidence) * max(most, SENSE) ** evidence, replies)


def free_nats(preset: Preset, evidence: float, *, credited: bool) -> float | None:
    """How far this run may move, nats a token; None: as far as its steps go. `credited`: by token, so a critic was
    convinced."""
    if credited:
        return preset.drift_credited
    if evidence >= 1:
        return None
    return float(preset.drift_weak ** (1 - evidence) * FULL**evidence)


def rate_share(preset: Preset, evidence: float) -> float:
    """The share of its learning rate that a run takes whose ratings say this much, where none of its replies is the
    policy's own. Its way cannot be measured then, and grows with about the square of the rate."""
    moves = free_nats(preset, evidence, credited=False)
    return 1.0 if moves is None else math.sqrt(moves / FULL)


def describe(check: Check) -> str:
    """In words, what the evidence rests on."""
    return f"ratings drawn at random would fit these replies as well in {check.value:.0%} of all draws ({check.note})"
