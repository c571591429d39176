"""kill -9 of rlproxy at each step of a run that trains over ssh: it goes on, and each rating trains once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from scripts.harness.serving import Serving
from store.store import Store
from tests.harness import sshd
from tests.harness.kills import LENIENT, until_quiet, until_step

pytestmark = [
    pytest.mark.scale,
    pytest.mark.skipif(sshd.lacks() is not None, reason=str(sshd.lacks())),
]
RATINGS = 8
HELD = ("receive", "start", "send")  # while the folder is copied there, while it is submitted, while it comes back


async def rate(serving: Serving) -> None:
    for n in range(RATINGS):
        answer, _ = await serving.chat(f"Question {n}", max_tokens=4, stop=None)
        await serving.rate(answer["id"], "good" if n % 2 else "bad")


async def until_file(path: Path) -> None:
    async with asyncio.timeout(240):
        while not path.exists():
            await asyncio.sleep(0.05)


async def killed_at(serving: Serving, server: sshd.Sshd, verb: str) -> None:
    """Kill it while the other end is at this verb, which is carried out after that."""
    held = server.folder / f"held-{verb}"
    held.touch()
    await rate(serving)
    await until_file(server.folder / f"at-{verb}")
    killing = asyncio.create_task(serving.kill())
    await serving.process.wait()
    held.unlink()
    await killing


@pytest.mark.model
@pytest.mark.timeout(1200)
async def test_a_kill_at_each_step_of_a_run_elsewhere(tiny_weights: Path, tmp_path: Path) -> None:
    server = sshd.Sshd(tmp_path / "sshd")
    server.start()
    environment = {
        **LENIENT,
        "RLPROXY_TRAIN__WHERE": server.where,
        "RLPROXY_TRAIN__WHERE_PYTHON": str(server.python),
        "RLPROXY_TRAIN__WHERE_OPTIONS": json.dumps(server.options()),
        "RLPROXY_TRAIN__OVERRIDES": '{"passes": 30, "learning_rate": 1e-6}',
    }
    home = tmp_path / "home"
    serving = Serving(home, tiny_weights, "--start-at", str(RATINGS), **environment)
    try:
        await serving.start()
        for verb in HELD:
            await killed_at(serving, server, verb)
            await serving.start()
            await until_quiet(serving)
        await rate(serving)
        await until_step(serving, 1)
        await serving.kill()
        await serving.start()
        await until_quiet(serving)
        assert await serving.stop() == 0, serving.log
    finally:
        server.stop()

    store = await Store.open(home)
    try:
        runs = await store.runs.recent(limit=100)
        assert [run.status for run in runs] == ["done"] * 4, [(run.id, run.status, run.reason) for run in runs]
        used = [sample.rating.id for run in runs for sample in await store.samples.of_run(run.id)]
        assert len(used) == len(set(used)) == 4 * RATINGS
    finally:
        await store.close()
    for run in runs:
        events = [json.loads(line) for line in (Path(run.folder) / "progress.jsonl").read_text().splitlines()]
        assert sum(event["event"] == "start" for event in events) == 1, "it trained twice"
        steps = [event["step"] for event in events if event["event"] == "step"]
        assert steps == sorted(set(steps))
    assert list(server.jobs.iterdir()) == [], "people's texts are still there"
