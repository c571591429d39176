"""Effect of a lesson that is left in a version: lessons and prompts that are asked, and the share."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.word_marks import mark_of
from tests.harness import tiny
from trainer.lessons.chat_template import Template
from trainer.lessons.prompts import with_hint
from trainer.lessons.samples import Sample
from trainer.policy.packing import Tokens
from trainer.run import lesson_gaps
from trainer.run.context import RunModel
from trainer.run.lesson_gaps import FEWEST_REPLIES, MOST_PROMPTS, remainder_bound

SHARES = st.lists(st.floats(-1, 2), min_size=FEWEST_REPLIES, max_size=MOST_PROMPTS)

QUESTION = ({"role": "user", "content": "why"},)


def sample(rating, comment=None, lessons=(), *, held=False, reward=-1.0):
    told = with_hint(QUESTION, "\n".join(lessons)) if lessons else QUESTION
    return Sample(
        rating, held, 0, reward, 1.0, True, Tokens((1, 50), (60, 61)), np.zeros(2),
        messages=tuple(told), comment=comment, lessons=tuple(lessons),
        lesson_ratings=tuple(f"rt-{text}" for text in lessons),
    )  # fmt: skip


@pytest.fixture
def model(tmp_path):
    policy = tiny.policy(tiny.make_model(tmp_path / "model"))
    return RunModel(policy, Template(policy.tokenizer), None, {}, ("en",))


def test_each_text_is_asked_once_under_all_its_names_and_held_back_prompts_come_first():
    samples = [
        sample("rt-1", "a"), sample("rt-2", "b"), sample("rt-3", None, ["a"], reward=1.0),
        sample("rt-4", "a", held=True), sample("rt-5", "praise", reward=1.0),
    ]  # fmt: skip
    first, second = lesson_gaps.lessons_in(samples)
    assert (first.text, first.ratings) == ("a", ("rt-1", "rt-4", "rt-a"))
    assert [each.rating for each in first.samples] == ["rt-4", "rt-1", "rt-3"]
    assert (second.text, second.ratings) == ("b", ("rt-2",))


def test_a_prompt_is_asked_with_the_lesson_alone_and_without_any(model):
    lesson = lesson_gaps.RunLesson("a", ("rt-1",), (sample("rt-1", None, ["a", "b"], reward=1.0),))
    (pair,) = lesson_gaps.prompt_pairs(model, lesson)
    assert pair.bare == model.template.prompt(QUESTION)
    assert pair.hinted == model.template.prompt(with_hint(QUESTION, "a"))
    moved = dataclasses.replace(lesson.samples[0], lessons=("other",))
    assert lesson_gaps.prompt_pairs(model, dataclasses.replace(lesson, samples=(moved,))) == []


def test_so_many_prompts_and_no_more(model):
    samples = tuple(sample(f"rt-{n}", "a") for n in range(2 * lesson_gaps.MOST_PROMPTS))
    pairs = lesson_gaps.prompt_pairs(model, lesson_gaps.RunLesson("a", ("rt-1",), samples))
    assert len(pairs) == lesson_gaps.MOST_PROMPTS


def test_a_new_version_that_changed_nothing_has_the_bases_gap(model):
    gaps = lesson_gaps.measure(model, [sample("rt-1", "answer in capitals, please"), sample("rt-2", None, reward=1.0)])
    assert list(gaps) == ["rt-1"] and gaps["rt-1"]["prompts"] == 1
    assert gaps["rt-1"]["gap"] == pytest.approx(gaps["rt-1"]["base_gap"], abs=1e-2)
    assert gaps["rt-1"]["words"] == mark_of("answer in capitals, please")
    assert gaps["rt-1"]["bound"] == 1 and gaps["rt-1"]["remainder"] == pytest.approx(1, abs=1e-2)


def test_a_lesson_that_changes_nothing_is_not_measured_and_so_not_retired(model):
    pair = lesson_gaps.PromptPair((1, 50, 51), (1, 50, 51))
    assert lesson_gaps.measure_pairs(model, [pair, pair]) is None


def test_a_prompt_that_is_too_long_is_passed_over(model):
    long_question = ({"role": "user", "content": "why " * lesson_gaps.MOST_PROMPT_TOKENS},)
    too_long = dataclasses.replace(sample("rt-1", "a"), messages=long_question)
    lesson = lesson_gaps.RunLesson("a", ("rt-1", "rt-2"), (too_long, sample("rt-2", "a")))
    (pair,) = lesson_gaps.prompt_pairs(model, lesson)
    assert pair.bare == model.template.prompt(QUESTION)


@given(SHARES, st.randoms())
def test_the_bound_is_above_the_mean_in_whatever_order_replies_come(shares, random):
    bound = remainder_bound(np.array(shares))
    assert min(max(np.mean(shares), 0), 1) - 1e-9 <= bound <= 1
    random.shuffle(shares)
    assert remainder_bound(np.array(shares)) == pytest.approx(bound)


@given(SHARES, st.floats(1, 3))
def test_the_bound_rises_as_replies_differ_more(shares, factor):
    wider = np.mean(shares) + factor * (np.array(shares) - np.mean(shares))
    assert remainder_bound(wider) >= remainder_bound(np.array(shares)) - 1e-9


@given(st.floats(0, 1), st.integers(FEWEST_REPLIES, MOST_PROMPTS))
def test_replies_that_agree_are_believed(share, count):
    assert remainder_bound(np.full(count, share)) == pytest.approx(share)


@pytest.mark.parametrize("count", range(1, FEWEST_REPLIES))
def test_few_telling_replies_decide_nothing(count):
    assert remainder_bound(np.zeros(count)) == 1


@pytest.mark.parametrize("count", range(FEWEST_REPLIES, MOST_PROMPTS + 1))
def test_what_is_left_exceeds_the_bound_in_one_of_a_hundred_runs(count):
    shares = np.random.default_rng(count).normal(0.1, 0.03, (20_000, count))
    assert np.mean(remainder_bound(shares) < 0.1) == pytest.approx(0.01, abs=0.003)


def test_the_nearest_version_that_was_recorded_has_more_than_a_tenth_left():
    gaps = np.array([1.05, 4.49, 21.63, 4.43, -1.04, 2.83, 5.14, 6.25])
    base_gaps = np.array([7.25, 47.69, 54.36, 33.79, 10.64, 50.11, 37.74, 51.47])
    assert remainder_bound(gaps / base_gaps) == pytest.approx(0.267, abs=1e-3)
