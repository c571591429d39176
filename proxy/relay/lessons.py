"""Lessons in a prompt: a person's comments, said again to the model with their next question on that topic.

Owns which lessons a request gets and what is sent then; without `lessons.enabled` no request comes here. A version that
has learned a lesson goes without it in half of the conversations. Where its answers are liked as much there, the lesson
retires. Not here: which lessons fit (lesson_topics), their rows (store.learning.lessons), the words around them
(trainer.lessons.prompts, as the teacher sees them).
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.conversation.lesson_topics import match_lessons, question_of
from proxy.core.json_edit import dumps
from proxy.dialects import Dialect, ParsedRequest
from store.learning.lessons import CommentLesson, LessonTally
from store.records import PromptLesson, Requester
from store.store import Store
from trainer.launch import HINT, join_lessons

FEW: Final = 8  # rated answers on either side, below which a lesson stays
HEADER: Final = "x-rl-lessons"
PLACES: Final = {  # where a format has its messages, and the type of a text part there
    "chat": ("messages", "text"),
    "messages": ("messages", "text"),
    "ollama": ("messages", "text"),
    "responses": ("input", "input_text"),
}


class PromptLessons:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lessons: dict[Requester, list[CommentLesson]] | None = None
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        await self._store.lessons.begin()

    def changed(self) -> None:
        """A rating, a version or a word about a lesson came: what is known is out of date."""
        self._lessons = None

    async def for_request(
        self, dialect: Dialect, parsed: ParsedRequest, requester: Requester, version: int | None, line: str
    ) -> tuple[PromptLesson, ...]:
        """Those that fit; some may be left out of the prompt, to compare. None where its format has no place."""
        if dialect.name not in PLACES or version is None or not parsed.typed:
            return ()
        active = [lesson for lesson in await self._active(requester) if lesson.line == line]
        if not active:
            return ()
        first = question_of(parsed.messages[:1]) or question_of(parsed.messages)
        return tuple(
            PromptLesson(lesson.lesson.rating, lesson.lesson.text, _left_out(lesson.lesson, version, first))
            for lesson in match_lessons(active, question_of(parsed.messages))
        )

    async def _active(self, requester: Requester) -> list[CommentLesson]:
        async with self._reading:
            if self._lessons is None:
                self._lessons = {}
                for lesson in await self._still_needed(await self._store.lessons.all()):
                    self._lessons.setdefault(Requester(lesson.key, lesson.user), []).append(lesson)
            return self._lessons.get(requester, [])

    async def _still_needed(self, lessons: Sequence[CommentLesson]) -> list[CommentLesson]:
        """Active ones, without those that a version has shown it can do without: they retire now."""
        active = [lesson for lesson in lessons if lesson.state == "active"]
        tallies = await self._store.lessons.tallies(active)
        needed = []
        for lesson in active:
            if (reason := does_without(tallies.get(lesson.rating, LessonTally()))) is None:
                needed.append(lesson)
                continue
            await self._store.lessons.say(
                lesson.rating,
                text=lesson.text if lesson.edited else None,
                always=lesson.always,
                ended="retired",
                reason=reason,
                actor="rlproxy",
            )
        return needed


def does_without(tally: LessonTally) -> str | None:
    """Why a lesson is needed no more: answers without it are liked as much, by less than one standard error."""
    if min(tally.rated_with, tally.rated_without) < FEW:
        return None
    with_it, without = tally.liked_with / tally.rated_with, tally.liked_without / tally.rated_without
    error = math.sqrt(with_it * (1 - with_it) / tally.rated_with + without * (1 - without) / tally.rated_without)
    if without < with_it - error:
        return None
    return (
        f"{tally.liked_without} of {tally.rated_without} answers without it were liked, and "
        f"{tally.liked_with} of {tally.rated_with} with it"
    )


def members(dialect: Dialect, body: Mapping[str, Any], lessons: Sequence[PromptLesson]) -> dict[str, bytes]:
    """The members of a request that differ with these lessons after its last user message; empty where it has none."""
    texts = [lesson.text for lesson in lessons if not lesson.left_out]
    if not texts:
        return {}
    member, part = PLACES[dialect.name]
    messages = body.get(member)
    words = HINT.format(hint=join_lessons(texts))
    if isinstance(messages, str):
        return {member: dumps(messages + words)}
    if not isinstance(messages, list):
        return {}
    for index in range(len(messages) - 1, -1, -1):
        if (content := _with_words(messages[index], words, part)) is not None:
            return {member: dumps([*messages[:index], {**messages[index], "content": content}, *messages[index + 1 :]])}
    return {}


def _with_words(item: Any, words: str, part: str) -> Any:
    """The content of a message that a person wrote, with these words at its end; None for every other item."""
    if not isinstance(item, dict) or item.get("role") != "user":
        return None
    content = item.get("content")
    if isinstance(content, str):
        return content + words
    if isinstance(content, list) and any(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        return [*content, {"type": part, "text": words.lstrip("\n")}]
    return None


def _left_out(lesson: CommentLesson, version: int, first: str) -> bool:
    """In half of the conversations, by how they begin; only with a version that has learned it."""
    if lesson.learned is None or version < lesson.learned:
        return False
    return bool(zlib.crc32(f"{lesson.rating} {first}".encode()) & 1)
