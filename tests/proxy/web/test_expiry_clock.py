"""A clock that is set: nothing goes early, nothing changes its order."""

from __future__ import annotations

import asyncio
import time

import pytest

from proxy.web import expiry_clock
from proxy.web.expiry_clock import Calendar
from scripts.harness.in_process import Proxy
from store.records import Link
from tests.harness.polling import Polls
from tests.harness.runs import rated, until

HOUR, DAY, YEAR = 3600.0, 86400.0, 365 * 86400.0
WEEK = 7 * DAY


class Moved:
    """A wall clock and a steady one."""

    def __init__(self) -> None:
        self.wall, self.passed = 1_000_000_000.0, 50.0
        self.calendar = Calendar(WEEK, lambda: self.wall, lambda: self.passed)

    def live(self, seconds: float, drift: float = 0.0) -> None:
        """Time goes by, and is looked at as often as the sweep does."""
        while seconds > 0:
            step = min(seconds, 600.0)
            self.wall, self.passed = self.wall + step + drift, self.passed + step
            self.calendar.now()
            seconds -= step


def test_without_a_jump_it_is_the_clock() -> None:
    moved = Moved()
    moved.live(30 * DAY, drift=0.5)
    assert moved.calendar.now() == moved.wall


def test_a_jump_forward_is_believed_when_all_of_before_has_had_its_time() -> None:
    moved = Moved()
    before = moved.wall
    moved.wall += YEAR
    assert moved.calendar.now() == before
    moved.live(WEEK - HOUR)
    assert moved.calendar.now() == before + WEEK - HOUR
    moved.live(HOUR)
    assert moved.calendar.now() == moved.wall == before + YEAR + WEEK


def test_one_that_is_taken_back_has_changed_nothing() -> None:
    moved = Moved()
    moved.wall += YEAR
    moved.live(DAY)
    moved.wall -= YEAR
    assert moved.calendar.now() == moved.wall
    moved.wall += YEAR  # and from now on its time begins anew
    moved.live(WEEK - HOUR)
    assert moved.calendar.now() == moved.wall - YEAR


def test_a_second_jump_begins_anew() -> None:
    moved = Moved()
    before = moved.wall
    moved.wall += DAY
    moved.live(WEEK - HOUR)
    moved.wall += DAY
    moved.live(2 * HOUR)
    assert moved.calendar.now() == before + WEEK + HOUR


def test_a_jump_back_is_believed_at_once() -> None:
    moved = Moved()
    moved.wall -= YEAR
    assert moved.calendar.now() == moved.wall
    moved.live(DAY)
    assert moved.calendar.now() == moved.wall


def test_the_steady_clock_goes_on() -> None:
    before = expiry_clock.steady()
    time.sleep(0.01)
    assert expiry_clock.steady() >= before + 0.01


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """By how much everybody's clock is wrong."""
    off, real = [0.0], time.time
    monkeypatch.setattr(time, "time", lambda: real() + off[0])
    return off


async def test_nothing_expires_early_when_the_clock_is_set_forward(
    proxy: Proxy, wall: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.web.retention.EVERY_S", 0.02)
    await proxy.stop()
    await proxy.start()
    await (await proxy.chat("kept")).read()
    wall[0] = YEAR
    await asyncio.sleep(0.2)  # several sweeps
    assert len((await proxy.get("/rl/completions"))["data"]) == 1
    wall[0] = -YEAR
    await asyncio.sleep(0.2)
    assert len((await proxy.get("/rl/completions"))["data"]) == 1


async def test_the_last_one_is_the_last_whatever_the_clock_says(proxy: Proxy, wall: list[float]) -> None:
    await (await proxy.chat("first")).read()
    wall[0] = -YEAR
    response = await proxy.chat("second")
    second = response.headers["x-rl-completion-id"]
    await response.read()
    assert (await proxy.get("/rl/completions"))["data"][0]["id"] == second
    _, told = await proxy.rate(completion_id="last", rating="good")
    assert told["completion_id"] == second
    await proxy.rate(completion_id="last", rating="bad")
    stored = await proxy.store.completions.get(second)
    assert stored is not None and [rating.value for rating in stored.ratings] == [-1.0]
    async with proxy.http.delete("/v1/feedback/last") as response:
        assert response.status == 200
    stored = await proxy.store.completions.get(second)
    assert stored is not None and stored.ratings == ()


async def test_quiet_is_time_that_has_passed(proxy: Proxy, wall: list[float]) -> None:
    await proxy.stop()
    await proxy.start(train__quiet_s=30)
    await rated(proxy, 4)
    for wall[0] in (YEAR, -YEAR):
        waits = (await proxy.get("/rl/status"))["training"]["waits_for"]
        assert "s without a request (train.quiet_s)" in waits
        assert 0 < float(waits.split("waiting for ")[1].split(" s")[0]) <= 30


async def test_new_ratings_are_new_after_the_clock_was_set_back(proxy: Proxy, wall: list[float]) -> None:
    proxy.launcher.outcome = "rejected"
    wall[0] = YEAR
    await rated(proxy, 4)
    await until(proxy, ended="rejected")
    wall[0] = 0.0
    proxy.launcher.outcome = "passed"
    await rated(proxy, 2)
    await until(proxy, live=1)


async def test_the_watch_compares_what_was_rated_before_the_swap(proxy: Proxy, wall: list[float]) -> None:
    before = []
    for i in range(5):
        response = await proxy.chat(f"question {i}")
        await response.read()
        before.append(response.headers["x-rl-completion-id"])
    for id in before[:4]:
        await proxy.rate(completion_id=id, rating="good")
    await until(proxy, live=1)
    wall[0] = -YEAR
    await proxy.rate(completion_id=before[4], rating="bad")  # after the swap, whatever the clock says
    assert (await proxy.get("/rl/status"))["watch"]["old"] == {"good": 4, "rated": 4}


async def test_the_newest_message_of_a_channel_is_that_of_the_newest_answer(proxy: Proxy, wall: list[float]) -> None:
    for message in ("first", "second"):
        response = await proxy.chat(message)
        await response.read()
        id = response.headers["x-rl-completion-id"]
        await proxy.store.reactions.link(Link("slack", "C1", message, id))
        wall[0] = -YEAR
    (newest,) = await proxy.store.reactions.newest_linked("slack", "C1", "U1")
    assert newest.completion_id == id


async def test_a_rollback_stays_one_when_the_clock_was_set_back_before_it(proxy: Proxy, wall: list[float]) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    wall[0] = -YEAR
    await proxy.post("/rl/rollback")
    await proxy.stop()
    await proxy.start()
    await asyncio.sleep(0.1)
    assert (await proxy.get("/rl/status"))["live"] == 0


async def test_a_published_version_goes_live_after_a_crash_though_the_clock_was_set_back(
    proxy: Proxy, wall: list[float]
) -> None:
    await rated(proxy, 4)
    await until(proxy, live=1)
    wall[0] = -YEAR
    proxy.backend.refuse_load = True
    await rated(proxy, 4)
    async for _ in Polls():
        if len((await proxy.get("/rl/adapters"))["data"]) == 2:
            break
    await proxy.stop()
    proxy.backend.refuse_load = False
    await proxy.start()
    await until(proxy, live=2)
