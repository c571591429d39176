"""The next token of each reply, drawn by the seed of its row.

Owns the draw. transformers draws a whole batch from one stream of random numbers, so a row's reply would depend on the
rows beside it. Here neighbours with one seed have a stream of their own: batches of several seeds become one batch,
and each says what it says alone. Not here: how a batch is generated (torch_policy).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor


class SeededDraws(LogitsProcessor):  # type: ignore[misc]
    """Leaves only the token that was drawn. `seeds`: one a row."""

    def __init__(self, seeds: Sequence[int], temperature: float, device: str) -> None:
        self._temperature = temperature
        self._parts: list[tuple[slice, torch.Generator]] = []
        first = 0
        for seed, rows in itertools.groupby(seeds):
            last = first + len(list(rows))
            self._parts.append((slice(first, last), torch.Generator(device).manual_seed(seed)))
            first = last

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(B, S), (B, V) -> (B, V), −inf but for one token a row."""
        shares = (scores / self._temperature).softmax(-1)
        drawn = torch.cat(
            [torch.multinomial(shares[rows], 1, generator=generator) for rows, generator in self._parts]
        )  # (B, 1)
        return torch.full_like(scores, -torch.inf).scatter_(1, drawn, 0.0)
