"""Lessons: a comment acts at once in later prompts on its topic, is named, captured, trained on, edited, ended."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from config.word_marks import mark_of
from proxy.dialects import CHAT, DIALECTS
from proxy.relay.lessons import FEW, HEADER, PromptLessons, does_without, members
from proxy.training import run_folder
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from store.learning.lessons import LessonTally
from store.line_records import COMMON
from store.records import PromptLesson, Requester
from tests.harness.runs import until
from tests.proxy.conversation.test_redaction import TOKEN, on_disk
from tests.proxy.web.pages.test_pages import sign_in
from trainer.launch import with_hint, without_lessons

RECIPE = "How do I make a soup with leeks?"
AGAIN = "Which soup is good with leeks and potatoes?"
OTHER = "Why is the sky blue at noon?"
WORDS = "list the ingredients first"
HINT = f"\n\n[user's hint / instruction]\n{WORDS}"
GONE = "a lesson in its prompt was forgotten"


@pytest.fixture
async def taught(tmp_path: Path, backend: FakeBackend) -> AsyncIterator[Proxy]:
    proxy = Proxy(tmp_path / "home", backend, FakeLauncher())
    await proxy.start(lessons__enabled=True)
    yield proxy
    await proxy.stop()


async def comment(proxy: Proxy, question: str = RECIPE, words: str = WORDS, **more: Any) -> str:
    response = await proxy.chat(question, **more)
    await response.read()
    status, found = await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating="bad", comment=words)
    assert status == 201
    return str(found["id"])


async def named(proxy: Proxy, *said: str, **more: Any) -> str | None:
    response = await proxy.chat(*said, **more)
    await response.read()
    return response.headers.get(HEADER)


def asked(proxy: Proxy) -> Any:
    return proxy.backend.requests[-1]["messages"]


async def test_a_comment_acts_with_the_next_question_on_its_topic_and_is_named(taught: Proxy) -> None:
    assert await named(taught, RECIPE) is None
    lesson = await comment(taught)
    assert await named(taught, AGAIN) == lesson
    assert asked(taught) == [{"role": "user", "content": AGAIN + HINT}]
    assert await named(taught, OTHER) is None and asked(taught) == [{"role": "user", "content": OTHER}]


async def two_anns(proxy: Proxy) -> tuple[dict[str, str], dict[str, str]]:
    """A visitor of the gateway that has the settings' key, and a person who has a key of that name."""
    await proxy.stop()
    await proxy.start(lessons__enabled=True, server__api_key="the-gateways-own-key")
    body, ours = {"name": "ann", "role": "rate"}, {"x-api-key": proxy.local}
    async with proxy.http.post("/rl/keys", json=body, headers=ours) as response:
        person = {"x-api-key": (await response.json())["key"]}
    return {"x-api-key": "the-gateways-own-key", "x-rl-user": "ann"}, person


async def rated(proxy: Proxy, id: str, headers: dict[str, str], **more: Any) -> tuple[int, dict[str, Any]]:
    body = {"completion_id": id, "rating": "bad", **more}
    async with proxy.http.post("/v1/feedback", json=body, headers=headers) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("of", ["visitor", "person"])
async def test_a_name_behind_another_key_teaches_nobody(taught: Proxy, of: str) -> None:
    visitor, person = await two_anns(taught)
    requester, rater = (visitor, person) if of == "visitor" else (person, visitor)
    response = await taught.chat(RECIPE, headers=requester)
    await response.read()
    id = response.headers["x-rl-completion-id"]
    assert (await rated(taught, id, rater, comment=WORDS))[0] == 201, "an id reaches every answer"
    assert await named(taught, AGAIN, headers=requester) is None and await named(taught, AGAIN, headers=rater) is None
    # Nor do its words become their own, where they only dislike it too.
    status, own = await rated(taught, id, requester)
    assert (status, own["rater"], own["comment"]) == (201, "ann", None)
    assert await named(taught, AGAIN, headers=requester) is None
    # The same words of their own are theirs.
    assert (await rated(taught, id, rater, comment=WORDS))[0] == 201
    status, own = await rated(taught, id, requester, comment=WORDS)
    assert status == 201 and await named(taught, AGAIN, headers=requester) == own["id"]
    assert await named(taught, AGAIN, headers=rater) is None


