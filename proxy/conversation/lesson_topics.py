"""Which lessons fit a question: by the words that both have in common.

Owns what a topic is and when two are the same. Pure; some hundreds of lessons take a millisecond. Not here: where
lessons come from (store.learning.lessons), where they stand in a prompt (proxy.relay.lessons).
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from config.languages import every, is_unspaced, split_words
from store.learning.lessons import CommentLesson

MOST: Final = 3  # in one prompt
ENOUGH: Final = 0.3  # of the weight of the shorter topic's words has to be in both
STEM: Final = 6  # letters that make a word: "recipes" and "recipe" are one
READ: Final = 4000  # characters of a text that are looked at


class LessonMatch(NamedTuple):
    lesson: CommentLesson
    score: float  # share of the shorter topic that both have; 1 for those that always stand there


def words(text: str) -> frozenset[str]:
    """The words that a text is about, each as its first letters."""
    letters = unicodedata.normalize("NFKC", text[:READ]).casefold()
    all_words = set(split_words(letters))
    # Of one language only, as one's common words are another's topics: "war", "hat".
    common = max((language.common for language in every()), key=lambda common: len(common & all_words))
    return frozenset(
        word[:STEM] for word in all_words - common if len(word) > 2 or word.isdecimal() or is_unspaced(word)
    )


def question_of(messages: Sequence[Mapping[str, Any]], turns: int = 2) -> str:
    """The last words of the person in a request in chat form, oldest first."""
    texts = []
    for message in reversed(messages):
        if message.get("role") == "user":
            texts.append(_text(message.get("content")))
            if len(texts) == turns:
                break
    return "\n".join(reversed(texts))


def match_lessons(lessons: Iterable[CommentLesson], question: str) -> list[LessonMatch]:
    """At most MOST, the best first: those for every question, then by topic, the newest of equals."""
    topics = [(lesson, words(f"{lesson.question}\n{lesson.text}")) for lesson in lessons]
    spread = Counter(word for _, topic in topics for word in topic)
    question_words, fits = words(question), []
    for lesson, topic in topics:
        if lesson.always:
            fits.append(LessonMatch(lesson, 1.0))
        elif (score := _common(question_words, topic, spread, len(topics))) >= ENOUGH:
            fits.append(LessonMatch(lesson, score))
    fits.sort(key=lambda fit: (not fit.lesson.always, -fit.score, -fit.lesson.created_at))
    return fits[:MOST]


def _common(question: frozenset[str], topic: frozenset[str], spread: Mapping[str, int], count: int) -> float:
    """Weight of the words in both, as a share of the lighter text's. A word that many lessons have weighs less."""
    weigh = {word: math.log(1 + (count + 1) / (1 + spread.get(word, 0))) for word in question | topic}
    lighter = min(sum(weigh[word] for word in side) for side in (question, topic))
    return sum(weigh[word] for word in question & topic) / lighter if lighter else 0.0


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return content if isinstance(content, str) else ""
