"""Somebody with one `rate` key who wants more than one voice in what is watched and in what is normal."""

from __future__ import annotations

import pytest

from proxy.training.rewards import normalised
from scripts.harness.in_process import Proxy
from tests.attacker.test_labels import send
from tests.harness.key_holders import keys
from tests.harness.runs import until
from tests.proxy.versions.test_rollback_monitor import rolled_back

LIGHT = 0.01


async def first_version(proxy: Proxy, ann: dict[str, str]) -> None:
    """v1 is live, trained from what ann thinks of the base model."""
    await proxy.stop()
    await proxy.start(train__start_at=16)
    proxy.http.headers["x-api-key"] = proxy.local
    for n in range(16):
        id = (await proxy.chat(f"question {n}", headers=ann)).headers["x-rl-completion-id"]
        assert (await send(proxy, {"completion_id": id, "rating": "good" if n else "bad"}, ann))[0] == 201
    await until(proxy, live=1)
    await proxy.stop()
    await proxy.start(train__start_at=1000)
    proxy.http.headers["x-api-key"] = proxy.local


async def dislikes(proxy: Proxy, who: dict[str, str], weight: float = 1.0) -> None:
    for n in range(12):
        id = (await proxy.chat(f"again {n}", headers=who)).headers["x-rl-completion-id"]
        assert (await send(proxy, {"completion_id": id, "rating": "bad", "weight": weight}, who))[0] == 201


@pytest.mark.parametrize("weight", [LIGHT, 1.0])
async def test_one_rate_key_rolls_nothing_back(proxy: Proxy, weight: float) -> None:
    who = await keys(proxy, boss="admin", ann="rate", eve="rate")
    await first_version(proxy, who["ann"])
    await dislikes(proxy, who["eve"], weight)
    status = await proxy.get("/rl/status")  # compares, too
    assert status["watch"]["new"]["rated"] == 0
    assert (await proxy.store.versions.pointer()).live == 1
    assert (await proxy.store.versions.get(1)).withdrawn is None


async def test_a_light_rating_is_no_whole_vote_of_the_owner_either(proxy: Proxy) -> None:
    await first_version(proxy, {})
    await dislikes(proxy, {}, LIGHT)
    assert (await proxy.store.opinions.votes(1)) == []
    assert (await proxy.store.versions.pointer()).live == 1


async def test_who_are_several_roll_back_together(proxy: Proxy) -> None:
    who = await keys(proxy, boss="admin", ann="rate", eve="rate")
    await first_version(proxy, who["ann"])
    await dislikes(proxy, who["eve"])
    await dislikes(proxy, who["ann"])
    assert (await rolled_back(proxy, 0))["watch"]["state"] == "rolled back"


@pytest.mark.parametrize("weight", [LIGHT, 1.0])
async def test_one_rate_key_does_not_say_what_is_normal(proxy: Proxy, weight: float) -> None:
    share = 0.75
    who = await keys(proxy, boss="admin", ann="rate", eve="rate")
    for n in range(20):
        id = (await proxy.chat(f"question {n}", headers=who["ann"])).headers["x-rl-completion-id"]
        assert (await send(proxy, {"completion_id": id, "rating": f"{3 + n % 3}/5"}, who["ann"]))[0] == 201
    for n in range(200):
        id = (await proxy.chat(f"more {n}", headers=who["eve"])).headers["x-rl-completion-id"]
        body = {"completion_id": id, "rating": "good", "weight": weight}
        assert (await send(proxy, body, who["eve"]))[0] == 201
    found = await proxy.store.opinions.moments(share)
    assert found.count <= (20 / (1 - share) if weight == 1 else 22) + 1e-9
    assert normalised(1.0, found) > 0.2
