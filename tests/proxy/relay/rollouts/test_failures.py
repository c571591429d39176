"""What goes wrong around rollouts: a full disk, a server that counts oddly. The bounds of a day hold all the same."""

from __future__ import annotations

import asyncio

from proxy.relay.rollouts.spending import today
from scripts.harness.in_process import Proxy
from tests.proxy.relay.rollouts.conftest import until
from tests.proxy.test_full_disk import limit_pages


async def test_a_full_disk_is_waited_for_and_what_was_sampled_meanwhile_counts(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.says = "x " * 100_000  # more than the last page has room for
    asked = len(sampling.backend.requests)
    await limit_pages(sampling, 1)  # to the present size
    await sampling.post("/rl/resume")
    rollouts = await until(sampling, lambda rollouts: rollouts["tokens_today"] > 0)
    await asyncio.sleep(0.5)
    assert len(sampling.backend.requests) == asked + 1
    await limit_pages(sampling, 1_000_000)
    await sampling.stop()
    await sampling.start()
    assert (await sampling.store.rollouts.spent(today())).tokens == rollouts["tokens_today"]


async def test_an_answer_that_a_request_broke_off_or_that_is_none_counts_too(sampling: Proxy) -> None:
    await sampling.post("/rl/pause")
    await sampling.say("sum")
    sampling.backend.hold.clear()
    await sampling.post("/rl/resume")
    while len(sampling.backend.requests) < 2:
        await asyncio.sleep(0.01)
    asked = asyncio.create_task(sampling.say("another"))
    broken_off = await until(sampling, lambda rollouts: rollouts["tokens_today"] > 0)
    await sampling.post("/rl/pause")
    sampling.backend.hold.set()
    await asked
    sampling.backend.mood = "bad-json"
    await sampling.post("/rl/resume")
    await until(sampling, lambda rollouts: rollouts["tokens_today"] > broken_off["tokens_today"])
