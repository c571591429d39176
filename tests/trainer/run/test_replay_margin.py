"""How far a run moved its own newest liked and disliked replies apart."""

from dataclasses import replace

import numpy as np
import pytest

from tests.harness import tiny
from trainer.lessons import batch, samples
from trainer.lessons.chat_template import Template
from trainer.run import replay_margin, steps


def value(*arguments):
    margin = replay_margin.measure(*arguments)
    return None if margin is None else margin.value


def test_the_gate_sees_the_last_liked_and_disliked_replies_again(model, lines):
    """However rare one sign is, and wherever it stands among the others."""
    policy, template = tiny.policy(model), Template(tiny.tokenizer())
    sample = samples.parse(lines[0], "rt-1", template, max_seq_len=999)
    (now,) = batch.score(policy, [sample.tokens])

    def rose(by, liked):  # a lesson whose reply is likelier than before the run, by so many nats a token
        return replace(tiny.lesson(sample, now - by), advantage=np.full(len(now), 1.0 if liked else -1.0))

    disliked = [rose(-1.0, False)] * 8 + [rose(50.0, False)] * 30
    assert value(policy, disliked) is None
    assert value(policy, [*disliked[:20], rose(0.5, True), *disliked[20:]]) == pytest.approx(1.5, abs=1e-5)
    assert value(policy, [rose(0.5, True)] * 3) is None


def test_what_the_last_look_scored_is_not_scored_again(model, lines):
    policy, template = tiny.policy(model), Template(tiny.tokenizer())
    parsed = [samples.parse(x, x["rating"], template, max_seq_len=999) for x in lines]
    teaching = [replace(tiny.lesson(s, s.behaviour), advantage=np.full(len(s.behaviour), s.reward)) for s in parsed * 4]
    look = steps.measure_drift(policy, teaching)
    assert 0 < len(look.scored) < len(teaching)
    assert value(policy, teaching, look.scored) == pytest.approx(value(policy, teaching), abs=1e-6)
    every = {at: look.scored.get(at, np.zeros(len(one.old))) for at, one in enumerate(teaching)}
    policy.wear({name: np.full_like(tensor, np.nan) for name, tensor in policy.adapter().items()})
    assert np.isfinite(value(policy, teaching, every))


def test_the_gate_sees_what_earned_the_ratings_where_they_went_by_token(model, lines):
    policy, template = tiny.policy(model), Template(tiny.tokenizer())
    sample = samples.parse(lines[0], "rt-1", template, max_seq_len=999)
    (now,) = batch.score(policy, [sample.tokens])
    earned, rose = np.zeros(len(now)), np.full(len(now), -3.0)
    earned[-1], rose[-1] = 5.0, 0.5
    credited = replace(tiny.lesson(sample, now - rose), advantage=earned, credited=True)
    unheard = replace(tiny.lesson(sample, now + 9.0), advantage=0 * earned, credited=True)
    pulled = replace(unheard, advantage=-earned)  # by a teacher's word alone
    assert value(policy, [unheard, credited, pulled]) == pytest.approx(0.5, abs=1e-5)
    assert value(policy, [unheard, pulled]) is None


def test_only_where_a_run_leant_does_its_margin_have_an_error(model, lines):
    """Four replies of each sign, whose rises differ by a nat."""
    policy, template = tiny.policy(model), Template(tiny.tokenizer())
    sample = samples.parse(lines[0], "rt-1", template, max_seq_len=999)
    (now,) = batch.score(policy, [sample.tokens])
    teaching = [
        replace(tiny.lesson(replace(sample, reward=reward), now - rise), advantage=np.full(len(now), reward))
        for reward in (1.0, -1.0)
        for rise in (0.0, 1.0, 0.0, 1.0)
    ]
    pushed = replay_margin.measure(policy, teaching)
    leant = replay_margin.measure(policy, [replace(lesson, is_leaning=True) for lesson in teaching])
    assert pushed.error == 0 and leant.value == pytest.approx(pushed.value, abs=1e-6)
    assert leant.error == pytest.approx(np.sqrt(2 * (1 / 3) / 4), abs=1e-5)
