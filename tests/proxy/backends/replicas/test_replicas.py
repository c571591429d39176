"""Several vLLM: spread, all or none, one that dies, one that comes back with nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from config.settings import load
from proxy.backends import make_backend
from proxy.backends.openai_compatible import CALL_S
from proxy.core.errors import BadRequest
from proxy.core.events import Events
from proxy.training.weights_check import WeightsCheck
from scripts.fakes.backend import FakeBackend
from scripts.fakes.launcher import FakeLauncher
from scripts.harness.in_process import Proxy
from scripts.harness.versions import publish
from store.store import Store
from tests.proxy.versions.test_live_version import answered_by


@pytest.fixture
async def two() -> AsyncIterator[list[FakeBackend]]:
    fakes = [FakeBackend(), FakeBackend()]
    for fake in fakes:
        await fake.start()
    yield fakes
    for fake in fakes:
        await fake.stop()


@pytest.fixture
async def spread(tmp_path: Path, two: list[FakeBackend], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """A proxy over two replicas, with two versions of which none is live."""
    monkeypatch.setattr("proxy.backends.replicas.replicas.LOOK_DOWN_S", 0.05)
    monkeypatch.setattr("proxy.backends.replicas.replicas.LOOK_UP_S", 0.2)
    monkeypatch.setattr("proxy.backends.replicas.replicas.GRACE_S", 0.5)
    proxy = Proxy(tmp_path / "home", two[0], FakeLauncher())
    proxy.kind = None
    proxy.flags["backend.replicas"] = [two[1].url]
    await proxy.start()
    await proxy.post("/rl/pause")
    for version in (1, 2):
        await proxy.chat(f"q{version}")
        await proxy.rate(completion_id="last", rating="good")
        await publish(proxy, version)
    yield proxy
    await proxy.stop()


NUMBERS = itertools.count()


async def answered_anywhere(proxy: Proxy) -> str:
    """The version that answers a conversation of its own."""
    response = await proxy.chat(f"conversation {next(NUMBERS)}")
    assert response.status == 200, await response.text()
    return response.headers["x-rl-adapter"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.02)


async def state(proxy: Proxy) -> str:
    return str((await proxy.get("/rl/status"))["backend"]["state"])


async def said_at_last(proxy: Proxy, words: str) -> str:
    async with asyncio.timeout(10):
        while words not in (said := await state(proxy)):
            await asyncio.sleep(0.02)
    return said


async def test_requests_are_spread(spread: Proxy, two: list[FakeBackend]) -> None:
    assert await state(spread) == "vllm, 2 of 2 replicas answer"
    for fake in two:
        fake.requests.clear()
        fake.hold.clear()
    asked = [asyncio.create_task(spread.chat(f"q{n}")) for n in range(8)]
    await until(lambda: sum(len(fake.requests) for fake in two) == 8)
    assert max(len(fake.requests) for fake in two) <= 5, "none has more than a quarter more than the mean"
    for fake in two:
        fake.hold.set()
    assert {response.status for response in await asyncio.gather(*asked)} == {200}


async def test_a_conversation_stays_where_it_was_read(spread: Proxy, two: list[FakeBackend]) -> None:
    for fake in two:
        fake.requests.clear()
    for n in range(12):
        texts = [f"q{n}"]
        for turn in range(3):
            assert (await spread.chat(*texts)).status == 200
            texts += ["yes", f"and {turn}"]
    places = {f"q{n}": {fake.url for fake in two for r in fake.requests if r["messages"][0]["content"] == f"q{n}"}
              for n in range(12)}  # fmt: skip
    assert all(len(urls) == 1 for urls in places.values())
    assert all(fake.requests for fake in two)


async def test_a_version_is_in_all_of_them_and_goes_from_all(spread: Proxy, two: list[FakeBackend]) -> None:
    for version in (1, 2):
        assert (await spread.post(f"/rl/promote/{version}"))[0] == 200
    assert [set(fake.adapters) for fake in two] == [{f"fake@v1-{spread.mark}", f"fake@v2-{spread.mark}"}] * 2
    warm = [[r["model"] for r in fake.requests if r.get("max_tokens") == 1] for fake in two]
    assert warm == [[f"fake@v1-{spread.mark}", f"fake@v2-{spread.mark}"]] * 2, "each replica is warmed up"
    await spread.post("/rl/promote/base")  # v1 is neither live nor the one before
    assert [set(fake.adapters) for fake in two] == [{f"fake@v2-{spread.mark}"}] * 2


async def test_one_that_refuses_keeps_it_from_all(spread: Proxy, two: list[FakeBackend]) -> None:
    await spread.post("/rl/promote/1")
    two[1].refuse_load = True
    status, body = await spread.post("/rl/promote/2")
    assert status == 502 and "rank 64" in body["error"]["message"] and two[1].url in body["error"]["message"]
    assert [set(fake.adapters) for fake in two] == [{f"fake@v1-{spread.mark}"}] * 2 and two[0].unloaded == [
        f"fake@v2-{spread.mark}"
    ]
    assert await answered_by(spread) == "v1"
    assert two[1].url in (await spread.get("/rl/status"))["problem"]
    two[1].refuse_load = False
    assert (await spread.post("/rl/promote/2"))[0] == 200


async def test_one_that_dies_fails_nobody_and_comes_back_whole(spread: Proxy, two: list[FakeBackend]) -> None:
    await spread.post("/rl/promote/1")
    port = two[1].port
    await two[1].stop()
    for n in range(4):
        assert await answered_anywhere(spread) == "v1", n
    said = await said_at_last(spread, "1 of 2")
    assert f"{two[1].url} is left out" in said
    assert (await spread.post("/rl/promote/2"))[0] == 200, "who is away keeps nothing from going live"
    two[1].adapters.clear()
    two[1].asked.clear()
    await two[1].start(port)
    while not two[1].asked:
        assert await answered_anywhere(spread) == "v2"
    assert set(two[1].adapters) == {f"fake@v1-{spread.mark}", f"fake@v2-{spread.mark}"} and two[1].unknown == 0
    while len(two[1].asked) < 2:
        assert await answered_anywhere(spread) == "v2"
    assert all(body["model"] == f"fake@v2-{spread.mark}" for _, body in two[1].asked)


async def test_one_that_says_nothing_keeps_no_version_from_going_live(spread: Proxy, two: list[FakeBackend]) -> None:
    """Behind a network that swallows packets nobody answers a load."""
    await spread.post("/rl/promote/1")
    _fall_silent(two[1])
    async with asyncio.timeout(CALL_S / 2):
        assert (await spread.post("/rl/promote/2"))[0] == 200
    assert {await answered_anywhere(spread) for _ in range(4)} == {"v2"}
    assert "it takes far longer than the others" in await state(spread)
    _speak_again(two[1])
    await said_at_last(spread, "2 of 2")
    assert set(two[1].adapters) == {f"fake@v1-{spread.mark}", f"fake@v2-{spread.mark}"}


async def test_one_that_does_not_unload_keeps_nobody_waiting_and_does_it_later(
    spread: Proxy, two: list[FakeBackend]
) -> None:
    for version in (1, 2):
        await spread.post(f"/rl/promote/{version}")
    _fall_silent(two[1])
    async with asyncio.timeout(CALL_S / 2):
        assert (await spread.post("/rl/promote/base"))[0] == 200  # v1 is neither live nor the one before
        assert (await spread.post("/rl/promote/2"))[0] == 200
    assert set(two[0].adapters) == {f"fake@v2-{spread.mark}"}
    _speak_again(two[1])
    await said_at_last(spread, "2 of 2")
    assert set(two[1].adapters) == {f"fake@v2-{spread.mark}"}


async def test_one_that_comes_back_slowly_keeps_no_version_from_going_live(
    spread: Proxy, two: list[FakeBackend]
) -> None:
    await spread.post("/rl/promote/1")
    two[1].hold_load.clear()
    two[1].adapters.clear()  # it was restarted, and takes its time to load
    await said_at_last(spread, "it came back without")
    async with asyncio.timeout(CALL_S / 2):
        assert (await spread.post("/rl/promote/2"))[0] == 200
    _speak_again(two[1])
    await said_at_last(spread, "2 of 2")
    assert set(two[1].adapters) == {f"fake@v1-{spread.mark}", f"fake@v2-{spread.mark}"}


def _fall_silent(fake: FakeBackend) -> None:
    fake.hold_load.clear()
    fake.hold_lists.clear()


def _speak_again(fake: FakeBackend) -> None:
    fake.hold_load.set()
    fake.hold_lists.set()


async def test_counting_tokens_takes_a_place_for_no_longer_than_it_lasts(spread: Proxy, two: list[FakeBackend]) -> None:
    port = two[1].port
    await two[1].stop()
    await said_at_last(spread, "1 of 2")
    body = {"model": "fake", "max_tokens": 1, "messages": [{"role": "user", "content": "how long?"}]}
    for _ in range(4):
        async with spread.http.post("/v1/messages/count_tokens", json=body) as response:
            assert response.status in (200, 404)
    await two[1].start(port)
    await said_at_last(spread, "2 of 2")
    for fake in two:
        fake.requests.clear()
        fake.hold.clear()
    asked = [asyncio.create_task(spread.chat(f"q{n}")) for n in range(8)]
    await until(lambda: sum(len(fake.requests) for fake in two) == 8)
    assert max(len(fake.requests) for fake in two) <= 5
    for fake in two:
        fake.hold.set()
    await asyncio.gather(*asked)


@pytest.mark.parametrize(("mood", "found"), [("well", "same"), ("error", "unknown"), ("drop", None)])
async def test_comparing_takes_a_place_for_no_longer_than_it_lasts(
    tmp_path: Path, two: list[FakeBackend], mood: str, found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The served model with the weights, by questions that are answered, refused, or broken off."""
    monkeypatch.setattr("proxy.backends.replicas.replicas.LOOK_DOWN_S", 0.05)
    port = two[1].port
    await two[1].stop()  # so that all of them go to one
    flags = {"backend.kind": "vllm", "backend.url": two[0].url, "backend.replicas": [two[1].url], "home": tmp_path}
    settings = load(flags, environ={}).settings
    backend, store = make_backend(settings, FakeLauncher()), await Store.open(tmp_path)
    match = WeightsCheck(settings, store, backend, FakeLauncher(), Events())
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        await backend.start(http, backend.ready)
        stack.push_async_callback(backend.stop)
        two[0].mood = mood
        await match.check("/nowhere")
        assert two[0].compared and (match.verdict.state if match.verdict else None) == found
        await two[1].start(port)
        await until(lambda: "2 of 2" in backend.state)
        assert {backend.address("fake").url for _ in two} == {fake.url for fake in two}


