"""When to train, and what becomes of a run: published, rejected, crashed, paused, resumed."""

from __future__ import annotations

import asyncio
import fcntl
import json
from datetime import datetime
from typing import Any

import pytest
from structlog.testing import capture_logs

from proxy.training.system_load import Machine, MachineUse
from scripts.harness.in_process import Proxy
from store.copies import backup
from store.file import schema
from store.learning.samples import SampleRequirements
from tests.harness.lines import create, rate, until_live
from tests.harness.polling import Polls
from tests.harness.runs import rated, until


@pytest.fixture(autouse=True)
def events_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let events alone wake the learner. Tests of its regular look set a shorter period."""
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 3600.0)


async def test_a_run_starts_by_itself_at_the_threshold(proxy: Proxy) -> None:
    await rated(proxy, 3)
    assert (await proxy.get("/rl/status"))["training"]["waits_for"] == "3 of 4 fresh ratings (train.start_at)"
    assert proxy.launcher.started == []
    await rated(proxy, 1, "bad")
    status = await until(proxy, live=1)
    assert status["ratings"]["fresh"] == 0 and status["baseline"] == 0.25
    response = await proxy.chat("x")
    assert response.headers["x-rl-adapter"] == "v1"


async def test_a_run_is_cancelled_in_the_moment_of_its_claim(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is open by then, and the learner does not have it yet: it must not end it a second time."""
    claim = proxy.store.samples.claim

    async def claimed(wanted: SampleRequirements) -> Any:
        found = await claim(wanted)
        if found is not None:
            assert await proxy.post("/rl/cancel") == (200, {"cancelled": 1})
            monkeypatch.undo()
        return found

    monkeypatch.setattr(proxy.store.samples, "claim", claimed)
    with capture_logs() as logs:
        await rated(proxy, 4)
        status = await until(proxy, ended="cancelled", runs=1)
        assert status["last_run"]["reason"] == "cancelled by a person" and proxy.launcher.started == []
        assert (await proxy.post("/rl/train"))[0] == 202
        await until(proxy, live=1)
    assert "learner" not in [one["event"] for one in logs]


async def test_a_run_is_cancelled_at_work_and_while_it_waits(proxy: Proxy) -> None:
    assert (await proxy.post("/rl/cancel"))[0] == 409
    proxy.launcher.hold = True
    await rated(proxy, 4)
    for run in (1, 2):
        while (await proxy.get("/rl/status"))["training"]["run"] != run or len(proxy.launcher.started) < run:
            await asyncio.sleep(0.01)
        if run == 2:
            await proxy.post("/rl/pause")
            while (await proxy.get("/rl/status"))["training"]["run"] is not None:
                await asyncio.sleep(0.01)
            (proxy.launcher.started[-1] / "checkpoint").mkdir()
        assert await proxy.post("/rl/cancel") == (200, {"cancelled": run})
        status = await until(proxy, ended="cancelled", runs=run)
        assert status["last_run"]["reason"] == "cancelled by a person" and status["ratings"]["fresh"] >= 4
        assert not (proxy.launcher.started[-1] / "checkpoint").exists()
        assert (await proxy.post("/rl/cancel"))[0] == 409
        if run == 1:  # the same ratings do not start it again by themselves
            assert "of 6 fresh ratings" in status["training"]["waits_for"]
            await rated(proxy, 2)


async def test_a_run_is_cancelled_by_several_at_once(proxy: Proxy) -> None:
    """One of them does it; to the others it has ended, which is no fault of the store."""
    proxy.launcher.hold = True
    await rated(proxy, 4)
    while len(proxy.launcher.started) < 1:
        await asyncio.sleep(0.01)
    await proxy.post("/rl/pause")
    while (await proxy.get("/rl/status"))["training"]["run"] is not None:
        await asyncio.sleep(0.01)
    answers = await asyncio.gather(*(proxy.post("/rl/cancel") for _ in range(6)))
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409, 409, 409]


