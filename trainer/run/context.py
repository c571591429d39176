"""Records that the stages of a run share: its folder and request, its model, its samples, and the clock.

Owns these records. Nothing in them changes but `result`, which is result.json as far as the run has come, and the
clock. Not here: what a run decides (plan).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trainer.io.encrypted_files import Seal
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import RunSpec
from trainer.lessons.chat_template import Template
from trainer.lessons.samples import Sample, UnusableSample
from trainer.policy.policy import Policy, State
from trainer.policy.tinker_client import TinkerServer
from trainer.run import gate

Result = dict[str, Any]


@dataclass
class Clock:
    """Seconds a phase, for the manifest; those of a second try on top."""

    since: float = field(default_factory=time.monotonic)
    laps: dict[str, float] = field(default_factory=dict)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[f"seconds_{name}"] = round(self.laps.get(f"seconds_{name}", 0.0) + now - self.since, 2)
        self.since = now


@dataclass(frozen=True)
class RunContext:
    folder: Path
    spec: RunSpec
    result: Result  # result.json so far
    progress: Progress
    stop: Stop
    seal: Seal
    tinker: TinkerServer | None = None  # who takes the steps; None: this machine
    clock: Clock = field(default_factory=Clock)

    def record(self, **members: Any) -> None:
        """Add to result.json, or replace what stands there."""
        self.result.update(members)


@dataclass(frozen=True)
class RunModel:
    policy: Policy
    template: Template
    parent: Path | None
    optimiser: State  # what the run begins with
    languages: tuple[str, ...]  # that the gate asks in
    rated: tuple[Sample, ...] = ()  # whose prompts show people what a version changed

    @property
    def rated_prompts(self) -> list[tuple[int, ...]]:
        return [sample.tokens.prompt for sample in self.rated]

    @cached_property
    def parent_answers(self) -> gate.SideAnswers:
        """The parent's answers, the same for all tries."""
        return gate.parent_answers(self.policy, self.template, self.parent, self.languages, self.rated_prompts)


@dataclass(frozen=True)
class RunSamples:
    usable: list[Sample]  # held back ones, too
    unusable: list[UnusableSample]
    calibration: list[Sample]

    @property
    def training(self) -> list[Sample]:
        return [s for s in self.usable if not s.is_held_back]