async def test_one_that_comes_back_with_nothing_is_given_it_unasked(spread: Proxy, two: list[FakeBackend]) -> None:
    await spread.post("/rl/promote/1")
    two[0].adapters.clear()  # restarted between two looks
    await until(lambda: f"fake@v1-{spread.mark}" in two[0].adapters)
    two[0].adapters.clear()
    for _ in range(2):  # and where a request comes first: a 404 is repaired, and the request sent again
        assert await answered_by(spread) == "v1"


async def test_one_that_comes_back_and_refuses_stays_out(spread: Proxy, two: list[FakeBackend]) -> None:
    await spread.post("/rl/promote/1")
    two[1].adapters.clear()
    two[1].refuse_load = True
    said = await said_at_last(spread, "rank 64")
    assert "1 of 2" in said and set(two[0].adapters) == {f"fake@v1-{spread.mark}"}
    two[1].requests.clear()
    for _ in range(3):
        assert await answered_by(spread) == "v1"
    assert two[1].requests == []
    two[1].refuse_load = False
    await said_at_last(spread, "2 of 2")
    assert set(two[1].adapters) == {f"fake@v1-{spread.mark}"}


async def test_a_reply_that_one_breaks_off_before_it_began_comes_from_another(
    spread: Proxy, two: list[FakeBackend]
) -> None:
    two[0].mood = "drop"  # it dies over the question
    two[0].requests.clear()
    while not two[0].requests:
        assert (await spread.chat(f"x{next(NUMBERS)}")).status == 200


