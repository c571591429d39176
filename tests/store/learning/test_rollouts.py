"""Answers that rlproxy samples itself: the next prompt, what lists and counts have of them, and with what they go."""

from __future__ import annotations

import time
from typing import Any

import pytest

from proxy.training.run_folder import group_name
from scripts.harness.records import end, new, put, rating
from store.captured.completions import ROLLOUTS
from store.copies.export import Filter
from store.learning import episode_groups
from store.learning.episode_groups import EpisodeRequirements
from store.learning.episodes import Episode, NewEpisode, NewReward
from store.learning.rollouts import NewRollout, RolloutCounts, Spent
from store.records import CompletionQuery, Message
from store.store import Store

DAY = "2026-11-29"


async def sampled(store: Store, id: str, prompt: str, size: int = 2, **fields: Any) -> Episode | None:
    new_fields: dict[str, Any] = {"session": f"ro-{id}", "key": ROLLOUTS, "turn": "side", "turn_rule": ROLLOUTS}
    return await store.rollouts.keep(
        NewRollout(
            prompt, new(id, **(new_fields | fields)), end(id), f"ro-{prompt}", size, None, None, Spent(DAY, 5, 0.5)
        )
    )


async def next_id(store: Store, version: int = 0, size: int = 2, skipped: tuple[str, ...] = ()) -> str | None:
    completion = await store.rollouts.next_prompt(version, size, skipped)
    return None if completion is None else completion.new.id


async def reward(store: Store, id: str, value: float, comment: str | None = None) -> None:
    await store.episodes.reward(NewReward(f"ro-{id}", ROLLOUTS, value, comment=comment))


def requirements(**fields: Any) -> EpisodeRequirements:
    defaults: dict[str, Any] = {
        "model": "m", "live": 0, "max_version_gap": 8, "limit": 99, "folder_of": str, "version": 1, "min_total": 1,
        "size": 2, "timeout_s": 600.0,
    }  # fmt: skip
    return EpisodeRequirements(**(defaults | fields))


async def test_the_newest_prompt_with_too_few_answers_is_next(store: Store) -> None:
    await put(store, "old", prompt=(Message("user", b'"one"'),))
    await put(store, "same", "new")
    assert await next_id(store) == "new"
    await sampled(store, "r1", "new")
    assert await next_id(store) == "new"  # one of two
    await sampled(store, "r2", "new")
    assert await next_id(store) == "old"  # "same" has the prompt of "new"
    assert await next_id(store, skipped=("old",)) is None
    assert await next_id(store, version=1) == "new"  # another version answers it anew


@pytest.mark.parametrize(
    "fields",
    [
        {"turn": "side"}, {"version": None}, {"untrainable": "raw"}, {"images": 1}, {"dialect": "completions"},
        {"line": "ann"}, {"redacted": ("prompt:api_key",)},
    ],
)  # fmt: skip
async def test_what_cannot_train_is_no_prompt(store: Store, fields: dict[str, Any]) -> None:
    await put(store, "a", **fields)
    assert await next_id(store) is None


async def test_a_task_to_evaluate_with_is_no_prompt(store: Store) -> None:
    await store.episodes.open(NewEpisode("e1", "k", 0, split="eval"))
    await put(store, "a", session="e1", key="k")
    assert await next_id(store) is None


async def test_a_prompt_that_the_users_code_has_no_reward_for_is_passed_over(store: Store) -> None:
    await put(store, "a")
    episode = await sampled(store, "r1", "a")
    assert episode is not None and await next_id(store) == "a"
    await store.episode_scores.keep(episode, None, "hash")
    assert await next_id(store) is None


async def test_it_is_an_episode_of_one_turn_and_in_no_list_of_answers(store: Store) -> None:
    await put(store, "a")
    before = await store.stats.counts()
    episode = await sampled(store, "r1", "a")
    assert episode is not None and (episode.prompt, episode.turns, episode.group_size) == ("a", 1, 2)
    assert [turn.completion_id for turn in await store.episodes.turns(episode)] == ["r1"]
    assert await store.episodes.side_turns(episode) == 0
    assert [c.new.id for c in await store.completions.page()] == ["a"]
    assert [row.id for row in (await store.inbox.page(CompletionQuery())).rows] == ["a"]
    whole = await store.completions.get("a")
    assert whole is not None and whole.prompt_hash is not None
    assert [row.id for row in await store.inbox.siblings(whole.prompt_hash)] == ["a"]
    assert await store.stats.counts() == before
    assert await store.rollouts.counts() == RolloutCounts(1, 1)


