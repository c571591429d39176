from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from config.sections import Train
from proxy.training.schedule_rules import blocking_rule, countdown, enough, ratings_threshold
from proxy.training.system_load import MachineUse
from store.records import Fresh, Run

MONDAY_NOON = datetime(2026, 11, 16, 12, 0)
IDLE = MachineUse(free_gb=8.0, cpu_percent=5.0, gpu_percent=0.0, gpu_free_gb=20.0)
ENOUGH = Fresh(good=20, bad=20, neutral=0, stale=0)


def kept(use: MachineUse = IDLE, *, by_hand: bool = False, starting: bool = True, **train: Any) -> str | None:
    return blocking_rule(Train(**train), use, MONDAY_NOON, by_hand=by_hand, starting=starting)


@pytest.mark.parametrize(
    ("train", "fresh", "silent_s", "why"),
    [
        ({}, ENOUGH, 0.0, None),
        ({"start_at": 41}, ENOUGH, 0.0, "40 of 41 fresh ratings (train.start_at)"),
        ({"min_each": 21}, ENOUGH, 0.0, "21 of each kind are needed: 20 good, 20 bad (train.min_each)"),
        ({"quiet_s": 60.0}, ENOUGH, 20.0, "waiting for 40 s without a request (train.quiet_s)"),
        ({"quiet_s": 60.0}, ENOUGH, 60.0, None),
    ],
)
def test_what_lacks_names_its_setting(train: Any, fresh: Fresh, silent_s: float, why: str | None) -> None:
    assert enough(Train(**train), fresh, Train(**train).start_at, "", silent_s=silent_s) == why


def test_why_more_ratings_are_needed_than_the_setting_says() -> None:
    why = enough(Train(), ENOUGH, 48, "run 1 ended rejected", silent_s=0.0)
    assert why == "40 of 48 fresh ratings (train.start_at; run 1 ended rejected)"


@pytest.mark.parametrize(
    ("status", "seen", "train", "count"),
    [
        ("done", 0, {}, 32), ("rejected", 32, {}, 48), ("empty", 40, {}, 56), ("failed", 10, {}, 32),
        ("rejected", 300, {"max_samples": 40}, 316), ("rejected", 1, {"start_at": 1}, 2),
    ],
)  # fmt: skip
def test_a_run_that_published_nothing_needs_new_ratings(status: Any, seen: int, train: Any, count: int) -> None:
    run = Run(7, status, "m", 1, 0, "/r", 1, 0.0, None, None, None, 32, 0, None)
    found, why = ratings_threshold(Train(**train), run, seen)
    assert found == count and ("run 7" in why) == (found > Train(**train).start_at)
    assert ratings_threshold(Train(), None, 0) == (32, "")


def test_a_run_that_waits_for_some_answers_needs_just_those() -> None:
    result = {"metrics": {"missing_answers": 3.0}}
    run = Run(7, "empty", "m", 1, 0, "/r", 1, 0.0, None, None, None, 32, 0, result)
    assert ratings_threshold(Train(), run, 32) == (35, "run 7 gave its ratings back and waits for 3 more")
    assert ratings_threshold(Train(), run, 12)[0] == 32, "a person had started it by hand"


def test_nothing_keeps_a_run_by_default() -> None:
    assert kept() is None and kept(MachineUse(free_gb=3.0)) is None


@pytest.mark.parametrize(
    ("train", "use", "why"),
    [
        ({"hours": ["22:00-07:00"]}, IDLE, "outside the hours of training until Mon 22:00 (train.hours)"),
        ({"max_cpu_percent": 50}, IDLE._replace(cpu_percent=51), "other programs use 51 % of the CPU"),
        ({"max_gpu_percent": 50}, IDLE._replace(gpu_percent=80), "80 % of the GPU, 50 % are allowed"),
        ({"min_free_memory_gb": 9}, IDLE, "8.0 GB of memory free, 9 GB are needed (train.min_free_memory_gb)"),
        ({"min_free_gpu_gb": 24}, IDLE, "20.0 GB of GPU memory free, 24 GB are needed (train.min_free_gpu_gb)"),
    ],
)
def test_rules_stop_a_run_as_they_keep_one_from_starting(train: Any, use: MachineUse, why: str) -> None:
    for starting in (True, False):
        assert why in (kept(use, starting=starting, **train) or "")


def test_what_is_not_known_keeps_a_run_from_starting_but_stops_none() -> None:
    for use in (IDLE._replace(cpu_percent=None), IDLE._replace(problem="nvidia-smi does not say")):
        assert kept(use, max_cpu_percent=50) is not None
        assert kept(use, max_cpu_percent=50, starting=False) is None


def test_who_asks_by_hand_does_not_wait_for_hours_but_needs_memory_too() -> None:
    busy = IDLE._replace(cpu_percent=99, gpu_percent=99)
    limits: dict[str, Any] = {"hours": ["22:00-07:00"], "max_cpu_percent": 50, "max_gpu_percent": 50}
    assert kept(busy, by_hand=True, **limits) is None
    assert "memory free" in (kept(busy, by_hand=True, min_free_memory_gb=9, **limits) or "")


@pytest.mark.parametrize(
    ("good", "times", "line"),
    [
        (11, [], "11 of 32 ratings for the next run"),
        (11, [990.0, 980.0], "11 of 32 ratings for the next run"),  # two ratings are no pace
        (11, [990.0, 980.0, 700.0], "11 of 32 ratings for the next run, at this pace in about 35 minutes"),
        (31, [999.0, 998.0, 997.0], "31 of 32 ratings for the next run, at this pace in about a minute"),
        (30, [0.0, 0.0, -400000.0], "30 of 32 ratings for the next run, at this pace in about 3 days"),
        (32, [999.0, 998.0, 997.0], "32 of 32 ratings for the next run"),
    ],
)
def test_how_many_ratings_until_a_run_and_about_when(good: int, times: list[float], line: str) -> None:
    assert countdown(Fresh(good, 0, 0, 0), 32, times, 1000.0) == line
