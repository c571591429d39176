"""kill -9 of proxy and trainer at random moments: whatever was acknowledged is there, and no run hangs in between."""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import aiohttp
import psutil
import pytest

from scripts.harness.serving import Serving
from store.store import Store
from tests.harness.kills import LENIENT, until_quiet
from tests.harness.polling import Polls

ENDED = {"done", "rejected", "empty", "failed"}


class Person:
    """Chats and rates without end; remembers what was acknowledged."""

    def __init__(self) -> None:
        self.whole: list[str] = []  # completions whose answer was there to its end
        self.ratings: dict[str, str] = {}  # completion -> rating

    async def live(self, serving: Serving) -> None:
        n = 0
        with contextlib.suppress(aiohttp.ClientError, ConnectionError, asyncio.TimeoutError):
            while not serving.http.closed:
                answer, _ = await serving.chat(f"Question {n}", max_tokens=4, stop=None)
                self.whole.append(answer["id"])
                if n % 2 == 0:
                    self.ratings[answer["id"]] = await serving.rate(answer["id"], "good" if n % 4 else "bad")
                n += 1
                await asyncio.sleep(0.05)  # reads it; without that the answers cost a core that the run needs


async def killed(serving: Serving, person: Person, dice: random.Random, *, trainer: bool) -> None:
    """Some life, then a kill at a random moment: of the trainer while one runs, or of the proxy."""
    asking = asyncio.create_task(person.live(serving))
    await asyncio.sleep(dice.uniform(0.2, 2.0))
    if trainer:
        async for _ in Polls():
            if (process := serving.trainer()) is not None:
                await asyncio.sleep(dice.uniform(0.0, 4.0))
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
                break
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        return
    await asyncio.sleep(dice.uniform(0.0, 4.0))
    await serving.kill()
    await asking


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.heavy)])
async def test_kills_in_turn(tiny_weights: Path, tmp_path: Path, kills: int) -> None:
    dice = random.Random(20261121)
    home, person = tmp_path / "home", Person()
    serving = Serving(home, tiny_weights, "--start-at", "12", **LENIENT)
    await serving.start()
    for n in range(kills):
        trainer = n % 2 == 1
        await killed(serving, person, dice, trainer=trainer)
        if not trainer:
            await serving.start()
    await until_quiet(serving)
    assert await serving.stop() == 0, serving.log

    store = await Store.open(home)
    try:
        runs = await store.runs.recent(limit=1000)
        assert runs and {run.status for run in runs} <= ENDED, [(r.id, r.status, r.reason) for r in runs]
        assert await store.runs.unfinished() == []
        for id in person.whole:
            found = await store.completions.get(id)
            assert found is not None and found.status == "done", id
        used = [s.rating.id for run in runs if run.status == "done" for s in await store.samples.of_run(run.id)]
        assert len(used) == len(set(used)), "a rating trained twice"
        for completion, rating in person.ratings.items():
            live = await store.ratings.live(completion, "owner")
            assert live is not None and live.id == rating
        pointer = await store.versions.pointer()
        fresh = await store.samples.fresh(live=pointer.live, max_version_gap=1000)
        assert fresh.total == (await store.stats.counts())["good"] + (await store.stats.counts())["bad"] - len(used), (
            "given back"
        )
    finally:
        await store.close()
    assert len(person.ratings) >= 2 * kills, "too little life to test anything"


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(300)
async def test_a_stop_in_the_middle_of_everything(tiny_weights: Path, tmp_path: Path) -> None:
    """SIGTERM while an answer streams and a run trains: the answer ends whole, the run goes on after the restart."""
    overrides = '{"passes": 200, "learning_rate": 1e-6}'  # long enough to be met in the middle
    serving = Serving(tmp_path / "home", tiny_weights, "--start-at", "8", RLPROXY_TRAIN__OVERRIDES=overrides, **LENIENT)
    await serving.start()
    for n in range(8):
        answer, _ = await serving.chat(f"Question {n}", max_tokens=4)
        await serving.rate(answer["id"], "good" if n % 2 else "bad")
    async with asyncio.timeout(120):
        while "step" not in (await serving.status())["training"]["progress"]:
            await asyncio.sleep(0.1)
    body = {"model": "small", "messages": [{"role": "user", "content": "Go on"}], "max_tokens": 300, "stream": True}
    async with serving.http.post("/v1/chat/completions", json=body) as response:
        await response.content.readany()
        serving.tell_to_stop()
        rest = await response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
        whole = response.headers["x-rl-completion-id"]
    assert await serving.stop() == 0, serving.log

    store = await Store.open(serving.home)
    try:
        found = await store.completions.get(whole)
        assert found is not None and found.status == "done"
        (run,) = await store.runs.unfinished()
        assert run.attempts == 0
    finally:
        await store.close()
    await serving.start()
    try:
        async with asyncio.timeout(60):
            while "step" not in (progress := (await serving.status())["training"]["progress"]):
                await asyncio.sleep(0.1)
        assert progress["step"]["step"] > 1, "it began from the beginning"
    finally:
        assert await serving.stop() == 0, serving.log