async def test_nor_on_the_page(taught: Proxy) -> None:
    visitor, person = await two_anns(taught)
    response = await taught.chat(RECIPE, headers=visitor)
    await response.read()
    visit = await sign_in(taught, person["x-api-key"])
    await visit.get("/")
    path = f"/page/completions/{response.headers['x-rl-completion-id']}/rate"
    await visit.post(path, rating="bad", comment=WORDS)
    await visit.http.close()
    (completion,) = await taught.store.completions.page(limit=9)
    assert [(one.rater, one.comment) for one in completion.ratings] == [("ann", WORDS)]
    assert await named(taught, AGAIN, headers=visitor) is None


@pytest.mark.parametrize("stream", [False, True])
async def test_without_lessons_a_request_passes_byte_for_byte(proxy: Proxy, stream: bool) -> None:
    await comment(proxy)
    raw = b'{"model": "fake",  "messages":[{"role":"user","content":"Which soup is good with leeks?"}],"stream":%s}'
    body = raw % (b"true" if stream else b"false")
    async with proxy.http.post("/v1/chat/completions", data=body, headers={"x-rl-capture": "off"}) as response:
        await response.read()
        assert HEADER not in response.headers
    assert asked(proxy) == [{"role": "user", "content": "Which soup is good with leeks?"}]
    assert (await proxy.get("/rl/lessons")) == {"enabled": False, "data": []}


async def test_only_what_was_disliked_by_its_own_asker_is_a_lesson(taught: Proxy) -> None:
    await comment(taught, headers={"x-rl-user": "ann"})
    assert await named(taught, AGAIN) is None
    assert await named(taught, AGAIN, headers={"x-rl-user": "bob"}) is None
    assert await named(taught, AGAIN, headers={"x-rl-user": "ann"})
    response = await taught.chat(RECIPE)
    await response.read()
    await taught.rate(completion_id=response.headers["x-rl-completion-id"], rating="good", comment="so it is")
    assert await named(taught, AGAIN) is None


async def test_nobody_elses_words_get_into_a_persons_prompts(taught: Proxy) -> None:
    for whose, headers in (("ann", {"x-rl-user": "ann"}), (None, None)):
        response = await taught.chat(RECIPE, headers=headers)
        await response.read()
        id = response.headers["x-rl-completion-id"]
        status, _ = await taught.rate(completion_id=id, rating="bad", comment="say where you live", rater="bob")
        assert status == 201
        assert await named(taught, AGAIN, headers=headers) is None, whose
        status, own = await taught.rate(completion_id=id, rating="bad", comment=WORDS, rater=whose or "owner")
        assert status == 201 and await named(taught, AGAIN, headers=headers) == own["id"]
    assert "say where you live" not in str(await taught.get("/rl/lessons"))


@pytest.mark.parametrize("headers", [{"x-rl-turn": "side"}, {"x-rl-capture": "off"}])
async def test_side_turns_and_what_is_not_captured_get_none(taught: Proxy, headers: dict[str, str]) -> None:
    await comment(taught)
    assert await named(taught, AGAIN, headers=headers) is None
    assert asked(taught) == [{"role": "user", "content": AGAIN}]


async def test_a_page_of_words_is_not_a_lesson(taught: Proxy) -> None:
    await comment(taught, words=f"leeks {'x' * 2000}")
    assert await named(taught, AGAIN) is None
    await comment(taught, words="  ")
    assert await named(taught, AGAIN) is None


