"""Sequences -> their prefix tree: every token that they share is there once, and sees its ancestors only.

Owns the layout. Agents send the whole conversation again at every turn, so most of a batch's tokens are the same ones
in the same places. Under causal attention such a token has the same hidden state for all of them, and its gradient is
the sum of theirs. So computing it once is exact. Plain numpy, no attention in here (tree_attention).

Nodes are in preorder, so a subtree is one stretch, and "j is an ancestor of i, or i itself" is j <= i < end[j].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from trainer.policy.packing import Ints, Tokens

BLOCK = 256  # rows of attention at a time


@dataclass(frozen=True, slots=True)
class Forest:
    """The distinct tokens of some sequences."""

    ids: Ints  # (S,)
    depth: Ints  # (S,) the token's position in its sequences
    end: Ints  # (S,) one past the last of its subtree
    parent: Ints  # (S,) -1 at a root
    paths: tuple[Ints, ...]  # where each sequence's tokens are, in the given order


@dataclass(frozen=True, slots=True)
class Block:
    """Rows first..last of the attention, and the columns that any of them sees."""

    first: int
    last: int  # one past
    columns: Ints | None  # None: the rows are a chain from a root, each sees the rows before it and nothing else


@dataclass(slots=True)
class _Run:
    """Consecutive tokens without a branch from outside: where they hang, and what hangs on them."""

    ids: Ints
    branches: dict[tuple[int, int], _Run] = field(default_factory=dict)  # by (offset, first token)
    start: int = -1  # in preorder, once known


def grow(sequences: Sequence[Tokens]) -> Forest:
    arrays = [np.asarray(s.computed, np.int64) for s in sequences]
    root = _Run(np.empty(0, np.int64))
    pieces: list[list[tuple[_Run, int]]] = [[] for _ in arrays]  # (run, how many of its tokens) along each sequence
    # Longest first: what is shared becomes one long chain, which attention computes without a mask.
    for i in sorted(range(len(arrays)), key=lambda i: -len(arrays[i])):
        run, remaining, offset = root, arrays[i], 0
        while len(remaining):
            key = (offset, int(remaining[0]))
            run = run.branches.setdefault(key, _Run(remaining))
            offset = _common_length(run.ids, remaining)
            pieces[i].append((run, offset))
            remaining = remaining[offset:]
    return _lay_out(root, pieces)


def _lay_out(root: _Run, pieces: Sequence[Sequence[tuple[_Run, int]]]) -> Forest:
    ids: list[Ints] = []
    parent: list[Ints] = []
    total = 0
    waiting: list[tuple[_Run, int]] = [(run, -1) for run in root.branches.values()]
    while waiting:
        run, parent_node = waiting.pop()
        run.start = total
        ids.append(run.ids)
        parent.append(np.concatenate([[parent_node], np.arange(total, total + len(run.ids) - 1)]))
        total += len(run.ids)
        # The deepest branch comes next, so that every subtree is one stretch.
        branches = sorted(run.branches.items(), key=lambda item: item[0])
        waiting += [(branch, run.start + offset - 1) for (offset, _), branch in branches]
    parents = np.concatenate(parent)
    depth, end = np.zeros(total, np.int64), np.arange(1, total + 1)
    for node in range(total):
        depth[node] = depth[parents[node]] + 1 if parents[node] >= 0 else 0
    for node in range(total - 1, -1, -1):
        parent_node = parents[node]
        if parent_node >= 0:
            end[parent_node] = max(end[parent_node], end[node])
    paths = tuple(np.concatenate([run.start + np.arange(count) for run, count in piece]) for piece in pieces)
    return Forest(np.concatenate(ids), depth, end, parents, paths)


def as_rows(forest: Forest) -> tuple[Ints, Ints]:
    """(B, L) the tree's nodes by sequence, padded on the right with each one's last. And (S,) where each node is in
    that, rows flattened, in the first sequence that it is part of."""
    width = max(map(len, forest.paths))
    rows = np.stack([np.pad(path, (0, width - len(path)), mode="edge") for path in forest.paths])
    place = np.zeros(len(forest.ids), np.int64)
    for number in range(len(forest.paths) - 1, -1, -1):
        path = forest.paths[number]
        place[path] = number * width + np.arange(len(path))
    return rows, place


def blocks(forest: Forest, rows: int = BLOCK) -> list[Block]:
    """Every row once. A long chain from a root is one block; the others are cut, each with only what it sees."""
    total = len(forest.ids)
    follows = forest.parent == np.arange(total) - 1
    follows[forest.parent < 0] = False
    cut: list[Block] = []
    start = 0
    while start < total:
        chain = _chain(forest, follows, start)
        if chain >= rows:
            cut.append(Block(start, start + chain, None))
            start += chain
            continue
        last = min(start + rows, total)
        for root in np.flatnonzero(forest.parent[start + 1 : last] < 0) + start + 1:
            if _chain(forest, follows, int(root)) >= rows:
                last = int(root)  # a long chain begins here
                break
        cut.append(Block(start, last, np.flatnonzero(forest.end[:last] > start)))
        start = last
    return cut


def _chain(forest: Forest, follows: np.ndarray, start: int) -> int:
    """How many tokens follow each other from this root; 0 when it is none."""
    if forest.parent[start] >= 0:
        return 0
    breaks = np.flatnonzero(~follows[start + 1 :])
    return int(breaks[0]) + 1 if len(breaks) else len(follows) - start


def reply_columns(forest: Forest, sequences: Sequence[Tokens]) -> Ints:
    """(N,) where the hidden state is that predicts reply token n: that of the token before it."""
    return np.concatenate([path[len(s.prompt) - 1 :] for path, s in zip(forest.paths, sequences, strict=True)])


def _common_length(first: Ints, second: Ints) -> int:
    width = min(len(first), len(second))
    differs = np.flatnonzero(first[:width] != second[:width])
    return int(differs[0]) if len(differs) else width
