"""Which lessons fit a question: by the words that both have in common.

Owns when two topics are the same. Pure; a hundred lessons take a millisecond. Not here: the words of a topic,
and what holds whatever is asked (store.learning.lesson_scope). Nor where lessons come from (store.learning.lessons),
and where they stand in a prompt (proxy.relay.lessons).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from store.learning.lesson_scope import topic_words
from store.learning.lessons import CommentLesson

MOST: Final = 3  # in one prompt
ENOUGH: Final = 0.3  # of the weight of the shorter topic's words has to be in both


class LessonMatch(NamedTuple):
    lesson: CommentLesson
    score: float  # share of the shorter topic that both have; 1 for those that always stand there


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
    """At most MOST, the best first: those for every question, then by topic, the newest of equals. The same words count
    once, and the last place is for the topic where one fits."""
    topics = [(lesson, _topic_of(lesson.question, lesson.text)) for lesson in lessons]
    spread = Counter(word for _, topic in topics for word in topic)
    question_words, fits = topic_words(question), []
    for lesson, topic in topics:
        if lesson.always:
            fits.append(LessonMatch(lesson, 1.0))
        elif question_words.isdisjoint(topic):
            continue
        elif (score := _common(question_words, topic, spread, len(topics))) >= ENOUGH:
            fits.append(LessonMatch(lesson, score))
    fits.sort(key=lambda fit: (not fit.lesson.always, -fit.score, -fit.lesson.created_at))
    by_text: dict[str, LessonMatch] = {}
    for fit in fits:
        by_text.setdefault(fit.lesson.text.casefold(), fit)
    different = list(by_text.values())
    general = [fit for fit in different if fit.lesson.always]
    on_topic = different[len(general) :]
    return [*general[: MOST - bool(on_topic)], *on_topic][:MOST]


@lru_cache(maxsize=4096)  # of a thousand lessons, each request would read the words for a tenth of a second
def _topic_of(question: str, text: str) -> frozenset[str]:
    return topic_words(f"{question}\n{text}")


def _common(question: frozenset[str], topic: frozenset[str], spread: Mapping[str, int], count: int) -> float:
    """Weight of the words in both, as a share of the lighter text's. A word that many lessons have weighs less."""
    weigh = {word: math.log(1 + (count + 1) / (1 + spread.get(word, 0))) for word in question | topic}
    lighter = min(sum(weigh[word] for word in side) for side in (question, topic))
    return sum(weigh[word] for word in question & topic) / lighter if lighter else 0.0


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(p["text"] for p in content if isinstance(p, dict) and isinstance(p.get("text"), str))
    return content if isinstance(content, str) else ""