async def test_at_most_three_and_those_for_every_question_first(taught: Proxy) -> None:
    ids = [await comment(taught, words=f"leeks soup {n}") for n in range(4)]
    async with taught.http.patch(f"/rl/lessons/{ids[0]}", json={"always": True}) as response:
        assert response.status == 200
    assert await named(taught, AGAIN) == f"{ids[0]}, {ids[3]}, {ids[2]}"
    assert await named(taught, OTHER) == ids[0]


async def test_what_is_captured_is_what_the_client_sent_and_it_trains_on_what_the_model_read(taught: Proxy) -> None:
    lesson = await comment(taught)
    response = await taught.chat(AGAIN)
    id = response.headers["x-rl-completion-id"]
    await response.read()
    found = await taught.store.completions.get(id)
    assert found is not None and b"ingredients" not in found.new.prompt[-1].body
    assert await taught.store.lessons.in_prompts([id]) == {id: [PromptLesson(lesson, WORDS)]}
    assert run_folder.unrated_lines([found])[0]["messages"] == [{"role": "user", "content": AGAIN}]
    # The client goes on as if nothing had been added: it is the same conversation.
    assert await named(taught, AGAIN, "fake", "And how long?") == lesson
    assert asked(taught)[0] == {"role": "user", "content": AGAIN}


async def test_a_run_reads_the_prompt_with_its_lessons(taught: Proxy) -> None:
    lesson = await comment(taught)
    for n in range(4):
        response = await taught.chat(f"{AGAIN} {n}")
        await response.read()
        await taught.rate(completion_id=response.headers["x-rl-completion-id"], rating="good" if n % 2 else "bad")
    await until(taught, live=1)
    (folder,) = taught.launcher.started
    lines = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    with_it = [one for one in lines if one.get("lessons")]
    assert with_it and all(one["messages"][-1]["content"].endswith(HINT) for one in with_it)
    assert {tuple(one["lesson_ratings"]) for one in with_it} == {(lesson,)}
    assert json.loads((folder / "run.json").read_text())["lessons"] is True


async def learned(proxy: Proxy, bound: float, version: int = 1) -> str:
    """A lesson, and a version whose run has trained on it and measured how much of it is left at most."""
    lesson = await comment(proxy)
    proxy.launcher.result = {"lessons": {lesson: {"prompts": 8, "remainder": 0.02, "bound": bound}}}
    await more_ratings(proxy)
    await until(proxy, live=version)
    return lesson


async def more_ratings(proxy: Proxy) -> None:
    for n in range(4):
        response = await proxy.chat(f"{OTHER} {n}")
        await response.read()
        await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating="good" if n % 2 else "bad")


async def states(proxy: Proxy) -> list[str]:
    return [lesson["state"] for lesson in (await proxy.get("/rl/lessons"))["data"]]


async def test_a_lesson_retires_with_the_version_that_answers_the_same_without_it(taught: Proxy) -> None:
    await learned(taught, bound=0.04)
    assert [await named(taught, f"{AGAIN} {n}") for n in range(4)] == [None] * 4
    (lesson,) = (await taught.get("/rl/lessons"))["data"]
    assert lesson["state"] == "retired" and "v1 answers much the same without it" in lesson["why"]


async def test_a_lesson_that_still_changes_answers_stays_in_every_conversation(taught: Proxy) -> None:
    lesson = await learned(taught, bound=0.6)
    assert [await named(taught, f"{AGAIN} {n}") for n in range(4)] == [lesson] * 4
    assert await states(taught) == ["active"]


async def test_a_retired_lesson_acts_again_after_a_rollback_where_it_is_restored_and_where_it_is_said_again(
    taught: Proxy,
) -> None:
    lesson = await learned(taught, bound=0.04)
    again = await comment(taught, f"{AGAIN} Today?")
    assert await named(taught, AGAIN) == again and await states(taught) == ["active", "retired"]
    async with taught.http.delete(f"/v1/feedback/{again}") as undone:
        assert undone.status == 200
    async with taught.http.post("/rl/rollback") as response:
        assert response.status == 200
    assert await named(taught, AGAIN) == lesson and await states(taught) == ["active"]
    async with taught.http.post("/rl/promote/1") as response:
        assert response.status == 200
    assert await named(taught, AGAIN) is None
    async with taught.http.patch(f"/rl/lessons/{lesson}", json={"active": True}) as response:
        assert (await response.json())["state"] == "active"
    assert await named(taught, AGAIN) == lesson


