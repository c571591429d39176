"""`/rl good` rates the answer that was on screen or says that it cannot tell, however a client rewrites the history."""

from __future__ import annotations

import random

import pytest

from scripts.harness.in_process import Proxy
from scripts.harness.rewriting import Counts, World, one_case

CASES = 150  # of each; scripts/bench/matching.py takes 10,000


@pytest.mark.parametrize("seed", [1, 2])
async def test_rewritten_conversations(proxy: Proxy, seed: int) -> None:
    world, counts = World(proxy, random.Random(seed)), Counts()
    await world.fill(30)
    for number in range(CASES):
        await one_case(world, number, counts)
    assert counts.wrong == []
    assert counts.became["right"] > CASES / 2
    assert counts.became["cannot tell, and a person could"] < CASES / 25, counts.untold[:2]
