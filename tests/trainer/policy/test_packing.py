import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.policy.packing import Budget, Tokens, common_length, group, pack, pad, passes, size

ids = st.lists(st.integers(0, 2), min_size=1, max_size=30)
batches = st.lists(st.builds(lambda p, r: Tokens(tuple(p), tuple(r)), ids, ids), max_size=20)


@given(batches, st.integers(1, 100), st.integers(1, 100), st.booleans())
def test_every_sequence_is_in_one_group_within_the_budget(sequences, most, unrelated, trees):
    groups = group(sequences, Budget(most, unrelated, trees))
    assert sorted(i for g in groups for i in g) == list(range(len(sequences)))
    sizes = [size([sequences[i] for i in g], trees=trees) for g in groups]
    assert sizes == sorted(sizes, reverse=True)
    longest = [max(len(sequences[i].computed) for i in g) for g in groups]  # what comes before it is in it already
    assert all(
        len(g) == 1 or n <= most or (trees and n == one) for g, n, one in zip(groups, sizes, longest, strict=True)
    )


@given(batches, st.data())
def test_what_is_known_needs_no_pass_and_everything_else_has_one(sequences, data):
    known = {one: np.full((len(one.reply) + 1, 2), i) for i, one in enumerate(sequences) if data.draw(st.booleans())}
    found = list(passes(sequences, Budget(40), known))
    assert sorted(i for members, _ in found for i in members) == list(range(len(sequences)))
    for members, states in found:
        if states is None:
            assert not any(sequences[i] in known for i in members)
        else:
            (i,) = members
            assert states.tolist() == known[sequences[i]][:-1].tolist()  # one for each token of the reply


def agents(prompts, replies):
    """Each prompt 100 tokens of its own, with some replies."""
    return [Tokens((p,) * 100, (50 + r,) * 10) for r in range(replies) for p in range(prompts)]


def test_those_that_share_a_prompt_go_together():
    sequences = agents(prompts=3, replies=4)
    groups = group(sequences, Budget(150))
    assert [{sequences[i].prompt for i in g} for g in groups] == [{s.prompt} for s in sequences[:3]]
    assert {size([sequences[i] for i in g], trees=True) for g in groups} == {100 + 4 * 9}


def test_past_enough_tokens_only_those_that_share_join():
    sequences = agents(prompts=3, replies=4)
    assert len(group(sequences, Budget(10_000, unrelated=150))) == 3
    assert len(group(sequences, Budget(10_000, unrelated=10_000))) == 1


def test_a_model_without_trees_pays_for_its_padding():
    sequences = [Tokens((1,) * n, (2,)) for n in (10, 10, 5, 5, 5, 5)]
    groups = group(sequences, Budget(20, trees=False))
    assert [[len(sequences[i].prompt) for i in g] for g in groups] == [[10, 10], [5, 5, 5, 5]]


def test_half_of_what_did_not_fit():
    assert Budget(1000).halved(300).tokens == 150
    assert Budget(100, trees=False).halved(300) == Budget(50, trees=False)


def test_a_row_of_padding_ends_where_the_last_reply_token_is_predicted():
    sequences = [Tokens((5, 6, 7), (8, 9), 0.5), Tokens((1,), (2, 3, 4), 2.0, 0.9, 40)]
    rows, at = pad(sequences)
    assert rows.tolist() == [[5, 6, 7, 8], [1, 2, 3, 0]]
    assert rows.ravel()[at].tolist() == [7, 8, 1, 2, 3]
    packed = pack(sequences)
    assert packed.target.tolist() == [8, 9, 2, 3, 4]
    assert packed.lengths == (2, 3)
    assert packed.temperature.tolist() == [0.5, 0.5, 2, 2, 2]
    assert packed.top_k.tolist() == [0, 0, 40, 40, 40]
    assert packed.truncated


@given(ids, ids)
def test_shared_is_the_common_beginning(one, other):
    n = common_length(one, other)
    assert one[:n] == other[:n]
    assert one[n : n + 1] != other[n : n + 1] or n == min(len(one), len(other))


@pytest.mark.parametrize(("prompt", "reply"), [((), (1,)), ((1,), ())])
def test_a_sequence_without_prompt_or_reply_is_refused(prompt, reply):
    with pytest.raises(AssertionError):
        Tokens(prompt, reply)
