"""Somebody whose key was revoked, and who is still connected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from proxy.web import control
from scripts.harness.in_process import Proxy
from tests.attacker.test_identity import keys
from tests.proxy.conftest import backend, proxy  # noqa: F401


async def heard(proxy: Proxy, headers: Mapping[str, str], change: str) -> bytes:  # noqa: F811
    """All that somebody hears who listens when a key is revoked (or made), and completions are rated afterwards."""
    ours = {"x-api-key": proxy.local}
    async with proxy.http.get("/rl/events", headers=headers) as listening:
        assert listening.status == 200
        if change == "made":
            await keys(proxy, ann="rate")
        else:
            async with proxy.http.delete(f"/rl/keys/{change}", headers=ours) as response:
                assert response.status == 200
        id = (await proxy.chat("hi", headers=ours)).headers["x-rl-completion-id"]
        body = {"completion_id": id, "rating": "good"}
        async with proxy.http.post("/v1/feedback", json=body, headers=ours) as response:
            assert response.status == 201
        async with asyncio.timeout(10):
            return await listening.content.read()


async def test_nobody_listens_on_with_a_revoked_key(proxy: Proxy) -> None:  # noqa: F811
    made = await keys(proxy, eve="rate")
    assert b"rating" not in await heard(proxy, made["eve"], "eve")


async def test_nobody_listens_on_without_a_key_once_there_is_one(proxy: Proxy) -> None:  # noqa: F811
    assert b"rating" not in await heard(proxy, {}, "made")


async def test_who_hears_nothing_is_sent_away_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(control, "BEAT_S", 0.05)
    made = await keys(proxy, eve="rate", ann="rate")
    eves = await proxy.http.get("/rl/events", headers=made["eve"])
    anns = await proxy.http.get("/rl/events", headers=made["ann"])
    async with proxy.http.delete("/rl/keys/eve", headers={"x-api-key": proxy.local}) as response:
        assert response.status == 200
    async with asyncio.timeout(10):
        await eves.content.read()
        assert await anns.content.readline() == b": \n"
    anns.close()
