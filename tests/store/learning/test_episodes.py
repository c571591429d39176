from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.records import put
from store.errors import EpisodeEnded, EpisodeTaken, EpisodeUsed, NoReward, UnknownCompletion, UnknownEpisode
from store.learning.episode_groups import EpisodeRequirements
from store.learning.episodes import NewEpisode, NewReward
from store.store import Store


async def say(store: Store, episode: str, value: float | None = None, **more: Any) -> Any:
    return await store.episodes.reward(NewReward(episode, "k", value, **more))


async def test_the_first_reward_makes_an_episode_of_a_session_of_that_key(store: Store) -> None:
    await put(store, "c1", "c2", session="s", key="k", version=3)
    stored = await say(store, "s", 1.0, group="g")
    assert stored.result == "stored" and stored.episode.version == 3 and stored.episode.turns == 2
    with pytest.raises(UnknownEpisode):
        await store.episodes.reward(NewReward("s", "another", 1.0))


async def test_an_admin_means_the_only_one_of_an_id(store: Store) -> None:
    await put(store, "c1", session="s", key="k")
    assert (await store.episodes.reward(NewReward("s", None, 1.0))).result == "stored"
    await put(store, "c2", session="s", key="another")
    await store.episodes.reward(NewReward("s", "another", 1.0))
    with pytest.raises(EpisodeTaken):
        await store.episodes.reward(NewReward("s", None, 0.0))


async def test_the_same_is_stored_once_and_another_one_replaces_it_until_its_use(store: Store) -> None:
    await put(store, "c1", session="s", key="k")
    assert [(await say(store, "s", v)).result for v in (1.0, 1.0, 0.5, 0.5)] == ["stored", "same", "changed", "same"]
    await claim(store)
    assert (await say(store, "s", 0.5)).result == "same"
    with pytest.raises(EpisodeUsed, match="run 1"):
        await say(store, "s", 1.0)
    with pytest.raises(EpisodeUsed):
        await say(store, "s", error="broken")


async def claim(store: Store) -> Any:
    return await store.episode_groups.claim(EpisodeRequirements(
        model="m", live=0, max_version_gap=8, limit=64, size=8, timeout_s=60, folder_of="r{}".format, version=1,
        min_total=1,
    ))  # fmt: skip


async def test_rewards_of_turns(store: Store) -> None:
    await put(store, "c1", "c2", session="s", key="k")
    await put(store, "other", session="t", key="k")
    with pytest.raises(UnknownCompletion):
        await say(store, "s", 1.0, completion_id="other", final=False)
    await say(store, "s", 1.0, completion_id="c1", final=False)
    ended = await say(store, "s", None)
    assert ended.episode.state == "rewarded" and ended.episode.reward is None
    assert [tuple(turn) for turn in await store.episodes.turns(ended.episode)] == [("c1", 1.0), ("c2", None)]
    with pytest.raises(EpisodeEnded):
        await say(store, "s", 0.0, completion_id="c2", final=False)


async def test_without_any_reward_it_does_not_end(store: Store) -> None:
    await put(store, "c1", session="s", key="k")
    with pytest.raises(NoReward):
        await say(store, "s", None)
    assert await store.episodes.find("s", "k") is None  # nothing of it is kept


async def test_an_open_episode_is_the_same_again_and_another_one_is_refused(store: Store) -> None:
    first, is_new = await store.episodes.open(NewEpisode("e", "k", 0, task="add"))
    again, twice = await store.episodes.open(NewEpisode("e", "k", 5, task="add"))
    assert is_new and not twice and again.version == first.version == 0
    with pytest.raises(EpisodeTaken):
        await store.episodes.open(NewEpisode("e", "k", 0, task="subtract"))


async def test_what_was_forgotten_never_trains(store: Store) -> None:
    await put(store, "c1", "c2", session="s", key="k")
    await put(store, "c3", session="t", key="k")
    await say(store, "s", 1.0)
    await say(store, "t", 1.0)
    await store.erasure.forget("completion", "c1", "me")
    await store.erasure.forget("session", "t", "me")
    left = await store.episodes.page(limit=9)
    assert [(one.id, one.left_out) for one in left] == [("s", "forgotten")]
    assert await claim(store) is None


async def test_the_versions_that_trained_on_an_episode_are_known_when_it_is_forgotten(store: Store) -> None:
    from scripts.harness.records import adapter

    await put(store, "c1", session="s", key="k")
    await say(store, "s", 1.0)
    run = await claim(store)
    assert (await store.erasure.look("session", "s")).open_run == run.id
    await store.runs.publish(run.id, adapter(1, run.id), {"status": "passed"}, None)
    found = await store.erasure.look("session", "s")
    assert found.trained == (1,) and found.open_run is None


async def test_rewarded_turns_do_not_expire_and_empty_open_episodes_do(store: Store) -> None:
    await put(store, "c1", session="s", key="k")
    await put(store, "c2", session="t", key="k")
    await store.episodes.open(NewEpisode("empty", "k", 0))
    await say(store, "s", 1.0)
    assert await store.completions.expiring(2e9) == 1
    assert await store.completions.expire(2e10) == 1
    assert [one.id for one in await store.episodes.page(limit=9)] == ["s"]


async def test_counts_and_success_by_version(store: Store) -> None:
    for at, value in enumerate((1.0, 0.0, 1.0, -1.0)):
        await put(store, f"c{at}", session=f"s{at}", key="k", version=at // 2)
        await say(store, f"s{at}", value)
    await store.episodes.open(NewEpisode("open", "k", 1))
    assert (await store.episodes.counts("k"))[:3] == (1, 4, 0)
    found = await store.episodes.by_version()
    assert [(one.version, one.episodes, one.successes, one.mean) for one in found] == [(0, 2, 1, 0.5), (1, 2, 1, 0.0)]
    assert [one[1] for one in await store.episodes.rewards()] == [1.0, 0.0, 1.0, -1.0]
