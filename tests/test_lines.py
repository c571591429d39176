"""Two lines behind the real built-in server: answers of both in one batch, and a rollback of one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from scripts.harness.lora import random_adapter
from scripts.harness.records import claim, put, rating
from scripts.harness.serving import Serving
from store.line_records import StoredLine
from store.records import Adapter
from store.store import Store
from tests.harness.swaps import says, with_manifest

LINES = ("ann", "bob")


async def prepare(home: Path, weights: Path) -> None:
    """A home with two lines, and a version live in each."""
    store = await Store.open(home)
    for version, name in enumerate(LINES, 1):
        await store.lines.create(StoredLine(name, 0, 1.0, None, (), ()), "test")
        await put(store, name, model="small", line=name)
        await store.ratings.rate(rating(name))
        run = (await claim(store, model="small", version=version, line=name))[0]
        folder = with_manifest(random_adapter(weights, home / "adapters_out" / f"v{version}", seed=version, size=0.3))
        made = Adapter(version, 0, run.id, "small", str(folder), 0.0, {}, line=name)
        await store.runs.publish(run.id, made, {"status": "passed"}, 0.0)
        await store.versions.point(version, "made", "rlproxy", name)
    await store.close()


async def test_two_lines_in_one_batch(tmp_path: Path, tiny_weights: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    await prepare(home, tiny_weights)
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
