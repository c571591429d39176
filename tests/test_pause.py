"""A real run, paused at a step, over a restart, and on to its end: nothing faked but the size of the model."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.harness.serving import Serving
from tests.harness.kills import LENIENT, until_step

LONG = '{"passes": 20, "batch": 4, "learning_rate": 1e-6}'  # steps enough to be met in the middle


def steps(home: Path) -> list[int]:
    lines = (home / "runs" / "r00001" / "progress.jsonl").read_text().splitlines()
    events: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return [event["step"] for event in events if event["event"] == "step"]


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_pause_restart_resume(tiny_weights: Path, tmp_path: Path) -> None:
    serving = Serving(tmp_path / "home", tiny_weights, "--start-at", "8", RLPROXY_TRAIN__OVERRIDES=LONG, **LENIENT)
    await serving.start()
    try:
        for n in range(8):
            answer, _ = await serving.chat(f"Question {n}", max_tokens=4)
            await serving.rate(answer["id"], "good" if n % 2 else "bad")
        status = await until_step(serving, 3)
        line = status["training"]["line"]
        assert "run 1, stage 3 of 5: training, step" in line and "s to its checks" in line
        assert (await serving.post("/rl/pause"))["paused"] is True
        assert serving.trainer() is None  # `pause` answers when the trainer has stopped at its step
        paused_at = steps(serving.home)[-1]
        answer, _ = await serving.chat("Are you there?", max_tokens=4)
        assert answer["choices"]
    finally:
        assert await serving.stop() == 0, serving.log

    await serving.start()
    try:
        await asyncio.sleep(1.0)  # enough for a trainer to start, if one did
        status = await serving.status()
        assert status["training"]["paused"] and "rlproxy resume" in status["training"]["waits_for"]
        assert serving.trainer() is None and steps(serving.home)[-1] == paused_at
        assert status["last_run"]["status"] == "running" and status["last_run"]["attempts"] == 0
        await serving.post("/rl/resume")
        async with asyncio.timeout(240):
            while (last := (await serving.status())["last_run"])["status"] == "running":
                await asyncio.sleep(0.2)
        assert last["status"] == "done", (last, serving.log)
        assert last["id"] == 1 and last["attempts"] == 1
        seen = steps(serving.home)
        assert seen == list(range(1, len(seen) + 1)), "each step once, none twice"
        assert last["metrics"]["steps"] == len(seen) > paused_at
    finally:
        assert await serving.stop() == 0, serving.log
