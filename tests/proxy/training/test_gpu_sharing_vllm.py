"""vLLM rests by its sleep mode while a run trains, its adapters with it."""

from __future__ import annotations

import asyncio

import pytest

from proxy.backends.vllm import VLLM
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until
from tests.proxy.training.test_gpu_sharing import awake, waiting

pytestmark = [
    pytest.mark.skipif(not VLLM.capabilities.can_free, reason="vLLM's own part is not there yet"),
    pytest.mark.usefixtures("quick_sharing"),
]


@pytest.fixture
async def sleeper(proxy: Proxy) -> Proxy:
    await proxy.stop()
    proxy.backend.sleeps = False
    await proxy.start(train__share_gpu=True)
    return proxy


async def asleep(proxy: Proxy) -> None:
    async with asyncio.timeout(10):
        while not (proxy.launcher.started and proxy.backend.sleeps):
            await asyncio.sleep(0.01)


async def test_it_sleeps_for_a_run_and_answers_after_it(sleeper: Proxy) -> None:
    await rated(sleeper, 4)
    await until(sleeper, live=1)
    sleeper.launcher.started.clear()
    sleeper.launcher.takes_s = 0.3
    await rated(sleeper, 4)
    await asleep(sleeper)
    asked = len(sleeper.backend.requests)
    answer = asyncio.create_task(sleeper.say("Are you there?"))
    await waiting(sleeper, 1)
    assert len(sleeper.backend.requests) == asked and sleeper.backend.sleeps
    assert await answer == "You said: Are you there? "
    assert sleeper.backend.sleeps is False
    held = [r["model"] for r in sleeper.backend.requests[asked:] if r["messages"][-1]["content"] == "Are you there?"]
    assert held == ["fake@v1"]
    await until(sleeper, live=2)


async def test_a_server_without_sleep_mode_is_left_in_peace(sleeper: Proxy) -> None:
    """What to start it with is said, and it is not asked again and again while requests wait."""
    sleeper.backend.sleep_mode = False
    await rated(sleeper, 4)
    async with asyncio.timeout(10):
        while "--enable-sleep-mode" not in ((await sleeper.get("/rl/status"))["training"]["waits_for"] or ""):
            await asyncio.sleep(0.01)
    assert await sleeper.say("Are you there?") == "You said: Are you there? "
    assert not sleeper.launcher.started and (await awake(sleeper))["problem"] is None
