"""One GPU for the model and the run, nothing faked but the size of the model: the built-in backend really ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from scripts.harness.serving import Serving
from tests.harness.kills import LENIENT, until_step

LONG = '{"passes": 10, "batch": 4, "learning_rate": 1e-6}'  # steps enough to be met in the middle
SHARED = {"RLPROXY_TRAIN__SHARE_GPU": "true", "RLPROXY_TRAIN__OVERRIDES": LONG, "RLPROXY_SERVER__HOLD_S": "200"}


def serves(serving: Serving) -> bool:
    for child in psutil.Process(serving.process.pid).children(recursive=True):
        try:
            if "trainer.serve" in child.cmdline():
                return True
        except psutil.Error:
            continue
    return False


def steps(home: Path) -> int:
    """That its only run has taken."""
    (told,) = home.glob("runs/*/progress.jsonl")
    return told.read_text().count('"event": "step"')


async def held(serving: Serving) -> asyncio.Task[tuple[dict[str, object], str]]:
    """A question that waits."""
    asked = asyncio.create_task(serving.chat("Are you there?", max_tokens=4))
    async with asyncio.timeout(60):
        while (await serving.status())["held"]["requests"] == 0:
            assert not asked.done(), serving.log
            await asyncio.sleep(0.02)
    return asked


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_the_model_rests_while_a_run_trains(tiny_weights: Path, tmp_path: Path) -> None:
    serving = Serving(tmp_path / "home", tiny_weights, "--start-at", "8", **LENIENT, **SHARED)
    await serving.start()
    try:
        for n in range(8):
            answer, _ = await serving.chat(f"Question {n}", max_tokens=4)
            await serving.rate(answer["id"], "good" if n % 2 else "bad")
        await until_step(serving, 2)
        assert not serves(serving), "its memory is the run's"

        asked = await held(serving)
        await serving.post("/rl/pause")
        answer, adapter = await asked
        assert answer["choices"] and adapter == "base" and serves(serving) and serving.trainer() is None

        stood_at = steps(tmp_path / "home")  # two or more: it went on while the question waited
        await serving.post("/rl/resume")
        await until_step(serving, stood_at + 1)
        assert not serves(serving)
        await serving.kill()
    except BaseException:
        await serving.stop()
        raise

    await serving.start()  # it answers, or holds: the run goes on as soon as it can
    try:
        answer, adapter = await serving.chat("Are you there?", max_tokens=4)
        assert answer["choices"] and adapter == "base"
        async with asyncio.timeout(240):
            while (status := await serving.status())["live"] != 1:
                last = status["last_run"]
                assert last["status"] in ("running", "done"), (last, serving.log)
                await asyncio.sleep(0.2)
        answer, adapter = await serving.chat("Are you there?", max_tokens=4)
        assert adapter == "v1" and status["held"] == {"why": None, "requests": 0}
    finally:
        assert await serving.stop() == 0, serving.log