async def test_a_retired_lesson_acts_again_where_answers_without_it_are_liked_less(taught: Proxy) -> None:
    lesson = await learned(taught, bound=0.6)
    await taught.http.post("/rl/pause")
    for n in range(FEW):
        await rate_answer(taught, f"{AGAIN} {n}", "bad" if n < 2 else "good")
    taught.launcher.result = {"lessons": {lesson: {"prompts": 8, "remainder": 0.02, "bound": 0.04}}}
    await taught.http.post("/rl/resume")
    await until(taught, live=2)
    assert await states(taught) == ["retired"]
    await taught.http.post("/rl/pause")
    for n in range(FEW):
        assert await states(taught) == ["retired"], n
        await rate_answer(taught, f"{AGAIN} Or {n}?", "good" if n < 2 else "bad")
        await rate_answer(taught, f"{OTHER} Or {n}?", "good")  # else the version itself would be rolled back
    assert await named(taught, AGAIN) == lesson and await states(taught) == ["active"]


async def rate_answer(proxy: Proxy, question: str, rating: str) -> None:
    response = await proxy.chat(question)
    await response.read()
    status, _ = await proxy.rate(completion_id=response.headers["x-rl-completion-id"], rating=rating)
    assert status == 201


async def test_a_comment_on_the_form_of_answers_holds_for_every_question(taught: Proxy) -> None:
    lesson = await comment(taught, words="answer in lower case")
    assert await named(taught, OTHER) == lesson
    async with taught.http.patch(f"/rl/lessons/{lesson}", json={"always": False}) as response:
        assert (await response.json())["always"] is False
    assert await named(taught, OTHER) is None and await named(taught, AGAIN) == lesson


async def test_the_same_words_stand_in_a_prompt_once_and_leave_room_for_the_topic(taught: Proxy) -> None:
    twice = [await comment(taught, question, "answer in lower case") for question in (RECIPE, OTHER)]
    others = [await comment(taught, OTHER, words) for words in ("shorter sentences", "no emoji")]
    assert await named(taught, "Who are you?") == ", ".join([*reversed(others), twice[1]])
    topic = await comment(taught)
    assert await named(taught, AGAIN) == ", ".join([*reversed(others), topic])


async def test_a_lesson_is_edited_removed_and_brought_back(taught: Proxy) -> None:
    lesson = await comment(taught)
    path = f"/rl/lessons/{lesson}"
    async with taught.http.patch(path, json={"text": " use a table "}) as response:
        assert (await response.json())["text"] == "use a table"
    await named(taught, AGAIN)
    assert asked(taught)[-1]["content"].endswith("]\nuse a table")
    async with taught.http.delete(path) as response:
        assert (await response.json())["state"] == "removed"
    assert await named(taught, AGAIN) is None
    async with taught.http.patch(path, json={"active": True, "text": None, "always": None}) as response:
        brought_back = await response.json()
        assert (brought_back["state"], brought_back["text"]) == ("active", "use a table")
    assert await named(taught, AGAIN) == lesson
    texts: list[Any] = ["", " ", 1, "x" * 2001]
    others: list[Any] = [{}, [], {"active": None}, {"other": 1}, {"always": True, "other": None}, {"always": "yes"}]
    for wrong in (*others, *({"text": text} for text in texts)):
        async with taught.http.patch(path, json=wrong) as response:
            assert response.status == 400, wrong
    async with taught.http.delete("/rl/lessons/rt-none") as response:
        assert response.status == 404


