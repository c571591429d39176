"""What a run by token holds on to: the distributions at its own tokens, the pushed tokens always among them."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import presets
from tests.harness import tiny
from trainer.lessons import anchor
from trainer.lessons.advantages import TokenAdvantages

K = 5


def advantages_of(samples, each, credited):
    return TokenAdvantages(dict(zip([s.rating for s in samples], each, strict=True)), credited)


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.floats(-2, 2, width=16)), max_size=12), max_size=6))
def test_earners_are_the_tokens_that_are_pushed_up_most(replies):
    tokens = [[token for token, _ in reply] for reply in replies]
    found = anchor.earners(tokens, [np.array([push for _, push in reply]) for reply in replies])
    sums = Counter()
    for reply in replies:
        for token, push in reply:
            sums[token] += max(push, 0.0) / len(reply)
    earned = sorted((value for value in sums.values() if value > 0), reverse=True)[: anchor.MOST]
    assert list(found.values()) == pytest.approx(earned) and len(found) <= anchor.MOST
    assert all(sums[token] == pytest.approx(value) for token, value in found.items())


def test_only_what_went_by_token_is_held_and_with_the_pushed_tokens_in_it(tmp_path, model):
    samples, scorer = tiny.rated(model, 8), tiny.scorer(tmp_path, model)
    preset = presets.resolve("balanced", {"teacher_k": K})
    each = [np.where(np.arange(len(s.tokens.reply)) == len(s.tokens.reply) - 1, s.reward, 0.0) for s in samples]
    credited = frozenset(s.rating for s in samples[:5])
    found = anchor.make_anchors(preset, samples, advantages_of(samples, each, credited), scorer)
    assert found.keys() == credited
    pushed = {s.tokens.reply[-1] for s in samples if s.reward > 0}
    for sample in samples[:5]:
        ids, log_probs = found[sample.rating].ids, found[sample.rating].log_probs
        assert ids.shape == log_probs.shape == (len(sample.tokens.reply), K)
        assert all(pushed <= set(row) and len(set(row)) == K for row in ids.tolist())
        mass = np.exp(log_probs).sum(1)
        assert (mass > 0).all() and (mass <= 1 + 1e-5).all()


def test_what_is_pushed_up_is_pushed_down_as_much_where_it_was_unlikely_and_earned_nothing(tmp_path, model):
    samples, scorer = tiny.rated(model, 12, liked=0.5), tiny.scorer(tmp_path, model)
    each = [np.where(np.arange(len(s.tokens.reply)) == len(s.tokens.reply) - 1, s.reward, 0.0) for s in samples]
    credited = frozenset(s.rating for s in samples)
    found = anchor.make_anchors(
        presets.resolve("balanced", {}), samples, advantages_of(samples, each, credited), scorer
    )
    earned = anchor.earners([s.tokens.reply for s in samples], each)
    assert earned
    for token, up in earned.items():
        down = 0.0
        for sample, push in zip(samples, each, strict=True):
            hold = found[sample.rating]
            here = (hold.ids == token) & (hold.down > 0)
            assert (hold.log_probs[here] < np.log(anchor.UNLIKELY)).all() and not push[here.any(1)].any()
            down += float(hold.down[here].sum()) / len(push)
        assert down == pytest.approx(up, rel=1e-5)
    assert all(set(h.ids[h.down > 0].tolist()) <= earned.keys() for h in found.values())


def test_where_no_token_earned_anything_nothing_is_pushed_down(tmp_path, model):
    samples, scorer = tiny.rated(model, 4), tiny.scorer(tmp_path, model)
    each = [np.zeros(len(s.tokens.reply)) for s in samples]
    pushed = advantages_of(samples, each, frozenset(s.rating for s in samples))
    found = anchor.make_anchors(presets.resolve("balanced", {}), samples, pushed, scorer)
    assert len(found) == 4 and not any(hold.down.any() for hold in found.values())


@pytest.mark.parametrize("off", [{"w_stay": 0.0, "w_elsewhere": 0.0}, {"objective": "grpo"}, {"objective": "kto"}])
def test_nothing_is_held_where_nobody_asks_for_it(tmp_path, model, off):
    samples, scorer = tiny.rated(model, 4), tiny.scorer(tmp_path, model)
    each = [np.ones(len(s.tokens.reply)) for s in samples]
    everything = frozenset(s.rating for s in samples)
    assert (
        anchor.make_anchors(presets.resolve("balanced", off), samples, advantages_of(samples, each, everything), scorer)
        == {}
    )
