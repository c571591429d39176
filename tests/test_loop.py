"""The whole loop in small, nothing faked: real model, real processes, real HTTP, real training, real swap."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from scripts.harness.serving import Serving
from tests.harness.polling import Polls

QUESTIONS = ["What is the capital of France?", "Name a fruit.", "Say hello.", "What is 2 + 2?"]
PAUSE_S = 5.0  # between two answers while a run trains; less where its phase changes


@contextlib.asynccontextmanager
async def somebody_always_asking(serving: Serving) -> AsyncIterator[list[str]]:
    """Which adapters answered, in order. Any failed request fails the test.

    Answers cost as much of a core as training does, so they come seldom while a run trains: in each of its phases. From
    the last one on, in which the version goes live, they come without a pause.
    """
    answered: list[str] = []
    stop = asyncio.Event()

    async def phase() -> object:
        return (await serving.status())["training"]["progress"].get("phase", {}).get("phase")

    async def ask() -> None:
        while not stop.is_set():
            _, adapter = await serving.chat("Are you there?", max_tokens=4)
            answered.append(adapter)
            if adapter != "base" or (asked_in := await phase()) == "write":
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    while not stop.is_set() and await phase() == asked_in:
                        await asyncio.sleep(0.2)

    asking = asyncio.create_task(ask())
    try:
        yield answered
    finally:
        stop.set()
        await asking


async def live(serving: Serving, version: int) -> None:
    """Returns once it is; how long that takes is the machine's, and the test's own limit is the only one."""
    while (status := await serving.status())["live"] != version:
        last = status["last_run"]
        assert not last or last["status"] not in ("rejected", "failed", "empty"), (last, serving.log)
        await asyncio.sleep(0.5)


@pytest.mark.model
@pytest.mark.timeout(1200)
async def test_chat_rate_train_swap_rollback_restart(weights: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    serving = Serving(home, weights, "--start-at", "4", RLPROXY_TRAIN__OVERRIDES='{"passes": 1, "batch": 4}')
    await serving.start()
    try:
        await _chat_rate_train_swap(serving)
        before, _ = await serving.chat("What is the capital of Spain?", temperature=0)
        await serving.chat("What is the capital of Spain?", temperature=0, model="small@base")
    finally:
        assert await serving.stop() == 0, serving.log
    await serving.start()
    try:
        after, adapter = await serving.chat("What is the capital of Spain?", temperature=0)
        assert adapter == "v1" and after["choices"] == before["choices"]
    finally:
        assert await serving.stop() == 0, serving.log


async def _chat_rate_train_swap(serving: Serving) -> None:
    async with somebody_always_asking(serving) as answered:
        for n, question in enumerate(QUESTIONS):
            answer, adapter = await serving.chat(question)
            assert adapter == "base"
            word = "good" if n % 2 else "bad"
            if n < 2:
                await serving.rate(answer["id"], word)
            else:
                said, _ = await serving.chat(question, answer["choices"][0]["message"]["content"], f"/rl {word}")
                assert f"rated {word}" in said["choices"][0]["message"]["content"]
        await live(serving, 1)
        async for _ in Polls():  # longer than a pause of who asks
            if answered[-1] == "v1":
                break
        assert answered[0] == "base" and answered[-1] == "v1"
        assert (await serving.post("/rl/rollback"))["live"] == 0
        _, adapter = await serving.chat("Which one are you?")
        assert adapter == "base"
        assert (await serving.post("/rl/promote/v1"))["live"] == 1

    run = (await serving.status())["last_run"]
    assert run["status"] == "done" and run["metrics"]["acceptance"] > 0.9  # served and trained by the same numbers
    assert all(check["ok"] for check in run["gate"].values())
