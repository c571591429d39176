"""The live pointer, and what a person who moves it says of the version."""

from __future__ import annotations

from scripts.harness.records import adapter, claim, put, rated, rating
from store.learning.episode_groups import EpisodeRequirements
from store.learning.episodes import NewReward
from store.learning.versions import WAITING
from store.store import Store


async def published(store: Store, count: int = 4, held_share: float = 0.0) -> int:
    """The run that made v1 of so many ratings."""
    await rated(store, count)
    run, _ = await claim(store, held_share=held_share)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.5)
    return int(run.id)


async def fresh(store: Store) -> int:
    return (await store.samples.fresh(live=1, max_version_gap=8)).total


async def reason_of(store: Store, version: int) -> str | None:
    version_record = await store.versions.get(version)
    assert version_record is not None
    return version_record.withdrawn


async def test_a_person_takes_back_that_a_version_is_withdrawn(store: Store) -> None:
    await published(store)
    await store.versions.withdraw(1, "worse", "rlproxy")
    await store.versions.point(1, "a crash came between", "rlproxy")
    assert await reason_of(store, 1) == "worse"
    await store.versions.point(0, "rolled back by itself", "rlproxy")
    await store.versions.point(1, "promoted by hand", "ann")
    assert await reason_of(store, 1) is None


async def test_a_version_that_waits_does_so_until_it_is_live_or_a_person_moves_the_pointer(store: Store) -> None:
    await published(store)
    await put(store, "x")
    await store.ratings.rate(rating("x"))
    run, _ = await claim(store, version=2)
    await store.runs.publish(run.id, adapter(2, run.id), {}, 0.5)
    await store.versions.point(1, "an experiment", "rlproxy")
    assert await store.meta.get(WAITING) == 2
    await store.versions.point(2, "run 2 passed the gate", "rlproxy")
    assert await store.meta.get(WAITING) is None
    await store.meta.set(WAITING, 2)
    await store.versions.point(1, "rollback", "ann")
    assert await store.meta.get(WAITING) is None


async def test_a_version_that_is_gone_stays_withdrawn(store: Store) -> None:
    await published(store)
    (completion,) = await store.completions.page(limit=1)
    await store.erasure.forget("completion", completion.new.id, "ann", retrain=True)
    reason = await reason_of(store, 1)
    assert reason is not None
    await store.versions.point(1, "promoted by hand", "ann")
    assert await reason_of(store, 1) == reason


async def test_what_a_version_learned_counts_as_used_once_a_person_promotes_it(store: Store) -> None:
    run = await published(store)
    await store.runs.give_back(run, "the server cannot load it")
    assert await fresh(store) == 4
    await store.versions.point(1, "promoted by hand", "ann")
    assert await fresh(store) == 0
    sample, *_ = await store.samples.of_run(run)
    assert await store.ratings.versions_of(sample.rating.id) == [1]
    record = await store.runs.get(run)
    assert record is not None and (record.status, record.reason) == (
        "done", "its ratings were given back, and count as used since a person made its version live"
    )  # fmt: skip


async def test_a_run_that_made_a_version_as_usual_keeps_its_reason(store: Store) -> None:
    await rated(store, 1)
    run, _ = await claim(store)
    await store.runs.publish(run.id, adapter(1, run.id), {"reason": "it passed"}, 0.5)
    await store.versions.point(1, "promoted by hand", "ann")
    record = await store.runs.get(run.id)
    assert record is not None and (record.status, record.reason) == ("done", "it passed")


async def test_a_run_that_has_the_same_ratings_may_fail_without_making_them_fresh(store: Store) -> None:
    run = await published(store, 32, held_share=0.25)
    held = {sample.rating.id for sample in await store.samples.of_run(run) if sample.is_held}
    await store.runs.give_back(run, "the server cannot load it")
    second, _ = await claim(store, version=2, held_share=0.25)
    await store.versions.point(1, "promoted by hand", "ann")
    await store.runs.publish(second.id, adapter(2, second.id), {}, 0.5)
    twice = [sample.rating.id for sample in await store.samples.recent_held("m", 99)]
    assert len(twice) == len(set(twice)) and held <= set(twice)
    await store.runs.give_back(second.id, "the server cannot load it either")
    assert await fresh(store) == 0


async def test_episodes_of_a_version_that_a_person_promotes_count_as_used(store: Store) -> None:
    for number in range(4):
        await put(store, f"e{number}", session=f"e{number}", key="k")
        await store.episodes.reward(NewReward(f"e{number}", "k", number / 4, group="g"))
    run = await store.episode_groups.claim(
        EpisodeRequirements(
            model="m", live=0, max_version_gap=8, limit=64, size=4, timeout_s=60.0, folder_of="r{}".format, version=1,
            min_total=1,
        )
    )  # fmt: skip
    assert run is not None
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.5)
    await store.runs.give_back(run.id, "the server cannot load it")
    assert await store.episodes.any_waiting()
    await store.versions.point(1, "promoted by hand", "ann")
    assert not await store.episodes.any_waiting()
