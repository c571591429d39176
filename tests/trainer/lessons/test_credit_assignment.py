"""What earned a rating is found where it can be seen, and nothing is made up where it cannot."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.lessons import credit_assignment as module
from trainer.lessons import critic
from trainer.lessons.credit_assignment import LEAST
from trainer.lessons.critic import join
from trainer.lessons.scoring import WIDEST, narrow

WIDTH, SAYS = 24, 12


def seen(states, values, first=0):
    """Labels of these replies; each reply is its own conversation."""
    return critic.label_replies(states, values, range(first, first + len(states)))


def credit(states, values, seed, before=None):
    return module.credit(states, values, seen(states, values, 1000), seed, before)


def talk(rng, good, length=20, noise=0.3):
    """States of a reply: noise, and from the token at `turn` on some features that say how it was rated."""
    states = rng.normal(0, 1, (length + 1, WIDTH)).astype(np.float32)
    turn = int(rng.integers(length // 2, length))
    states[:, :SAYS] = rng.normal(0, noise, (length + 1, SAYS))
    states[turn + 1 :, :SAYS] += 6.0 if good else -6.0
    return states, turn


def replies(count=32, liked=8, seed=0, **more):
    rng = np.random.default_rng(seed)
    made = [talk(rng, i < liked, **more) for i in range(count)]
    values = [1.0 if i < liked else -1.0 for i in range(count)]
    return [s for s, _ in made], values, [t for _, t in made]


def test_the_token_that_made_the_difference_has_the_credit():
    states, values, turns = replies()
    found = credit(states, values, seed=1)
    assert found.explained > 0.5 and found.by_chance == 0.01
    for tokens, value, turn, one in zip(found.tokens, values, turns, states, strict=True):
        assert tokens.shape == (len(one) - 1,) and (tokens >= 0).all()
        if value > 0:
            assert tokens.argmax() == turn and tokens[turn] > 0.5 * tokens.sum()
        else:
            assert tokens[turn] == 0  # it made things worse: nothing is pushed up there


def test_what_shows_all_over_a_reply_is_told_from_what_shows_at_its_end():
    rng = np.random.default_rng(2)
    values = [1.0 if i < 12 else -1.0 for i in range(32)]

    def all_over(value):
        states = rng.normal(0, 1, (21, WIDTH)).astype(np.float32)
        states[:-1, :SAYS] += 0.8 * value
        return states

    states = [all_over(value) for value in values]
    found, by_chance = module.explain_by_means(seen(states, values), values, 1)
    assert found > 0.5 and by_chance == 0.01
    assert credit(states, values, 1).explained < found
    other = [float(v) for v in rng.permutation(values)]
    assert module.explain_by_means(seen(states, other), other, 1)[1] > 0.05
    turned, values, _ = replies()
    assert module.explain_by_means(seen(turned, values), values, 1)[0] < credit(turned, values, 1).explained


def test_ratings_that_follow_nothing_explain_nothing():
    rng = np.random.default_rng(3)
    told, taken, likely = [], 0, []
    for seed in range(20):
        states = [rng.normal(0, 1, (15, WIDTH)).astype(np.float32) for _ in range(32)]
        values = [1.0 if i < 12 else -1.0 for i in rng.permutation(32)]
        found = credit(states, values, seed)
        told.append(found.explained)
        taken += found.explained >= 0.25 and found.by_chance <= 0.02
        if found.by_chance > 0.05:
            likely.append(seed)
    assert taken <= 1 and np.median(told) < 0.05
    assert len(likely) > 12


def test_no_critic_is_asked_about_a_conversation_that_it_was_made_of():
    """The states are noise. A critic explains the ratings only if it has seen these very replies in an earlier run."""
    rng = np.random.default_rng(3)
    states = [rng.normal(0, 1, (15, WIDTH)).astype(np.float32) for _ in range(24)]
    values = [1.0 if i < 8 else -1.0 for i in rng.permutation(24)]
    again = seen(states, values, 1000)
    found = module.credit(states, values, again, 0, again)
    other = module.credit(states, values, again, 0, seen(states, values, 5000))
    assert found.explained < 0.2 < 0.3 < other.explained and other.by_chance <= 0.02 < found.by_chance


@pytest.mark.parametrize("conversations", [1, 3])
def test_of_one_long_conversation_each_reply_is_left_out_by_itself(conversations):
    states, values, turns = replies()
    now = seen(states, values)
    now = now._replace(group=np.arange(len(values)) % conversations)
    found = module.credit(states, values, now, 1, now)
    assert found.explained > 0.5 and found.by_chance == 0.01 and found.earlier_replies == 0
    assert np.mean([t.argmax() == turn for t, turn in zip(found.tokens[:8], turns[:8], strict=True)]) > 0.8
    assert module.credit(states[:1], [1.0], seen(states[:1], [1.0]), 0, seen(states[:1], [1.0])).explained == 0


def test_too_few_of_one_sign_are_not_heard():
    states, values, _ = replies(count=16, liked=LEAST - 1)
    found = credit(states, values, seed=0)
    assert found.explained == 0.0 and found.by_chance == 1.0 and not any(tokens.any() for tokens in found.tokens)


@given(st.integers(0, 2**16), st.integers(LEAST, 12), st.floats(0.1, 3.0))
@settings(max_examples=25, deadline=None)
def test_neither_order_nor_scale_matters(seed, liked, scale):
    states, values, _ = replies(count=24, liked=liked, seed=seed)
    found = credit(states, values, seed=0)
    again = credit([s * np.float32(scale) for s in states], [v * scale for v in values], seed=0)
    assert again.explained == pytest.approx(found.explained, abs=1e-3)
    for one, other in zip(found.tokens, again.tokens, strict=True):
        np.testing.assert_allclose(one, other, atol=0.02 * len(one))


def test_a_weightier_rating_counts_for_more():
    states, values, _ = replies(liked=8)
    odd = [s.copy() for s in states]
    odd[0][:, :SAYS] *= -1  # liked, and looks like the disliked
    plain = credit(odd, values, seed=0).explained
    less = credit(odd, [0.01, *values[1:]], seed=0).explained
    assert less > plain


def test_few_of_one_sign_are_enough_where_earlier_ratings_knew_both():
    states, values, turns = replies(count=28, liked=26, seed=2)
    assert credit(states, values, seed=0).explained == 0.0
    found = credit(states, values, seed=0, before=seen(*replies(seed=1)[:2]))
    assert found.explained > 0.5 and found.by_chance <= 0.02 and found.earlier_replies == 32
    assert np.mean([t.argmax() == turn for t, turn in zip(found.tokens[:26], turns[:26], strict=True)]) > 0.8


def test_a_taste_that_changed_counts_in_spite_of_the_earlier_one():
    before = seen(*replies(count=100, liked=50, seed=1)[:2])
    states, values, turns = replies(count=24, liked=12, seed=2)
    found = credit(states, [-v for v in values], seed=0, before=before)
    assert found.explained > 0.5 and found.earlier_replies == 0  # this run's own say more, alone
    later = before
    for seed in range(3, 9):
        ours, said, _ = replies(count=24, liked=12, seed=seed)
        later = join(later, seen(ours, [-v for v in said], 1000 * seed))
    few, turned = [*states[:2], *states[12:14]], [-1.0, -1.0, 1.0, 1.0]  # too few by themselves
    found = credit(few, turned, seed=0, before=later)
    assert found.explained > 0.5 and all(t[turn] == 0 for t, turn in zip(found.tokens[:2], turns[:2], strict=True))


def test_ratings_that_follow_nothing_explain_nothing_whatever_was_heard_before():
    rng = np.random.default_rng(5)
    before = seen(*replies(seed=1)[:2])
    taken = 0
    for seed in range(20):
        states = [rng.normal(0, 1, (15, WIDTH)).astype(np.float32) for _ in range(28)]
        found = credit(states, [-1.0 if i < 3 else 1.0 for i in range(28)], seed, before)
        taken += found.explained >= 0.25 and found.by_chance <= 0.02
    assert taken <= 1


def test_constant_states_are_no_news():
    states = [np.ones((5, WIDTH), np.float32) for _ in range(16)]
    found = credit(states, [1.0] * 8 + [-1.0] * 8, seed=0)
    assert found.explained == 0.0


def test_wide_states_are_projected_and_tell_the_same():
    rng = np.random.default_rng(0)
    states, values, turns = replies()
    lift = rng.normal(0, 1, (WIDTH, 4 * WIDEST)).astype(np.float32)
    wide = [narrow(s @ lift) for s in states]
    assert all(s.shape[1] == WIDEST for s in wide) and narrow(states[0]) is states[0]
    found = credit(wide, values, seed=1)
    assert found.explained > 0.5
    assert np.mean([t.argmax() == turn for t, turn in zip(found.tokens[:8], turns[:8], strict=True)]) > 0.8