async def test_it_is_exported_only_where_that_is_asked(store: Store) -> None:
    await put(store, "a")
    await sampled(store, "r1", "a")
    assert [row["id"] async for row in store.transfer.export()] == ["a"]
    assert [row["id"] async for row in store.transfer.export(Filter(rollouts=True))] == ["a", "r1"]


async def test_it_is_forgotten_with_its_prompt(store: Store) -> None:
    await put(store, "a", user="ann")
    await sampled(store, "r1", "a")
    forgotten = await store.erasure.forget("user", "ann", "me")
    assert set(forgotten.completions) == {"a", "r1"}
    assert await store.completions.get("r1") is None
    assert await store.rollouts.counts() == RolloutCounts(0, 0) and await store.episodes.page(limit=9) == []


async def test_it_expires_with_its_prompt_and_by_itself_beside_a_rated_one(store: Store) -> None:
    await put(store, "a")
    await sampled(store, "r1", "a", created_at=9e9)
    await reward(store, "r1", 1.0)
    assert await store.completions.expire(2000.0) == 2
    assert await store.completions.get("r1") is None and await store.rollouts.counts() == RolloutCounts(0, 0)


async def test_what_trained_stays_with_its_prompt_until_somebody_forgets_it(store: Store) -> None:
    await put(store, "a", user="ann")
    for id, value in (("r1", 1.0), ("r2", -1.0)):
        await sampled(store, id, "a")
        await reward(store, id, value)
    run = await store.episode_groups.claim(requirements())
    assert run is not None
    assert await store.completions.expiring(2000.0) == await store.completions.expire(2000.0) == 0
    assert set((await store.erasure.look("user", "ann")).completions) == {"a", "r1", "r2"}  # and so its run's files
    await store.runs.end(run.id, "failed", "the power went", None)
    assert await store.completions.expire(2000.0) == 0  # the folder of that run has their texts, too
    await store._writer.submit(lambda db: db.execute("UPDATE episodes SET left_out = 'stale'"))  # versions later
    assert await store.completions.expiring(2000.0) == await store.completions.expire(2000.0) == 0


async def test_a_rating_keeps_a_rollout_and_its_prompt(store: Store) -> None:
    await put(store, "a")
    await sampled(store, "r1", "a")
    await store.ratings.rate(rating("r1"))
    assert await store.completions.expire(2000.0) == 0
    assert await store.completions.get("r1") is not None


async def test_a_rollout_whose_prompt_is_gone_is_not_stored(store: Store) -> None:
    assert await sampled(store, "r1", "gone") is None
    assert await store.completions.get("r1") is None
    assert await store.rollouts.spent(DAY) == Spent(DAY, 5, 0.5)  # it was sampled all the same


async def test_what_a_day_took_adds_up_and_another_day_begins_anew(store: Store) -> None:
    await put(store, "a")
    await sampled(store, "r1", "a")
    await store.rollouts.add_spent(Spent(DAY, 1, 0.25))
    assert await store.rollouts.spent(DAY) == Spent(DAY, 6, 0.75)
    assert await store.rollouts.spent("2026-11-30") == Spent("2026-11-30")


async def test_who_was_asked_last_is_known_of_every_relay(store: Store) -> None:
    assert await store.rollouts.last_asked() == 0.0
    await put(store, "a")
    await sampled(store, "r1", "a", created_at=9e9)
    assert await store.rollouts.last_asked() == 1001.0
    await store.completions.begin([new("stale")])  # its relay is gone
    assert await store.rollouts.last_asked() == 1001.0
    began = time.time()
    await store.completions.begin([new("open", created_at=began)])
    assert await store.rollouts.last_asked() >= began


