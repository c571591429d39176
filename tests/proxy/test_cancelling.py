"""A run is cancelled, paused or stopped at any moment, and what was answered about it is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.training import run_folder
from scripts.fakes.launcher import FakeJob, write_result
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until


class Gate:
    """Who calls that function waits here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._real = getattr(owner, name)
        monkeypatch.setattr(owner, name, self.through)

    async def through(self, *args: Any, **more: Any) -> Any:
        self.reached.set()
        await self.open.wait()
        return await self._real(*args, **more)


@pytest.mark.parametrize("also", [None, "/rl/pause"])
async def test_a_run_is_cancelled_while_it_is_prepared(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, also: str | None
) -> None:
    prepared = Gate(monkeypatch, proxy.store.opinions, "moments")
    await rated(proxy, 4)
    await prepared.reached.wait()
    assert await proxy.post("/rl/cancel") == (200, {"cancelled": 1})
    if also:
        await proxy.post(also)
    prepared.open.set()
    status = await until(proxy, ended="cancelled")
    assert status["last_run"]["reason"] == "cancelled by a person" and status["ratings"]["fresh"] == 4
    await proxy.post("/rl/resume")
    assert (await proxy.post("/rl/train"))[1]["why"] == "4 fresh ratings"
    status = await until(proxy, live=1)
    assert status["last_run"]["id"] == 2 and [folder.name for folder in proxy.launcher.started] == ["r00002"]


async def test_a_cancelled_run_does_not_go_on_after_a_restart(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Gate(monkeypatch, proxy.store.opinions, "moments")
    await rated(proxy, 4)
    await prepared.reached.wait()
    assert (await proxy.post("/rl/cancel"))[0] == 200
    stopping = asyncio.create_task(proxy.stop())
    await asyncio.sleep(0.1)
    prepared.open.set()
    await stopping
    await proxy.start()
    status = await until(proxy, ended="cancelled")
    assert status["last_run"]["reason"] == "cancelled by a person" and proxy.launcher.started == []


async def test_a_run_that_could_not_be_prepared_stays_cancelled(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    prepared = Gate(monkeypatch, proxy.store.opinions, "moments")

    def full(*args: Any, **more: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(run_folder, "write", full)
    await rated(proxy, 4)
    await prepared.reached.wait()
    assert (await proxy.post("/rl/cancel"))[0] == 200
    prepared.open.set()
    status = await until(proxy, ended="cancelled")
    assert status["last_run"]["reason"] == "cancelled by a person"


async def test_a_run_whose_version_is_about_to_go_live_is_not_said_to_be_cancelled(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.training.publish.RETRY_SWAP_S", (0.02,) * 1000)
    proxy.backend.refuse_load = True
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while "did not go live" not in ((await proxy.get("/rl/status"))["problem"] or ""):
            await asyncio.sleep(0.01)
    status, body = await proxy.post("/rl/cancel")
    assert status == 409 and body["error"]["message"].startswith("Run 1 had ended before that, and its result stays;")
    proxy.backend.refuse_load = False
    assert (await until(proxy, live=1))["ratings"]["fresh"] == 0


async def test_a_trainer_that_ends_with_a_result_when_it_is_cancelled_is_not_said_to_be(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was at its last step: the result is there by the time that it has stopped."""
    stop = FakeJob.terminate

    async def finish(job: FakeJob) -> None:
        if run_folder.result(job.folder) is None:
            write_result(job.folder, "passed", {})
        await stop(job)

    monkeypatch.setattr(FakeJob, "terminate", finish)
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while not (await proxy.get("/rl/status"))["training"]["progress"]:
            await asyncio.sleep(0.01)
    assert (await proxy.post("/rl/cancel"))[0] == 409
    assert (await until(proxy, live=1))["ratings"]["fresh"] == 0


async def test_a_trainer_that_was_paused_and_let_go_on_before_it_stopped_did_not_fail(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops = Gate(monkeypatch, FakeJob, "terminate")
    monkeypatch.setattr(FakeJob, "terminate", lambda job: stops.through(job))  # of any job
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while not (await proxy.get("/rl/status"))["training"]["progress"]:
            await asyncio.sleep(0.01)
    pausing = asyncio.create_task(proxy.post("/rl/pause"))
    await stops.reached.wait()
    await proxy.post("/rl/resume")
    proxy.launcher.hold = False
    stops.open.set()
    await pausing
    status = await until(proxy, live=1)
    assert status["last_run"]["attempts"] == 1 and len(proxy.launcher.started) == 2


async def test_a_trainer_that_hung_has_failed_whatever_is_said_while_it_is_ended(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await proxy.stop()
    await proxy.start(train__stall_minutes=0.005)
    stops = Gate(monkeypatch, FakeJob, "terminate")
    monkeypatch.setattr(FakeJob, "terminate", lambda job: stops.through(job))  # of any job
    proxy.launcher.hold = True
    await rated(proxy, 4)
    await stops.reached.wait()
    assert (await proxy.post("/rl/pause"))[0] == (await proxy.post("/rl/resume"))[0] == 200
    proxy.launcher.hold = False
    stops.open.set()
    assert (await until(proxy, live=1))["last_run"]["attempts"] == 2
