"""A run is cancelled, paused or stopped at any moment, and what was answered about it is true."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy import run_folder
from tests.proxy.conftest import Proxy
from tests.proxy.test_learner import rated, until


class Gate:
    """What goes through a function of the store waits here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.reached, self.open = asyncio.Event(), asyncio.Event()
        self._real = getattr(owner, name)
        monkeypatch.setattr(owner, name, self._through)

    async def _through(self, *args: Any, **more: Any) -> Any:
        self.reached.set()
        await self.open.wait()
        return await self._real(*args, **more)


@pytest.mark.parametrize("also", [None, "/rl/pause"])
async def test_a_run_is_cancelled_while_it_is_prepared(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, also: str | None
) -> None:
    prepared = Gate(monkeypatch, proxy.store, "moments")
    await rated(proxy, 4)
    await prepared.reached.wait()
    assert await proxy.post("/rl/cancel") == (200, {"cancelled": 1})
    if also:
        await proxy.post(also)
    prepared.open.set()
    status = await until(proxy, ended="failed")
    assert status["last_run"]["reason"] == "cancelled by a person" and status["ratings"]["fresh"] == 4
    await proxy.post("/rl/resume")
    assert (await proxy.post("/rl/train"))[1]["why"] == "4 fresh ratings"
    status = await until(proxy, live=1)
    assert status["last_run"]["id"] == 2 and [folder.name for folder in proxy.launcher.started] == ["r00002"]


async def test_a_cancelled_run_does_not_go_on_after_a_restart(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = Gate(monkeypatch, proxy.store, "moments")
    await rated(proxy, 4)
    await prepared.reached.wait()
    assert (await proxy.post("/rl/cancel"))[0] == 200
    stopping = asyncio.create_task(proxy.stop())
    await asyncio.sleep(0.1)
    prepared.open.set()
    await stopping
    await proxy.start()
    status = await until(proxy, ended="failed")
    assert status["last_run"]["reason"] == "cancelled by a person" and proxy.launcher.started == []


async def test_a_run_that_could_not_be_prepared_stays_cancelled(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.learner.LOOK_AGAIN_S", 0.02)
    prepared = Gate(monkeypatch, proxy.store, "moments")

    def full(*args: Any, **more: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(run_folder, "write", full)
    await rated(proxy, 4)
    await prepared.reached.wait()
    assert (await proxy.post("/rl/cancel"))[0] == 200
    prepared.open.set()
    status = await until(proxy, ended="failed")
    assert status["last_run"]["reason"] == "cancelled by a person"
