"""How far a run is: one structure of the trainer's events and of earlier runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from proxy.training.run_state import RunProgress, StageTimes
from scripts.harness.in_process import Proxy
from store.records import Run
from tests.harness.runs import rated, until

SECONDS = {"seconds_load": 10.0, "seconds_old": 32.0, "seconds_train": 64.0, "seconds_gate": 90.0}
EARLIER = Run(
    id=1, status="done", model="m", version=1, parent=0, folder="", created_at=0.0, started_at=100.0, ended_at=300.0,
    samples=32, held=4, attempts=1, reason=None, result={"metrics": SECONDS},
)  # fmt: skip


def phases(*names: str, at: float = 1000.0, each: float = 10.0) -> list[dict[str, Any]]:
    start = {"event": "start", "device": "cpu", "at": at}
    return [start, *({"event": "phase", "phase": name, "at": at + n * each} for n, name in enumerate(names))]


def progress(*events: dict[str, Any], samples: int = 32, times: StageTimes | None = None) -> RunProgress:
    made = RunProgress(samples, times)
    for event in events:
        made.add(event)
    return made


def test_the_time_to_go_has_reading_and_gate_in_it() -> None:
    times = StageTimes.of([EARLIER], "m")
    assert times is not None and times.fixed["write"] == 4  # what no stage is timed for: imports, writing, publishing
    begun = progress(*phases("load"), times=times)
    assert begun.remaining_s(1000) == 200  # as long as the run before
    assert begun.remaining_s(1004) == 196
    twice = progress(*phases("load"), samples=64, times=times)
    assert twice.remaining_s(1000) == 200 + 32 + 64  # reading and steps go by the number of samples


def test_steps_say_how_long_steps_take_and_the_gate_is_added() -> None:
    step = {"event": "step", "step": 2, "steps": 8, "eta_s": 30.0, "at": 1050.0}
    run = progress(*phases("load", "old", "train", each=20), step, times=StageTimes.of([EARLIER], "m"))
    pace = 40 / 42  # loading and reading took 40 s, and 42 in the run before
    assert run.remaining_s(1050) == pytest.approx(30 + pace * 94)
    assert run.remaining_s(1060) == pytest.approx(20 + pace * 94)
    assert run.line(1050).startswith("stage 3 of 5: training, step 2 of 8, about 2 min to go")


def test_a_slow_machine_makes_the_rest_slow() -> None:
    run = progress(*phases("load", "old", "train", each=84), times=StageTimes.of([EARLIER], "m"))
    assert run.remaining_s(1168) == 4 * (64 + 90 + 4)


def test_checks_of_the_gate_are_counted() -> None:
    checks = {"event": "checks", "done": 7, "total": 13, "at": 1040.0}
    run = progress(*phases("load", "old", "train", "gate"), checks)
    assert run.line(1041).startswith("stage 4 of 5: checking the new version, check 7 of 13")
    assert run.body(1041)["remaining_s"] is None  # a first run does not know how long its gate takes


def test_a_busy_machine_is_said() -> None:
    run = progress(*phases("load", "old"))
    run.core_share = 0.31
    assert "the machine is busy, the run gets 31% of a core" in run.line(1011)
    run.core_share = 0.9
    assert "busy" not in run.line(1011)


def test_a_start_takes_time_and_a_busy_machine_is_said_before_the_first_stage() -> None:
    run = RunProgress(32, StageTimes.of([EARLIER], "m"))
    run.launched, run.core_share = 900.0, 0.02
    assert run.elapsed_s(960) == 60
    assert run.line(960).startswith("stage 1 of 5: starting") and "the run gets 2% of a core" in run.line(960)
    for event in phases("load", "old"):
        run.add(event)
    assert run.elapsed_s(1015) == 100 + 15
    assert run.remaining_s(1010) == pytest.approx(32 + 64 + 90 + 4)  # starting does not set the pace


def test_after_a_restart_the_time_counts_on_and_the_pause_is_no_work() -> None:
    run = RunProgress(32, StageTimes.of([EARLIER], "m"))
    run.replay(phases("load", "old", "train"))
    assert run.elapsed_s(5000) == 20 and run.events == {}
    for event in phases("load", at=5000):
        run.add(event)
    assert run.elapsed_s(5003) == 23 and run.line(5003).startswith("stage 1 of 5")


def test_runs_of_another_model_and_resumed_ones_teach_nothing() -> None:
    assert StageTimes.of([replace(EARLIER, model="n"), replace(EARLIER, attempts=2)], "m") is None
    assert StageTimes.of([replace(EARLIER, result=None)], "m") is None


async def test_a_run_under_way_says_its_stage_everywhere(proxy: Proxy) -> None:
    proxy.launcher.progress = [{"event": "phase", "phase": "gate"}, {"event": "checks", "done": 7, "total": 13}]
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async with asyncio.timeout(20):
        while not (status := await proxy.get("/rl/status"))["training"]["progress"].get("checks"):
            await asyncio.sleep(0.01)
    assert status["training"]["stage"]["line"] in status["training"]["line"]
    assert status["training"]["stage"] | {"elapsed_s": 0} == {
        "stage": "checking the new version", "number": 4, "stages": 5, "count": 7, "total": 13, "elapsed_s": 0,
        "remaining_s": None, "core_share": None, "line": status["training"]["stage"]["line"],
    }  # fmt: skip
    assert "stage 4 of 5: checking the new version, check 7 of 13" in await proxy.say("hello", "hi", "/rl status")
    await proxy.post("/rl/cancel")
    status = await until(proxy, ended="cancelled")
    assert status["training"]["stage"] is None


async def test_a_run_that_a_person_asked_for_does_not_step_back(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__nice=10, train__start_at=4)
    await rated(proxy, 4)
    await until(proxy, live=1)
    await rated(proxy, 1)
    await proxy.post("/rl/train")
    await until(proxy, live=2)
    assert proxy.launcher.nices == [10, 0]