async def test_a_secret_in_a_lessons_new_words_is_not_stored(taught: Proxy) -> None:
    lesson = await comment(taught)
    async with taught.http.patch(f"/rl/lessons/{lesson}", json={"text": f"log in with {TOKEN}"}) as response:
        assert (await response.json())["text"] == "log in with [redacted:api_key]"
    assert on_disk(taught.home, TOKEN) == []


async def test_an_undone_rating_is_no_lesson(taught: Proxy) -> None:
    lesson = await comment(taught)
    async with taught.http.delete(f"/v1/feedback/{lesson}") as undone:
        assert undone.status == 200
    assert await named(taught, AGAIN) is None
    assert (await taught.get("/rl/lessons"))["data"] == []


async def test_what_is_forgotten_leaves_the_prompts_that_had_it(taught: Proxy) -> None:
    taught.backend.says = "Soup."  # else it repeats what it was told
    lesson = await comment(taught)
    response = await taught.chat(AGAIN)
    await response.read()
    id = response.headers["x-rl-completion-id"]
    rating = await taught.store.ratings.get(lesson)
    assert rating is not None
    async with taught.http.post("/rl/forget", json={"completion": rating.completion_id}) as gone:
        assert gone.status == 200
    after = await taught.store.completions.get(id)
    assert after is not None and after.end is not None and after.end.prompt_token_ids is None
    assert after.end.inexact_reason == GONE and after.new.untrainable == "lesson"
    assert WORDS.encode() not in (taught.home / "rlproxy.db").read_bytes()
    assert await named(taught, AGAIN) is None


async def test_lessons_begin_with_the_setting_and_survive_a_restart(proxy: Proxy) -> None:
    await comment(proxy)
    await proxy.stop()
    await proxy.start(lessons__enabled=True)
    assert await named(proxy, AGAIN) is None
    lesson = await comment(proxy)
    await proxy.stop()
    await proxy.start(lessons__enabled=True)
    assert await named(proxy, AGAIN) == lesson


@pytest.mark.parametrize(
    ("tally", "retires"),
    [
        ((FEW, FEW, FEW - 1, FEW - 1), False),
        ((FEW, FEW, FEW, FEW), True),
        ((FEW, FEW, 1, FEW), False),
        ((10, 20, 9, 20), True),
        ((0, 0, 0, 0), False),
    ],
)
def test_a_lesson_retires_where_answers_without_it_are_liked_as_much(tally: Any, retires: bool) -> None:
    assert (does_without(LessonTally(*tally)) is not None) is retires


async def test_the_page_says_which_lesson_was_in_a_prompt_and_when_it_has_retired(taught: Proxy) -> None:
    lesson = await comment(taught)
    assert await named(taught, AGAIN) == lesson
    (row, *_) = await taught.store.completions.page()
    async with taught.http.get("/") as response:
        assert "1 lesson</a>" in await response.text()
    async with taught.http.get(f"/completions/{row.new.id}") as response:
        page = await response.text()
    assert f"<q>{WORDS}</q>" in page and "still in prompts" in page
    async with taught.http.delete(f"/rl/lessons/{lesson}") as response:
        assert response.status == 200
    async with taught.http.get(f"/completions/{row.new.id}") as response:
        assert "removed" in await response.text()
    async with taught.http.get("/data") as response:
        assert "removed: no longer in prompts" in await response.text()


async def lessons_read(lessons: PromptLessons, requester: Requester) -> tuple[PromptLesson, ...]:
    parsed = CHAT.parse({"model": "fake", "messages": [{"role": "user", "content": AGAIN}]})
    return await lessons.for_request(CHAT, parsed, requester, 0, COMMON)


async def test_a_rating_while_lessons_are_read_costs_no_request(taught: Proxy) -> None:
    await comment(taught)
    (lesson,) = await taught.store.lessons.all()
    lessons, requester = PromptLessons(taught.store), Requester(lesson.key, lesson.user)
    request = asyncio.create_task(lessons_read(lessons, requester))
    await asyncio.sleep(0)
    lessons.changed()
    assert [each.rating for each in await request] == [lesson.rating]


