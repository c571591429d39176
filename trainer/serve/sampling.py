"""Choosing the next token of every row, and saying exactly how likely it was.

Owns temperature, top-k and top-p and the log-probs of the distribution they leave: what the trainer later compares
with. At temperature 0 the choice is the likeliest token and log-probs are those at temperature 1, over the whole
vocabulary. Randomness is one number a token, from the row's own generator, so a seed gives the same reply whatever
else is in the batch. Not here: when a reply ends (engine).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# What vLLM writes for a token that sampling ruled out: JSON has no -inf.
RULED_OUT = -9999.0


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def truncates(self) -> bool:
        return not self.greedy and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True)
class ChosenTokens:
    ids: list[int]
    logprobs: list[float]
    distribution: Tensor  # (B, V) log-probs, -inf where ruled out

    def likeliest(self, row: int, count: int) -> list[tuple[int, float]]:
        values, ids = self.distribution[row].topk(count)
        return [(i, max(v, RULED_OUT)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


def choose(logits: Tensor, settings: Sequence[Sampling], draws: Sequence[float]) -> ChosenTokens:
    """One token a row from fp32 `logits` (B, V); `draws` are uniform in [0, 1), one a row."""
    temperatures = [1.0 if s.greedy else s.temperature for s in settings]
    scaled = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    distribution = torch.log_softmax(scaled, dim=-1)  # (B, V)
    for row, setting in enumerate(settings):
        if setting.truncates:
            distribution[row] = truncate(distribution[row], setting.top_p, setting.top_k)
    ids = logits.argmax(-1)  # (B)
    sampled = [row for row, setting in enumerate(settings) if not setting.greedy]
    if sampled:
        # The inverse of the cumulative distribution, in double: 49,152 fp32 additions would move the last tokens.
        cumulative = distribution[sampled].double().exp().cumsum(-1)  # (S, V)
        total = cumulative[:, -1]
        thresholds = torch.tensor([draws[row] for row in sampled], dtype=torch.float64, device=logits.device) * total
        # Below the total even when rounding would reach it, so a token of probability 0 is never found.
        thresholds = torch.minimum(thresholds, torch.nextafter(total, torch.zeros_like(total)))
        ids[sampled] = torch.searchsorted(cumulative, thresholds[:, None], right=True)[:, 0].clamp_max(
            logits.shape[-1] - 1
        )
    logprobs = distribution.gather(-1, ids[:, None])[:, 0]
    return ChosenTokens(ids.tolist(), logprobs.tolist(), distribution)


def truncate(logprobs: Tensor, top_p: float, top_k: int) -> Tensor:
    """The k likeliest, then the likeliest until their mass reaches top_p (always one), renormalised; the rest -inf."""
    # Both cuts look at the likeliest only: with top-k no more than k need sorting.
    ordered, order = logprobs.topk(min(top_k, logprobs.shape[-1])) if top_k else logprobs.sort(descending=True)
    shares = ordered.softmax(-1)
    mask = shares.cumsum(-1) - shares < top_p  # the mass before each
    out = torch.full_like(logprobs, -torch.inf)
    out[order[mask]] = torch.log_softmax(ordered[mask], dim=-1)
    return out
