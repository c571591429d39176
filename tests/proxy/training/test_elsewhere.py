"""Runs elsewhere, as the supervisor sees them: a place that refuses, is away, or has the run already."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from proxy.cli.doctor.checks import place
from proxy.cli.doctor.facts import DoctorFacts
from scripts.harness.in_process import Proxy
from tests.harness.runs import rated, until

AWAY = "gpu.lan does not answer (No route to host)."


async def until_training(proxy: Proxy, **members: Any) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            status = await proxy.get("/rl/status")
            if all(status["training"][name] == value for name, value in members.items()):
                return dict(status)
            await asyncio.sleep(0.02)


async def test_no_rating_is_claimed_for_a_place_that_refuses(proxy: Proxy) -> None:
    proxy.launcher.place, proxy.launcher.refuses_runs = "ssh://gpu.lan", AWAY
    await rated(proxy, 4)
    status = await until_training(proxy, waits_for=AWAY)
    assert status["ratings"]["fresh"] == 4 and proxy.launcher.started == [] and status["last_run"] is None
    assert status["training"]["place"] == {"line": AWAY, "problem": AWAY}
    check = place(cast(DoctorFacts, SimpleNamespace(status=status)))
    assert (check.state, check.line) == ("problem", AWAY)
    assert (await proxy.post("/rl/train"))[0] == 409
    proxy.launcher.refuses_runs = None
    assert (await proxy.post("/rl/train"))[0] == 202  # it is asked again
    status = await until(proxy, live=1)
    check = place(cast(DoctorFacts, SimpleNamespace(status=status)))
    assert (check.state, check.line) == ("ok", "runs train at ssh://gpu.lan, which answers")


async def test_a_run_waits_for_a_place_that_is_away_and_no_attempt_is_spent(proxy: Proxy) -> None:
    proxy.launcher.place, proxy.launcher.unreachable = "ssh://gpu.lan", AWAY
    await rated(proxy, 4)
    await until_training(proxy, waits_for=f"run 1 waits at its last step: {AWAY}")
    (run,) = await proxy.store.runs.unfinished()
    assert run.attempts == 0
    proxy.launcher.unreachable = None
    await until_training(proxy, run=None, waits_for="there are no fresh ratings")
    (run,) = await proxy.store.runs.recent(limit=1)
    assert (run.status, run.attempts) == ("done", 1)
    assert proxy.launcher.forgotten == [proxy.launcher.started[0]]


async def test_a_run_that_was_found_at_work_spends_no_attempt(proxy: Proxy) -> None:
    proxy.launcher.under_way = True
    await rated(proxy, 4)
    await until(proxy, live=1)
    (run,) = await proxy.store.runs.recent(limit=1)
    assert (run.status, run.attempts) == ("done", 0)


async def test_a_cancelled_run_is_forgotten_elsewhere_too(proxy: Proxy) -> None:
    proxy.launcher.hold = True
    await rated(proxy, 4)
    await until_training(proxy, run=1)
    while not proxy.launcher.started:
        await asyncio.sleep(0.01)
    assert (await proxy.post("/rl/cancel"))[0] == 200
    await until(proxy, ended="cancelled")
    assert set(proxy.launcher.forgotten) == set(proxy.launcher.started)
