"""Words that ratings go by, and none where chance would have one. Replies are texts here, ids places in a table."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.lessons.lexical_credit import DIGIT, LINE_BREAK, SYMBOL, LexicalCredit, credit

FILLING = [f" filler{letter}" for letter in "abcdefghijklmnopqrst"]


def credit_texts(
    replies: list[list[str]], ratings: list[float], *, least: float = 0.25, seed: int = 1
) -> LexicalCredit:
    table = sorted({text for reply in replies for text in reply})
    ids = [[table.index(text) for text in reply] for reply in replies]
    return credit(ids, ratings, range(len(replies)), table.__getitem__, least=least, seed=seed)


def replies_with(word: str, count: int = 28, every: int = 2, seed: int = 0) -> tuple[list[list[str]], list[bool]]:
    """Replies of chance words, every so many of them with this one in a chance place, twice."""
    dice = random.Random(seed)
    replies, has_word = [], []
    for number in range(count):
        reply = dice.choices(FILLING, k=12)
        has_word.append(number % every == 0)
        if has_word[-1]:
            reply[dice.randrange(12)] = word
            reply.append(word)
        replies.append(reply)
    return replies, has_word


@pytest.mark.parametrize(
    ("text", "name"),
    [(" you", "you"), (" You", "you"), ("7", DIGIT), (".\n\n", LINE_BREAK), ("🙂", SYMBOL), ("!", "!")],
)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_word_that_tells_earns_the_rating_where_it_stands_first(text: str, name: str, sign: float) -> None:
    replies, has_word = replies_with(text)
    ratings = [sign if has else -sign for has in has_word]
    tokens, (mark,) = credit_texts(replies, ratings)
    assert (mark.word, mark.sign) == (name, sign) and mark.correlation == pytest.approx(1) and mark.by_chance <= 0.01
    for reply, values, has in zip(replies, tokens, has_word, strict=True):
        assert np.flatnonzero(values).tolist() == ([reply.index(text)] if has else [])
        assert values.sum() == (sign * len(reply) if has else 0)


def test_what_some_replies_say_otherwise_is_a_second_word() -> None:
    replies, _ = replies_with(" so", count=42, every=99)
    for number, reply in enumerate(replies):
        reply[5] = " you" if number % 7 < 4 else " your" if number % 7 == 4 else reply[5]
    ratings = [1.0 if number % 7 <= 4 else -1.0 for number in range(len(replies))]
    tokens, marks = credit_texts(replies, ratings)
    assert [mark.word for mark in marks] == ["you", "your"]
    assert [values.any() for values in tokens] == [rating > 0 for rating in ratings]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (" You", "liked replies have “you” (r = 1.00, by chance in 0.5%)"),
        ("!", "liked replies have “!”"),
        ("12", "liked replies have a digit"),
        (" Meier", "liked replies have a word of 5 letters"),
    ],
)
def test_events_which_are_not_encrypted_name_no_word_of_a_persons_own(text: str, name: str) -> None:
    replies, has_word = replies_with(text)
    assert credit_texts(replies, [1.0 if has else -1.0 for has in has_word]).reason.startswith(name)


def test_a_reply_that_was_rated_against_its_word_is_not_pushed() -> None:
    replies, has_word = replies_with(" you")
    ratings = [1.0 if has else -1.0 for has in has_word]
    ratings[0] = -1.0
    tokens, (mark,) = credit_texts(replies, ratings)
    assert mark.word == "you" and not tokens[0].any() and tokens[2].any()


@pytest.mark.parametrize(
    "kind", ["all alike", "two of the other side", "a word that explains too little", "no replies"]
)
def test_where_no_word_tells_nothing_is_credited(kind: str) -> None:
    replies, has_word = replies_with(" you")
    ratings = [1.0 if has else -1.0 for has in has_word]
    if kind == "all alike":
        ratings = [1.0] * len(replies)
    elif kind == "two of the other side":
        ratings = [-1.0, -1.0, *[1.0] * (len(replies) - 2)]
    elif kind == "no replies":
        replies, ratings = [], []
    tokens, marks = credit_texts(replies, ratings, least=1.01 if kind == "a word that explains too little" else 0.25)
    assert not marks and not any(values.any() for values in tokens)


def test_ratings_drawn_at_random_go_by_a_word_in_one_of_a_hundred_draws() -> None:
    dice = random.Random(3)
    draws = 200
    count = 0
    for seed in range(draws):
        replies, _ = replies_with(" you", seed=seed)
        count += bool(credit_texts(replies, [dice.choice((1.0, -1.0)) for _ in replies], seed=seed).marks)
    assert count <= 8  # 2 on average; more in one of a thousand series


def test_ratings_of_one_conversation_are_dealt_out_together() -> None:
    """Four conversations of seven alike replies each: any word of two of them is as good by chance."""
    replies = [[f" topic{number % 4}", *FILLING[:3]] for number in range(28)]
    ratings = [1.0 if number % 4 < 2 else -1.0 for number in range(28)]
    for number, reply in enumerate(replies):
        reply.append(" so" if number % 4 < 2 else " or")
    table = sorted(set(itertools.chain(*replies)))
    ids = [[table.index(text) for text in reply] for reply in replies]
    groups = [number % 4 for number in range(28)]
    assert not credit(ids, ratings, groups, table.__getitem__, least=0.25, seed=1).marks
    assert credit(ids, ratings, range(28), table.__getitem__, least=0.25, seed=1).marks


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["a", " b", "1", "\n", ""]), min_size=1, max_size=6), st.sampled_from([1.0, -1.0])
        ),
        max_size=30,
    )
)
def test_any_ratings_of_any_replies_are_finite_and_bounded(rated: list[tuple[list[str], float]]) -> None:
    tokens, marks = credit_texts([reply for reply, _ in rated], [value for _, value in rated])
    for (reply, value), values in zip(rated, tokens, strict=True):
        assert values.shape == (len(reply),) and np.isin(values, (0.0, value * len(reply))).all()
        assert np.count_nonzero(values) <= len(marks)
