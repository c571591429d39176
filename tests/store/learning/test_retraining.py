"""Which ratings a retrain takes, in which rounds, and that other runs see none of it."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.records import adapter, claim, put, rated, rating
from store.learning.retraining import new_retrain, rounds_of
from store.learning.samples import SampleRequirements
from store.records import Run
from store.store import Store


async def next_round(store: Store, **fields: Any) -> Run | None:
    defaults: dict[str, Any] = {
        "model": "n", "live": 0, "max_version_gap": 8, "limit": 4, "held_share": 0.125,
        "folder_of": "runs/r{:05}".format, "version": 11, "min_total": 1, "retrains": True,
    }  # fmt: skip
    return await store.retraining.claim(SampleRequirements(**(defaults | fields)))


async def begin(store: Store, *left_out: str, most: int = 4) -> None:
    history = await store.retraining.history(left_out)
    await store.retraining.begin(new_retrain("n", "/n", 11, history, left_out, most), "admin")


@pytest.mark.parametrize(
    ("completions", "most", "expected"), [(0, 4, (1, 0)), (4, 4, (1, 4)), (5, 4, (2, 3)), (300, 256, (2, 150))]
)
def test_rounds_are_of_about_one_size(completions: int, most: int, expected: tuple[int, int]) -> None:
    assert rounds_of(completions, most) == expected


async def test_each_rating_is_in_one_round_the_oldest_first(store: Store) -> None:
    ratings = await rated(store, 10)
    await begin(store)
    taken: list[str] = []
    for version in (11, 12, 13):
        run = await next_round(store, version=version)
        assert run is not None and run.retrains and run.model == "n"
        taken += sorted(s.rating.id for s in await store.samples.of_run(run.id))
        assert await next_round(store) is None  # one at a time
        await store.runs.publish(run.id, adapter(version, run.id), {}, None)
    assert sorted(taken) == sorted(ratings) and set(taken[:4]) == set(ratings[:4])
    assert await next_round(store) is None
    state = await store.retraining.state()
    assert state is not None and len(state.runs) == 3 and await store.retraining.untried(state) == 0
    assert await store.retraining.parent(state) == 13


async def test_a_round_that_made_nothing_is_passed_over(store: Store) -> None:
    await rated(store, 8)
    await begin(store)
    first = await next_round(store)
    assert first is not None
    await store.runs.end(first.id, "rejected", "no", None)
    second = await next_round(store)
    state = await store.retraining.state()
    assert second is not None and state is not None and await store.retraining.untried(state) == 0
    assert await store.retraining.parent(state) == 0  # the base: nothing was made


async def test_runs_of_the_base_before_see_none_of_it(store: Store) -> None:
    await rated(store, 32)
    run, samples = await claim(store, held_share=0.25)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.5)
    held = {s.rating.id for s in samples if s.is_held}
    await put(store, "late")
    await store.ratings.rate(rating("late"))
    await begin(store, most=64)
    again = await next_round(store, limit=64)
    assert again is not None
    await store.runs.publish(again.id, adapter(11, again.id), {"episode_baseline_after": 1.0}, None)
    assert (await store.samples.fresh(live=1, max_version_gap=8)).total == 1
    assert {s.rating.id for s in await store.samples.recent_held("m", 100)} == held
    assert await store.samples.recent_held("n", 100) == []  # its ids are of another tokenizer
    assert await store.meta.get("baseline") == 0.5 and await store.meta.get("not_yet_live") == 1


async def test_what_comes_after_its_begin_is_not_in_it(store: Store) -> None:
    await rated(store, 2)
    await begin(store, "c1")
    await put(store, "later")
    await store.ratings.rate(rating("later"))
    run = await next_round(store)
    assert run is not None
    assert [s.completion.new.id for s in await store.samples.of_run(run.id)] == ["c0"]


async def test_answers_about_pictures_are_no_part_of_it_also_where_they_train(store: Store) -> None:
    await put(store, "a")
    await put(store, "b", images=1)
    for id in ("a", "b"):
        await store.ratings.rate(rating(id))
    assert (await store.retraining.history()).fates == {"trains": 1, "has_image": 1}
    await begin(store)
    run = await next_round(store)
    assert run is not None
    assert [s.completion.new.id for s in await store.samples.of_run(run.id)] == ["a"]


async def test_a_history_is_counted_by_what_becomes_of_it(store: Store) -> None:
    await put(store, "a", "b", "c", "d")
    await store.ratings.rate(rating("a", 1.0, scale="stars"))
    await store.ratings.rate(rating("b", -1.0, comment="shorter", correction="x"))
    await store.ratings.rate(rating("c", 1.0, rater="judge:m", human=False))
    await store.ratings.rate(rating("d", 0.0, correction="say this"))
    history = await store.retraining.history()
    assert history.fates == {"trains": 3, "label": 1} and history.completions == 3
    assert (history.liked, history.disliked, history.comments, history.corrections, history.stars) == (1, 1, 1, 2, 1)
    assert history.paired == 3  # all of one prompt, of which one is liked and one is not
