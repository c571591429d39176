"""Each language has all that the gate and the rules need, in itself and not by accident in another one."""

from __future__ import annotations

import re

import pytest

from config import languages
from config.languages import CODES, every, gate_questions, language, split_words, written_size

ENGLISH = language("en")


@pytest.mark.parametrize("code", CODES)
def test_a_language_is_whole(code: str) -> None:
    each = language(code)
    assert len(each.questions) == len(set(each.questions)) == len(ENGLISH.questions) == 8
    assert each.text.count("\n\n") == ENGLISH.text.count("\n\n") and each.text.endswith("\n")
    assert len(each.text.encode()) > 0.8 * len(ENGLISH.text)
    assert all(re.compile(pattern) for pattern in each.refusals) and len(each.refusals) > 4
    assert len(each.polite) > 20 and len(each.common) > 30
    assert all(each.own_tasks) and all(each.speakers[name] for name in ("person", "model"))


def test_no_language_is_a_copy_of_another() -> None:
    texts = {each.text for each in every()} | {question for each in every() for question in each.questions}
    assert len(texts) == 9 * len(CODES)


def test_the_english_text_is_about_three_hundred_tokens() -> None:
    assert 220 <= len(ENGLISH.text.split()) <= 320


def test_an_unknown_language_is_refused() -> None:
    with pytest.raises(KeyError):
        language("../en")


def test_two_languages_ask_as_many_questions_as_one() -> None:
    assert gate_questions() == ENGLISH.questions
    german, english = language("de").questions, ENGLISH.questions
    assert gate_questions(("de", "en")) == german[:4] + english[4:]
    assert languages.MOST_LANGUAGES == 2


def test_words() -> None:
    assert list(split_words("Ein Brot, bitte!")) == ["Ein", "Brot", "bitte"]
    assert list(split_words("光合作用？ ok")) == ["光合", "合作", "作用", "ok"]
    assert list(split_words("빵")) == ["빵"]


def test_a_letter_that_is_a_word_counts_twice() -> None:
    assert [written_size(text) for text in ("", "short", "kürzer", "短一点", "短い!", "ok 好")] == [0, 5, 6, 6, 5, 5]
