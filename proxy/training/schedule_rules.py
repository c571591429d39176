"""The rules of when to train, and which of them keeps a run from training now.

Owns the decision, as pure functions of what the learner has found out; each answer names its setting. Not here: finding
out (run_supervisor, system_load), what a window of time is (config.hours).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal, NamedTuple

from config.hours import is_inside, opens
from config.sections import Train
from proxy.training.system_load import MachineUse
from store.learning.rater_quota import is_judge
from store.records import Fresh, Run

PACED_RATINGS: Final = 3  # before a pace is told
NEWEST_RATINGS: Final = 20  # that a pace is made of
ENDED_UNPUBLISHED: Final = {"rejected", "empty", "failed", "cancelled"}


Kind = Literal["ratings", "episodes"]


class RunDecision(NamedTuple):
    now: bool
    reason: str  # one line: what training waits for, or why it may start
    of: Kind = "ratings"  # what the run is made of


def ratings_threshold(train: Train, last: Run | None, previous_count: int) -> tuple[int, str]:
    """How many fresh ratings start a run, and why that many; `previous_count` of them were there before the last run.

    A run that published nothing gave its ratings back. The same ones would end the same way, so half as many new
    ones must have come. Where the run itself said how many it waits for, that many must have.
    """
    if last is not None and (missing := _missing_answers(last)):
        threshold = previous_count + missing
        return max(threshold, train.start_at), f"run {last.id} gave its ratings back and waits for {missing} more"
    if last is not None and last.status in ENDED_UNPUBLISHED:
        threshold = previous_count + max(1, train.start_at // 2)
        if threshold > train.start_at:
            return threshold, f"run {last.id} ended {last.status} and gave its ratings back"
    return train.start_at, ""


def _missing_answers(last: Run) -> int:
    """How many more rated answers a run needs that knew too little of the server's noise (trainer/CONTRACT.md)."""
    metrics = (last.result or {}).get("metrics") or {}
    return int(metrics.get("missing_answers", 0)) if last.status == "empty" else 0


def episodes_threshold(train: Train, last: Run | None, returned: int) -> int:
    """How many rewarded episodes start a run; `returned` are those of the last run, where it published nothing."""
    if last is not None and last.status in ENDED_UNPUBLISHED and returned:
        return max(train.start_at_episodes, returned + max(1, train.start_at_episodes // 2))
    return train.start_at_episodes


def too_many_programs(train: Train, of_people: int, of_programs: int) -> str | None:
    """Why no run of episodes starts, where people rate too; None where one may. In samples of 30 days."""
    share = train.max_program_share
    if share >= 1 or not of_people or of_programs < share * (of_people + of_programs):
        return None
    return (
        f"episodes are {of_programs} of {of_people + of_programs} samples of 30 days: they wait until people have "
        f"rated more (train.max_program_share = {share:g})"
    )


def countdown(fresh: Fresh, needed: int, times: Sequence[float], now: float) -> str:
    """How many ratings the next run has and needs, and about when it has them, by the pace of the newest ones. `times`:
    when those were given, the newest first."""
    missing = needed - fresh.most
    line = f"{fresh.most} of {needed} ratings for the next run"
    if missing <= 0 or len(times) < PACED_RATINGS:
        return line
    pace_s = (now - times[-1]) / len(times)
    return f"{line}, at this pace in about {_wait_in_words(missing * pace_s)}"


def _wait_in_words(seconds: float) -> str:
    for unit_s, noun in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= 1.5 * unit_s:
            return f"{seconds / unit_s:.0f} {noun}s"
    return "a minute"


def dampened(fresh: Fresh) -> str | None:
    """For people, who has rated more than one person may bring into a run; None where nobody has."""
    if not fresh.dampened:
        return None
    judges = sum(count for rater, count in fresh.dampened.items() if is_judge(rater))
    shares = ", ".join(
        f"{count} of {rater}'s" for rater, count in sorted(fresh.dampened.items()) if not is_judge(rater)
    )
    waits = [f"{shares} wait until others have rated, too (train.max_rater_share)"] if shares else []
    if judges:
        waits.append(f"{judges} of judges' wait for people's, or to be enough by themselves (judge.max_share)")
    return "; ".join(waits)


def enough(train: Train, fresh: Fresh, needed: int, because: str, *, silent_s: float) -> str | None:
    """The condition that ratings or requests still lack for a run to start by itself; None where nothing."""
    if fresh.most < needed:
        because = f"; {because}" if because else ""
        suffix = f"; {dampening}" if (dampening := dampened(fresh)) else ""
        return f"{fresh.total} of {needed} fresh ratings (train.start_at{because}){suffix}"
    if min(fresh.good, fresh.bad) < train.min_each:
        return f"{train.min_each} of each kind are needed: {fresh.good} good, {fresh.bad} bad (train.min_each)"
    if silent_s < train.quiet_s:
        return f"waiting for {train.quiet_s - silent_s:.0f} s without a request (train.quiet_s)"
    return None


def blocking_rule(train: Train, use: MachineUse, now: datetime, *, by_hand: bool, starting: bool) -> str | None:
    """Which rule keeps a run from training at this moment; None where none does.

    A run that a person asked for does not wait for its hours, nor for others to be less busy; memory it needs too.
    """
    if not by_hand and not is_inside(train.hours, now):
        return f"outside the hours of training until {opens(train.hours, now):%a %H:%M} (train.hours)"
    if not by_hand and (busy := _busy(train, use, starting=starting)) is not None:
        return busy
    if starting and train.share_gpu:  # what is short now comes free first
        return None
    return _short(train, use)


def _busy(train: Train, use: MachineUse, *, starting: bool) -> str | None:
    if train.max_cpu_percent < 100:
        if use.cpu_percent is None and starting:
            return "the CPU use of other programs is being measured (train.max_cpu_percent)"
        if use.cpu_percent is not None and use.cpu_percent > train.max_cpu_percent:
            return (
                f"other programs use {use.cpu_percent:.0f} % of the CPU, {train.max_cpu_percent:g} % are allowed "
                "(train.max_cpu_percent)"
            )
    if use.problem and starting:
        return f"{use.problem} (train.max_gpu_percent, train.min_free_gpu_gb)"
    if use.gpu_percent is not None and use.gpu_percent > train.max_gpu_percent:
        return (
            f"other programs use {use.gpu_percent:.0f} % of the GPU, {train.max_gpu_percent:g} % are allowed "
            "(train.max_gpu_percent)"
        )
    return None


def _short(train: Train, use: MachineUse) -> str | None:
    if use.free_gb < train.min_free_memory_gb:
        return (
            f"{use.free_gb:.1f} GB of memory free, {train.min_free_memory_gb:g} GB are needed "
            "(train.min_free_memory_gb)"
        )
    if use.gpu_free_gb is not None and use.gpu_free_gb < train.min_free_gpu_gb:
        return (
            f"{use.gpu_free_gb:.1f} GB of GPU memory free, {train.min_free_gpu_gb:g} GB are needed "
            "(train.min_free_gpu_gb)"
        )
    return None