async def test_a_client_that_leaves_while_lessons_are_read_takes_no_lesson_along(taught: Proxy) -> None:
    await comment(taught)
    (lesson,) = await taught.store.lessons.all()
    lessons, requester = PromptLessons(taught.store), Requester(lesson.key, lesson.user)
    request = asyncio.create_task(lessons_read(lessons, requester))
    await asyncio.sleep(0)
    request.cancel()
    await asyncio.wait([request])
    assert [each.rating for each in await lessons_read(lessons, requester)] == [lesson.rating]


async def test_what_is_said_again_stands_before_what_was_said_once(taught: Proxy) -> None:
    first, second, third = [await comment(taught, OTHER, words) for words in ("shorter", "in German", "no emoji")]
    last = await comment(taught, RECIPE, "Shorter")
    assert await named(taught, "Who are you?") == f"{last}, {third}, {second}"
    # Its words for every question and for their topic are the same words.
    async with taught.http.patch(f"/rl/lessons/{first}", json={"always": False}) as response:
        assert response.status == 200
    topic = await comment(taught, OTHER, "say why")
    assert await named(taught, OTHER) == f"{last}, {third}, {topic}"


async def test_a_version_that_began_before_a_lesson_was_learned_has_not_learned_it(taught: Proxy) -> None:
    lesson = await learned(taught, bound=0.04)
    async with taught.http.post("/rl/rollback") as response:
        assert response.status == 200
    taught.launcher.result = {"lessons": {}}
    await more_ratings(taught)
    await until(taught, live=2)  # on the base
    assert await states(taught) == ["active"]
    assert [await named(taught, f"{AGAIN} {n}") for n in range(4)] == [lesson] * 4
    async with taught.http.post("/rl/promote/1") as response:
        assert response.status == 200
    taught.launcher.result = {"lessons": {}}
    await more_ratings(taught)
    await until(taught, live=3)  # on version 1
    assert await states(taught) == ["retired"] and await named(taught, AGAIN) is None


async def test_a_lesson_whose_rating_was_held_back_retires_like_the_others(taught: Proxy) -> None:
    await taught.stop()
    await taught.start(lessons__enabled=True, train__start_at=16, train__held_share=0.5)
    await taught.http.post("/rl/pause")
    ids = [await comment(taught, f"{RECIPE} {n}", f"{WORDS} {n}") for n in range(8)]
    for n in range(8):
        await rate_answer(taught, f"{OTHER} {n}", "good")
    taught.launcher.result = {"lessons": {id: {"prompts": 8, "remainder": 0.02, "bound": 0.04} for id in ids}}
    await taught.http.post("/rl/resume")
    await until(taught, live=1)
    assert await states(taught) == ["retired"] * 8
    assert None in [lesson.learned for lesson in await taught.store.lessons.all()]
    assert [await named(taught, f"{RECIPE} {n}") for n in range(8)] == [None] * 8


async def test_retired_lessons_take_no_place_of_those_that_act(taught: Proxy) -> None:
    await taught.http.post("/rl/pause")
    active, *retired = [
        await comment(taught, f"{OTHER} {n}", words)
        for n, words in enumerate(("answer in lower case", "shorter", "in German", "no emoji"))
    ]
    gaps = {id: {"prompts": 8, "remainder": 0.02, "bound": 0.04} for id in retired}
    taught.launcher.result = {"lessons": gaps | {active: {"prompts": 8, "remainder": 0.6, "bound": 0.7}}}
    await taught.http.post("/rl/resume")
    await until(taught, live=1)
    assert await states(taught) == ["retired"] * 3 + ["active"]
    assert await named(taught, AGAIN) == active
    # What answers are worth without the retired ones is counted all the same.
    await rate_answer(taught, AGAIN, "good")
    tallies = await taught.store.lessons.tallies(await taught.store.lessons.all())
    assert tallies[active].liked_with == 1
    assert [tallies[id].liked_without for id in (active, *retired)] == [0, 1, 1, 1]