async def test_a_group_trains_as_episodes_do_and_an_even_one_teaches_nothing(store: Store) -> None:
    await put(store, "even", prompt=(Message("user", b'"one"'),))
    await put(store, "a")
    for id, prompt, value in (("r1", "a", 1.0), ("r2", "a", -1.0), ("r3", "even", -1.0), ("r4", "even", -1.0)):
        await sampled(store, id, prompt)
        await reward(store, id, value)
    run = await store.episode_groups.claim(requirements())
    assert run is not None
    assert [turn.completion.new.id for turn in await store.episode_groups.run_turns(run.id)] == ["r1", "r2"]
    left_out = {e.id: e.left_out for e in await store.episodes.page(limit=9) if e.left_out}
    assert left_out == {"ro-r3": "no-variance", "ro-r4": "no-variance"}


async def test_a_group_waits_for_the_answers_that_it_lacks_for_a_day(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(store, "a")
    for id, value in (("r1", 1.0), ("r2", -1.0)):
        await sampled(store, id, "a", size=3)
        await reward(store, id, value)
    assert await store.episode_groups.claim(requirements(timeout_s=-1.0)) is None
    monkeypatch.setattr(episode_groups, "ROLLOUTS_WAIT_S", -1.0)
    run = await store.episode_groups.claim(requirements(timeout_s=-1.0))
    assert run is not None and run.samples == 2


async def test_an_answer_that_the_code_has_no_reward_for_is_not_waited_for(store: Store) -> None:
    await put(store, "a")
    for id, value in (("r1", 1.0), ("r2", -1.0)):
        await sampled(store, id, "a", size=3)
        await reward(store, id, value)
    episode = await sampled(store, "r3", "a", size=3)
    assert episode is not None and await store.episode_groups.claim(requirements()) is None
    await store.episode_scores.keep(episode, None, "hash")
    run = await store.episode_groups.claim(requirements())
    assert run is not None and run.samples == 2


async def test_rewards_of_code_that_changed_meanwhile_are_not_compared_with_those_before(store: Store) -> None:
    await put(store, "a")
    values = (("r1", 0.1, "old"), ("r2", 0.1, "old"), ("r3", 1.0, "new"), ("r4", -1.0, "new"))
    groups = set()
    for id, value, hash in values:
        episode = await sampled(store, id, "a", size=4)
        assert episode is not None
        rewarded = await store.episode_scores.keep(episode, NewReward(f"ro-{id}", ROLLOUTS, value), hash)
        assert rewarded is not None
        groups.add(group_name(rewarded.episode))
    assert len(groups) == 2  # the trainer's
    run = await store.episode_groups.claim(requirements())
    assert run is not None
    turns = await store.episode_groups.run_turns(run.id)
    assert [turn.completion.new.id for turn in turns] == ["r3", "r4"]  # two equal rewards of the old code teach nothing


async def test_one_answer_alone_teaches_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_groups, "ROLLOUTS_WAIT_S", -1.0)
    await put(store, "a")
    await sampled(store, "r1", "a")
    await reward(store, "r1", 1.0)
    assert await store.episode_groups.claim(requirements(timeout_s=-1.0)) is None
    assert [e.left_out for e in await store.episodes.page(limit=9)] == ["no-variance"]


async def test_an_even_group_with_words_on_what_was_wrong_trains(store: Store) -> None:
    await put(store, "a")
    for id in ("r1", "r2"):
        await sampled(store, id, "a")
        await reward(store, id, -1.0, "the path is not the shortest")
    run = await store.episode_groups.claim(requirements())
    assert run is not None and run.samples == 2


async def test_a_programs_success_and_the_rewards_that_are_missing_are_counted_without_rollouts(store: Store) -> None:
    await put(store, "a", session="s", key="k")
    await store.episodes.reward(NewReward("s", "k", 1.0))
    await sampled(store, "r1", "a")
    await reward(store, "r1", -1.0)
    episode = await sampled(store, "r2", "a", created_at=1.0)
    assert episode is not None
    await store._writer.submit(lambda db: db.execute("UPDATE episodes SET opened_at = 1 WHERE id = 'ro-r2'"))
    assert (await store.episodes.counts()).unrewarded == 1  # nothing has judged it
    await store.episode_scores.keep(episode, None, "hash")
    assert (await store.episodes.counts()).unrewarded == 0  # the code has no reward for it
    assert [(one.rollouts, one.episodes, one.mean) for one in await store.episodes.by_version()] == [
        (False, 1, 1.0), (True, 1, -1.0),
    ]  # fmt: skip
    assert [one[1] for one in await store.episodes.rewards()] == [1.0]
