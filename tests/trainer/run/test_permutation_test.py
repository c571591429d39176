"""Ratings that follow something to be seen are told from ratings that follow nothing."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.run import permutation_test
from trainer.run.permutation_test import RatedReply, p_value, smallest_p

WORDS = ("the", "a", "bread", "river", "under", "seven", "green", "walks", "because", "music", "often", "small")


@pytest.fixture(autouse=True)
def _fewer_shuffles(monkeypatch):
    monkeypatch.setattr(permutation_test, "SHUFFLES", 499)


def said(rng, like):
    """A reply of random words, rated by `like`."""
    words = [rng.choice(WORDS[:3]), *(rng.choice(WORDS) for _ in range(rng.randint(8, 40)))]
    text = " ".join(words) + rng.choice((".", "?", "!"))
    text = text.replace(" because", "\n- because") if rng.random() < 0.5 else text
    ended = rng.random() < 0.3
    return RatedReply(text, len(words), ended, 1.0 if like(text, words, ended) else -1.0)


def replies(like, count=32, seed=0):
    rng = random.Random(seed)
    return [said(rng, like) for _ in range(count)]


@pytest.mark.parametrize(
    "like",
    [
        lambda text, words, ended: ended,
        lambda text, words, ended: len(words) < 20,
        lambda text, words, ended: "\n- " in text,
        lambda text, words, ended: text.endswith("?"),
        lambda text, words, ended: words[0] == "the",
    ],
    ids=["ended", "short", "lists", "asks back", "opening"],
)
def test_a_taste_for_something_visible_is_no_chance(like):
    assert p_value(replies(like)) <= 0.01


def test_graded_ratings_count_by_how_high_they_are():
    rated = [RatedReply(r.text, r.tokens, r.ended, 1 - r.tokens / 40) for r in replies(lambda *_: True)]
    assert p_value(rated) <= 0.01


def test_random_ratings_are_let_through_as_often_as_the_bound_says():
    """With a bound of 0.1, 100 draws: 10 expected, and 19 would be three deviations off."""
    rng = random.Random(1)
    low = sum(p_value(replies(lambda *_: rng.random() < 0.3, seed=n)) <= 0.1 for n in range(100))
    assert low <= 19


def test_the_same_ratings_have_the_same_p_in_any_order():
    some = replies(lambda text, words, ended: ended and "music" in text)
    assert p_value(some) == p_value(some)
    mixed = random.Random(3).sample(some, len(some))
    assert p_value(mixed) == pytest.approx(p_value(some), abs=0.03)  # other shuffles of the same


def test_replies_that_look_all_alike_tell_nothing():
    assert p_value([RatedReply("the same", 2, True, float(n % 2)) for n in range(20)]) == 1


# Beside pictures

KINDS = ("dog", "cat")


def of_pictures(like, count=48, seed=0, spread=0.5):
    """Replies about pictures of two kinds, rated by `like` of reply and kind. No two pictures look the same."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        kind, noise = rng.randrange(2), np.array([rng.gauss(0, spread) for _ in range(6)])
        reply = said(rng, lambda text, words, ended, kind=kind: like(text, KINDS[kind]))
        made.append(replace(reply, picture=np.eye(6)[kind] + noise))
    return made


def asks_back_about_dogs(text, kind):
    return text.endswith("?") == (kind == "dog")


def test_a_taste_that_depends_on_the_picture_is_no_chance_beside_it():
    rated = [of_pictures(asks_back_about_dogs, seed=seed) for seed in range(8)]
    alone = [[replace(reply, picture=None) for reply in replies] for replies in rated]
    assert sum(p_value(replies) <= 0.02 for replies in rated) >= 7
    assert sum(p_value(replies) <= 0.02 for replies in alone) <= 1


def test_it_is_told_whether_what_is_liked_depends_on_the_picture():
    by_picture = [of_pictures(asks_back_about_dogs, seed=seed) for seed in range(8)]
    by_itself = [of_pictures(lambda text, kind: text.endswith("?"), seed=seed) for seed in range(8)]
    beside = permutation_test.p_value_beside_pictures
    assert sum(beside(replies) <= 0.02 for replies in by_picture) >= 7
    assert not any(beside(replies) <= 0.02 for replies in by_itself)
    assert not any(beside(of_pictures(lambda _, kind: kind == "dog", seed=seed)) <= 0.02 for seed in range(8))
    assert beside(replies(lambda text, words, ended: ended)) == 1, "to no picture"


def test_random_ratings_are_let_through_beside_pictures_as_often_as_the_bound_says():
    rng = random.Random(2)
    low = sum(p_value(of_pictures(lambda *_: rng.random() < 0.3, count=32, seed=n)) <= 0.1 for n in range(100))
    assert low <= 19


def test_ratings_of_pictures_alone_say_little_of_replies():
    """What is liked whatever the answer teaches nothing about answers."""
    low = sum(p_value(of_pictures(lambda _, kind: kind == "dog", count=32, seed=n)) <= 0.1 for n in range(60))
    assert low <= 13


def test_few_pictures_and_pictures_that_are_all_alike_change_nothing():
    rated = replies(lambda text, words, ended: ended and len(words) < 25)
    p = p_value(rated)
    few = [replace(reply, picture=np.arange(3.0) * n if n < 15 else None) for n, reply in enumerate(rated)]
    alike = [replace(reply, picture=np.arange(3.0)) for reply in rated]
    assert p_value(few) == p_value(alike) == p


def test_replies_to_no_picture_are_weighed_by_themselves_alone():
    rated = of_pictures(asks_back_about_dogs, count=64)
    mixed = [*rated, *replies(lambda text, words, ended: ended, count=32)]
    joint = permutation_test.kernels(mixed)[5:]
    assert len(joint) == 5 and not any(kernel[64:].any() or kernel[:, 64:].any() for kernel in joint)
    assert p_value(mixed) <= 0.02


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), min_size=1, max_size=12))
def test_the_smallest_p_is_one_over_the_number_of_ways(rewards):
    ways = math.factorial(len(rewards))
    for value in set(rewards):
        ways //= math.factorial(rewards.count(value))
    assert smallest_p(rewards) == pytest.approx(1 / ways)


@given(st.lists(st.tuples(st.text(max_size=30), st.integers(1, 90), st.booleans(), st.sampled_from([-1.0, 1.0])),
                min_size=2, max_size=12))  # fmt: skip
def test_whatever_was_said_p_is_a_share(rows):
    p = p_value([RatedReply(*row) for row in rows])
    assert 0 < p <= 1
    assert np.isfinite(p)


def test_words_of_a_script_without_spaces_are_told_apart():
    rng = random.Random(4)
    pairs = ("面包", "河流", "绿色", "音乐", "经常", "很小", "下面", "七个")
    replies = [
        RatedReply("".join(rng.choice(pairs) for _ in range(12)) + ending + "好的", 20, True, reward)
        for ending, reward in (("谢谢", 1.0), ("不行", -1.0)) * 16
    ]
    assert p_value(replies) <= 0.01