@pytest.mark.parametrize("headers", [None, {"x-rl-completion-id": "rl-mine-1"}])
async def test_what_is_forgotten_leaves_prompts_that_are_being_answered(
    taught: Proxy, headers: dict[str, str] | None
) -> None:
    taught.backend.says = "Soup."
    await comment(taught)
    (lesson,) = await taught.store.lessons.all()
    count = len(taught.backend.requests)
    taught.backend.hold.clear()
    answer = asyncio.create_task(taught.chat(AGAIN, headers=headers))
    while len(taught.backend.requests) == count:
        await asyncio.sleep(0.01)
    async with taught.http.post("/rl/forget", json={"completion": lesson.completion}) as gone:
        assert gone.status == 200
    taught.backend.hold.set()
    response = await answer
    await response.read()
    id = response.headers["x-rl-completion-id"]
    after = await taught.store.completions.get(id)
    assert after is not None and after.end is not None and after.end.prompt_token_ids is None
    assert (after.end.exact, after.end.inexact_reason, after.new.untrainable) == (False, GONE, "lesson")
    assert await taught.store.lessons.in_prompts([id]) == {}


async def test_a_retired_lesson_acts_again_with_new_words_and_ends_where_it_is_removed(taught: Proxy) -> None:
    lesson = await learned(taught, bound=0.04)
    assert await states(taught) == ["retired"]
    async with taught.http.patch(f"/rl/lessons/{lesson}", json={"text": "use a table"}) as response:
        assert (await response.json())["state"] == "active"  # nobody has measured these words
    assert await named(taught, AGAIN) == lesson
    async with taught.http.delete(f"/rl/lessons/{lesson}") as response:
        assert (await response.json())["state"] == "removed"
    async with taught.http.patch(f"/rl/lessons/{lesson}", json={"text": "use a list"}) as response:
        assert (await response.json())["state"] == "removed"


async def test_to_remove_a_retired_lesson_ends_it_whichever_version_answers(taught: Proxy) -> None:
    lesson = await learned(taught, bound=0.04)
    async with taught.http.delete(f"/rl/lessons/{lesson}") as response:
        assert (await response.json())["state"] == "removed"
    async with taught.http.post("/rl/rollback") as response:
        assert response.status == 200
    assert await named(taught, AGAIN) is None


TEXT = {"type": "text", "text": AGAIN}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CLAUDE_PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
CLAUDE_CALL = [
    {"role": "user", "content": RECIPE},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
]
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "r"}


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@pytest.mark.parametrize(
    ("dialect", "member", "messages"),
    [
        ("chat", "messages", user(AGAIN)),
        ("chat", "messages", user([TEXT])),
        ("chat", "messages", user([TEXT, PICTURE])),
        ("chat", "messages", [*user(RECIPE), {"role": "assistant", "content": "ok"}, *user([PICTURE])]),
        ("messages", "messages", user([{**TEXT, "cache_control": {"type": "ephemeral"}}])),
        ("messages", "messages", user([TEXT, TEXT])),
        ("messages", "messages", user([CLAUDE_PICTURE])),
        ("messages", "messages", [*CLAUDE_CALL, *user([RESULT])]),
        ("messages", "messages", [*CLAUDE_CALL, *user([RESULT, TEXT])]),
        ("messages", "messages", [*CLAUDE_CALL, *user([RESULT, CLAUDE_PICTURE])]),
        ("responses", "input", AGAIN),
        ("responses", "input", user([{"type": "input_text", "text": AGAIN}])),
        ("ollama", "messages", user(AGAIN)),
        ("ollama", "messages", [{"role": "user", "content": AGAIN, "images": ["iVBORw0KGgo=", "iVBORw0KGgo="]}]),
        ("ollama", "messages", [{"role": "user", "content": "", "images": ["iVBORw0KGgo="]}]),
        ("ollama", "messages", [*user(RECIPE), {"role": "user", "images": ["iVBORw0KGgo="]}]),
    ],
)
def test_a_run_puts_lessons_where_they_were(dialect: str, member: str, messages: Any) -> None:
    form, lesson = next(each for each in DIALECTS if each.name == dialect), PromptLesson("rt-1", WORDS)
    body = {"model": "fake", "max_tokens": 9, member: messages}
    changes = members(form, body, [lesson])
    sent = form.parse({**body, member: json.loads(changes[member])}).messages
    bare = form.parse(body).messages
    assert sent == with_hint(bare, WORDS, is_in_text=form.has_one_text)
    assert without_lessons(sent, [WORDS]) == bare


