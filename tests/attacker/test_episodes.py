"""Somebody behind a gateway, or with a key, and others' episodes: none is rewarded, ended or kept from opening."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.feedback import episodes
from scripts.harness.in_process import Proxy

ANN, BOB = {"x-rl-user": "ann"}, {"x-rl-user": "bob"}
SHARED = {"authorization": "Bearer " + "k" * 20}


async def post(proxy: Proxy, path: str, body: Any, headers: dict[str, str]) -> int:
    async with proxy.http.post(f"/rl/episodes{path}", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def says(proxy: Proxy, headers: dict[str, str]) -> int:
    response = await proxy.chat("hello", headers={**headers, "x-rl-session": "talk"})
    await response.read()
    return response.status


@pytest.mark.parametrize("shared", [False, True], ids=["an admin's key", "the shared key"])
async def test_a_visitor_rewards_and_ends_no_conversation_of_another(proxy: Proxy, shared: bool) -> None:
    """The header binds: a server put it there, and passes on whatever its visitors send."""
    key = SHARED if shared else {}
    await proxy.stop()
    await proxy.start(**{"server__api_key": "k" * 20} if shared else {})
    assert await says(proxy, {**key, **BOB}) == 200
    assert await post(proxy, "/talk/reward", {"reward": -1}, {**key, **ANN}) == 404
    assert await post(proxy, "/talk/reward", {"error": "x"}, {**key, **ANN}) == 404
    assert await post(proxy, "", {"id": "talk"}, {**key, **ANN}) == 409
    assert await says(proxy, {**key, **BOB}) == 200
    assert await post(proxy, "/talk/reward", {"reward": 1}, {**key, **BOB}) == 201
    assert await says(proxy, {**key, **BOB}) == 410


async def test_meta_that_is_nested_too_deeply_is_refused_in_words(proxy: Proxy) -> None:
    meta: dict[str, Any] = {}
    for _ in range(300):
        meta = {"a": meta}
    assert await post(proxy, "", {"id": "deep", "meta": meta}, {}) == 400
    assert await post(proxy, "", {"id": "deep", "meta": {"a": [1]}}, {}) == 201


async def test_a_visitor_behind_an_admins_key_reaches_its_episodes_only(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(server__api_key="k" * 20, server__admin_key="a" * 20)
    boss = {"authorization": "Bearer " + "a" * 20}
    assert await says(proxy, SHARED) == 200
    assert await post(proxy, "/talk/reward", {"reward": -1}, {**boss, **ANN}) == 404
    assert await post(proxy, "/talk/reward", {"reward": -1}, boss) == 201


async def test_one_keys_open_episodes_are_no_others_limit(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episodes, "MOST_OPEN", 3)
    await proxy.stop()
    await proxy.start(server__api_key="k" * 20, server__admin_key="a" * 20)
    boss = {"authorization": "Bearer " + "a" * 20}
    assert [await post(proxy, "", {}, SHARED) for _ in range(4)] == [201, 201, 201, 429]
    assert await post(proxy, "", {}, boss) == 201
