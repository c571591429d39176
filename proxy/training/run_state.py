"""State of training: the run under way, how far it is, what keeps one waiting, and what a person has said about it.

The run supervisor alone changes it; everybody else reads it. Progress is one structure, made of the trainer's events
and of how long the stages of earlier runs took. A run that resumes is read again from its folder, so that its time
counts on. Not here: the events themselves (trainer/CONTRACT.md).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from typing_extensions import TypedDict

from store.records import Run

STAGES: Final = {
    "load": "loading the model",
    "old": "reading the rated answers",
    "train": "training",
    "gate": "checking the new version",
    "write": "writing the new version",
}
BY_SAMPLES: Final = ("old", "train")  # stages that take longer with more samples
STARTING: Final = "starting"
LEARNED_RUNS: Final = 3  # the newest that say how long a run takes
KNOWN_S: Final = 10.0  # of expected work done, before its pace says anything
PACE: Final = (0.5, 6.0)  # of earlier runs, at least and at most
BUSY_SHARE: Final = 0.6  # of a core; a run that gets less is slowed by others
STARTING_SHARE: Final = 0.2  # the same while it starts, when it reads from the disk as well


class ProgressBody(TypedDict):
    """How far a run is."""

    stage: str
    number: int
    stages: int
    count: int | None
    total: int | None
    elapsed_s: float
    remaining_s: float | None
    core_share: float | None
    line: str


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds that the stages of earlier runs took; `write` has all that no stage is timed for."""

    fixed: Mapping[str, float]
    per_sample: Mapping[str, float]

    @classmethod
    def of(cls, runs: Iterable[Run], model: str) -> Self | None:
        """Medians of the newest whole runs of this model; None where there is none."""
        rows: list[tuple[int, dict[str, float]]] = []
        for run in runs:
            metrics = (run.result or {}).get("metrics") or {}
            seconds = {stage: metrics.get(f"seconds_{stage}") for stage in STAGES if stage != "write"}
            if run.model != model or run.attempts != 1 or None in seconds.values() or not run.samples:
                continue
            if run.ended_at is None or run.started_at is None:
                continue
            timed = {stage: float(value) for stage, value in seconds.items() if value is not None}
            rows.append(
                (run.samples, {**timed, "write": max(0.0, run.ended_at - run.started_at - sum(timed.values()))})
            )
            if len(rows) == LEARNED_RUNS:
                break
        if not rows:
            return None
        return cls(
            {stage: statistics.median(seconds[stage] for _, seconds in rows) for stage in STAGES},
            {stage: statistics.median(seconds[stage] / count for count, seconds in rows) for stage in BY_SAMPLES},
        )

    def expect(self, stage: str, samples: int) -> float:
        return self.per_sample[stage] * samples if stage in BY_SAMPLES else self.fixed[stage]


