"""The scope of a comment: the topic of its question, or the form of every answer.

Owns the words of a topic, and which comments hold whatever is asked. "In lower case" holds for every question, "use
metric units" for recipes. Pure. Not here: the words of each language (config.languages), which lessons fit a question
(proxy.conversation.lesson_topics).
"""

from __future__ import annotations

import unicodedata
from typing import Final

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


def is_about_form(comment: str, question: str) -> bool:
    """Tell if a comment asks for a form of answers, and names nothing that its question is about."""
    words = " ".join(["", *_words(comment)])
    has_form = any(f" {stem}" in words for language in every() for stem in language.form)
    return has_form and topic_words(comment).isdisjoint(topic_words(question))


def _words(text: str) -> list[str]:
    return list(split_words(unicodedata.normalize("NFKC", text[:READ]).casefold()))
