"""Conversations of different agents: every signal belongs to the answer that its request really follows."""

from __future__ import annotations

import random

from scripts.harness.agent_talks import World
from scripts.harness.in_process import Proxy
from tests.proxy.signals.following import signals


async def test_every_signal_is_on_the_right_answer(proxy: Proxy) -> None:
    world = World(proxy, random.Random(5))
    await world.fill(30, 5)
    await signals(proxy)
    found = await world.count()
    assert found["wrong"] == 0 and found["right"] > found["missing"]
    assert not [s for s in await proxy.store.signals.everything() if s.kind == "tool" and (s.hint or s.value > 0)]
