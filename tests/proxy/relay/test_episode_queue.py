"""Requests of episodes wait for each other, those of people for none of them."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.settings import load
from proxy.core.errors import BackendDown, TooMany
from proxy.core.sharing.shares import HOLDER
from proxy.feedback import episodes
from proxy.relay.episode_queue import EpisodeQueue
from scripts.fakes.backend import FakeBackend
from scripts.harness.in_process import Proxy


def queue_of(at_once: int, max_requests: int = 1024) -> EpisodeQueue:
    flags = {"backend.episodes_at_once": at_once, "server.max_requests": max_requests}
    return EpisodeQueue(load(flags, environ={}).settings, 16)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


ACTS = st.lists(st.tuples(st.sampled_from(["come", "leave", "cancel"]), st.integers(0, 20)), max_size=60)


@given(ACTS)
def test_never_more_than_so_many_choices_nobody_is_lost_and_each_goes_in_its_order(acts: list[tuple[str, int]]) -> None:
    asyncio.run(_acted(acts))


async def _acted(acts: list[tuple[str, int]]) -> None:
    queue = queue_of(4)
    inside: dict[int, tuple[int, asyncio.Event]] = {}
    order: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def one(n: int, choices: int) -> None:
        async with queue.turn(choices):
            order.append(n)
            inside[n] = min(choices, 4), asyncio.Event()
            try:
                await inside[n][1].wait()
            finally:
                del inside[n]

    for act, n in acts:
        if act == "come":
            tasks.append(asyncio.create_task(one(len(tasks), 1 + n % 6)))
        elif act == "leave" and inside:
            list(inside.values())[n % len(inside)][1].set()
        elif act == "cancel" and tasks:
            tasks[n % len(tasks)].cancel()
        await settled()
        state = queue.state()
        assert state["at_backend"] == sum(size for size, _ in inside.values()) <= 4
        assert state["waiting"] + len(inside) == sum(not task.done() for task in tasks)
        assert inside or not state["waiting"]
    assert order == sorted(order)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert queue.state() == {"at_once": 4, "at_backend": 0, "waiting": 0}


async def test_a_client_that_goes_in_the_moment_of_its_turn_gives_it_on() -> None:
    queue, went = queue_of(1), asyncio.Event()

    async def come(then: asyncio.Event) -> None:
        async with queue.turn(1):
            then.set()

    async with queue.turn(1):
        first = asyncio.create_task(come(asyncio.Event()))
        second = asyncio.create_task(come(went))
        await settled()
    first.cancel()  # it has been let in, and has not run yet
    await asyncio.gather(first, second, return_exceptions=True)
    assert went.is_set() and queue.state()["at_backend"] == 0


async def test_a_full_queue_and_one_that_stops_refuse() -> None:
    queue = queue_of(1, max_requests=4)

    async def come(key: str) -> None:
        HOLDER.set(key)
        await stack.enter_async_context(queue.turn(1))

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(queue.turn(1))
        waiting = [asyncio.create_task(come(key)) for key in "abc"]
        await settled()
        with pytest.raises(TooMany, match="3 requests of episodes wait already") as caught:
            await stack.enter_async_context(queue.turn(1))
        assert caught.value.status == 429 and caught.value.retry_after
        queue.stopping()
        for one in (*waiting, asyncio.create_task(stack.enter_async_context(queue.turn(1)))):
            with pytest.raises(BackendDown, match="rlproxy is stopping"):
                await one


async def test_keys_go_by_turns_and_none_of_them_takes_all_places_to_wait() -> None:
    queue, order = queue_of(1, max_requests=16), []

    async def come(key: str, n: int) -> None:
        HOLDER.set(key)
        async with queue.turn(1):
            order.append(f"{key}{n}")
            await settled()

    async with queue.turn(1):
        waiting = [asyncio.create_task(come("a", n)) for n in range(12)]
        await settled()
        assert queue.state()["waiting"] == 9, "three quarters of the twelve that may wait"
        waiting += [asyncio.create_task(come("b", n)) for n in range(2)]
        await settled()
        assert queue.state()["waiting"] == 11
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [one for one in ended if one is not None]
    assert len(refused) == 3 and all(isinstance(one, TooMany) and "its share" in one.message for one in refused)
    assert order[:5] == ["a0", "b0", "a1", "b1", "a2"] and order[5:] == [f"a{n}" for n in range(3, 9)]


@pytest.mark.parametrize(("setting", "slots", "at_once"), [(0, 16, 12), (0, 1, 1), (0, 4, 3), (5, 16, 5)])
def test_the_backends_slots_are_shared(setting: int, slots: int, at_once: int) -> None:
    settings = load({"backend.episodes_at_once": setting}, environ={}).settings
    assert EpisodeQueue(settings, slots).state()["at_once"] == at_once


def test_those_that_wait_while_a_run_has_the_gpu_leave_room_at_the_door() -> None:
    settings = load({"train.share_gpu": True, "server.hold_most": 64}, environ={}).settings
    assert EpisodeQueue(settings, 256).state()["at_once"] == 48


# Through a whole proxy


async def open_all(proxy: Proxy, count: int) -> None:
    for at in range(count):
        async with proxy.http.post("/rl/episodes", json={"id": f"e{at}"}) as response:
            assert response.status == 201


def turn(proxy: Proxy, at: int, **more: Any) -> asyncio.Task[tuple[int, str]]:
    async def ask() -> tuple[int, str]:
        async with await proxy.chat(f"turn of e{at}", headers={"x-rl-session": f"e{at}"}, **more) as response:
            return response.status, await response.text()

    return asyncio.create_task(ask())


async def shown(proxy: Proxy, at_backend: int, waiting: int) -> dict[str, Any]:
    """The status, once so many are where they belong."""
    async with asyncio.timeout(60):
        while True:
            found = (await proxy.get("/rl/status"))["episodes"]
            if (found["requests"]["at_backend"], found["requests"]["waiting"]) == (at_backend, waiting):
                return dict(found)
            await asyncio.sleep(0.01)


async def test_a_person_is_answered_while_rollouts_wait(proxy: Proxy, backend: FakeBackend) -> None:
    await proxy.stop()
    await proxy.start(backend__episodes_at_once=2)
    await open_all(proxy, 6)
    backend.script = lambda body: "to a person" if "hello" in str(body["messages"]) else "to a program"
    backend.hold.clear()
    rollouts = [turn(proxy, at) for at in range(6)]
    found = await shown(proxy, 2, 4)
    assert found["requests"]["at_once"] == 2 and len(backend.requests) == 2
    person = asyncio.create_task(proxy.say("hello"))
    async with asyncio.timeout(60):
        while len(backend.requests) < 3:
            await asyncio.sleep(0.01)
    assert "hello" in str(backend.requests[2]["messages"]), "it passed four that had come before"
    backend.hold.set()
    assert await person == "to a person"
    assert {status for status, _ in await asyncio.gather(*rollouts)} == {200}
    asked = sorted(body["messages"][0]["content"] for body in backend.requests)
    assert asked == ["hello", *(f"turn of e{at}" for at in range(6))], "each once"
    await shown(proxy, 0, 0)


async def test_clients_that_go_away_leave_the_queue_and_nothing_is_asked_for_them(
    proxy: Proxy, backend: FakeBackend
) -> None:
    await proxy.stop()
    await proxy.start(backend__episodes_at_once=1)
    await open_all(proxy, 4)
    backend.hold.clear()
    rollouts = [turn(proxy, at) for at in range(4)]
    await shown(proxy, 1, 3)
    asked = str(backend.requests[0]["messages"])
    for at, one in enumerate(rollouts):
        if f"e{at}" not in asked:
            one.cancel()
    await shown(proxy, 1, 0)
    backend.hold.set()
    await asyncio.gather(*rollouts, return_exceptions=True)
    await shown(proxy, 0, 0)
    assert len(backend.requests) == 1


async def test_a_harness_that_dies_midway_keeps_no_place_at_the_backend(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its episode stays open and never trains; it may be ended by `error`."""
    monkeypatch.setattr(episodes, "LATELY_S", 1e9)
    await proxy.stop()
    await proxy.start(backend__episodes_at_once=1)
    await open_all(proxy, 2)
    backend.hold.clear()
    async with aiohttp.ClientSession() as http:
        body = {"model": "fake", "messages": [{"role": "user", "content": "turn of e0"}]}
        dies = asyncio.create_task(http.post(f"{proxy.url}/s/e0/v1/chat/completions", json=body))
        await shown(proxy, 1, 0)
        waits = turn(proxy, 1)
        await shown(proxy, 1, 1)
        dies.cancel()
    backend.hold.set()
    assert (await waits)[0] == 200
    found = await shown(proxy, 0, 0)
    assert (found["open"], found["rewarded"], found["ready"]) == (2, 0, 0)
    whole = await proxy.get("/rl/episodes/e0")
    assert whole["state"] == "open" and whole["reward"] is None
    async with proxy.http.post("/rl/episodes/e0/reward", json={"error": "the harness died"}) as response:
        assert response.status == 201
    assert (await proxy.get("/rl/status"))["episodes"]["ended_lately"] == 1


