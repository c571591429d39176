"""The order of the optimiser steps, and what each is made of. Whole runs are in test_loop."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import tiny
from trainer.lessons import batch, samples
from trainer.lessons.chat_template import Template
from trainer.run import steps


@given(st.lists(st.sampled_from([-1.0, 1.0]), min_size=1, max_size=70), st.integers(1, 16), st.integers(1, 3))
def test_every_batch_mixes_the_signs(signs, size, passes):
    plan = steps.schedule(signs, batch=size, passes=passes, seed=3)
    assert plan == steps.schedule(signs, batch=size, passes=passes, seed=3)
    each = len(plan) // passes
    for start in range(0, len(plan), each):
        assert sorted(i for step in plan[start : start + each] for i in step) == list(range(len(signs)))
    share = signs.count(1.0) / len(signs)
    for step in plan:
        assert abs(sum(signs[i] > 0 for i in step) - share * len(step)) <= 2


def test_the_loss_of_a_batch_is_the_mean_over_its_replies(lines):
    template = Template(tiny.tokenizer())
    parsed = [samples.parse(x, x["rating"], template, max_seq_len=999) for x in lines]
    made = [tiny.lesson(s, s.behaviour) for s in parsed[:3]]
    terms = batch.make_terms(made, 3)
    assert terms.share.sum() == pytest.approx(1)
    assert (terms.advantage * terms.share).sum() == pytest.approx(np.mean([s.reward for s in parsed[:3]]))


def test_the_gate_sees_the_last_liked_and_disliked_replies_again(model, lines):
    """However rare one sign is, and wherever it stands among the others."""
    policy, template = tiny.policy(model), Template(tiny.tokenizer())
    sample = samples.parse(lines[0], "rt-1", template, max_seq_len=999)
    (now,) = batch.score(policy, [sample.tokens])

    def rose(by, liked):  # a lesson whose reply is likelier than before the run, by so many nats a token
        return replace(tiny.lesson(sample, now - by), advantage=np.full(len(now), 1.0 if liked else -1.0))

    disliked = [rose(-1.0, False)] * 8 + [rose(50.0, False)] * 30
    assert steps.replay_margin(policy, disliked) is None
    assert steps.replay_margin(policy, [*disliked[:20], rose(0.5, True), *disliked[20:]]) == pytest.approx(
        1.5, abs=1e-5
    )
    assert steps.replay_margin(policy, [rose(0.5, True)] * 3) is None


def test_what_the_last_look_scored_is_not_scored_again(model, lines):
    policy, template = tiny.policy(model), Template(tiny.tokenizer())
    parsed = [samples.parse(x, x["rating"], template, max_seq_len=999) for x in lines]
    teaching = [replace(tiny.lesson(s, s.behaviour), advantage=np.full(len(s.behaviour), s.reward)) for s in parsed * 4]
    look = steps.measure_drift(policy, teaching)
    assert 0 < len(look.scored) < len(teaching)
    assert steps.replay_margin(policy, teaching, look.scored) == pytest.approx(
        steps.replay_margin(policy, teaching), abs=1e-6
    )
    every = {at: look.scored.get(at, np.zeros(len(one.old))) for at, one in enumerate(teaching)}
    policy.wear({name: np.full_like(tensor, np.nan) for name, tensor in policy.adapter().items()})
    assert np.isfinite(steps.replay_margin(policy, teaching, every))


def test_the_gate_sees_what_earned_the_ratings_where_they_went_by_token(model, lines):
    policy, template = tiny.policy(model), Template(tiny.tokenizer())
    sample = samples.parse(lines[0], "rt-1", template, max_seq_len=999)
    (now,) = batch.score(policy, [sample.tokens])
    earned, rose = np.zeros(len(now)), np.full(len(now), -3.0)
    earned[-1], rose[-1] = 5.0, 0.5
    credited = replace(tiny.lesson(sample, now - rose), advantage=earned, credited=True)
    unheard = replace(tiny.lesson(sample, now + 9.0), advantage=0 * earned, credited=True)
    pulled = replace(unheard, advantage=-earned)  # by a teacher's word alone
    assert steps.replay_margin(policy, [unheard, credited, pulled]) == pytest.approx(0.5, abs=1e-5)
    assert steps.replay_margin(policy, [unheard, pulled]) is None
