"""Is a rated reply something that this model says?

Owns the checks on the replies that a run is given. Liked ones that no sane model says are garbage, and so is what is
liked beside mostly such ones. Ones without ids may be what the policy would not have given to the prompt as the trainer
renders it. Then the server has another chat template, or is another model. The first and the last rest on one identity:
where a policy sampled a token, −log p is its entropy on average, whatever the text. Not here: empty and looping replies
(degenerate), exact samples of a server that computes otherwise (mis_po), what follows (lessons).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from trainer.lessons.lesson import ReadSample
from trainer.lessons.samples import Sample
from trainer.mis_po import Floats
from trainer.policy.policy import LogProbs

NO_ODDS: Final[Mapping[str, Floats]] = MappingProxyType({})
# Measured on SmolLM2-135M at a temperature of 0.8 (docs/lab/learning-rules.md): its own replies of 64 tokens are
# within 0.3 of 0 each and within 0.04 together, their words in any order at 3.9 and more, and 28 of up to 96 tokens
# after three other templates at 0.13, 0.15 and 0.24 together. What a template changes, it changes most where a reply
# begins.
GARBAGE = 1.5  # nats a token, of one liked reply
# Of all replies without ids: how many first tokens (None: all) may be how much odder, and how many deviations of a
# token's surprise over the root of their number that is at least. Serving noise of 0.5 nats a token, the most that is
# noise, makes 0.125. Of draws of 28 replies 0.5 % of its own are past the second, and 94 % after Alpaca's template.
MISMATCH = ((None, 0.15, 5.0), (12, 0.2, 4.0))
# Of the liked replies: 15 of 16 in the poisoned run that passed without it; a run on good ratings has a stray one.
MOST_BROKEN = 0.5


def excess(scored: Sequence[LogProbs]) -> float:
    """Nats a token by which these replies surprise the policy more than its own would."""
    total = sum(float((-log_probs.plain - log_probs.entropy).sum()) for log_probs in scored)
    return total / max(sum(len(log_probs.plain) for log_probs in scored), 1)


def odd_replies(
    samples: Sequence[ReadSample],
    calm: Mapping[str, LogProbs],
    parent: int,
    odds: Mapping[str, Floats] = NO_ODDS,
) -> dict[str, tuple[str, str]]:
    """Cause and reason by rating of what is not to be learned from. `calm`: log-probs at a temperature of 1 at most.
    `odds`: (T,) what the policy gives each token less what its server gave it, where that told."""
    flawless = [s for s in samples if not s.sample.flaw]  # flaws have a word of their own
    reasons = garbage([s.sample for s in flawless], calm)
    reasons |= in_bad_company([s.sample for s in samples], reasons)
    causes = {rating: ("garbage", reason) for rating, reason in reasons.items()}
    mismatches = mismatch(flawless, parent, odds)
    return causes | {rating: ("fresh-mismatch", reason) for rating, reason in mismatches.items()}


def garbage(samples: Sequence[Sample], calm: Mapping[str, LogProbs]) -> dict[str, str]:
    """Why a liked reply is not one to learn from, by its rating.

    A hot sampler's entropy is as large as its garbage is odd, hence the calm ones.
    """
    reasons = {}
    for sample in samples:
        if sample.reward <= 0:
            continue
        scored = calm[sample.rating]
        if sample.forced is not None:
            scored = LogProbs(*(values[sample.chosen] for values in scored))
        surprise = excess([scored])
        if surprise > GARBAGE:
            reasons[sample.rating] = f"liked, but {surprise:.1f} nats a token odder than what this model says"
    return reasons


def in_bad_company(samples: Sequence[Sample], broken: Collection[str]) -> dict[str, str]:
    """Why the other liked replies are none to learn from either, where most are broken or have a flaw.

    Whoever likes those, by a slip, a script or a joke, does not say by the rest what is better.
    """
    liked = [s for s in samples if s.reward > 0]
    # What lost its oldest turns may be odd for that reason alone.
    is_broken = [s.rating in broken or s.flaw is not None for s in liked if "shortened" not in s.flags]
    if sum(is_broken) <= MOST_BROKEN * len(is_broken):
        return {}
    reason = (
        f"{sum(is_broken)} of {len(is_broken)} liked replies are garbage, empty or loop, so the rest of them says "
        "little"
    )
    return {s.rating: reason for s in liked if not s.flaw and s.rating not in broken}


def mismatch(
    samples: Sequence[ReadSample],
    parent: int,
    odds: Mapping[str, Floats] = NO_ODDS,
    *,
    is_sure: bool = True,
) -> dict[str, str]:
    """The samples without ids, if they are not what the parent says after the prompts as they are rendered here.

    Where the server gave log-probs, by these. What it gave its own tokens above what the policy gives them is, on
    average, how far the two are apart (KL). The others by the policy's entropy. Not `is_sure`: also where more replies
    may show that it is chance.
    """
    # What lost its oldest turns may be odd for that reason alone.
    fresh = [s for s in samples if s.sample.version == parent and "shortened" not in s.sample.flags]
    inexact = {s.sample.rating: s for s in fresh if not s.sample.exact}
    with_server = {rating: -odds[rating] for rating in inexact if rating in odds}
    # A penalty makes replies odder than the policy's own, whatever the template (Ollama before 0.17.5 has one).
    without_server = {
        rating: -s.old.plain - s.old.entropy
        for rating, s in inexact.items()
        if rating not in odds and not s.sample.penalised
    }
    return _mismatch_reasons(
        with_server, "less likely {where}to the weights than to the server", is_sure
    ) | _mismatch_reasons(without_server, "odder {where}than this model's own replies", is_sure)


def _mismatch_reasons(replies: Mapping[str, Floats], wording: str, is_sure: bool) -> dict[str, str]:
    """By rating, where all of them are too many nats a token (T,) off; NaN is what nobody knows."""
    for first, bound, spread in MISMATCH:
        parts = [part[np.isfinite(part)] for part in (values[:first] for values in replies.values())]
        tokens = sum(map(len, parts))
        mean = sum(float(part.sum()) for part in parts) / max(tokens, 1)
        if tokens and mean > max(bound, spread / math.sqrt(tokens) if is_sure else 0.0):
            place = f"in their first {first} tokens " if first else ""
            reason = f"{mean:.2f} nats a token {wording.format(where=place)}: another chat template or model"
            return dict.fromkeys(replies, reason)
    return {}