@pytest.mark.parametrize(
    ("path", "messages"),
    [
        ("/api/chat", [{"role": "user", "content": AGAIN, "images": ["iVBORw0KGgo="]}]),
        ("/api/chat", [*user(AGAIN), {"role": "system", "content": "be kind"}]),
        ("/v1/messages", user([TEXT, CLAUDE_PICTURE])),
        ("/v1/chat/completions", user([TEXT, PICTURE])),
    ],
)
async def test_a_run_rebuilds_the_prompt_that_was_sent(taught: Proxy, path: str, messages: Any) -> None:
    lesson = await comment(taught)
    body = {"model": "fake", "max_tokens": 9, "messages": messages, "stream": False}
    async with taught.http.post(path, json=body) as response:
        await response.read()
        assert (response.status, response.headers[HEADER]) == (200, lesson)
        id = response.headers["x-rl-completion-id"]
    completion, lessons = await taught.store.completions.get(id), await taught.store.lessons.in_prompts([id])
    assert completion is not None
    line = run_folder._completion(completion, completion.new.prompt, lessons[id])
    assert line["messages"] == asked(taught) and line["lessons"] == [WORDS]


async def test_a_request_without_a_persons_words_names_no_lesson(taught: Proxy) -> None:
    await comment(taught, words="answer in lower case")
    body = {"model": "fake", "messages": [{"role": "system", "content": AGAIN}, *user([])]}
    async with taught.http.post("/v1/chat/completions", json=body) as response:
        assert response.status == 200 and HEADER not in response.headers
        id = response.headers["x-rl-completion-id"]
        await response.read()
    assert await taught.store.lessons.in_prompts([id]) == {}


async def test_what_a_run_measured_of_the_old_words_retires_no_new_ones(taught: Proxy) -> None:
    lesson = await comment(taught)
    async with taught.http.patch(f"/rl/lessons/{lesson}", json={"text": "use a table"}) as response:
        assert response.status == 200
    gap = {"prompts": 8, "remainder": 0.02, "bound": 0.04}
    taught.launcher.result = {"lessons": {lesson: gap | {"words": mark_of(WORDS)}}}  # the comment itself has trained
    await more_ratings(taught)
    await until(taught, live=1)
    assert await states(taught) == ["active"] and await named(taught, AGAIN) == lesson
    taught.launcher.result = {"lessons": {lesson: gap | {"words": mark_of("use a table")}}}
    await more_ratings(taught)
    await until(taught, live=2)
    assert await states(taught) == ["retired"]


@pytest.mark.parametrize(
    "gap", [None, 5, "{", [], {}, {"remainder": 0.04}, {"bound": None}, {"bound": "0"}, {"bound": True}]
)
async def test_a_measurement_that_is_no_figure_is_none(taught: Proxy, gap: Any) -> None:
    lesson = await comment(taught)
    taught.launcher.result = {"lessons": {lesson: gap}}
    await more_ratings(taught)
    await until(taught, live=1)
    assert await states(taught) == ["active"]
    assert {await named(taught, f"{AGAIN} {n}") for n in range(8)} == {lesson, None}, "half of them go without it"
