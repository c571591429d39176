"""What a comment asked for explains a reply, and nothing explains garbage: with the small real model, told and not."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from trainer.lessons.chat_template import Template
from trainer.lessons.prompts import neutral
from trainer.lessons.samples import Sample
from trainer.mis_po import Terms, loss
from trainer.policy import packing
from trainer.policy.packing import Tokens
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import gate
from trainer.run.asked_style import MOST_COMMENTS, AskedStyle, oddness, parent_explains
from trainer.run.gate import Bounds, Check

COMMENT = "answer with the word banana and nothing else"
QUESTIONS = ("Why is the sky blue?", "How do I boil an egg?")


@pytest.fixture(scope="module")
def policy(weights):
    return TorchPolicy(weights, presets.resolve("balanced", {}), parent=None, threads=1, seed=0, compute="float32")


@pytest.fixture(scope="module")
def template(policy):
    return Template(policy.tokenizer)


def replies(template, text):
    return [Tokens(template.prompt(neutral(q)), template.reply(text, ended=True)) for q in QUESTIONS]


def lesson(comment, reward=-1.0, *, imitated=False):
    tokens = Tokens((1, 50), (60, 61))
    sample = Sample("rt", False, 0, reward, 1.0, True, tokens, np.zeros(2), comment=comment)
    return dataclasses.replace(tiny.lesson(sample, np.zeros(2)), is_imitated=imitated)


def test_a_reply_that_was_asked_for_is_explained_and_garbage_is_not(policy, template):
    asked = AskedStyle(policy, template, COMMENT)

    def rest(text):
        with policy.wearing(None):
            odd = oddness(policy, replies(template, text))
        return odd, odd - asked.explains(replies(template, text), QUESTIONS)

    odd, unexplained = rest("Banana")
    assert unexplained < odd / 2
    odd, unexplained = rest("of the of blue wherefore an egg sky seven")
    assert unexplained > odd / 2 > 1


def test_nothing_is_explained_where_nothing_was_asked_for(policy, template):
    asked = AskedStyle.of(policy, template, [lesson(None), lesson("praise", reward=1.0)])
    assert asked.comment == ""
    assert asked.explains(replies(template, "Banana"), QUESTIONS) == 0
    assert asked.length(QUESTIONS, 8, 0.8, 1) is None


def test_the_commonest_comments_are_what_was_asked_for(policy, template):
    rare = [lesson(f"rare {n}", imitated=True) for n in range(4)]
    often = [lesson("shorter", imitated=True), lesson(" shorter ", imitated=True)]
    asked = AskedStyle.of(policy, template, [*rare, *often])
    assert asked.comment.split("\n") == ["shorter", "rare 0", "rare 1"]
    assert MOST_COMMENTS == 3


def test_the_hinted_base_answers_as_short_as_it_was_asked_to(policy, template):
    short = AskedStyle(policy, template, COMMENT).length(QUESTIONS, 48, 0.8, 1)
    long = AskedStyle(policy, template, "write a long essay of many paragraphs").length(QUESTIONS, 48, 0.8, 1)
    assert short < long


def test_what_a_policy_says_itself_is_not_odd_to_it(policy, template):
    prompts = [template.prompt(neutral(question)) for question in QUESTIONS] * 8
    with policy.wearing(None):
        said = policy.generate(prompts, max_tokens=24, temperature=1.0, seed=3)
        own = oddness(policy, [Tokens(p, tuple(r)) for p, r in zip(prompts, said, strict=True)])
        other = oddness(policy, replies(template, "of the of blue wherefore an egg sky seven"))
    assert abs(own) < 0.6
    assert other > 2


def test_the_parent_explains_its_own_style_and_nothing_else(policy, template, tmp_path):
    """A parent that was taught one answer."""
    start, optimiser = policy.adapter(), policy.optimiser()
    taught = replies(template, "Banana")
    packed = packing.pack(taught)
    count = len(packed.target)
    terms = Terms(*(np.full(count, value) for value in (-1.0, -1.0, 1.0, 1.0, 1 / count)))
    for _ in range(12):
        policy.backward(packed, terms, partial(loss, kl_ref=0.0, guard_low=1e-9, guard_high=1e9))
        policy.step(2e-3, 1.0)
    (tmp_path / "parent").mkdir()
    policy.save(tmp_path / "parent")
    policy.wear(start)
    policy.restore(optimiser)
    assert parent_explains(policy, None, taught) == 0
    assert parent_explains(policy, tmp_path / "parent", taught) > 2
    garbage = replies(template, "of the of blue wherefore an egg sky seven")
    assert parent_explains(policy, tmp_path / "parent", garbage) < parent_explains(policy, tmp_path / "parent", taught)


def test_a_grant_raises_the_bound_only_where_it_explains_more():
    odd = Check(1.1, 0.5, False, "of 24 replies")
    granted = gate.grant(odd, Bounds(), 0.9)
    assert granted.ok
    assert granted.bound == pytest.approx(1.2)
    assert "explains 0.90" in granted.note
    assert gate.grant(odd, Bounds(), 0.1) == odd
    assert not gate.grant(odd, Bounds(), 0.7).ok
