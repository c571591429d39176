"""An experiment keeps a run from starting: its end says which version the next run goes on from."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from scripts.harness.in_process import Proxy
from tests.harness.lines import create, rate, until_live
from tests.harness.polling import Polls
from tests.harness.runs import rated, until
from tests.proxy.versions.test_experiments import ended, rated_talks, start


async def running_experiment(proxy: Proxy, version: int) -> dict[str, Any]:
    async for _ in Polls():
        experiment = (await proxy.get("/rl/experiments"))["running"]
        if experiment is not None and experiment["version"] == version:
            return dict(experiment)
    pytest.fail(f"no experiment with v{version} runs")


async def compared(proxy: Proxy) -> None:
    """v1 has to win against the base model, and as many ratings as start a run came meanwhile."""
    await proxy.stop()
    await proxy.start(train__publish="by experiment")
    await rated(proxy, 4)
    await running_experiment(proxy, 1)
    await rated(proxy, 8)
    await asyncio.sleep(0.2)


async def test_ratings_wait_while_an_experiment_runs(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    await compared(proxy)
    status = await proxy.get("/rl/status")
    assert status["ratings"]["fresh"] == 8 and status["last_run"]["id"] == 1 and len(proxy.launcher.started) == 1
    assert status["training"]["waits_for"] == (
        "v1 is compared with the base model, and the ratings wait until that experiment ends; "
        "`rlproxy experiment stop` ends it"
    )
    code, body = await proxy.post("/rl/train")
    assert code == 409 and body["error"]["message"] == f"No run was started: {status['training']['waits_for']}."
    assert (await proxy.get("/rl/status"))["ratings"]["fresh"] == 8


async def test_they_train_as_soon_as_it_is_stopped(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 3600.0)
    await compared(proxy)
    await proxy.post("/rl/experiments/stop")
    await running_experiment(proxy, 2)
    status = await until(proxy, ended="done", runs=2)
    assert (status["last_run"]["parent"], status["last_run"]["samples"], status["ratings"]["fresh"]) == (0, 8, 0)


async def test_they_train_on_the_version_that_won(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 3600.0)
    await compared(proxy)
    await rated_talks(proxy, 40, {"v1": True, "base": False})
    assert (await ended(proxy))["outcome"] == "promoted"
    status = await until(proxy, ended="done", runs=2)
    assert status["last_run"]["parent"] == 1 and status["last_run"]["samples"] > 8


@pytest.mark.parametrize("publish", ["at once", "by experiment"])
async def test_another_line_waits_only_where_each_version_has_to_win(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, publish: str
) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    await proxy.stop()
    await proxy.start(train__publish="at once")
    await create(proxy, "ann")
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.post("/rl/rollback")
    await proxy.stop()
    await proxy.start(train__publish=publish)
    assert (await start(proxy, 1))[0] == 201
    await rate(proxy, "ann", 4)
    if publish == "at once":
        await until_live(proxy, "ann", 2)
        return
    await asyncio.sleep(0.2)
    status = await proxy.get("/rl/status?line=ann")
    assert "v1 is compared with the base model" in status["training"]["waits_for"] and status["ratings"]["fresh"] == 4
