"""The live pointer, and what a person who moves it says of the version."""

from __future__ import annotations

from scripts.harness.records import adapter, claim, rated
from store.store import Store


async def published(store: Store) -> int:
    """The run that made v1 of four ratings."""
    await rated(store, 4)
    run, _ = await claim(store, held_share=0.0)
    await store.runs.publish(run.id, adapter(1, run.id), {}, 0.5)
    return int(run.id)


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


async def test_a_version_that_is_gone_stays_withdrawn(store: Store) -> None:
    await published(store)
    (completion,) = await store.completions.page(limit=1)
    await store.erasure.forget("completion", completion.new.id, "ann", retrain=True)
    reason = await reason_of(store, 1)
    assert reason is not None
    await store.versions.point(1, "promoted by hand", "ann")
    assert await reason_of(store, 1) == reason
