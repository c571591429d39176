"""kill -9 while answers are sampled: none is lost, none is doubled, each has its reward."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest

from scripts.harness.serving import Serving
from store.captured.completions import ROLLOUTS
from store.copies.export import Filter
from store.store import Store

SIZE = 4
PROMPTS = 4


async def until_answers(serving: Serving, answers: int) -> None:
    async with asyncio.timeout(120):
        while True:
            status = await serving.status()
            if status["rollouts"]["answers"] == answers and status["episodes"]["open"] == 0:
                return
            await asyncio.sleep(0.1)


@pytest.mark.model
@pytest.mark.timeout(600)
async def test_two_kills(tiny_weights: Path, tmp_path: Path) -> None:
    dice = random.Random(20261129)
    file = tmp_path / "my.py"
    file.write_text("def reward(episode):\n    return 1 if 'e' in episode['turns'][0]['text'] else -1\n")
    serving = Serving(
        tmp_path / "home",
        tiny_weights,
        RLPROXY_TRAIN__REWARD=f"{file}:reward",
        RLPROXY_TRAIN__REWARD_QUIET_S="0",
        RLPROXY_TRAIN__ROLLOUTS=str(SIZE),
        RLPROXY_TRAIN__QUIET_S="0.1",
        RLPROXY_TRAIN__START_AT_EPISODES="1000",
    )
    await serving.start()
    for number in range(PROMPTS):
        await serving.chat(f"Question {number}", max_tokens=8)
    for _ in range(2):
        await asyncio.sleep(dice.uniform(0.2, 1.5))
        await serving.kill()
        await serving.start()
    await until_answers(serving, SIZE * PROMPTS)
    assert await serving.stop() == 0, serving.log

    store = await Store.open(tmp_path / "home")
    try:
        episodes = await store.episodes.page(limit=1000)
        assert {episode.state for episode in episodes} == {"rewarded"}
        assert Counter(episode.prompt for episode in episodes).most_common(1)[0][1] == SIZE
        rows = [row async for row in store.transfer.export(Filter(rollouts=True))]
        sampled = [row["session"] for row in rows if row["turn"] == "side"]
        assert sorted(sampled) == sorted(episode.id for episode in episodes) and len(rows) == PROMPTS * (SIZE + 1)
        assert {episode.key for episode in episodes} == {ROLLOUTS}
    finally:
        await store.close()
