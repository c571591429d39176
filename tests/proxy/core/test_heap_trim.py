from __future__ import annotations

import asyncio
import io
import json

import psutil
import pytest

from proxy.core import heap_trim
from proxy.core.heap_trim import ENOUGH, Memory
from proxy.core.tasks import Tasks
from scripts.harness.in_process import Proxy

only_where_it_can = pytest.mark.skipif(heap_trim.heap_trim is None, reason="this system's allocator cannot be asked")


def rss() -> int:
    return int(psutil.Process().memory_info().rss)


@only_where_it_can
async def test_what_large_requests_left_free_goes_back_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_trim, "AFTER_S", 0.0)
    psutil.heap_trim()  # what earlier tests left free here would be used again, and nothing would be measured
    before = rss()
    made = [bytes(2000) for _ in range(100_000)]
    stays = made[::100]  # between what is freed, as one conversation that goes on is between those that ended
    del made
    free = rss() - before
    tasks = Tasks()
    Memory(tasks).used(ENOUGH)
    while tasks.names:
        await asyncio.sleep(0.01)
    assert len(stays) == 1000 and free > 150e6
    assert rss() - before < free / 4


async def test_little_is_not_worth_it_and_much_is_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(heap_trim, "AFTER_S", 0.0)
    monkeypatch.setattr(heap_trim, "heap_trim", lambda: given.append(1))
    tasks = Tasks()
    kept = Memory(tasks)
    kept.used(ENOUGH - 1)
    assert tasks.names == []
    for _ in range(3):
        kept.used(ENOUGH)
    assert tasks.names == ["give-memory-back"]
    await tasks.drain_named("give", 10)
    assert given == [1]
    kept.used(ENOUGH)  # and again, after the next ones
    await tasks.drain_named("give", 10)
    assert given == [1, 1]


async def test_where_the_system_cannot_be_asked_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap_trim, "heap_trim", None)
    tasks = Tasks()
    Memory(tasks).used(10 * ENOUGH)
    assert tasks.names == []


@only_where_it_can
async def test_a_large_request_is_followed_by_it(proxy: Proxy) -> None:
    body = json.dumps({"model": "fake", "messages": [{"role": "user", "content": "word " * (ENOUGH // 5)}]})
    async with proxy.http.post("/v1/chat/completions", data=io.BytesIO(body.encode())) as response:
        assert response.status == 200
        await response.read()
    assert "give-memory-back" in {task.get_name() for task in asyncio.all_tasks()}
