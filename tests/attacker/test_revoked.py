"""Somebody whose key was revoked, and who is still connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

import pytest

from proxy.access import keys as access_keys
from proxy.web import control
from scripts.harness.in_process import Proxy
from store.errors import StoreError
from store.file import tombstones
from tests.harness.key_holders import keys
from tests.proxy.test_full_disk import limit_pages


async def heard(proxy: Proxy, headers: Mapping[str, str], change: str) -> bytes:
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


async def test_nobody_listens_on_with_a_revoked_key(proxy: Proxy) -> None:
    made = await keys(proxy, eve="rate")
    assert b"rating" not in await heard(proxy, made["eve"], "eve")


async def test_nobody_listens_on_without_a_key_once_there_is_one(proxy: Proxy) -> None:
    assert b"rating" not in await heard(proxy, {}, "made")


async def revoke(proxy: Proxy, name: str) -> tuple[int, str]:
    async with proxy.http.delete(f"/rl/keys/{name}", headers={"x-api-key": proxy.local}) as response:
        return response.status, await response.text()


async def opens(proxy: Proxy, key: Mapping[str, str]) -> bool:
    async with proxy.http.get("/rl/status", headers=key) as response:
        return response.status == 200


async def is_revoked(proxy: Proxy, name: str) -> bool:
    return any(key.name == name and key.revoked_at is not None for key in await proxy.store.keys.all())


async def test_a_full_disk_keeps_no_revoked_key_open(proxy: Proxy) -> None:
    """The database takes nothing any more; the line beside it does, and the next start reads it."""
    made = await keys(proxy, eve="admin", ann="rate")
    await limit_pages(proxy, 1)
    await fill(proxy)
    assert (await revoke(proxy, "eve"))[0] == 200
    assert not await opens(proxy, made["eve"]) and not await is_revoked(proxy, "eve")
    assert (await revoke(proxy, "eve"))[0] == 200, "once more does no harm"
    await proxy.stop()
    await proxy.start()
    assert not await opens(proxy, made["eve"]) and await opens(proxy, made["ann"])
    assert await is_revoked(proxy, "eve")


async def test_nor_does_one_that_takes_not_even_a_line(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await keys(proxy, eve="admin")
    (proxy.home / tombstones.REVOKED).rename(proxy.home / "away")
    (proxy.home / tombstones.REVOKED).mkdir()
    await limit_pages(proxy, 1)
    await fill(proxy)
    status, words = await revoke(proxy, "eve")
    assert status == 507 and "eve opens nothing any more" in words and "After a restart it would open again" in words
    assert not await opens(proxy, made["eve"])
    status, words = await revoke(proxy, "mallory")
    assert status == 404 and "There is no key mallory that still holds." in words
    (proxy.home / tombstones.REVOKED).rmdir()
    await limit_pages(proxy, 1_000_000)
    assert (await revoke(proxy, "eve"))[0] == 200
    assert await is_revoked(proxy, "eve") and (await revoke(proxy, "eve"))[0] == 404


async def test_once_there_is_space_it_is_stored_by_itself(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_keys, "REMEMBER_S", 0.05)
    await proxy.stop()
    await proxy.start()
    made = await keys(proxy, eve="admin")
    await limit_pages(proxy, 1)
    await fill(proxy)
    assert (await revoke(proxy, "eve"))[0] == 200
    await limit_pages(proxy, 1_000_000)
    async with asyncio.timeout(20):
        while not await is_revoked(proxy, "eve"):
            await asyncio.sleep(0.02)
    assert not await opens(proxy, made["eve"])


async def fill(proxy: Proxy) -> None:
    """What is free in the pages that are there."""
    with contextlib.suppress(StoreError):
        for n in range(10_000):
            await proxy.store.meta.set(f"filling-{n}", "x" * 1000)
    with contextlib.suppress(StoreError):
        for n in range(10_000):
            await proxy.store.meta.audit("test", "fill", {"n": n})


async def test_who_hears_nothing_is_sent_away_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
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
