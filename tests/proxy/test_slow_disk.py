"""A disk that is slower than the clients: answers end later, nothing is dropped, and what waits has an end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.polling import Polls


@contextmanager
def stuck(proxy: Proxy) -> Iterator[None]:
    """The disk takes nothing until the end of the block."""
    entered, go = threading.Event(), threading.Event()
    proxy.store._writer.submit(lambda db: (entered.set(), go.wait(60)))
    assert entered.wait(10)
    try:
        yield
    finally:
        go.set()


async def test_only_the_last_event_waits_and_nothing_is_dropped(proxy: Proxy) -> None:
    before = await proxy.chat("before")
    with stuck(proxy):
        answers = await asyncio.gather(*(proxy.chat(f"number {n}", stream=True) for n in range(30)))
        bodies = [b""] * len(answers)
        for n, answer in enumerate(answers):
            while f"{n} ".encode() not in bodies[n]:  # every word of it is there
                bodies[n] += await answer.content.readany()
        whole = asyncio.create_task(proxy.chat("not streamed"))
        rated = asyncio.create_task(proxy.rate(completion_id=before.headers["x-rl-completion-id"], rating="good"))
        await asyncio.sleep(0.3)
        assert not whole.done() and not rated.done()
        assert not any(answer.content.at_eof() for answer in answers) and b"[DONE]" not in b"".join(bodies)
    for n, answer in enumerate(answers):
        assert (bodies[n] + await answer.read()).endswith(b"data: [DONE]\n\n")
        row = await proxy.store.completions.get(answer.headers["x-rl-completion-id"])
        assert row is not None and row.status == "done"
    assert (await whole).status == 200
    assert (await rated)[0] == 201
    assert (await proxy.store.stats.counts())["done"] == 32


async def test_a_slow_disk_under_load_keeps_everything(proxy: Proxy) -> None:
    """Each commit takes its time, for as long as the load lasts."""
    stop = threading.Event()

    def slow() -> None:
        if not stop.is_set():
            proxy.store._writer.submit(lambda db: stop.wait(0.05)).add_done_callback(lambda _: slow())

    slow()
    answers = await asyncio.gather(*(proxy.chat(f"number {n}", stream=n % 2 == 0) for n in range(60)))
    bodies = await asyncio.gather(*(answer.read() for answer in answers))
    ids = [answer.headers["x-rl-completion-id"] for answer in answers]
    ratings = await asyncio.gather(*(proxy.rate(completion_id=id, rating="good") for id in ids))
    stop.set()
    assert all(status == 201 for status, _ in ratings) and all(bodies)
    counts = await proxy.store.stats.counts()
    assert counts["done"] == counts["good"] == 60 and counts["partial"] == counts["error"] == 0


async def test_clients_that_leave_and_ask_again_do_not_fill_the_memory(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, at_once, rounds = 40, 10, 30
    monkeypatch.setattr("store.file.writer.ROOM", room)
    monkeypatch.setattr("proxy.web.status.ROOM", room)

    arrived = let_in = 0
    has_room = proxy.store.room

    async def counted() -> None:
        nonlocal arrived, let_in
        arrived += 1
        await has_room()
        let_in += 1

    monkeypatch.setattr(proxy.store, "room", counted)

    with stuck(proxy):
        most = 0
        for n in range(rounds):
            clients = [asyncio.create_task(proxy.say(f"x {n * at_once + i}")) for i in range(at_once)]
            while arrived < (n + 1) * at_once or proxy.store.waiting < let_in:
                await asyncio.sleep(0.01)
            for client in clients:  # each of them waits for the disk, in one place or another
                client.cancel()
            await asyncio.wait(clients)
            most = max(most, proxy.store.waiting)
        assert room <= most <= room + 2 * at_once, "two for each that was let in at the same moment"
        assert len(proxy.backend.requests) <= room + at_once, "who waited was not asked of the backend"
        assert "disk is slow" in (await proxy.get("/rl/status"))["problem"]
    assert await proxy.say("still there") == "You said: still there "
    assert (await proxy.get("/rl/status"))["problem"] is None
    async for _ in Polls():
        if not (counts := await proxy.store.stats.counts())["pending"]:
            break
    assert counts["pending"] == 0 and counts["done"] + counts["partial"] == len(proxy.backend.requests)
