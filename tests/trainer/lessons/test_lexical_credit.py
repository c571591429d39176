"""Words that ratings go by, and none where chance would have one. Replies are texts here, ids places in a table."""

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainer.lessons.lexical_credit import DIGIT, LINE_BREAK, SYMBOL, LexicalCredit, credit

FILLING = [f" filler{letter}" for letter in "abcdefghijklmnopqrst"]


def credit_texts(
    replies: list[list[str]],
    ratings: list[float],
    *,
    chances: list[NDArray[np.float64]] | None = None,
    chosen: list[NDArray[np.bool_]] | None = None,
    least: float = 0.25,
    seed: int = 1,
) -> LexicalCredit:
    table = sorted({text for reply in replies for text in reply})
    ids = [[table.index(text) for text in reply] for reply in replies]
    return credit(
        ids,
        ratings,
        range(len(replies)),
        joined(table),
        chances=chances or even_chances(ids),
        chosen=chosen,
        least=least,
        seed=seed,
    )


def even_chances(ids: Sequence[Sequence[int]]) -> list[NDArray[np.float64]]:
    return [np.full(len(reply), 0.5) for reply in ids]


def joined(table: list[str]) -> Callable[[Sequence[int]], str]:
    return lambda ids: "".join(table[id] for id in ids)


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
    tokens, (mark,) = credited = credit_texts(replies, ratings)
    assert credited.is_disliked == (sign < 0)
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


def test_a_word_counts_only_where_the_model_chose_it() -> None:
    replies, has_word = replies_with(" you")
    for reply in replies:
        reply.insert(0, " you")  # forced, as by a schema
    ratings = [1.0 if has else -1.0 for has in has_word]
    chosen = [np.arange(len(reply)) > 0 for reply in replies]
    tokens, (mark,) = credit_texts(replies, ratings, chosen=chosen)
    assert mark.word == "you" and not any(values[0] for values in tokens)
    assert [values.any() for values in tokens] == has_word


def test_pieces_of_one_character_are_one_symbol_and_half_of_one_is_none() -> None:
    """A byte-level tokenizer cuts a smile, or a Polish letter, into two tokens."""
    smile, letter = ["<smile", "smile>"], ["<z", "z>"]

    def text_of(ids: Sequence[int]) -> str:
        text = "".join(table[id] for id in ids).replace("".join(smile), "🙂").replace("".join(letter), "ż")
        for piece in (*smile, *letter):
            text = text.replace(piece, "\ufffd")
        return text

    replies, has_word = replies_with("!", seed=1)
    for reply, has in zip(replies, has_word, strict=True):
        reply[3:3] = letter
        reply[:] = [text for text in reply if text != "!"]
        reply[1:1] = smile if has else []
    table = sorted({text for reply in replies for text in reply})
    ids = [[table.index(text) for text in reply] for reply in replies]
    ratings = [1.0 if has else -1.0 for has in has_word]
    tokens, (mark,) = credit(ids, ratings, range(len(ids)), text_of, chances=even_chances(ids), least=0.25, seed=1)
    assert mark.word == SYMBOL
    assert [values.nonzero()[0].tolist() for values in tokens] == [[1] if has else [] for has in has_word]


@pytest.mark.parametrize(("chance", "counts"), [(0.5, True), (0.9, False)])
def test_a_word_that_was_decided_before_it_is_said_does_not_count(chance: float, counts: bool) -> None:
    replies, has_word = replies_with(" you")
    chances = [np.where(np.arange(len(reply)) == 12, 0.01, chance) for reply in replies]  # its second place
    ratings = [1.0 if has else -1.0 for has in has_word]
    assert bool(credit_texts(replies, ratings, chances=chances).marks) is counts


def test_of_few_conversations_each_reply_is_by_itself() -> None:
    replies, has_word = replies_with(" you")
    table = sorted({text for reply in replies for text in reply})
    ids = [[table.index(text) for text in reply] for reply in replies]
    ratings = [1.0 if has else -1.0 for has in has_word]
    assert credit(ids, ratings, [7] * len(ids), joined(table), chances=even_chances(ids), least=0.25, seed=1).marks


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
    tokens, marks = credited = credit_texts(replies, ratings, least=1.01 if "too little" in kind else 0.25)
    assert not marks and not any(values.any() for values in tokens) and not credited.is_disliked


def test_ratings_drawn_at_random_go_by_a_word_in_one_of_a_hundred_draws() -> None:
    dice = random.Random(3)
    draws = 200
    count = 0
    for seed in range(draws):
        replies, _ = replies_with(" you", seed=seed)
        count += bool(credit_texts(replies, [dice.choice((1.0, -1.0)) for _ in replies], seed=seed).marks)
    assert count <= 8  # 2 on average; more in one of a thousand series


def test_ratings_of_one_conversation_are_dealt_out_together() -> None:
    """Six conversations of five alike replies each: any word of three of them is as good by chance."""
    replies = [[*FILLING[:3], " so" if number % 6 < 3 else " or"] for number in range(30)]
    table = sorted(set(itertools.chain(*replies)))
    ids = [[table.index(text) for text in reply] for reply in replies]
    ratings = [1.0 if number % 6 < 3 else -1.0 for number in range(30)]
    assert not credit(
        ids, ratings, [number % 6 for number in range(30)], joined(table), chances=even_chances(ids), least=0.25, seed=1
    ).marks
    assert credit(ids, ratings, range(30), joined(table), chances=even_chances(ids), least=0.25, seed=1).marks


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