async def test_none_answers(spread: Proxy, two: list[FakeBackend]) -> None:
    for fake in two:
        await fake.stop()
    assert (await spread.chat("x")).status == 503
    response = await spread.chat("x")
    said = (await response.json())["error"]["message"]
    assert response.status == 503 and "No replica answers" in said and all(fake.url in said for fake in two)
    port = two[0].port
    await two[0].start(port)
    async with asyncio.timeout(10):
        while (await spread.chat("x")).status != 200:
            await asyncio.sleep(0.05)


async def test_one_with_another_model_is_left_out(spread: Proxy, two: list[FakeBackend]) -> None:
    two[1].model = "other"
    await said_at_last(spread, "it serves other, and not fake")
    assert {(await spread.chat("x")).status for _ in range(3)} == {200}


async def test_what_cannot_be(two: list[FakeBackend]) -> None:
    flags = {"backend.kind": "openai", "backend.url": two[0].url, "backend.replicas": [two[1].url]}
    with pytest.raises(BadRequest, match="are for vLLM"):
        make_backend(load(flags, environ={}).settings, FakeLauncher())


async def test_one_that_comes_back_while_another_dies_over_the_warm_up_is_warmed_up_in_its_place(
    spread: Proxy, two: list[FakeBackend]
) -> None:
    port = two[1].port
    await two[1].stop()
    await said_at_last(spread, "1 of 2")
    for fake in two:
        fake.requests.clear()
    two[0].hold.clear()
    swap = asyncio.create_task(spread.post("/rl/promote/1"))
    await until(lambda: bool(two[0].requests))
    await two[1].start(port)
    await said_at_last(spread, "2 of 2")
    await two[0].stop()
    status, body = await swap
    assert status == 200, body
    assert [(r["model"], r["max_tokens"]) for r in two[1].requests] == [(f"fake@v1-{spread.mark}", 1)]
