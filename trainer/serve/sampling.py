"""Choosing the next token of every row, and saying exactly how likely it was.

Owns penalties, biases, temperature, top-k and top-p, and the log-probs of the distribution they leave: what the trainer
later compares with. The mask of a grammar comes before temperature. Then there are two log-probs, with the mask and
without it. At temperature 0 the choice is the likeliest token and log-probs are those at temperature 1, over the whole
vocabulary. Randomness is one number a token, from the row's own generator, so a seed gives the same reply whatever
else is in the batch. Not here: when a reply ends (engine), which tokens a grammar allows (constraints).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# What vLLM writes for a token that sampling ruled out: JSON has no -inf.
RULED_OUT = -9999.0
NO_MASKS: Mapping[int, Tensor] = {}
NO_COUNTS: Mapping[int, Mapping[int, int]] = {}


@dataclass(frozen=True)
class Sampling:
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()  # token and what is added to its logit

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalty(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty)

    @property
    def truncates(self) -> bool:
        return not self.greedy and (self.top_p < 1 or self.top_k > 0)


@dataclass(frozen=True)
class ChosenTokens:
    ids: list[int]
    logprobs: list[float]
    distribution: Tensor  # (B, V) log-probs, -inf where ruled out
    unconstrained: list[float | None]  # of the same token, had no grammar ruled tokens out; None: none did

    def likeliest(self, row: int, count: int) -> list[tuple[int, float]]:
        values, ids = self.distribution[row].topk(count)
        return [(i, max(v, RULED_OUT)) for i, v in zip(ids.tolist(), values.tolist(), strict=True)]


def choose(
    logits: Tensor,
    settings: Sequence[Sampling],
    draws: Sequence[float],
    masks: Mapping[int, Tensor] = NO_MASKS,
    counts: Mapping[int, Mapping[int, int]] = NO_COUNTS,
) -> ChosenTokens:
    """One token a row from fp32 `logits` (B, V); `draws` are uniform in [0, 1), one a row.

    `masks` by row: (V,) true where a grammar allows the token. `counts` by row: how often a reply has each token, for
    penalties.
    """
    logits = _adjust(logits, settings, counts)
    temperatures = [1.0 if s.greedy else s.temperature for s in settings]
    scaled = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    distribution = torch.log_softmax(scaled, dim=-1)  # (B, V)
    for row, setting in enumerate(settings):
        if setting.truncates:
            distribution[row] = truncate(distribution[row], setting.top_p, setting.top_k)
    free_rows = {row: distribution[row].clone() for row in masks}
    for row, mask in masks.items():
        scaled[row] = scaled[row].masked_fill(~mask.to(scaled.device), -torch.inf)
        constrained = torch.log_softmax(scaled[row], dim=-1)
        setting = settings[row]
        distribution[row] = truncate(constrained, setting.top_p, setting.top_k) if setting.truncates else constrained
    ids = scaled.argmax(-1)  # (B)
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
    chosen = ids.tolist()
    unconstrained = [
        max(float(free_rows[row][token]), RULED_OUT) if row in free_rows else None for row, token in enumerate(chosen)
    ]
    return ChosenTokens(chosen, logprobs.tolist(), distribution, unconstrained)


def _adjust(logits: Tensor, settings: Sequence[Sampling], counts: Mapping[int, Mapping[int, int]]) -> Tensor:
    """OpenAI's penalties and biases: each token that the reply has already loses presence + count · frequency."""
    changed = {row for row, setting in enumerate(settings) if setting.bias or (setting.has_penalty and counts.get(row))}
    if not changed:
        return logits
    logits = logits.clone()
    for row in changed:
        setting = settings[row]
        changes = dict(setting.bias)
        for token, count in counts.get(row, {}).items():
            penalty = setting.presence_penalty + count * setting.frequency_penalty
            changes[token] = changes.get(token, 0.0) - penalty
        ids = torch.tensor(list(changes), device=logits.device)
        logits[row, ids] += torch.tensor(list(changes.values()), device=logits.device)
    return logits


def truncate(logprobs: Tensor, top_p: float, top_k: int) -> Tensor:
    """The k likeliest, then the likeliest until their mass reaches top_p (always one), renormalised; the rest -inf."""
    # Both cuts look at the likeliest only: with top-k no more than k need sorting.
    ordered, order = logprobs.topk(min(top_k, logprobs.shape[-1])) if top_k else logprobs.sort(descending=True)
    shares = ordered.softmax(-1)
    mask = shares.cumsum(-1) - shares < top_p  # the mass before each
    out = torch.full_like(logprobs, -torch.inf)
    out[order[mask]] = torch.log_softmax(ordered[mask], dim=-1)
    return out
