"""Many sequences -> micro-batches: who goes with whom, and the flat index of their reply tokens.

Owns what a sequence is, and how much goes through the model at once. After the forward pass everything is flat, one
entry a reply token (N,), per sequence in the given order. Not here: how shared tokens are laid out (tree), frameworks,
log-probs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from trainer.policy.footprint import UNRELATED

Ints = NDArray[np.int64]
States = NDArray[np.float32]  # (T, H) what the model has made of a prompt before each token of a reply

MOSTLY_SHARED = 0.5  # of a sequence; sharing less saves less than recomputing activations of a large one may cost


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

    @property
    def computed(self) -> tuple[int, ...]:
        """Tokens that the model must read. The last token predicts nothing that is scored."""
        return self.prompt + self.reply[:-1]


@dataclass(frozen=True, slots=True)
class Budget:
    """How many tokens go through the model at once; one sequence may always."""

    tokens: int
    unrelated: int = UNRELATED  # past this many only those join that share much of what is already there
    trees: bool = True  # a shared token is computed, and counted, once; else rows are padded to the longest

    def halved(self, size: int) -> Budget:
        """Half of a micro-batch that did not fit."""
        return replace(self, tokens=min(self.tokens, size) // 2)


@dataclass(frozen=True, slots=True)
class Packed:
    """A micro-batch: its sequences, and what there is to know about each of their reply tokens."""

    sequences: tuple[Tokens, ...]
    target: Ints  # (N,) reply token n
    lengths: tuple[int, ...]  # reply tokens of each sequence; N is their sum
    temperature: NDArray[np.float32]  # (N,)
    top_p: NDArray[np.float32]  # (N,)
    top_k: Ints  # (N,)

    @property
    def truncated(self) -> bool:
        return bool((self.top_p < 1).any() or (self.top_k > 0).any())


NOTHING: Mapping[Tokens, States] = MappingProxyType({})


def pack(sequences: Sequence[Tokens]) -> Packed:
    lengths = [len(s.reply) for s in sequences]
    return Packed(
        sequences=tuple(sequences),
        target=np.concatenate([np.asarray(s.reply, np.int64) for s in sequences]),
        lengths=tuple(lengths),
        temperature=np.repeat(np.asarray([s.temperature for s in sequences], np.float32), lengths),
        top_p=np.repeat(np.asarray([s.top_p for s in sequences], np.float32), lengths),
        top_k=np.repeat(np.asarray([s.top_k for s in sequences], np.int64), lengths),
    )


def pad(sequences: Sequence[Tokens]) -> tuple[Ints, Ints]:
    """Rows (B, S) padded on the right, where no real token ever sees it; and where, in them laid end to end, (N,)."""
    width = max(len(s.computed) for s in sequences)
    ids = np.zeros((len(sequences), width), np.int64)
    for i, s in enumerate(sequences):
        ids[i, : len(s.computed)] = s.computed
    # The token at position p is predicted by the hidden state at p − 1.
    positions = [i * width + np.arange(len(s.prompt) - 1, len(s.computed)) for i, s in enumerate(sequences)]
    return ids, np.concatenate(positions)


def size(sequences: Sequence[Tokens], *, trees: bool) -> int:
    """Tokens that a micro-batch of these computes."""
    if not trees:
        return len(sequences) * max(len(s.computed) for s in sequences)
    paths = sorted(s.computed for s in sequences)
    return len(paths[0]) + sum(len(b) - common_length(a, b) for a, b in pairwise(paths))


def group(sequences: Sequence[Tokens], budget: Budget) -> list[list[int]]:
    """Indices in micro-batches within the budget, the largest first: what is too large fails at once."""
    groups = _by_prefix(sequences, budget) if budget.trees else _by_length(sequences, budget)
    sizes = [size([sequences[i] for i in members], trees=budget.trees) for members in groups]
    return [groups[n] for n in sorted(range(len(groups)), key=lambda n: -sizes[n])]


def passes(
    sequences: Sequence[Tokens], budget: Budget, known_states: Mapping[Tokens, States] = NOTHING
) -> Iterator[tuple[list[int], States | None]]:
    """Indices of each pass. Sequences in `known_states` come one by one, with their states: only the head is left."""
    new = []
    for i, sequence in enumerate(sequences):
        if sequence in known_states:
            yield [i], known_states[sequence][: len(sequence.reply)]
        else:
            new.append(i)
    for members in group([sequences[i] for i in new], budget):
        yield [new[i] for i in members], None


def _by_prefix(sequences: Sequence[Tokens], budget: Budget) -> list[list[int]]:
    """In the order of their tokens, where those that share the most stand side by side.

    The longest of a chain comes first: the turns before it are in it already and cost nothing, whatever the budget.
    """
    paths = [s.computed for s in sequences]
    groups: list[list[int]] = []
    total = 0
    previous: tuple[int, ...] = ()
    for index in sorted(range(len(paths)), key=lambda i: (paths[i], -i), reverse=True):
        path = paths[index]
        common = common_length(previous, path)
        limit = budget.tokens if common >= MOSTLY_SHARED * len(path) else min(budget.unrelated, budget.tokens)
        if groups and (common == len(path) or total + len(path) - common <= limit):
            groups[-1].append(index)
            total += len(path) - common
        else:
            groups.append([index])
            total = len(path)
        if common < len(path):  # a part of the one before says nothing about the next
            previous = path
    return [members[::-1] for members in groups[::-1]]


def _by_length(sequences: Sequence[Tokens], budget: Budget) -> list[list[int]]:
    """Group by like length, so that there is little padding."""
    lengths = [len(s.computed) for s in sequences]
    limit = min(budget.unrelated, budget.tokens)
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= limit:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    width = min(len(first), len(second))
    if first[:width] == second[:width]:
        return width
    differs = np.asarray(first[:width]) != np.asarray(second[:width])
    return int(differs.argmax())
