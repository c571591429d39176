from __future__ import annotations

from typing import Any

import pytest

from scripts.harness.records import adapter, put
from store.learning.episode_groups import EpisodeRequirements
from store.learning.episodes import NewReward
from store.store import Store
from tests.store.engines import in_file


async def attempt(store: Store, name: str, value: float | None, *, group: str | None = "g", **fields: Any) -> None:
    turns = fields.pop("turns", 1)
    more = {key: fields.pop(key) for key in ("group_size", "error") if key in fields}
    await put(store, *(f"{name}-{at}" for at in range(turns)), session=name, key="k", **fields)
    await store.episodes.reward(NewReward(name, "k", value, group=group, **more))


async def claim(store: Store, **fields: Any) -> Any:
    defaults: dict[str, Any] = {
        "model": "m", "live": 0, "max_version_gap": 8, "limit": 64, "size": 4, "timeout_s": 60.0,
        "folder_of": "r{}".format, "version": 1, "min_total": 1,
    }  # fmt: skip
    return await store.episode_groups.claim(EpisodeRequirements(**(defaults | fields)))


async def ready(store: Store, **fields: Any) -> Any:
    return await store.episode_groups.ready(
        **({"live": 0, "max_version_gap": 8, "size": 4, "timeout_s": 60.0} | fields)
    )


async def left_out(store: Store) -> dict[str, str | None]:
    return {one.id: one.left_out for one in await store.episodes.page(limit=99)}


async def test_a_group_closes_at_its_size_or_by_its_time(store: Store) -> None:
    for at in range(3):
        await attempt(store, f"a{at}", at / 2)
    found = await ready(store)
    assert (found.episodes, found.groups, found.forming) == (0, 0, 3) and 0 < found.closes_in_s <= 60
    assert await claim(store) is None
    assert (await ready(store, timeout_s=-1.0)).episodes == 3
    await attempt(store, "a3", 1.0)
    assert (await ready(store)).episodes == 4
    run = await claim(store)
    assert run.samples == 4 and run.held == 0
    assert [one.id for one in await store.episode_groups.of_run(run.id)] == ["a0", "a1", "a2", "a3"]


async def test_a_group_says_its_own_size_and_errors_count_as_members_and_never_train(store: Store) -> None:
    await attempt(store, "a0", 1.0, group_size=3)
    await attempt(store, "a1", 0.0)
    assert (await ready(store)).forming == 2
    await attempt(store, "a2", None, error="the sandbox died")
    assert (await ready(store)).episodes == 2
    assert len(await store.episode_groups.of_run((await claim(store)).id)) == 2


async def test_a_group_without_variance_is_left_out_and_counted(store: Store) -> None:
    for at in range(4):
        await attempt(store, f"a{at}", 1.0)
        await attempt(store, f"b{at}", float(at % 2), group="h")
    run = await claim(store)
    assert [one.id for one in await store.episode_groups.of_run(run.id)] == ["b0", "b1", "b2", "b3"]
    assert {why for id, why in (await left_out(store)).items() if id[0] == "a"} == {"no-variance"}
    assert (await ready(store)).left_out == {"no-variance": 4}


async def test_groups_that_teach_nothing_are_not_looked_at_again(store: Store) -> None:
    for at in range(4):
        await attempt(store, f"a{at}", 1.0)
    assert (await ready(store)).episodes == 4
    assert await claim(store) is None
    assert (await ready(store)).episodes == 0


async def test_a_group_is_as_old_as_its_oldest_member(store: Store) -> None:
    for at in range(4):
        await attempt(store, f"a{at}", float(at % 2), version=1 if at == 0 else 9)
    assert (await ready(store, live=10)).episodes == 0
    assert await claim(store, live=10) is None
    assert set((await left_out(store)).values()) == {"stale"}


async def test_turns_of_two_versions_are_left_out(store: Store) -> None:
    await attempt(store, "a0", 1.0, version=1)
    await put(store, "later", session="a0", key="k", version=2)
    await attempt(store, "a1", 0.0)
    await attempt(store, "a2", 1.0)
    await attempt(store, "a3", 1.0)
    run = await claim(store)
    assert len(await store.episode_groups.of_run(run.id)) == 3
    assert (await left_out(store))["a0"] == "mixed"


async def test_one_outside_any_group_trains_at_once(store: Store) -> None:
    await attempt(store, "a0", 1.0, group=None)
    assert (await ready(store)).episodes == 1
    assert (await claim(store)).samples == 1


@pytest.mark.parametrize("status", ["rejected", "empty", "failed"])
async def test_what_made_no_version_comes_again(store: Store, status: Any) -> None:
    await attempt(store, "a0", 1.0, group=None)
    run = await claim(store)
    assert (await ready(store)).episodes == 0 and await claim(store) is None
    await store.runs.end(run.id, status, "so be it", None)
    assert (await ready(store)).episodes == 1


async def test_eval_episodes_never_train(store: Store) -> None:
    from store.learning.episodes import NewEpisode

    await store.episodes.open(NewEpisode("e", "k", 0, split="eval"))
    await attempt(store, "e", 1.0, group=None)
    assert (await ready(store)).episodes == 0 and await claim(store) is None


async def test_a_run_takes_the_oldest_groups_up_to_its_limit(store: Store) -> None:
    for name in "abc":
        for at in range(4):
            await attempt(store, f"{name}{at}", float(at % 2), group=name)
    run = await claim(store, limit=5)
    assert {one.id[0] for one in await store.episode_groups.of_run(run.id)} == {"a", "b"}


async def test_the_turns_of_a_run_in_their_order(store: Store) -> None:
    await attempt(store, "a0", 1.0, group=None, turns=3)
    await store.episodes.reward(NewReward("a0", "k", 1.0))
    run = await claim(store)
    turns = await store.episode_groups.run_turns(run.id)
    assert [(one.turn, one.turns, one.completion.new.id) for one in turns] == [
        (0, 3, "a0-0"),
        (1, 3, "a0-1"),
        (2, 3, "a0-2"),
    ]
    assert await store.episode_groups.run_counts([run.id, 99]) == {run.id: 1}


async def test_an_error_of_a_closed_group_is_not_looked_at_again(store: Store) -> None:
    await attempt(store, "a0", None, error="the sandbox died", group_size=3)
    await attempt(store, "a1", 0.0)
    await attempt(store, "a2", 1.0)
    assert (await claim(store)).samples == 2
    assert (await left_out(store))["a0"] == "error"
    assert (await ready(store)).left_out == {"error": 1}


async def looked_at(store: Store) -> int:
    """Steps of SQLite's machine for one look at what waits."""
    steps = 0

    def one() -> None:
        nonlocal steps
        steps += 1

    await store._reader._db.set_progress_handler(one, 1)
    assert (await ready(store)).forming == 1
    assert await store.episodes.any_waiting()
    await store._reader._db.set_progress_handler(None, 1)
    return steps


@in_file
async def test_what_has_trained_costs_the_next_look_nothing(store: Store) -> None:
    await attempt(store, "waiting", 1.0, group="w")
    await looked_at(store)  # the first one reads the schema, too
    before = await looked_at(store)
    for at in range(64):
        await attempt(store, f"a{at}", at % 2, group=f"g{at // 4}")
    run = await claim(store)
    await store.runs.publish(run.id, adapter(1, run.id), {}, None)
    assert await looked_at(store) <= before + 4  # a version is there by now; how many there are costs nothing
