"""Lessons in the store: what has learned one, how answers are liked with it and without, and what ends it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest

from proxy.dialects import CHAT
from proxy.relay.lessons import FEW, PromptLessons
from scripts.harness.records import HELLO, adapter, claim, put, rating
from store.errors import UnknownRating
from store.learning.lessons import CommentLesson, LessonGap, LessonTally
from store.learning.rater_quota import OWNER
from store.line_records import COMMON
from store.records import PromptLesson, Requester
from store.store import Store

WORDS = "answer in lower case"
PARSED = CHAT.parse({"model": "m", "messages": [{"role": "user", "content": "hello"}]})


async def comment(store: Store, name: str = "commented", words: str = WORDS, **fields: object) -> str:
    """A lesson; the id of its rating."""
    await store.lessons.begin()
    await put(store, name, prompt=(HELLO,), **fields)
    return (await store.ratings.rate(rating(name, -1.0, rater=OWNER, comment=words))).id


async def train(store: Store, version: int, parent: int = 0, **result: object) -> None:
    """A version that has learned all ratings that no run has taken, live."""
    run, _ = await claim(store, live=parent, version=version, held_share=0.0)
    await store.runs.publish(run.id, replace(adapter(version, run.id), parent=parent), dict(result), None)
    await store.versions.point(version, "it is new", "rlproxy")


async def answers(store: Store, lesson: str, version: int, value: float, *, left_out: bool, count: int = FEW) -> None:
    """Rated answers of a version, with the lesson in their prompts or without."""
    for n in range(count):
        name = f"a-{version}-{value}-{left_out}-{n}-{time.time_ns()}"
        lessons = (PromptLesson(lesson, WORDS, left_out),)
        await put(store, name, version=version, lessons=lessons, created_at=time.time())
        await store.ratings.rate(rating(name, value, rater=OWNER))


async def stored_lesson(store: Store) -> CommentLesson:
    (lesson,) = [each for each in await store.lessons.all() if each.text == WORDS]
    return lesson


async def sent(lessons: PromptLessons, version: int) -> tuple[PromptLesson, ...]:
    """The lessons of a request that this version answers."""
    lessons.changed()
    return await lessons.for_request(CHAT, PARSED, Requester(None, None), version, COMMON)


async def test_a_version_that_has_trained_on_a_comment_has_learned_it(store: Store) -> None:
    lesson = await comment(store)
    assert (await stored_lesson(store)).learned is None and await store.lessons.tallies(await store.lessons.all()) == {}
    await train(store, 1)
    learned = await stored_lesson(store)
    assert (learned.rating, learned.learned, learned.is_learned(1), learned.is_learned(2)) == (lesson, 1, True, False)
    assert await store.lessons.tallies([learned]) == {lesson: LessonTally()}


async def test_what_a_run_has_measured_retires_a_lesson(store: Store) -> None:
    lesson = await comment(store)
    await train(store, 1, lessons={lesson: {"remainder": 0.02, "bound": 0.04}})
    retired = await stored_lesson(store)
    assert (retired.state, retired.gaps) == ("retired", (LessonGap(1, 0.04),))
    await store.versions.point(0, "back", "me")
    assert (await stored_lesson(store)).state == "active"


@pytest.mark.parametrize(("bound", "state"), [(0.1, "retired"), (0.11, "active")])
async def test_a_lesson_stays_where_more_than_a_tenth_may_be_left(store: Store, bound: float, state: str) -> None:
    lesson = await comment(store)
    await train(store, 1, lessons={lesson: {"remainder": 0.02, "bound": bound}})
    assert (await stored_lesson(store)).state == state


async def test_what_is_said_of_a_lesson_holds(store: Store) -> None:
    lesson = await comment(store)
    await store.lessons.say(lesson, text="shorter", always=False, ended="removed", reason="by me", actor="me")
    (edited,) = await store.lessons.all()
    assert (edited.text, edited.edited, edited.always, edited.state) == ("shorter", True, False, "removed")
    await store.ratings.retract(lesson)
    assert await store.lessons.all() == []
    with pytest.raises(UnknownRating):
        await store.lessons.say(lesson, text=None, always=True, ended=None, reason=None, actor="me")


async def test_only_answers_of_versions_that_have_learned_a_lesson_say_that_it_is_of_no_use(store: Store) -> None:
    lesson = await comment(store)
    lessons = PromptLessons(store)
    await answers(store, lesson, 0, -1.0, left_out=False)  # the base makes nothing of it
    await train(store, 1)
    await answers(store, lesson, 1, 1.0, left_out=True)
    tallies = await store.lessons.tallies(await store.lessons.all())
    assert tallies == {lesson: LessonTally(liked_without=FEW, rated_without=FEW)}
    await sent(lessons, 1)
    assert (await stored_lesson(store)).state == "active"
    await answers(store, lesson, 1, 1.0, left_out=False)
    assert [each.left_out for each in await sent(lessons, 1)] == [True]
    retired = await stored_lesson(store)
    assert retired.state == "retired" and retired.end_reason is not None and "8 of 8 answers" in retired.end_reason


async def unneeded_lesson(store: Store) -> tuple[str, PromptLessons]:
    """A lesson that v1 has learned, and whose answers are liked as much without it."""
    lesson = await comment(store)
    await train(store, 1)
    for left_out in (True, False):
        await answers(store, lesson, 1, 1.0, left_out=left_out)
    return lesson, PromptLessons(store)


async def test_a_lesson_that_likes_have_retired_acts_where_the_version_has_not_learned_it(store: Store) -> None:
    lesson, lessons = await unneeded_lesson(store)
    await sent(lessons, 1)
    assert (await stored_lesson(store)).state == "retired"
    await store.versions.point(0, "back", "me")
    active = await stored_lesson(store)
    assert (active.state, active.end_reason) == ("active", None)
    assert await sent(lessons, 0) == (PromptLesson(lesson, WORDS),)
    await store.versions.point(1, "forth", "me")
    assert (await stored_lesson(store)).state == "retired"
    assert await sent(lessons, 1) == (PromptLesson(lesson, WORDS, left_out=True),)


async def test_a_lesson_that_likes_have_retired_stays_where_its_owner_restores_it(store: Store) -> None:
    lesson, lessons = await unneeded_lesson(store)
    await sent(lessons, 1)
    await store.lessons.say(lesson, text=None, always=True, ended=None, reason=None, actor="me")
    assert len(await sent(lessons, 1)) == 1
    assert (await stored_lesson(store)).state == "active", "answers from before say nothing any more"
    await answers(store, lesson, 1, 1.0, left_out=True)
    await answers(store, lesson, 1, 1.0, left_out=False)
    await sent(lessons, 1)
    assert (await stored_lesson(store)).state == "retired"


async def test_a_lesson_that_likes_have_retired_acts_again_where_it_is_missed(store: Store) -> None:
    lesson, lessons = await unneeded_lesson(store)
    await sent(lessons, 1)
    await answers(store, lesson, 1, -1.0, left_out=True)
    await sent(lessons, 1)
    assert (await stored_lesson(store)).state == "active"


async def test_a_lesson_that_is_missed_once_retires_with_a_later_version(store: Store) -> None:
    lesson = await comment(store)
    lessons = PromptLessons(store)
    await answers(store, lesson, 0, 1.0, left_out=False)
    await train(store, 1, lessons={lesson: {"remainder": 0.02, "bound": 0.04}})
    await answers(store, lesson, 1, -1.0, left_out=True)
    assert [each.left_out for each in await sent(lessons, 1)] == [False]
    assert (await stored_lesson(store)).state == "active"
    await train(store, 2, 1, lessons={lesson: {"remainder": 0.02, "bound": 0.04}})
    assert [each.left_out for each in await sent(lessons, 2)] == [True]
    assert (await stored_lesson(store)).state == "retired", "what was disliked was said by v1"


async def test_a_rating_that_is_undone_while_its_lesson_retires_costs_no_request(store: Store) -> None:
    lesson, lessons = await unneeded_lesson(store)
    busy = store.ratings._writer.submit(lambda db: time.sleep(0.3))  # reads go on
    undone = store.ratings._writer.submit(
        lambda db: db.execute("UPDATE ratings SET live = 0 WHERE id = ?", (lesson,)).rowcount
    )
    request = asyncio.create_task(sent(lessons, 1))
    assert await undone == 1 and await request == ()
    await busy
    assert await sent(lessons, 1) == () and await store.lessons.all() == []


async def test_new_words_while_a_lesson_retires_are_kept(store: Store) -> None:
    lesson, lessons = await unneeded_lesson(store)
    busy = store.ratings._writer.submit(lambda db: time.sleep(0.3))
    words = store.lessons.say(lesson, text="no emoji", always=True, ended=None, reason=None, actor="me")
    _, _, outcome = await asyncio.gather(busy, words, sent(lessons, 1))
    assert outcome == (), "which words hold is read anew with the next request"
    (edited,) = await store.lessons.all()
    assert (edited.text, edited.state) == ("no emoji", "active")
    assert [each.text for each in await sent(lessons, 1)] == ["no emoji"]


async def test_what_is_forgotten_takes_its_lesson_and_the_prompts_that_had_it_along(store: Store) -> None:
    lesson = await comment(store)
    await answers(store, lesson, 0, 1.0, left_out=False, count=1)
    ((answer, prompt_lessons),) = (
        await store.lessons.in_prompts([row.new.id for row in await store.completions.page()])
    ).items()
    assert prompt_lessons == [PromptLesson(lesson, WORDS)]
    await store.erasure.forget("completion", "commented", "me")
    assert await store.lessons.all() == [] and await store.lessons.in_prompts([answer]) == {}
    taught = await store.completions.get(answer)
    assert taught is not None and taught.end is not None and taught.end.prompt_token_ids is None
