"""A real version against the real base on live traffic: 40 conversations at once, kill -9 in between, and a decision.

Real: the run that made the version, the built-in backend, the proxy in a process of its own. Scripted: people, who like
one of ten answers of the base and nine of ten of the version.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.serving import Serving
from tests.harness.kills import LENIENT

LIKED = {"base": 0.1, "v1": 0.9}
TALKS = 40


async def talk(serving: Serving, name: str, *said: str) -> tuple[str, str]:
    """The version that answered, and the id. Fails where the request does."""
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]
    body = {"model": "small", "messages": messages, "max_tokens": 4}
    async with serving.http.post("/v1/chat/completions", json=body, headers={"x-rl-session": name}) as response:
        answer = await response.json()
        assert response.status == 200, answer
        return response.headers["x-rl-adapter"], answer["id"]


async def experiments(serving: Serving) -> dict[str, Any]:
    async with serving.http.get("/rl/experiments") as response:
        return dict(await response.json())


async def until_running(serving: Serving) -> dict[str, Any]:
    async with asyncio.timeout(240):
        while (running := (await experiments(serving))["running"]) is None:
            await asyncio.sleep(0.2)
    return dict(running)


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(900)
async def test_a_version_of_a_real_run_wins_its_place(tiny_weights: Path, tmp_path: Path) -> None:
    dice = random.Random(20261127)
    flags = {**LENIENT, "RLPROXY_TRAIN__PUBLISH": "by experiment"}
    serving = Serving(tmp_path / "home", tiny_weights, "--start-at", "12", **flags)
    await serving.start()
    for n in range(12):
        answer, _ = await serving.chat(f"Question {n}", max_tokens=4)
        await serving.rate(answer["id"], "good" if n % 2 else "bad")
    running = await until_running(serving)
    assert (running["version"], running["against"]) == (1, 0) and (await serving.status())["live"] == 0
    await serving.post("/rl/pause")

    names = [f"talk-{n}" for n in range(TALKS)]
    first = dict(zip(names, await asyncio.gather(*(talk(serving, name, "Hello") for name in names)), strict=True))
    assert {version for version, _ in first.values()} == {"base", "v1"}
    await serving.kill()
    await serving.start()
    said = ("Hello", "An answer.", "Go on")
    again = dict(zip(names, await asyncio.gather(*(talk(serving, name, *said) for name in names)), strict=True))
    assert {name: version for name, (version, _) in again.items()} == {n: version for n, (version, _) in first.items()}

    rated = 0
    for version, id in first.values():
        await serving.rate(id, "good" if dice.random() < LIKED[version] else "bad")
        rated += 1
        if (await experiments(serving))["running"] is None:
            break
    async with asyncio.timeout(60):
        while (await experiments(serving))["running"] is not None:
            await asyncio.sleep(0.1)
    (end,) = (await experiments(serving))["ended"]
    assert end["outcome"] == "promoted" and rated <= TALKS
    assert (await serving.status())["live"] == 1 and (await talk(serving, "talk-new", "Hello"))[0] == "v1"
    await serving.stop()
