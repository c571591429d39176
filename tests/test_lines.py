"""Two lines behind the real built-in server: answers of both in one batch, and a rollback of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from scripts.harness.lora import random_adapter
from scripts.harness.serving import Serving
from tests.harness.home_of_lines import prepare_lines
from tests.harness.swaps import says

LINES = ("ann", "bob")


async def test_two_lines_in_one_batch(tmp_path: Path, tiny_weights: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    seeds = enumerate(LINES, 1)
    adapters = {name: random_adapter(tiny_weights, tmp_path / name, seed=seed, size=0.3) for seed, name in seeds}
    await prepare_lines(home, "small", adapters)
    served = Serving(home, tiny_weights)
    await served.start()
    try:
        models = ("small", "small@ann", "small@bob")
        alone = [await says(served, model) for model in models]
        assert [version for _, version in alone] == ["base", "v1", "v2"]
        assert len({text for text, _ in alone}) == 3
        together = await asyncio.gather(*(says(served, model) for model in models * 3))
        assert together == alone * 3
        assert (await served.post("/rl/rollback?line=ann"))["live"] == 0
        after = [await says(served, model) for model in models]
        assert after == [alone[0], alone[0], alone[2]]
    finally:
        assert await served.stop() == 0
