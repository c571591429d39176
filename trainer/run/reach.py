"""How far a run may move its policy: the further, the more its ratings say.

An honest rating is never refused for being weak evidence; it moves the policy less. Owns what evidence is and how many
nats a token it is worth. Not here: the test behind it (permutation_test), the way back to the bound (steps).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from config.presets import Preset
from trainer.run.gate import Check

PLAIN = 0.01  # of random ratings that fit as well, at and below which ratings are all the evidence that is asked for
FULL = (
    0.2  # nats a token: where the bound ends as evidence becomes plain; runs on a plain taste have moved 0.04 to 0.35
)


def evidence(checks: Mapping[str, Check]) -> float:
    """0 (no more than a coin says) to 1 (plain), by how often random ratings would fit the replies as well."""
    p = checks["chance"].value if "chance" in checks else None
    if p is None:  # too few ratings to ask: such runs take a step or two
        return 1.0
    return min(1.0, math.log(max(p, 1e-9)) / math.log(PLAIN))


def nats(preset: Preset, evidence: float, *, credited: bool) -> float | None:
    """How far this run may move, nats a token; None: as far as its steps go. `credited`: by token, so a critic was
    convinced."""
    if credited:
        return preset.drift_credited
    if evidence >= 1:
        return None
    return float(preset.drift_weak ** (1 - evidence) * FULL**evidence)


def why(check: Check) -> str:
    """In words, what the evidence rests on."""
    return f"ratings drawn at random would fit these replies as well in {check.value:.0%} of all draws ({check.note})"
