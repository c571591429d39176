"""The course of a training run, folded from its events.

Owns when a run and each of its phases began and ended. A run that was stopped and goes on has its spans for the time in
which it was at work. Not here: the events themselves (trainer.io.progress, proxy.training.run_supervisor).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class RunPhase:
    name: str
    started: float  # Unix seconds, as all times here
    ended: float = 0.0


@dataclass(slots=True)
class RunTrace:
    """One stretch of work on a run."""

    id: int
    started: float
    samples: int
    ended: float = 0.0
    status: str = "stopped"
    phases: list[RunPhase] = field(default_factory=list)


class RunTraces:
    """Folds the `run` events of the proxy into traces."""

    def __init__(self) -> None:
        self._run: RunTrace | None = None

    def add(self, event: Mapping[str, Any]) -> RunTrace | None:
        """One event, by the time at which it was told. The run, where that was its end."""
        timestamp, kind = event["at"], event.get("event")
        if kind == "started":
            self._run = RunTrace(event["run"], timestamp, event["samples"])
        run = self._run
        if run is None or event["run"] != run.id:
            return None
        if kind == "phase":
            self._end_phase(run, timestamp)
            run.phases.append(RunPhase(event["phase"], timestamp))
        if kind not in ("ended", "stopped"):  # by its end on record, or at a checkpoint
            return None
        self._end_phase(run, timestamp)
        run.ended, run.status = timestamp, event.get("status", "stopped")
        self._run = None
        return run

    def _end_phase(self, run: RunTrace, timestamp: float) -> None:
        if run.phases:
            run.phases[-1].ended = timestamp
