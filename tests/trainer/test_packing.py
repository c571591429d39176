import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.packing import Tokens, group, pack


@given(st.lists(st.integers(1, 500), max_size=30), st.integers(1, 1000))
def test_every_sequence_is_in_one_group_within_the_budget(lengths, budget):
    groups = group(lengths, budget)
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    for g in groups:
        assert len(g) == 1 or len(g) * max(lengths[i] for i in g) <= budget


def test_the_hidden_state_before_a_token_predicts_it():
    packed = pack([Tokens((5, 6, 7), (8, 9), 0.5), Tokens((1,), (2, 3, 4), 2.0, 0.9, 40)])
    assert packed.ids.tolist() == [[5, 6, 7, 8, 9], [1, 2, 3, 4, 0]]
    assert packed.target.tolist() == [8, 9, 2, 3, 4]
    for row, column, target in zip(packed.row, packed.column, packed.target, strict=True):
        assert packed.ids[row, column + 1] == target
    assert packed.lengths == (2, 3)
    assert packed.temperature.tolist() == [0.5, 0.5, 2, 2, 2]
    assert packed.top_k.tolist() == [0, 0, 40, 40, 40]
    assert packed.truncated


@pytest.mark.parametrize(("prompt", "reply"), [((), (1,)), ((1,), ())])
def test_a_sequence_without_prompt_or_reply_is_refused(prompt, reply):
    with pytest.raises(AssertionError):
        Tokens(prompt, reply)
