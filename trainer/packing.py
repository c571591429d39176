"""Many sequences -> few padded ones: length-sorted micro-batches, and the flat index of their reply tokens.

Owns the layout. Everything after the forward pass is flat, one entry a reply token (N,), so a denser packing (a
prefix tree) changes this file and a policy's forward, nothing else. Not here: frameworks, log-probs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One sequence: a prompt, the reply to score, and how the reply was sampled."""

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    temperature: float = 1.0  # what log-probs are taken at; greedy counts as 1
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit

    def __post_init__(self) -> None:
        assert self.prompt, "the first reply token needs a token before it"
        assert self.reply
        assert self.temperature > 0

    def __len__(self) -> int:
        return len(self.prompt) + len(self.reply)


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch. Padded on the right: under a causal mask no real token ever sees the padding."""

    ids: Ints  # (B, S)
    row: Ints  # (N,) where the hidden state that predicts reply token n is
    column: Ints  # (N,)
    target: Ints  # (N,) reply token n
    lengths: tuple[int, ...]  # (B,) reply tokens of each row; N is their sum
    temperature: NDArray[np.float32]  # (N,)
    top_p: NDArray[np.float32]  # (N,)
    top_k: Ints  # (N,)

    @property
    def truncated(self) -> bool:
        return bool((self.top_p < 1).any() or (self.top_k > 0).any())


def group(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Indices in micro-batches of like length, each at most `budget` tokens with its padding (or one sequence)."""
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):  # longest first: the widest fails first
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def pack(sequences: Sequence[Tokens]) -> Packed:
    width = max(len(s) for s in sequences)
    ids = np.zeros((len(sequences), width), np.int64)  # (B, S)
    for i, s in enumerate(sequences):
        ids[i, : len(s)] = s.prompt + s.reply
    lengths = [len(s.reply) for s in sequences]
    # The token at position p is predicted by the hidden state at p − 1.
    return Packed(
        ids=ids,
        row=np.repeat(np.arange(len(sequences)), lengths),
        column=np.concatenate([np.arange(len(s.prompt), len(s)) - 1 for s in sequences]),
        target=np.concatenate([np.asarray(s.reply, np.int64) for s in sequences]),
        lengths=tuple(lengths),
        temperature=np.repeat(np.asarray([s.temperature for s in sequences], np.float32), lengths),
        top_p=np.repeat(np.asarray([s.top_p for s in sequences], np.float32), lengths),
        top_k=np.repeat(np.asarray([s.top_k for s in sequences], np.int64), lengths),
    )
