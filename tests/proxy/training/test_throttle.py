"""A run gives way to requests, and comes to its end all the same."""

from __future__ import annotations

import asyncio

import pytest

from config.settings import load
from proxy.training.throttle import BackgroundThrottle, longest
from scripts.harness.in_process import Proxy


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Run:
    """The seconds that it had, and whether it stands still."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._since = clock, 0.0
        self.stands, self.worked = False, 0.0

    def __call__(self, still: bool) -> None:
        if not self.stands:
            self.worked += self._clock() - self._since
        self._since, self.stands = self._clock(), still


async def test_it_stands_still_from_the_first_request_to_the_end_of_the_last() -> None:
    clock = Clock()
    run = Run(clock)
    gives = BackgroundThrottle(run, 20.0, clock)
    with gives.answering():
        assert run.stands
        with gives.answering():
            clock.now = 1.0
        assert run.stands
    assert not run.stands


@pytest.mark.parametrize("gap", [0.0, 0.001, 0.1])
@pytest.mark.parametrize("each", [0.1, 3.0, 1000.0])
async def test_it_gets_on_however_many_requests_there_are(gap: float, each: float) -> None:
    clock = Clock()
    run = Run(clock)
    gives = BackgroundThrottle(run, 20.0, clock)
    stretch = longest_stretch = 0.0
    while clock.now < 2000:
        with gives.answering():
            until = clock.now + each
            while clock.now < until:
                clock.now += 0.05
                gives._settle()  # as its timer does, and more often
                stretch = stretch + 0.05 if run.stands else 0.0
                longest_stretch = max(stretch, longest_stretch)
        clock.now += gap
        stretch = 0.0 if gap else stretch
    run(True)
    assert longest_stretch <= 20.1
    assert run.worked >= 0.495 * clock.now
    assert run.worked <= 0.52 * clock.now + clock.now * gap / each


async def test_the_timer_gives_it_its_turn() -> None:
    told: list[bool] = []
    gives = BackgroundThrottle(told.append, 0.05)
    with gives.answering():
        while False not in told:
            await asyncio.sleep(0.01)
        while told[-1] is False:
            await asyncio.sleep(0.01)
    assert told[-1] is False


async def test_a_run_that_never_stands_still() -> None:
    told: list[bool] = []
    with BackgroundThrottle(told.append, 0.0).answering():
        pass
    assert told == []


@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ({}, 20.0),
        ({"backend.kind": "ollama"}, 20.0),
        ({"backend.kind": "vllm", "backend.url": "http://localhost:8000"}, 20.0),
        ({"backend.kind": "vllm", "backend.url": "http://[::1]:8000"}, 20.0),
        ({"backend.kind": "vllm", "backend.url": "http://gpu.example:8000"}, 0.0),
        (
            {
                "backend.kind": "vllm",
                "backend.url": "http://gpu.example:8000",
                "backend.replicas": ["http://127.0.0.1:1"],
            },
            20.0,
        ),
        ({"backend.kind": "openai", "backend.url": "https://cloud.example"}, 0.0),
    ],
)
def test_only_a_server_on_this_machine_shares_its_processor(flags: dict[str, object], seconds: float) -> None:
    assert longest(load(flags, environ={}).settings.backend, 20.0) == seconds


async def test_every_way_to_the_model_is_given_way_to(proxy: Proxy) -> None:
    told = proxy.launcher.pauses
    await proxy.chat("x")
    assert told == [True, False]
    async with proxy.http.post("/v1/chat/completions", json=chat(stream=True)) as response:
        await response.read()
    assert told == [True, False] * 2
    async with proxy.http.post("/v1/messages", json=chat(max_tokens=5)) as response:
        await response.read()
    assert told == [True, False] * 3
    async with proxy.http.post("/v1/embeddings", json={"model": "fake", "input": "x"}) as response:
        await response.read()
    assert told == [True, False] * 4
    await proxy.get("/rl/status")
    await proxy.chat("/rl good")
    assert told == [True, False] * 4


async def test_a_client_that_hangs_up_lets_it_go_on(proxy: Proxy) -> None:
    proxy.backend.mood = "hang"
    asking = asyncio.create_task(proxy.chat("x"))
    while not proxy.launcher.pauses:
        await asyncio.sleep(0.01)
    assert proxy.launcher.pauses[0] is True
    asking.cancel()
    while proxy.launcher.pauses[-1]:
        await asyncio.sleep(0.01)


def chat(**more: object) -> dict[str, object]:
    return {"model": "fake", "messages": [{"role": "user", "content": "x"}], **more}
