"""Which answers count as better than those that were asked for again, and what takes that back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from config.sections import Train
from proxy.training import run_folder
from scripts.harness.records import claim, end, new, put, rating
from store.learning.redone import SIDE
from store.learning.signals import Trusted
from store.records import Message, Moments, NewSignal
from store.store import Store

TRUSTED = Trusted("rule", "1", {"bad": 0.5, SIDE: 0.5})
Rated = list[tuple[str, float, float, str | None]]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "home")
    yield opened
    await opened.close()


async def said(store: Store, id: str, words: str, next: str | None, label: str, **more: Any) -> None:
    """What a person typed after an answer, as the judge labels it."""
    await store.signals.add(NewSignal(id, "message", words, next))
    (waiting,) = await store.signals.waiting(1)
    value = {"correction": -1.0, "redo": -1.0, "complaint": -1.0}.get(label, 0.0)
    judged = {"judge": "rule", "config": "1", "hint": words if label == "correction" else None, "why": "", "tokens": 0}
    await store.signals.label(waiting.seq, name=label, value=value, day="today", **(judged | more))


async def rated(store: Store) -> Rated:
    rows = await store.signals._reader.rows(
        "SELECT completion_id, value, weight, comment FROM ratings WHERE source = 'judge' AND live = 1 ORDER BY seq"
    )
    return [tuple(row) for row in rows]


async def asked_again(store: Store, label: str = "correction", after: str = "nothing", **more: Any) -> None:
    await put(store, "first", "second", "third")
    await said(store, "first", "no, shorter", "second", label, **more)
    await said(store, "second", "and in winter?", "third", after)


BOTH = [("first", -1.0, 0.5, "no, shorter"), ("second", 1.0, 0.5, None)]


async def test_an_answer_that_ended_a_complaint_is_better(store: Store) -> None:
    await asked_again(store)
    assert await store.signals.apply([TRUSTED]) == (2, 0)
    assert await rated(store) == BOTH
    assert await store.signals.apply([TRUSTED]) == (0, 0)  # once


async def test_thanks_are_as_good_as_a_new_task(store: Store) -> None:
    await put(store, "first", "second")
    await said(store, "first", "no, shorter", "second", "correction")
    await store.signals.add(NewSignal("second", "message", "thanks", label="nothing", why="politeness is no verdict"))
    await store.signals.apply([TRUSTED])
    assert await rated(store) == BOTH


@pytest.mark.parametrize("label", ["complaint", "nothing", "unclear"])
async def test_nobody_had_asked_again(store: Store, label: str) -> None:
    await asked_again(store, label)
    await store.signals.apply([TRUSTED])
    assert [row for row in await rated(store) if row[1] > 0] == []


@pytest.mark.parametrize("after", ["correction", "redo", "complaint", "unclear"])
async def test_it_did_not_end_the_complaint(store: Store, after: str) -> None:
    await asked_again(store, after=after)
    await store.signals.apply([TRUSTED])
    assert [row for row in await rated(store) if row[1] > 0] == []


async def test_silence_is_no_approval(store: Store) -> None:
    await put(store, "first", "second")
    await said(store, "first", "no, shorter", "second", "correction")
    await store.signals.apply([TRUSTED])
    assert [row for row in await rated(store) if row[1] > 0] == []


async def test_another_task_came_with_it(store: Store) -> None:
    await asked_again(store, hint="shorter")  # what else was said is longer
    await put(store, "mixed", "answer", "after")
    await said(
        store, "mixed", "no, shorter. And now translate all of this into French", "answer", "correction", hint="no"
    )
    await said(store, "answer", "and in winter?", "after", "nothing")
    await store.signals.apply([TRUSTED])
    assert [row[0] for row in await rated(store) if row[1] > 0] == ["second"]


async def test_without_trust_nothing_stays(store: Store) -> None:
    await asked_again(store)
    await store.signals.apply([TRUSTED])
    assert await store.signals.apply([]) == (0, 2)
    assert await rated(store) == []
    await store.signals.apply([TRUSTED])
    assert await rated(store) == BOTH


@pytest.mark.parametrize("id", ["first", "second"])
async def test_a_persons_rating_of_either_takes_it_back(store: Store, id: str) -> None:
    await asked_again(store)
    await store.signals.apply([TRUSTED])
    await store.ratings.rate(rating(id, -1.0))
    await store.signals.apply([TRUSTED])
    assert [row for row in await rated(store) if row[1] > 0] == []


async def test_something_that_is_found_against_it_later_takes_it_back(store: Store) -> None:
    await asked_again(store)
    await store.signals.apply([TRUSTED])
    await put(store, "fourth")
    await said(store, "second", "no, that was wrong", "fourth", "correction")
    await store.signals.apply([TRUSTED])
    assert ("second", 1.0, 0.5, None) not in await rated(store)


async def test_a_regeneration_by_a_trusted_rule(store: Store) -> None:
    await put(store, "first", "second", "third")
    redo = NewSignal("first", "regenerated", "", "second", label="redo", value=-1.0, why="asked again")
    await store.signals.add(redo)
    await store.signals.add(NewSignal("second", "message", "thanks", "third", label="nothing", why="polite"))
    await store.signals.apply([Trusted("rules", "", {"bad": 0.5, SIDE: 0.5})])
    assert await rated(store) == [("first", -1.0, 0.5, None), ("second", 1.0, 0.5, None)]


async def test_it_trains_as_an_answer_to_the_first_question(store: Store, tmp_path: Path) -> None:
    asked = Message("user", b'{"content":"what is a bee?"}')
    again = (asked, Message("assistant", b'{"content":"hi"}'), Message("user", b'{"content":"no, shorter"}'))
    await put(store, "first", prompt=(asked,))
    ended = end("second", text="short", token_ids=[7, 8], logprobs=[-1.0, -1.0], prompt_token_ids=[1, 2, 3, 4])
    await store.completions.record([new("second", prompt=again)], [ended])
    await put(store, "third")
    await said(store, "first", "no, shorter", "second", "correction")
    await said(store, "second", "thanks for that, and in winter?", "third", "nothing")
    await store.signals.apply([TRUSTED])
    _, samples = await claim(store)
    assert {sample.completion.new.id: sample.first and sample.first.new.id for sample in samples} == {
        "first": None,
        "second": "first",
    }
    one, other = run_folder.lines(samples, [], [], Train(), Moments(0, 0.0, 0.0))
    line, before = (one, other) if one["completion"] == "second" else (other, one)
    assert (line["messages"], line["prompt_token_ids"]) == (before["messages"], before["prompt_token_ids"])
    assert (line["text"], line["reply_token_ids"], line["exact"], line["logprobs"]) == ("short", [7, 8], False, None)
    assert (line["reward"], line["weight"], line["human"], line["followed"]) == (1.0, 0.5, False, True)
    assert run_folder.asked_in(line) == "first" and run_folder.asked_in(before) == "first"
    run_folder._write(tmp_path / run_folder.SAMPLES, [line])
    assert run_folder.trains_on(tmp_path, ["first"], [])  # what is forgotten may be its question
