"""A reply that would fit any question is seen, and eight questions are few."""

import numpy as np
import pytest

from tests.harness import tiny
from trainer.lessons.chat_template import Template
from trainer.policy.packing import Tokens
from trainer.run import gate, topic
from trainer.run.gate import Bounds


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny.policy(tiny.make_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def said(policy):
    return gate.answer_questions(policy, Template(policy.tokenizer))


def test_what_a_model_says_to_a_question_depends_on_it(policy, said):
    (found,) = topic.measure(policy, said)
    assert found.shape == (8,) and found.mean() > 0.1
    (again,) = topic.measure(policy, said)
    assert (found == again).all()


def test_two_sides_are_measured_in_one_go_as_each_alone(policy, said):
    other = [Tokens(one.prompt, one.reply[::-1]) for one in said[:5]]
    alone = [*topic.measure(policy, said), *topic.measure(policy, other)]
    for together, apart in zip(topic.measure(policy, said, other), alone, strict=True):
        assert together == pytest.approx(apart, abs=1e-5)


def test_where_all_questions_are_one_nothing_depends_on_it(policy, said):
    same = [Tokens(said[0].prompt, one.reply) for one in said]
    assert topic.measure(policy, same)[0] == pytest.approx(np.zeros(8), abs=1e-5)


def test_answers_to_other_questions_do_not_go_live(policy, said):
    wrong = [Tokens(one.prompt, said[(at + topic.SHIFT) % 8].reply) for at, one in enumerate(said)]
    check = gate.on_topic(*topic.measure(policy, wrong, said), Bounds(topic_fall=0.0))
    assert not check.ok and check.value < check.bound < 0
    assert "of 8 fit any question" in check.note
    kept = gate.on_topic(*topic.measure(policy, said, said), Bounds(topic_fall=0.0))
    assert kept.ok and kept.value == 0.0 == abs(kept.bound)


def test_the_bound_knows_how_few_questions_there_are():
    before = np.full(8, 0.6)
    change, bound, note = topic.compare(np.zeros(8), before, 0.25)
    assert (change, bound) == (pytest.approx(-0.6), pytest.approx(-0.25))
    assert note == "0.00 nats a token, the parent's 0.60; 8 of 8 fit any question"
    noisy = before + np.array([1, -1] * 4)
    change, bound, _ = topic.compare(noisy, before, 0.25)
    assert change == pytest.approx(0) and bound == pytest.approx(-0.25 - 2 * noisy.std(ddof=1) / np.sqrt(8))
    assert topic.compare(np.zeros(1), np.ones(1), 0.25)[1] == -0.25


def test_the_other_question_is_of_the_same_language(said):
    prompts = [reply.prompt for reply in said]
    others = [reply.prompt for reply in topic.after_other_prompts(said, 2)]
    assert set(others[:4]) == set(prompts[:4]) and set(others[4:]) == set(prompts[4:])
    assert all(other != prompt for other, prompt in zip(others, prompts, strict=True))
    assert [reply.prompt for reply in topic.after_other_prompts(said)] == prompts[3:] + prompts[:3]
