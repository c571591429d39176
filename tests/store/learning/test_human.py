"""Ratings of programs and judges train, and nothing that asks people counts them."""

from __future__ import annotations

from scripts.harness.records import claim, put, rating
from store.records import CompletionQuery, Verdicts
from store.store import Store


async def test_only_people_are_counted(store: Store) -> None:
    await put(store, "a", "b", version=1)
    await store.ratings.rate(rating("a", -1.0, rater="judge:m", human=False))
    assert [vote.good for vote in await store.opinions.votes(1)] == []
    assert await store.stats.verdicts() == []
    assert await store.stats.days(0, 0) == []
    assert (await store.opinions.moments()).count == 0
    assert (await store.stats.counts())["bad"] == 0
    assert [row.id for row in (await store.inbox.page(CompletionQuery(unrated=True))).rows] == ["b", "a"]
    await store.ratings.rate(rating("a", 1.0))
    assert await store.stats.verdicts() == [Verdicts(1, 1, 0)]
    found = await store.completions.get("a")
    assert found is not None and {r.rater: r.human for r in found.ratings} == {"me": True, "judge:m": False}


async def test_the_gate_is_never_asked_about_what_no_person_rated(store: Store) -> None:
    ids = [f"c{at}" for at in range(40)]
    await put(store, *ids)
    for at, id in enumerate(ids):
        await store.ratings.rate(rating(id, 1.0 if at % 4 < 2 else -1.0, rater="p", human=at % 2 == 0))
    _, samples = await claim(store, held_share=0.5)
    held = [sample for sample in samples if sample.is_held]
    assert held and all(sample.rating.human for sample in held)
    assert any(not sample.rating.human for sample in samples)
