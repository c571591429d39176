"""What stands beside what a judge finds bad: answers that a person went on from, and what takes that back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.records import claim, put, rating
from store.learning.labels import RULES_CONFIG, WENT_ON, TrustedJudge
from store.learning.ratings import JUDGED
from store.records import NewRating, NewSignal
from store.store import Store

TRUSTED = TrustedJudge("rule", "1", {"bad": 0.5, WENT_ON: 0.4})
VALUES = {"correction": -1.0, "redo": -1.0, "complaint": -1.0, "solved": 1.0}


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "home")
    yield opened
    await opened.close()


async def said(store: Store, id: str, label: str, next_id: str | None = None, **more: Any) -> None:
    """A person typed something after an answer, and the judge has labelled it."""
    await store.signals.add(NewSignal(id, "message", "words", next_id))
    (waiting,) = await store.signals.waiting(1)
    judged = {"judge": "rule", "config": "1", "hint": None, "reason": "", "tokens": 0, "day": "today"}
    await store.signals.label(waiting.seq, name=label, value=VALUES.get(label, 0.0), **(judged | more))


async def thanked(store: Store, id: str) -> None:
    await store.signals.add(NewSignal(id, "message", "thanks", label="nothing", why="politeness is no verdict"))


async def values(store: Store) -> dict[str, tuple[float, float]]:
    rows = await store.signals._reader.rows(
        "SELECT completion_id, value, weight FROM ratings WHERE source = 'judge' AND live = 1"
    )
    return {row["completion_id"]: (row["value"], row["weight"]) for row in rows}


async def bad(store: Store, count: int) -> None:
    for n in range(count):
        await put(store, f"bad{n}")
        await said(store, f"bad{n}", "correction")


async def test_as_many_as_are_bad_and_the_newest(store: Store) -> None:
    await bad(store, 2)
    for n in range(5):
        await put(store, f"fine{n}")
        await said(store, f"fine{n}", "nothing")
    assert await store.signals.apply([TRUSTED]) == (4, 0)
    assert await values(store) == {
        "bad0": (-1.0, 0.5), "bad1": (-1.0, 0.5), "fine4": (0.0, 0.4), "fine3": (0.0, 0.4),
    }  # fmt: skip
    assert await store.signals.apply([TRUSTED]) == (0, 0)
    await claim(store)
    await put(store, "bad9")
    await said(store, "bad9", "redo")
    assert await store.signals.apply([TRUSTED]) == (2, 0)  # with one more of those that no run has taken
    assert (await values(store))["fine2"] == (0.0, 0.4)


async def test_politeness_alone_is_nothing_and_beside_a_complaint_as_much_as_a_new_task(store: Store) -> None:
    await put(store, "thanked")
    await thanked(store, "thanked")
    assert await store.signals.apply([TRUSTED]) == (0, 0)
    await bad(store, 1)
    await store.signals.apply([TRUSTED])
    assert (await values(store))["thanked"] == (0.0, 0.4)
    assert await store.signals.apply([TRUSTED]) == (0, 0)  # it stays


async def test_silence_is_no_approval(store: Store) -> None:
    await bad(store, 1)
    await put(store, "silent")
    await store.signals.apply([TRUSTED])
    assert set(await values(store)) == {"bad0"}


@pytest.mark.parametrize("label", ["unclear", "solved", "correction"])
async def test_nothing_else_counts(store: Store, label: str) -> None:
    await bad(store, 2)
    await put(store, "other")
    await said(store, "other", label)
    await store.signals.apply([TRUSTED])
    assert 0.0 not in {value for value, _ in (await values(store)).values()}


async def test_an_answer_to_a_complaint_is_not_one_of_them(store: Store) -> None:
    await put(store, "first", "second")
    await said(store, "first", "correction", "second")
    await said(store, "second", "nothing")
    await store.signals.apply([TRUSTED])
    assert set(await values(store)) == {"first"}


async def test_it_goes_with_the_trust_of_its_own_side(store: Store) -> None:
    await bad(store, 1)
    await put(store, "fine")
    await thanked(store, "fine")
    await store.signals.apply([TRUSTED])
    assert await store.signals.apply([TrustedJudge("rule", "1", {"bad": 0.5})]) == (0, 1)
    assert set(await values(store)) == {"bad0"}
    await store.signals.apply([TRUSTED])
    assert await store.signals.apply([TrustedJudge("rule", "2", {"bad": 0.5})]) == (0, 2)  # another judge by now


async def test_a_person_takes_its_place_and_a_complaint_takes_it_back(store: Store) -> None:
    await bad(store, 3)
    for id in ("fine", "late"):
        await put(store, id)
        await said(store, id, "nothing")
    await store.signals.apply([TRUSTED])
    await store.ratings.rate(rating("fine", 1.0))
    await put(store, "next")
    await said(store, "late", "correction", "next")
    await store.signals.apply([TRUSTED])
    found = await values(store)
    assert "fine" not in found and 0.0 not in {value for value, _ in found.values()}


async def test_what_a_removed_judge_rated_is_taken_back(store: Store) -> None:
    """Hindsight rated answers 0, with what was said next as its comment, and is gone."""
    await put(store, "a")
    await store.ratings.rate(
        NewRating("a", "judge:hindsight", 0.0, comment="no, shorter", weight=0.5, source=JUDGED, human=False)
    )
    assert await store.signals.apply([TrustedJudge("rules", RULES_CONFIG, {"bad": 0.5, WENT_ON: 0.5})]) == (0, 1)


async def test_people_and_judge_on_thanks(store: Store) -> None:
    await put(store, "judged", "thanked", "unclear")
    await said(store, "judged", "correction")
    await thanked(store, "thanked")
    await store.signals.add(NewSignal("unclear", "message", "…", label="unclear", why="nobody can tell"))
    for id in ("judged", "thanked", "unclear"):
        await store.ratings.rate(rating(id, -1.0))
    assert [one.completion_id for one in await store.signals.shared("rule", "1", 9)] == ["judged"]
    both = await store.signals.shared("rule", "1", 9, polite=True)
    assert {(one.completion_id, one.judge) for one in both} == {("judged", -1.0), ("thanked", 0.0)}
