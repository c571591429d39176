"""The database after the versions that learned from forgotten data are gone."""

from __future__ import annotations

from dataclasses import replace

from scripts.harness.records import adapter, claim, put, rating
from store.store import Store


async def test_both_baselines_are_those_of_the_clean_version(store: Store) -> None:
    for version, (completion, baseline, of_episodes) in enumerate((("a", 0.25, 0.5), ("b", 0.75, 0.0)), 1):
        await put(store, completion)
        await store.ratings.rate(rating(completion))
        run, _ = await claim(store, held_share=0.0, version=version, live=version - 1)
        result = {"baseline_after": baseline, "episode_baseline_after": of_episodes}
        await store.runs.publish(run.id, replace(adapter(version, run.id), parent=version - 1), result, baseline)
        await store.versions.point(version, "passed", "rlproxy")
    for completion, baselines in (("b", (0.25, 0.5)), ("a", (0.0, 0.0))):
        await store.erasure.forget("completion", completion, "ann", retrain=True)
        assert (await store.meta.get("baseline"), await store.meta.get("episode_baseline")) == baselines
