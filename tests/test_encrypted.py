"""A whole rlproxy on an encrypted home, killed and started again: nothing that was said is anywhere in its files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest

from scripts.harness.serving import Serving
from store.file.db_key import Secret
from store.store import Store
from tests.harness.kills import LENIENT, until_quiet

KEY = "5e" * 32
PLANTED = "xylophone-quagmire-0451"
WORDS = (PLANTED.encode(), KEY.encode(), bytes.fromhex(KEY))


def in_the_clear(home: Path) -> list[str]:
    """What was said, and the key."""
    found = []
    for folder, _, names in os.walk(home):
        for name in names:
            try:
                data = (Path(folder) / name).read_bytes()
            except FileNotFoundError:
                continue  # it went meanwhile
            found += [
                f"{name}: {word!r}" for word in (PLANTED.encode(), KEY.encode(), bytes.fromhex(KEY)) if word in data
            ]
    return found


@pytest.mark.model
@pytest.mark.heavy
@pytest.mark.timeout(600)
async def test_while_it_serves_trains_and_is_killed(tiny_weights: Path, tmp_path: Path) -> None:
    overrides = '{"passes": 30, "learning_rate": 1e-6}'  # long enough to be met in the middle
    env = {"RLPROXY_STORE__KEY_FROM": "env", "RLPROXY_STORE_KEY": KEY, "RLPROXY_TRAIN__OVERRIDES": overrides, **LENIENT}
    serving = Serving(tmp_path / "home", tiny_weights, "--start-at", "8", **env)
    await serving.start()
    for n in range(8):
        answer, _ = await serving.chat(f"{PLANTED} {n}", max_tokens=4)
        body = {"completion_id": answer["id"], "rating": "good" if n % 2 else "bad", "comment": f"{PLANTED} why"}
        async with serving.http.post("/v1/feedback", json=body) as response:
            assert response.status == 201
    async with asyncio.timeout(200):
        while "step" not in (await serving.status())["training"]["progress"]:
            await asyncio.sleep(0.1)
    trainer = serving.trainer()
    assert trainer is not None
    shown = repr(trainer.cmdline()) + repr(trainer.environ())
    assert KEY not in shown and KEY not in repr(psutil.Process(serving.process.pid).cmdline())
    beside = {str(f.relative_to(serving.home)) for f in serving.home.rglob("*") if f.is_file()}
    assert {"rlproxy.db", "rlproxy.db-wal", "rlproxy.db-shm", "runs/r00001/samples.jsonl"} <= beside
    assert any(name.startswith("runs/r00001/cache/") for name in beside)
    assert in_the_clear(serving.home) == []
    await serving.kill()
    assert in_the_clear(serving.home) == []
    await serving.start()  # the run goes on with the key that the database has
    await until_quiet(serving)
    assert await serving.stop() == 0, serving.log
    assert in_the_clear(serving.home) == [] and KEY not in serving.log

    store = await Store.open(serving.home, Secret(KEY))
    try:
        (run,) = await store.runs.recent()
        assert run.status in ("done", "rejected", "empty"), run.reason
        found = await store.completions.get(answer["id"])
        assert found is not None and PLANTED in str(found.new.prompt)
    finally:
        await store.close()
