"""Lessons in a prompt: a person's comments, said again to the model with their next questions.

Owns which lessons a request gets and what is sent then; without `lessons.enabled` no request comes here. A run measures
what its lessons still change: a version that answers much the same without one goes without it, until answers are liked
less. Where no run has measured, half of the conversations go without. Where answers are liked as much there, the lesson
retires. Not here: which lessons fit (lesson_topics), their rows (store.learning.lessons), the words around them
(trainer.lessons.prompts, as the teacher sees them), the measurement (trainer.run.lesson_gaps).
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from config.languages import every
from proxy.conversation.lesson_topics import match_lessons, question_of
from proxy.core.json_edit import dumps
from proxy.dialects import Dialect, ParsedRequest
from store.errors import StoreError
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
JOINING: Final = ("messages", "responses")  # formats in which one text part is read as a text

log = structlog.get_logger()


class PromptLessons:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lessons: dict[Requester, list[CommentLesson]] | None = None
        self._changes = 0
        self._reading = asyncio.Lock()

    async def start(self) -> None:
        await self._store.lessons.begin()
        await asyncio.to_thread(every)  # the words of all languages: a request would wait for them

    def changed(self) -> None:
        """A rating, a version or a word about a lesson came: what is known is out of date."""
        self._changes += 1
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
        question = question_of(parsed.messages)
        first = question_of(parsed.messages[:1]) or question
        left_out = {lesson.rating for lesson in active if _left_out(lesson, version, first)}
        sent = match_lessons((lesson for lesson in active if lesson.rating not in left_out), question)
        texts = {match.lesson.text.casefold() for match in sent}  # that are not left out, whoever said them before
        unsent = match_lessons(
            (each for each in active if each.rating in left_out and each.text.casefold() not in texts), question
        )
        return tuple(
            PromptLesson(match.lesson.rating, match.lesson.text, match.lesson.rating in left_out)
            for match in (*sent, *unsent)
        )

    async def _active(self, requester: Requester) -> list[CommentLesson]:
        async with self._reading:
            if self._lessons is not None:
                return self._lessons.get(requester, [])
            changes = self._changes
            lessons: dict[Requester, list[CommentLesson]] = {}
            for lesson in await self._still_needed(await self._store.lessons.all()):
                lessons.setdefault(Requester(lesson.key, lesson.user), []).append(lesson)
            if changes == self._changes:  # else the next request reads them again
                self._lessons = lessons
            return lessons.get(requester, [])

    async def _still_needed(self, lessons: Sequence[CommentLesson]) -> list[CommentLesson]:
        """Those that are not removed. By how answers were liked, some retire now, and some that had act again."""
        ongoing = [lesson for lesson in lessons if not lesson.has_ended]
        tallies = await self._store.lessons.tallies(ongoing)
        return [
            lesson
            for each in ongoing
            if (lesson := await self._settled(each, tallies.get(each.rating, LessonTally()))) is not None
        ]

    async def _settled(self, lesson: CommentLesson, tally: LessonTally) -> CommentLesson | None:
        """The lesson as it acts from now on; None where its rating was undone, or its words changed, meanwhile."""
        reason = None if lesson.is_measured or lesson.is_unneeded else does_without(tally)
        is_again_needed = lesson.state == "retired" and is_missed(tally)
        if reason is None and not is_again_needed:
            return lesson
        try:
            is_settled = await self._store.lessons.settle(lesson, reason)
        except StoreError as error:
            log.warning("a lesson stays as it is: its new state was not stored", lesson=lesson.rating, error=str(error))
            return lesson
        if not is_settled:
            self.changed()  # the next request reads it anew
            return None
        return replace(lesson, gaps=(), is_unneeded=False) if reason is None else replace(lesson, is_unneeded=True)


def does_without(tally: LessonTally) -> str | None:
    """Why a lesson is needed no more: answers without it are liked as much, by less than one standard error."""
    if min(tally.rated_with, tally.rated_without) < FEW or is_missed(tally):
        return None
    return (
        f"{tally.liked_without} of {tally.rated_without} answers without it were liked, and "
        f"{tally.liked_with} of {tally.rated_with} with it"
    )


def is_missed(tally: LessonTally) -> bool:
    """Tell if answers without a lesson are liked less, by more than one standard error."""
    if min(tally.rated_with, tally.rated_without) < FEW:
        return False
    with_it, without = tally.liked_with / tally.rated_with, tally.liked_without / tally.rated_without
    error = math.sqrt(with_it * (1 - with_it) / tally.rated_with + without * (1 - without) / tally.rated_without)
    return without < with_it - error


def members(dialect: Dialect, body: Mapping[str, Any], lessons: Sequence[PromptLesson]) -> dict[str, bytes]:
    """The members of a request that differ with these lessons after its last user message; empty where it has none.

    A run puts them there once more (trainer.launch.with_hint), into the messages as `dialect` reads them.
    """
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
        item = messages[index]
        if dialect.has_one_text and isinstance(item, dict) and item.get("images") and item.get("content") is None:
            item = {**item, "content": ""}
        content = _with_words(item, words, part, joins=dialect.name in JOINING)
        if content is not None:
            return {member: dumps([*messages[:index], {**messages[index], "content": content}, *messages[index + 1 :]])}
    return {}


def _with_words(item: Any, words: str, part: str, *, joins: bool) -> Any:
    """The content of a message that a person wrote, with these words at its end; None for every other item. `joins`: a
    text that is the only part is read as that text alone."""
    if not isinstance(item, dict) or item.get("role") != "user":
        return None
    content = item.get("content")
    if isinstance(content, str):
        return content + words
    if not isinstance(content, list):
        return None
    places = [index for index, p in enumerate(content) if isinstance(p, dict) and p.get("type") != "tool_result"]
    if not places:
        return None
    first = content[places[0]]
    if joins and len(places) == 1 and isinstance(first.get("text"), str):
        return [*content[: places[0]], {**first, "text": first["text"] + words}, *content[places[0] + 1 :]]
    return [*content, {"type": part, "text": words.lstrip("\n")}]


def _left_out(lesson: CommentLesson, version: int, first: str) -> bool:
    """Left out where it is retired. Where no run has measured it: in half of the conversations, by how they begin."""
    if lesson.is_measured or lesson.is_retired(version):
        return lesson.is_retired(version)
    return lesson.is_learned(version) and bool(zlib.crc32(f"{lesson.rating} {first}".encode()) & 1)