async def test_a_full_queue_is_a_429_with_retry_after(proxy: Proxy, backend: FakeBackend) -> None:
    await proxy.stop()
    await proxy.start(backend__episodes_at_once=1, server__max_requests=16)
    await open_all(proxy, 11)
    backend.hold.clear()
    rollouts = [turn(proxy, at) for at in range(10)]
    await shown(proxy, 1, 9)
    async with await proxy.chat("turn of e10", headers={"x-rl-session": "e10"}) as refused:
        assert refused.status == 429 and refused.headers["retry-after"] == "5"
        assert "nothing was lost" in (await refused.json())["error"]["message"]
    backend.hold.set()
    assert {status for status, _ in await asyncio.gather(*rollouts)} == {200}


async def test_stopping_turns_away_those_who_wait(proxy: Proxy, backend: FakeBackend) -> None:
    await proxy.stop()
    await proxy.start(backend__episodes_at_once=1)
    await open_all(proxy, 2)
    backend.hold.clear()
    first = turn(proxy, 0)
    await shown(proxy, 1, 0)
    second = turn(proxy, 1)
    await shown(proxy, 1, 1)
    stopping = asyncio.create_task(proxy._runner.cleanup())
    status, said = await second
    assert status == 503 and "rlproxy is stopping" in said
    backend.hold.set()
    await asyncio.gather(first, stopping, return_exceptions=True)
    await proxy.store.close()
    await proxy.http.close()
    await proxy.start()


async def test_a_stream_that_waits_hears_comments(
    proxy: Proxy, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.core.sharing.waiting_line.BEAT_S", 0.02)
    await proxy.stop()
    await proxy.start(backend__episodes_at_once=1)
    await open_all(proxy, 2)
    backend.hold.clear()
    first = turn(proxy, 0)
    await shown(proxy, 1, 0)
    async with await proxy.chat("turn of e1", headers={"x-rl-session": "e1"}, stream=True) as response:
        assert response.status == 200 and response.headers["x-rl-adapter"] == "base"
        assert (await response.content.readline()).startswith(b":")
        backend.hold.set()
        assert b"[DONE]" in await response.read()
    assert (await first)[0] == 200