@dataclass(slots=True)
class RunProgress:
    samples: int = 0
    times: StageTimes | None = None  # None: no earlier run says how long one takes
    events: dict[str, dict[str, Any]] = field(default_factory=dict)  # the last of each kind
    seconds: dict[str, float] = field(default_factory=dict)  # spent in each stage by now, in all processes
    stage: str = STARTING
    entered_s: float = 0.0  # spent in this stage before it began for the last time
    latest: float | None = None  # the time of the last event of this process
    launched: float | None = None  # when this process was started, until it tells of its own start
    core_share: float | None = None  # of one core, that the trainer got lately

    def replay(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Take over what the trainers before this one told; the next one goes on from there."""
        for event in events:
            self.add(event)
        self.stage, self.latest, self.events = STARTING, None, {}

    def add(self, event: Mapping[str, Any]) -> None:
        kind, timestamp = str(event.get("event", "")), event.get("at")
        if kind == "start":  # another process: the time between the two does not count
            self.latest = None
            if self.launched is not None and isinstance(timestamp, int | float):
                self.seconds[STARTING] = self.seconds.get(STARTING, 0.0) + max(0.0, timestamp - self.launched)
            self.launched = None
        if isinstance(timestamp, int | float):
            if self.latest is not None:
                self._spend(timestamp - self.latest)
            self.latest = float(timestamp)
        if kind == "phase":
            self.events.pop("step", None)  # it was of the phase before
            self.events.pop("checks", None)
            self.stage = str(event.get("phase"))
            self.entered_s = self.seconds.get(self.stage, 0.0)
        if kind != "alive":
            self.events[kind] = dict(event)

    def _spend(self, seconds: float) -> None:
        stage = self.stage if self.stage in STAGES else "load"
        self.seconds[stage] = self.seconds.get(stage, 0.0) + max(0.0, seconds)

    def body(self, now: float) -> ProgressBody:
        """`now`: as the events' times, seconds since 1970."""
        count, total = self._count()
        return {
            "stage": self._words(),
            "number": self._number(),
            "stages": len(STAGES),
            "count": count,
            "total": total,
            "elapsed_s": round(self.elapsed_s(now), 1),
            "remaining_s": None if (remaining := self.remaining_s(now)) is None else round(remaining, 1),
            "core_share": None if self.core_share is None else round(self.core_share, 2),
            "line": self.line(now),
        }

    def line(self, now: float) -> str:
        """How far the run is, in words: stage, count within it, time to go."""
        attempt = ", second try" if self.events.get("phase", {}).get("again") else ""
        parts = [f"stage {self._number()} of {len(STAGES)}{attempt}: {self._words()}"]
        count, total = self._count()
        if total:
            unit = "step" if self.stage == "train" else "check"
            parts.append(f"{unit} {count} of {total}")
        remaining = self.remaining_s(now)
        if remaining is not None:
            parts.append(f"about {in_words(remaining)} to go")
        elif self.stage == "train" and (eta := self.events.get("step", {}).get("eta_s")) is not None:
            parts.append(f"about {in_words(eta)} to its checks, which this first run has no time for yet")
        if self.is_slowed:
            parts.append(f"slow: the machine is busy, the run gets {self.core_share or 0:.0%} of a core")
        return ", ".join(parts)

    @property
    def is_slowed(self) -> bool:
        device = self.events.get("start", {}).get("device", "cpu")
        if self.core_share is None or device != "cpu" or self.stage == "load":
            return False
        return self.core_share < (STARTING_SHARE if self.stage == STARTING else BUSY_SHARE)

    def elapsed_s(self, now: float) -> float:
        since = self.launched if self.latest is None else self.latest
        return sum(self.seconds.values()) + (0.0 if since is None else max(0.0, now - since))

    def remaining_s(self, now: float) -> float | None:
        """Seconds to the end of the run, by earlier ones and by the pace of this one. None where no earlier run was
        timed."""
        if self.times is None:
            return None
        names = list(STAGES)
        current = names.index(self.stage) if self.stage in STAGES else 0
        expected = {name: self.times.expect(name, self.samples) for name in names}
        pace = self._pace(expected, names[:current])
        return self._remaining_of_stage(expected[names[current]] * pace, now) + pace * sum(
            expected[name] for name in names[current + 1 :]
        )

    def _pace(self, expected: Mapping[str, float], finished: Sequence[str]) -> float:
        planned = sum(expected[name] for name in finished)
        if planned < KNOWN_S:
            return 1.0
        return min(PACE[1], max(PACE[0], sum(self.seconds.get(name, 0.0) for name in finished) / planned))

    def _remaining_of_stage(self, expected: float, now: float) -> float:
        stage = self.stage if self.stage in STAGES else "load"
        spent = self.seconds.get(stage, 0.0) - self.entered_s
        spent += max(0.0, now - self.latest) if self.latest is not None else 0.0
        step = self.events.get("step")
        if step is not None and step.get("eta_s") is not None:
            since = max(0.0, now - float(step.get("at", now)))
            return max(0.0, float(step["eta_s"]) - since)
        count, total = self._count()
        if total and count and spent > expected:  # it takes longer than before: by what is left to count
            return spent * (total - count) / count
        return max(0.0, expected - spent)

    def _count(self) -> tuple[int | None, int | None]:
        if (step := self.events.get("step")) is not None and self.stage == "train":
            return int(step["step"]), int(step["steps"])
        if (checks := self.events.get("checks")) is not None and self.stage == "gate":
            return int(checks["done"]), int(checks["total"])
        return None, None

    def _number(self) -> int:
        return list(STAGES).index(self.stage) + 1 if self.stage in STAGES else 1

    def _words(self) -> str:
        return STAGES.get(self.stage, self.stage)


def in_words(seconds: float) -> str:
    """A time to go as people say it."""
    if seconds < 90:
        return f"{max(5, round(seconds / 5) * 5):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@dataclass(slots=True)
class RunState:
    run: Run | None = None  # the one under way
    progress: RunProgress = field(default_factory=RunProgress)
    blocking_rule: str | None = None  # the rule that keeps the open run from training
    trainer: int | None = None  # the process that trains
    stalled: str | None = None  # why the trainer was ended, where it had stopped saying anything
    paused: bool = False
    by_hand: int | None = None  # the run that somebody asked for: it does not wait for its hours
