"""How odd the base finds what a candidate says: at each token of its replies, over the whole vocabulary.

Owns the look, and its figures with their standard errors. Not here: the bounds and the checks (gate), what a run may
cost (reach).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainer.mis_po import Floats
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class BaseSurprise:
    """(N,) each, over the tokens of the replies, one reply after the other."""

    replies: Sequence[Tokens]
    excess: Floats  # nats by which the base finds the candidate odder than itself
    entropy: Floats  # of the candidate's next token, nats
    base_entropy: Floats

    @classmethod
    def measure(cls, policy: Policy, replies: Sequence[Tokens]) -> BaseSurprise:
        """Ask the base about the replies of what the policy wears."""
        groups = packing.group(replies, policy.budget)
        parts = [policy.surprise(packing.pack([replies[i] for i in members])) for members in groups]
        ordered = [replies[i] for members in groups for i in members]
        return cls(ordered, *(np.concatenate(each) for each in zip(*parts, strict=True)))

    @property
    def rise(self) -> float:
        """Mean nats a token that the candidate costs: the gate's `base_nll`."""
        return float(self.excess.mean())

    @property
    def error(self) -> float:
        """Standard error of the rise."""
        return standard_error(self.excess - self.excess.mean(), self.replies)

    @property
    def entropy_ratio(self) -> float:
        return float(self.entropy.mean() / max(self.base_entropy.mean(), 1e-6))


def standard_error(deviations: Floats, replies: Sequence[Tokens]) -> float:
    """Standard error of a mean over the tokens of replies, by their `deviations` (N,) from it. Tokens of one reply
    count as one draw."""
    ends = np.cumsum([len(reply.reply) for reply in replies])
    of_replies = np.array([part.sum() for part in np.split(deviations, ends[:-1])])
    return float(np.sqrt((of_replies**2).sum() * len(replies) / max(len(replies) - 1, 1)) / ends[-1])
