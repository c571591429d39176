"""The tree holds every sequence, each distinct token once, and lets a token see its ancestors only."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainer.policy.packing import Tokens, size
from trainer.policy.tree import blocks, grow, reply_columns

ids = st.lists(st.integers(0, 3), min_size=1, max_size=12)  # few tokens, so that much is shared
tokens = st.builds(lambda p, r: Tokens(tuple(p), tuple(r)), ids, ids)
batches = st.lists(tokens, min_size=1, max_size=8)


@given(batches)
def test_every_sequence_is_there_as_it_was(sequences):
    forest = grow(sequences)
    for sequence, path in zip(sequences, forest.paths, strict=True):
        assert tuple(forest.ids[path]) == sequence.computed
        assert forest.depth[path].tolist() == list(range(len(sequence.computed)))


@given(batches)
def test_a_token_sees_its_ancestors_and_itself_and_nothing_else(sequences):
    forest = grow(sequences)
    total = len(forest.ids)
    at = np.arange(total)
    sees = (at[None] <= at[:, None]) & (at[:, None] < forest.end[None])
    for node in range(total):
        ancestors, up = set(), node
        while up >= 0:
            ancestors.add(up)
            up = forest.parent[up]
        assert set(np.flatnonzero(sees[node])) == ancestors
    for path in forest.paths:
        assert set(np.flatnonzero(sees[path[-1]])) == set(path.tolist())


@given(batches)
def test_what_is_shared_is_there_once(sequences):
    forest = grow(sequences)
    prefixes = {s.computed[: n + 1] for s in sequences for n in range(len(s.computed))}
    assert len(forest.ids) == len(prefixes) == size(sequences, trees=True)
    assert len(grow([*sequences, *sequences]).ids) == len(forest.ids)


@given(batches)
def test_a_reply_token_is_predicted_by_the_one_before_it(sequences):
    forest = grow(sequences)
    columns = iter(reply_columns(forest, sequences))
    for sequence, path in zip(sequences, forest.paths, strict=True):
        for n in range(len(sequence.reply)):
            assert next(columns) == path[len(sequence.prompt) + n - 1]
    assert next(columns, None) is None


@given(batches, st.integers(1, 6))
def test_blocks_hold_every_row_once_and_every_column_that_it_sees(sequences, rows):
    forest = grow(sequences)
    cut = blocks(forest, rows)
    assert [b.first for b in cut] == [0, *(b.last for b in cut)][: len(cut)]
    assert cut[-1].last == len(forest.ids)
    for block in cut:
        if block.columns is None:
            assert block.last - block.first >= rows
            assert forest.parent[block.first : block.last].tolist() == [-1, *range(block.first, block.last - 1)]
            continue
        assert block.last - block.first <= rows
        needed = {j for i in range(block.first, block.last) for j in range(i + 1) if i < forest.end[j]}
        assert set(block.columns.tolist()) == needed


def test_a_reply_that_became_history_of_a_later_turn_is_one_chain():
    first = Tokens((1, 2), (3, 4))
    later = Tokens((1, 2, 3, 4, 5), (6, 7))
    forest = grow([first, later])
    assert forest.ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert reply_columns(forest, [first, later]).tolist() == [1, 2, 4, 5]
    assert blocks(forest, rows=4)[0].columns is None
