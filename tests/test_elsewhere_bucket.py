"""Runs of a served home whose files go through a bucket, to a fake Slurm: kill -9 of rlproxy, a bucket that vanishes.

Each rating trains once, and nothing of a person's texts stays in the bucket or on the node.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from scripts.fakes import slurm
from scripts.harness.serving import Serving
from store.store import Store
from tests.harness.kills import LENIENT, until_quiet, until_step
from trainer.launch import BucketVersions

pytestmark = [pytest.mark.scale, pytest.mark.model]
ROOT = Path(__file__).resolve().parents[1]
RATINGS = 8


async def rate(serving: Serving) -> None:
    for n in range(RATINGS):
        answer, _ = await serving.chat(f"Question {n}", max_tokens=4, stop=None)
        await serving.rate(answer["id"], "good" if n % 2 else "bad")


@pytest.mark.timeout(1200)
async def test_no_rating_is_lost_or_trains_twice(tiny_weights: Path, tmp_path: Path) -> None:
    objects, away, node = (tmp_path / name for name in ("objects", "away", "node"))
    slurm.install(tmp_path / "programs", tmp_path / "cluster")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} OMP_NUM_THREADS=1 exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environment = {
        **LENIENT,
        "PATH": f"{tmp_path / 'programs'}{os.pathsep}{os.environ['PATH']}",
        "RLPROXY_TRAIN__WHERE": f"slurm://{node}",
        "RLPROXY_TRAIN__WHERE_PYTHON": str(python),
        "RLPROXY_TRAIN__BUCKET": f"file://{objects}",
        "RLPROXY_TRAIN__OVERRIDES": '{"passes": 30, "learning_rate": 1e-6}',
    }
    home = tmp_path / "home"
    serving = Serving(home, tiny_weights, "--start-at", str(RATINGS), **environment)
    await serving.start()
    # killed while it trains
    await rate(serving)
    await until_step(serving, 1)
    await serving.kill()
    await serving.start()
    await until_quiet(serving)
    # the bucket vanishes while it trains, and comes back; no run starts meanwhile
    await rate(serving)
    await until_step(serving, 1)
    objects.rename(away)
    objects.write_text("in the way")
    await asyncio.sleep(5)
    objects.unlink()
    away.rename(objects)
    await until_quiet(serving)
    assert await serving.stop() == 0, serving.log

    store = await Store.open(home)
    try:
        runs = await store.runs.recent(limit=100)
        assert [run.status for run in runs] == ["done"] * 2, [(run.id, run.status, run.reason) for run in runs]
        used = [sample.rating.id for run in runs for sample in await store.samples.of_run(run.id)]
        assert len(used) == len(set(used)) == 2 * RATINGS
        versions = await store.versions.all()
    finally:
        await store.close()
    for run in runs:
        events = [json.loads(line) for line in (Path(run.folder) / "progress.jsonl").read_text().splitlines()]
        assert sum(event["event"] == "start" for event in events) == 1, "it trained twice"
        steps = [event["step"] for event in events if event["event"] == "step"]
        assert steps == sorted(set(steps))
    assert [path for path in (objects / "jobs").rglob("*") if path.is_file()] == [], "people's texts are still there"
    assert list(node.iterdir()) == []
    for adapter in versions:
        BucketVersions(f"file://{objects}").fetch(adapter.manifest, tmp_path / "fetched" / f"v{adapter.version}")
