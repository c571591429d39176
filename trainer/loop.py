"""One run, top to bottom: load → ℓ_old, ℓ_ref → filter → optimiser steps → gate → write.

Owns the order of things. Every decision made on the way is an event with its reason. Left out on
purpose: learning-rate decay (a run is a dozen steps), mixed precision (the ratio arithmetic must not see it), replay.
Not here: the optimiser steps (steps), the mathematics (objective), the framework (policies).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from config import presets
from config.errors import SettingsError
from config.presets import Preset
from trainer import (
    adapter,
    gate,
    lessons,
    momentum,
    objective,
    objective_kin,
    policies,
    ratings,
    samples,
    teacher,
    weights,
)
from trainer.acceptance import Outcome
from trainer.gate import Check
from trainer.lessons import Lesson, Lessons, metrics_of
from trainer.manifest import AdapterError
from trainer.policy import Policy
from trainer.progress import Progress, Stop
from trainer.run_folder import RunError, RunSpec, read_spec, write_atomic
from trainer.samples import Sample
from trainer.steps import Diverged, Trained, train

Result = dict[str, Any]


class NothingToLearn(Exception):
    """No optimiser step was taken, and why."""


def run(folder: Path, progress: Progress, stop: Stop) -> Result:
    """result.json of this folder: read when it is there, else made. Raises Stopped when asked to stop half-way."""
    if (folder / "result.json").exists():
        finished: Result = json.loads((folder / "result.json").read_bytes())
        progress.event("end", status=finished["status"], reason=finished["reason"])
        return finished
    start = time.monotonic()
    result: Result = {"adapter": None, "baseline_after": None, "metrics": {}, "gate": {}, "samples": {}}
    try:
        _run(folder, result, progress, stop)
    except NothingToLearn as end:
        result |= {"status": "empty", "reason": str(end)}
    except (RunError, SettingsError, AdapterError, weights.WeightsError, Diverged) as error:
        result |= {"status": "failed", "reason": str(error)}
    except (OSError, ValueError, RuntimeError, AssertionError) as error:  # disk, files, arrays
        result |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    result["seconds"] = round(time.monotonic() - start + result.pop("seconds_before", 0.0), 2)
    write_atomic(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    progress.event("end", status=result["status"], reason=result["reason"])
    return result


def _run(folder: Path, result: Result, progress: Progress, stop: Stop) -> None:
    spec = read_spec(folder)
    result["baseline_after"] = spec.baseline
    preset = presets.resolve(spec.preset, spec.overrides)
    bounds = gate.Bounds.of(spec.gate)
    if preset.objective not in objective_kin.NAMES:
        raise RunError(f"there is no objective {preset.objective!r}; there are {', '.join(objective_kin.NAMES)}.")
    framework, reason = policies.choose(spec.framework)
    device, why = policies.find_device(framework)
    progress.event("start", run=spec.run, device=device, why=why)
    progress.choice("framework", framework, reason)
    for name, value in preset.model_dump().items():
        source = "run.json" if name in spec.overrides else f"preset {spec.preset}"
        progress.choice(name, value, source)

    # load: one model load a run
    clock = Clock()
    progress.phase("load")
    found = weights.resolve(spec.weights)
    parent = spec.adapters[spec.parent] if spec.parent else None
    policy = policies.open_policy(framework, found.path, preset, parent=parent, threads=spec.threads, seed=spec.seed)
    for name, value, reason in policy.choices:
        progress.choice(name, value, reason)
    optimiser, why = momentum.read(parent, policy.adapter()) if parent else ({}, "a new adapter")
    policy.restore(optimiser)
    progress.choice("optimiser", "warm" if optimiser else "cold", why)
    template = samples.Template(policy.tokenizer)
    loaded, unusable = samples.load(folder / "samples.jsonl", template, max_seq_len=preset.max_seq_len)
    calibration = samples.load_calibration(
        folder / "calibration.jsonl", template, version=spec.parent, max_seq_len=preset.max_seq_len
    )
    training = [s for s in loaded if not s.held]
    preset = _heed(preset, training, progress)
    checks = ratings.judge([s for s in loaded if not s.held or s.version == spec.parent], template, bounds)
    result["gate"] = {name: check.json() for name, check in checks.items()}
    if no := ratings.why(checks):
        preset = _mute(preset, no, training, progress)
    clock.lap("load")

    # old: everything about the samples that has no θ in it
    progress.phase("old")
    learned = lessons.prepare(
        spec,
        preset,
        policy,
        template,
        loaded,
        unusable,
        calibration,
        cache=folder / "cache",
        progress=progress,
        stop=stop,
    )
    result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    result["metrics"] = metrics_of(learned.metrics)
    teaching = [lesson for lesson in learned.train if lesson.teaches]
    if not teaching:
        raise NothingToLearn(_why_nothing(learned))
    left = ratings.contrast([lesson.sample for lesson in learned.train if lesson.keep.any()])
    if not left.ok and not any(lesson.taught for lesson in teaching):
        result["gate"]["contrast"] = left.json()
        raise NothingToLearn(f"Nothing to compare in {len(learned.outcomes)} samples: {_causes(learned, 'the same')}.")
    start = policy.adapter()
    clock.lap("old")

    # train, gate
    tries = Tries(folder, preset)
    while True:
        trained, checks, no = _try(
            policy, template, bounds, parent, learned, teaching, tries, spec, progress, stop, clock
        )
        if no is None or not tries.again(no, checks):
            break
        progress.warning(f"{no}; once more from the start, at half the rate.")
        policy.wear(start)
        policy.restore(optimiser)
    if trained is None:
        raise Diverged(no)
    used = {lesson.sample.rating for lesson in trained.lessons}
    for rating in used:
        learned.outcomes[rating].used = True
    rewards = [s.reward for s in loaded if s.rating in used]
    result["seconds_before"] = trained.seconds_before
    result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    result["metrics"] |= metrics_of(trained.metrics)
    result["gate"] |= {name: check.json() for name, check in checks.items()}
    result["retried"] = tries.why

    # write: where it may go live, or beside the run for whoever wants to look at it
    progress.phase("write")
    result["metrics"] |= clock.laps
    out = folder / "rejected" if no else spec.out
    about = {
        "run": spec.run,
        "version": spec.version,
        "parent": spec.parent,
        "model": spec.model,
        "weights": spec.weights,
        "objective": preset.objective,
        "samples": sorted(used),
        "recomputed": sorted(r for r in used if not learned.outcomes[r].exact),
        "baseline": spec.baseline,
        "metrics": result["metrics"],
        "gate": result["gate"],
        "preset": tries.preset.model_dump(),
        "retried": tries.why,
    }
    adapter.write(out, partial(_save, policy), about)
    if no:
        again = " at half the rate too" if tries.why else ""
        result |= {"status": "rejected", "reason": f"The gate said no{again}: {no}.", "adapter": str(out)}
        return
    result["baseline_after"] = round(objective.ema(spec.baseline, rewards, preset.ema_decay), 9)
    steps, count = int(trained.metrics["steps"]), len(used)
    reason = f"{steps} steps on {count} samples passed the gate."
    if trained.early:
        reason = f"{steps} steps on {count} samples, {trained.early}; it passed the gate."
    if tries.why:
        reason += f" At half the rate, for at the full one {tries.why}."
    result |= {"status": "passed", "reason": reason, "adapter": str(out)}


class Tries:
    """At most two: the second from the start and at half the rate. On disk, so that a resumed run knows which it is."""

    def __init__(self, folder: Path, preset: Preset) -> None:
        self.folder = folder
        self._path = folder / "retry.json"
        self._full = preset
        self.why: str | None = json.loads(self._path.read_bytes())["why"] if self._path.exists() else None

    @property
    def preset(self) -> Preset:
        if self.why is None:
            return self._full
        return self._full.model_copy(update={"learning_rate": self._full.learning_rate / 2})

    def again(self, why: str, checks: dict[str, Check]) -> bool:
        """Whether a second try is worth it: not for what moved too little already."""
        if self.why is not None or ("no_op" in checks and not checks["no_op"].ok):
            return False
        self.why = why
        write_atomic(self._path, json.dumps({"why": why}, ensure_ascii=False).encode())
        return True


def _try(
    policy: Policy,
    template: samples.Template,
    bounds: gate.Bounds,
    parent: Path | None,
    learned: Lessons,
    teaching: Sequence[Lesson],
    tries: Tries,
    spec: RunSpec,
    progress: Progress,
    stop: Stop,
    clock: Clock,
) -> tuple[Trained | None, dict[str, Check], str | None]:
    """Optimiser steps and gate: what came of them, and why it may not go live (None: it may)."""
    progress.phase("train")
    try:
        trained = train(policy, teaching, tries.preset, spec, tries.folder, progress, stop)
    except Diverged as error:
        return None, {}, str(error).rstrip(".")
    finally:
        clock.lap("train")
    progress.phase("gate")
    checks = gate.judge(
        policy,
        template,
        bounds,
        parent=parent,
        lessons=teaching,
        held=learned.held,
        changed=trained.changed,
        replayed=trained.replayed,
        asked=trained.asked,
        stop=stop,
    )
    clock.lap("gate")
    failed = next(((name, check) for name, check in checks.items() if not check.ok), None)
    if failed is None:
        return trained, checks, None
    name, check = failed
    return trained, checks, f"{name} is {check.value}, the bound is {check.bound}"


@dataclass
class Clock:
    """Seconds a phase, for the manifest; those of a second try on top."""

    since: float = field(default_factory=time.monotonic)
    laps: dict[str, float] = field(default_factory=dict)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[f"seconds_{name}"] = round(self.laps.get(f"seconds_{name}", 0.0) + now - self.since, 2)
        self.since = now


def _save(policy: Policy, folder: Path) -> None:
    policy.save(folder)
    momentum.write(folder, policy.optimiser())


def _heed(preset: Preset, training: Sequence[Sample], progress: Progress) -> Preset:
    """The preset with the objective that this run's comments and corrections ask for."""
    comments, corrections = teacher.count(training)
    if not comments + corrections:
        return preset
    said = " and ".join(
        f"{count} of {len(training)} samples have {what}"
        for count, what in ((comments, "comments"), (corrections, "corrections"))
        if count
    )
    if preset.objective == "mis-po" and preset.w_distill > 0:
        progress.choice("objective", "combine", said)
        return preset.model_copy(update={"objective": "combine"})
    if preset.objective not in objective_kin.TAUGHT:
        why = "w_distill is 0" if preset.objective == "mis-po" else f"objective {preset.objective} does not listen"
        progress.warning(f"{said}, and they teach nothing: {why}.")
    return preset


def _mute(preset: Preset, why: str, training: Sequence[Sample], progress: Progress) -> Preset:
    """The preset in which ratings that may not train do not, and comments and corrections still do."""
    if preset.objective not in objective_kin.TAUGHT or not sum(teacher.count(training)):
        raise NothingToLearn(f"These ratings do not train: {why}.")
    progress.warning(f"only comments and corrections train in this run: {why}.")
    return preset.model_copy(update={"w_rl": 0.0})


def _why_nothing(learned: Lessons) -> str:
    if not learned.outcomes:
        return "The run has no samples to train on."
    return f"Nothing to learn from in {len(learned.outcomes)} samples: {_causes(learned, 'with an advantage of 0')}."


def _causes(learned: Lessons, otherwise: str) -> str:
    """Why samples do not train, counted."""
    causes: dict[str, int] = {}
    for outcome in learned.outcomes.values():
        cause = outcome.cause or otherwise
        causes[cause] = causes.get(cause, 0) + 1
    return ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))


def _outcome(outcome: Outcome) -> dict[str, Any]:
    kept = asdict(outcome)
    if kept["reason"] is None:
        del kept["reason"]
    return kept