async def test_a_run_is_cancelled_right_after_it_was_asked_for(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` has answered, and the learner has not begun yet: that run is what is meant."""
    proxy.launcher.hold = True
    claim, claiming = proxy.store.samples.claim, asyncio.Event()

    async def slowly(wanted: SampleRequirements) -> Any:
        claiming.set()
        await asyncio.sleep(0.2)
        return await claim(wanted)

    monkeypatch.setattr(proxy.store.samples, "claim", slowly)
    await rated(proxy, 3)
    assert (await proxy.post("/rl/train"))[0] == 202
    assert await proxy.post("/rl/cancel") == (200, {"cancelled": 1})
    await until(proxy, ended="cancelled")
    await rated(proxy, 2)
    claiming.clear()
    assert (await proxy.post("/rl/train"))[0] == 202
    await claiming.wait()
    assert await proxy.post("/rl/cancel") == (200, {"cancelled": 2})
    await until(proxy, ended="cancelled", runs=2)
    await proxy.post("/rl/pause")  # nothing begins: nothing is waited for
    assert (await proxy.post("/rl/cancel"))[0] == 409


async def no_further_run(proxy: Proxy) -> None:
    """It is cancelled, and neither a run nor an order is left."""
    async with asyncio.timeout(10):
        assert await proxy.post("/rl/cancel") == (200, {"cancelled": 1})
    await until(proxy, ended="cancelled")
    await asyncio.sleep(0.2)
    assert (await proxy.get("/rl/status"))["training"]["run"] is None and len(proxy.launcher.started) == 1
    async with asyncio.timeout(10):
        assert (await proxy.post("/rl/cancel"))[0] == 409


async def begun(proxy: Proxy) -> None:
    async with asyncio.timeout(10):
        while not proxy.launcher.started:
            await asyncio.sleep(0.01)


async def test_a_click_whose_checks_end_after_the_run_has_begun_is_refused(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.launcher.hold = True
    await rated(proxy, 3)
    fresh, looks, looked, goes_on = proxy.store.samples.fresh, [0], asyncio.Event(), asyncio.Event()

    async def slowly(**settings: Any) -> Any:
        counts = await fresh(**settings)
        looks[0] += 1
        if looks[0] == 2:  # the first is about the base model
            looked.set()
            await goes_on.wait()
        return counts

    await asyncio.sleep(0.1)  # the learner has looked at the last rating
    monkeypatch.setattr(proxy.store.samples, "fresh", slowly)
    late = asyncio.create_task(proxy.post("/rl/train"))
    await looked.wait()
    assert (await proxy.post("/rl/train"))[0] == 202
    await begun(proxy)
    goes_on.set()
    status, body = await late
    assert status == 409 and body["error"]["message"] == "Run 1 is under way already."
    await no_further_run(proxy)


def hold_claim(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """Set when a run is being claimed; and to be set, for it to go on."""
    claim, claiming, goes_on = proxy.store.samples.claim, asyncio.Event(), asyncio.Event()

    async def wait_and_claim(requirements: SampleRequirements) -> Any:
        claiming.set()
        await goes_on.wait()
        return await claim(requirements)

    monkeypatch.setattr(proxy.store.samples, "claim", wait_and_claim)
    return claiming, goes_on


@pytest.mark.parametrize("count", [3, 4])
async def test_a_click_while_a_run_is_claimed_means_that_run(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """With three ratings that run was asked for, with four it begins by itself."""
    proxy.launcher.hold = True
    claiming, goes_on = hold_claim(proxy, monkeypatch)
    await rated(proxy, count)
    if count == 3:
        assert (await proxy.post("/rl/train"))[0] == 202
    await claiming.wait()
    assert (await proxy.post("/rl/train"))[0] == 202
    goes_on.set()
    await begun(proxy)
    await no_further_run(proxy)


async def test_a_click_for_another_line_while_a_run_is_claimed_is_kept(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(proxy, "ann")
    await rate(proxy, "ann", 1)
    claiming, goes_on = hold_claim(proxy, monkeypatch)
    await rated(proxy, 4)
    await claiming.wait()
    assert (await proxy.post("/rl/train?line=ann"))[0] == 202
    goes_on.set()
    await until_live(proxy, "ann", 2)


async def test_the_run_folder_says_everything(proxy: Proxy) -> None:
    for i in range(3):
        await proxy.chat(f"calibration {i}")
    await rated(proxy, 4)
    await until(proxy, live=1)
    folder = proxy.launcher.started[0]
    assert not (folder / "checkpoint").exists()
    order = json.loads((folder / "run.json").read_text())
    assert order["version"] == 1 and order["parent"] == 0 and order["adapters"] == {} and order["weights"] == "/nowhere"
    assert order["gate"]["base_nll_rise"] == 0.3 and order["preset"] == "balanced"
    assert (order["compute"], order["load_in_4bit"], order["offload"]) == ("auto", False, False)
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert len(samples) == 4
    one = samples[0]
    assert one["exact"] and len(one["token_ids"]) == len(one["logprobs"]) and one["prompt_token_ids"] == [1, 2, 3]
    assert one["reward"] == 1.0 and one["comment"] == "why" and one["messages"][0]["role"] == "user"
    assert one["sampling"] == {"temperature": 1.0, "top_p": 1.0}
    assert len((folder / "calibration.jsonl").read_text().splitlines()) == 3


async def test_each_rating_trains_once(proxy: Proxy) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    await rated(proxy, 4)
    await until(proxy, live=2)
    lines = [line for f in proxy.launcher.started for line in (f / "samples.jsonl").read_text().splitlines()]
    trained = [json.loads(line)["rating"] for line in lines]
    assert len(trained) == len(set(trained)) == 8
    order = json.loads((proxy.launcher.started[1] / "run.json").read_text())
    assert order["parent"] == 1 and order["baseline"] == 0.25 and list(order["adapters"]) == ["1"]


async def test_a_rejected_run_gives_its_ratings_back_and_waits_for_new_ones(proxy: Proxy) -> None:
    proxy.launcher.outcome = "rejected"
    await rated(proxy, 4)
    status = await until(proxy, ended="rejected")
    assert status["live"] == 0 and status["ratings"]["fresh"] == 4 and status["ratings"]["needed"] == 6
    assert "gave its ratings back" in status["training"]["waits_for"]
    assert len(proxy.launcher.started) == 1
    proxy.launcher.outcome = "passed"
    await rated(proxy, 2)
    assert (await until(proxy, live=1))["ratings"]["fresh"] == 0


async def test_a_rejected_run_of_all_it_may_take_is_not_repeated_at_once(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    await proxy.stop()
    await proxy.start(train__max_samples=4)
    proxy.launcher.outcome = "rejected"
    await rated(proxy, 4)
    await until(proxy, ended="rejected")
    await asyncio.sleep(0.3)
    assert len(proxy.launcher.started) == 1
    await rated(proxy, 2)
    await until(proxy, ended="rejected", runs=2)


async def test_what_a_run_told_in_another_phase_is_no_progress_of_this_one(proxy: Proxy) -> None:
    proxy.launcher.hold = True
    proxy.launcher.progress = [{"event": "phase", "phase": "train", "again": "base_nll is 0.5, the bound is 0.3"}]
    await rated(proxy, 4)
    async with asyncio.timeout(10):
        while "second try" not in (line := (await proxy.get("/rl/status"))["training"]["line"]):
            await asyncio.sleep(0.02)
    assert line.startswith("run 1, stage 3 of 5, second try: training")


async def test_by_hand(proxy: Proxy) -> None:
    status, body = await proxy.post("/rl/train")
    assert status == 409 and "no fresh ratings" in body["error"]["message"]
    await rated(proxy, 1)
    assert (await proxy.post("/rl/train"))[0] == 202
    await until(proxy, live=1)


async def test_a_trainer_that_crashes_is_started_again(proxy: Proxy) -> None:
    proxy.launcher.crashes = 2
    await rated(proxy, 4)
    status = await until(proxy, live=1)
    assert status["last_run"]["attempts"] == 3


async def test_after_an_older_backup_no_run_takes_the_folder_of_one_that_was(proxy: Proxy) -> None:
    await proxy.say("to be kept")
    await asyncio.to_thread(backup.backup, proxy.home / schema.NAME, proxy.home / "before.db")
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.stop()
    await asyncio.to_thread(backup.restore, proxy.home, proxy.home / "before.db")
    await proxy.start()
    assert (await proxy.get("/rl/status"))["live"] == 0
    await rated(proxy, 4)
    status = await until(proxy, live=2)
    assert status["last_run"]["id"] == 2 and len(proxy.launcher.started) == 2
    assert {folder.name for folder in (proxy.home / "runs").iterdir()} == {"r00001", "r00002"}


async def test_a_trainer_that_always_crashes_gives_up(proxy: Proxy) -> None:
    proxy.launcher.crashes = 99
    await rated(proxy, 4)
    status = await until(proxy, ended="failed")
    assert status["live"] == 0 and status["ratings"]["fresh"] == 4
    assert len(proxy.launcher.started) == 3 and "3 times" in status["last_run"]["reason"]


async def test_a_trainer_that_uses_too_much_memory_is_not_started_again(proxy: Proxy) -> None:
    proxy.launcher.exceeds = "it used 9.0 GB of memory, 8 GB are allowed"
    await rated(proxy, 4)
    status = await until(proxy, ended="failed")
    assert status["last_run"]["reason"] == "it used 9.0 GB of memory, 8 GB are allowed (train.max_memory_gb)"
    assert status["ratings"]["fresh"] == 4 and len(proxy.launcher.started) == 1


async def test_a_trainer_that_hangs_is_ended_and_started_again(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__stall_minutes=0.005)
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async for _ in Polls():
        if len(proxy.launcher.started) == 2:
            break
    problem = (await proxy.get("/rl/status"))["problem"]
    assert "run 1 was started again" in problem and "nothing for 0.005 minutes" in problem
    proxy.launcher.hold = False
    status = await until(proxy, live=1)
    assert status["problem"] is None and status["last_run"]["attempts"] >= 2


async def test_a_trainer_that_always_hangs_gives_up(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__stall_minutes=0.001)
    proxy.launcher.hold = True
    await rated(proxy, 4)
    status = await until(proxy, ended="failed")
    assert status["ratings"]["fresh"] == 4 and len(proxy.launcher.started) == 3
    assert "One of those times it had said nothing" in status["last_run"]["reason"]
    assert await proxy.say("still there") == "You said: still there "


async def test_a_trainer_that_says_that_it_is_alive_is_left_alone(proxy: Proxy) -> None:
    await proxy.stop()
    await proxy.start(train__stall_minutes=0.02)
    proxy.launcher.progress, proxy.launcher.every_s = [{"event": "alive"}] * 6, 0.3
    await rated(proxy, 4)
    status = await until(proxy, live=1)
    assert status["last_run"]["attempts"] == 1 and "alive" not in status["training"]["progress"]


async def test_a_trainer_that_finds_another_at_work_waits(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.training.run_supervisor.HELD_PAUSE_S", 0.01)
    proxy.launcher.busy_runs = 5
    await rated(proxy, 4)
    status = await until(proxy, live=1)
    assert status["last_run"]["attempts"] == 1 and len(proxy.launcher.started) == 6


async def test_nobody_is_started_beside_the_other_one(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that waits for a long batch of replies would share its processor with one process after the other."""
    monkeypatch.setattr("proxy.training.run_supervisor.HELD_PAUSE_S", 0.2)
    proxy.launcher.busy_runs = 1
    await rated(proxy, 4)
    async for _ in Polls():
        if proxy.launcher.started:
            break
    with (proxy.launcher.started[0] / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        await asyncio.sleep(1.5)
        assert len(proxy.launcher.started) == 1
    await until(proxy, live=1)
    assert len(proxy.launcher.started) == 2


async def test_an_adapter_that_is_corrupt_is_not_published(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.fakes import launcher

    real = launcher.write_adapter

    def rotten(folder: Any, *more: Any) -> None:
        real(folder, *more)
        (folder / "adapter_model.safetensors").write_bytes(b"rot")

    monkeypatch.setattr(launcher, "write_adapter", rotten)
    await rated(proxy, 4)
    status = await until(proxy, ended="failed")
    assert "corrupt" in status["last_run"]["reason"] and status["live"] == 0


async def test_pause_and_resume(proxy: Proxy) -> None:
    await proxy.post("/rl/pause")
    await rated(proxy, 4)
    assert (await proxy.get("/rl/status"))["training"]["waits_for"].startswith("paused")
    await proxy.stop()
    await proxy.start()
    assert (await proxy.get("/rl/status"))["training"]["paused"] is True  # across a restart
    await proxy.post("/rl/resume")
    await until(proxy, live=1)


async def test_pause_in_the_middle_of_a_run(proxy: Proxy) -> None:
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["training"]["progress"]:
            break
    assert (await proxy.post("/rl/train"))[0] == 409  # one at a time
    await proxy.post("/rl/pause")
    proxy.launcher.hold = False
    await asyncio.sleep(0.1)
    assert (await proxy.get("/rl/status"))["live"] == 0
    await proxy.post("/rl/resume")
    await until(proxy, live=1)
    assert len({str(f) for f in proxy.launcher.started}) == 1  # the same run went on


async def test_a_restart_in_the_middle_of_a_run(proxy: Proxy) -> None:
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async for _ in Polls():
        if proxy.launcher.started:
            break
    await proxy.stop()
    proxy.launcher.hold = False
    await proxy.start()
    status = await until(proxy, live=1)
    assert status["last_run"]["id"] == 1
    assert status["last_run"]["attempts"] == 1  # being told to stop is no failure


async def test_a_version_published_just_before_a_crash_goes_live(proxy: Proxy) -> None:
    proxy.backend.refuse_load = True
    await rated(proxy, 4)
    async for _ in Polls():
        if (await proxy.get("/rl/adapters"))["data"]:
            break
    await proxy.stop()
    proxy.backend.refuse_load = False
    await proxy.start()
    await until(proxy, live=1)


async def test_reset_starts_over_and_deletes_nothing(proxy: Proxy) -> None:
    proxy.launcher.result = {"episode_baseline_after": 0.7}
    await rated(proxy, 4)
    await until(proxy, live=1)
    await proxy.post("/rl/reset")
    status = await proxy.get("/rl/status")
    assert status["live"] == 0 and status["baseline"] == 0.0
    assert len((await proxy.get("/rl/adapters"))["data"]) == 1
    await rated(proxy, 4)
    await until(proxy, live=2)
    order = json.loads((proxy.launcher.started[1] / "run.json").read_text())
    assert (order["parent"], order["baseline"], order["episode_baseline"]) == (0, 0.0, 0.0)


NIGHT, NOON = datetime(2026, 11, 16, 23, 0), datetime(2026, 11, 16, 12, 0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[datetime]:
    """What the wall shows; the learner looks at it often."""
    shown = [NIGHT]
    monkeypatch.setattr("proxy.training.preconditions.local_time", lambda: shown[0])
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    return shown


async def waits_for(proxy: Proxy, why: str) -> dict[str, Any]:
    async for _ in Polls():
        status = dict(await proxy.get("/rl/status"))
        if why in (status["training"]["waits_for"] or ""):
            return status
    pytest.fail(f"not reached: {status['training']}")


async def test_no_run_starts_outside_its_hours(proxy: Proxy, clock: list[datetime]) -> None:
    await proxy.stop()
    clock[0] = NOON
    await proxy.start(train__hours=["22:00-07:00"])
    await rated(proxy, 4)
    await waits_for(proxy, "outside the hours of training until Mon 22:00 (train.hours)")
    assert proxy.launcher.started == []
    clock[0] = NIGHT
    await until(proxy, live=1)


async def test_a_run_waits_when_its_hours_end_and_goes_on_in_the_next(proxy: Proxy, clock: list[datetime]) -> None:
    await proxy.stop()
    await proxy.start(train__hours=["22:00-07:00"])
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["training"]["progress"]:
            break
    clock[0] = NOON
    for _ in range(200):
        status = await waits_for(proxy, "run 1 waits at its last step: outside the hours of training")
        if status["last_run"]["attempts"] == 0:  # read a moment before the rest of the status
            break
    assert status["training"]["run"] is None and status["last_run"]["attempts"] == 0  # no failed attempt
    proxy.launcher.hold = False
    await proxy.stop()
    await proxy.start(train__hours=["22:00-07:00"])
    await waits_for(proxy, "run 1 waits")
    clock[0] = NIGHT
    status = await until(proxy, live=1)
    assert status["last_run"]["attempts"] == 1 and len({str(f) for f in proxy.launcher.started}) == 1


async def test_who_asks_by_hand_does_not_wait_for_the_hours(proxy: Proxy, clock: list[datetime]) -> None:
    await proxy.stop()
    clock[0] = NOON
    await proxy.start(train__hours=["22:00-07:00"])
    await rated(proxy, 4)
    proxy.launcher.hold = True
    assert (await proxy.post("/rl/train"))[0] == 202
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["training"]["run"]:
            break
    await asyncio.sleep(0.1)
    assert (await proxy.get("/rl/status"))["training"]["run"] == 1  # the rules were looked at, several times
    await proxy.stop()
    proxy.launcher.hold = False
    await proxy.start(train__hours=["22:00-07:00"])
    await until(proxy, live=1)


async def test_a_run_that_waits_goes_on_by_hand(proxy: Proxy, clock: list[datetime]) -> None:
    await proxy.stop()
    await proxy.start(train__hours=["22:00-07:00"])
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["training"]["progress"]:
            break
    clock[0] = NOON
    await waits_for(proxy, "run 1 waits")
    proxy.launcher.hold = False
    status, body = await proxy.post("/rl/train")
    assert status == 202 and body["why"] == "run 1 goes on"
    await until(proxy, live=1)


async def test_short_memory_stops_a_run_and_is_no_failed_attempt(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    free = [8.0]
    monkeypatch.setattr("proxy.training.run_supervisor.RECHECK_S", 0.02)
    monkeypatch.setattr(Machine, "look", lambda self, now, trainer=None: MachineUse(free[0]))
    await proxy.stop()
    await proxy.start(train__min_free_memory_gb=2.0)
    proxy.launcher.hold = True
    await rated(proxy, 4)
    async for _ in Polls():
        if (await proxy.get("/rl/status"))["training"]["progress"]:
            break
    free[0] = 1.0
    await waits_for(proxy, "1.0 GB of memory free, 2 GB are needed (train.min_free_memory_gb)")
    status, body = await proxy.post("/rl/train")
    assert status == 409 and "memory" in body["error"]["message"]
    proxy.launcher.hold = False
    free[0] = 8.0
    assert (await until(proxy, live=1))["last_run"]["attempts"] == 1


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"train__enabled": False}, "training is off"),
        ({"train__min_each": 2}, "2 of each kind"),
        ({"train__quiet_s": 1000.0}, "without a request"),
        ({"train__min_free_memory_gb": 1e6}, "memory free"),
        ({"train__weights": ""}, "train.weights"),
        ({"train__max_cpu_percent": 50.0}, "being measured (train.max_cpu_percent)"),
    ],
)
async def test_why_nothing_trains(proxy: Proxy, flags: dict[str, Any], why: str) -> None:
    await proxy.stop()
    await proxy.start(**flags)
    await rated(proxy, 4)
    status = await proxy.get("/rl/status")
    assert why in status["training"]["waits_for"] and proxy.launcher.started == []


async def test_without_the_train_extra_the_rest_works(proxy: Proxy) -> None:
    proxy.launcher.lacks = "Training needs torch: pip install 'rlproxy[train]'"
    await rated(proxy, 4)
    assert "rlproxy[train]" in (await proxy.get("/rl/status"))["training"]["waits_for"]
