"""The scope of a comment: the topic of its question, or the form of every answer.

Owns the words of a topic, and which comments hold whatever is asked. "In lower case" holds for every question, "use
metric units" for recipes. Pure. Not here: the words of each language (config.languages), which lessons fit a question
(proxy.conversation.lesson_topics).
"""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from config.languages import every, is_unspaced, split_words

STEM: Final = 6  # letters that make a word: "recipes" and "recipe" are one
READ: Final = 4000  # characters of a text that are looked at


def topic_words(text: str) -> frozenset[str]:
    """The words that a text is about, each as its first letters."""
    all_words = set(_words(text))
    # Of one language only, as one's common words are another's topics: "war", "hat".
    common = max((language.common for language in every()), key=lambda common: len(common & all_words))
    return frozenset(
        word[:STEM] for word in all_words - common if len(word) > 2 or word.isdecimal() or is_unspaced(word)
    )


@lru_cache(maxsize=4096)  # lessons are read anew after each rating
def is_about_form(comment: str, question: str) -> bool:
    """Tell if a comment asks for a form of answers, and names nothing that its question is about."""
    words, stems = _words(comment), _form_stems()
    places = {index for index, word in enumerate(words) if word.startswith(stems.words)} | _places(words, stems.pairs)
    places -= _places(words, stems.claims)  # "the answer is 42"
    remaining = " ".join(word for index, word in enumerate(words) if index not in places)
    return bool(places) and topic_words(remaining).isdisjoint(topic_words(question))


_Pairs = tuple[tuple[str, str], ...]  # of neighbouring words: the first one, and how the second one begins


class _FormStems(NamedTuple):
    words: tuple[str, ...]
    pairs: _Pairs
    claims: _Pairs


@cache
def _form_stems() -> _FormStems:
    """The stems of all languages."""
    stems = [stem.split() for language in every() for stem in language.form]
    claims = [stem.split() for language in every() for stem in language.claims]
    return _FormStems(
        tuple(s[0] for s in stems if len(s) == 1),
        tuple((s[0], s[1]) for s in stems if len(s) == 2),
        tuple((s[0], s[1]) for s in claims),
    )


def _places(words: list[str], pairs: _Pairs) -> set[int]:
    """Indices of words that stand beside one another as in one of these pairs."""
    seconds: dict[str, tuple[str, ...]] = {}
    for first, second in pairs:
        seconds[first] = (*seconds.get(first, ()), second)
    starts = [
        index for index, (word, following) in enumerate(pairwise(words)) if following.startswith(seconds.get(word, ()))
    ]
    return {place for index in starts for place in (index, index + 1)}


def _words(text: str) -> list[str]:
    return list(split_words(unicodedata.normalize("NFKC", text[:READ]).casefold()))
