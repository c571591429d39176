"""One run, top to bottom: load → ℓ_old, ℓ_ref → filter → optimiser steps → gate → write.

Owns the order of things. Every decision made on the way is an event with its reason. Left out on
purpose: learning-rate decay (a run is a dozen steps).
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

from safetensors import SafetensorError

from config import presets
from config.errors import SettingsError
from config.presets import Preset
from trainer import (
    adapter,
    fitting,
    gate,
    heed,
    lessons,
    momentum,
    objective,
    objective_kin,
    policies,
    profile,
    ratings,
    replay,
    samples,
    weights,
)
from trainer.acceptance import Outcome
from trainer.cache import Cache
from trainer.gate import Check
from trainer.lessons import Lesson, Lessons, metrics_of
from trainer.manifest import AdapterError
from trainer.policy import Policy
from trainer.progress import Progress, Stop
from trainer.run_folder import SAMPLES, RunError, RunSpec, read_spec, write_atomic
from trainer.scalars import Scalars
from trainer.sealed import IN_THE_CLEAR, Seal
from trainer.steps import LESS_MEMORY, Diverged, Trained, train

Result = dict[str, Any]


class NothingToLearn(Exception):
    """No optimiser step was taken, and why."""


def run(folder: Path, progress: Progress, stop: Stop, seal: Seal = IN_THE_CLEAR) -> Result:
    """result.json of this folder: read when it is there, else made. Raises Stopped when asked to stop half-way."""
    if (folder / "result.json").exists():
        finished: Result = json.loads((folder / "result.json").read_bytes())
        progress.event("end", status=finished["status"], reason=finished["reason"])
        return finished
    start = time.monotonic()
    result: Result = {"adapter": None, "baseline_after": None, "metrics": {}, "gate": {}, "samples": {}}
    try:
        _run(folder, result, progress, stop, seal)
    except NothingToLearn as end:
        result |= {"status": "empty", "reason": str(end)}
    except (RunError, SettingsError, AdapterError, weights.WeightsError, profile.ProfileError, Diverged) as error:
        result |= {"status": "failed", "reason": str(error)}
    except (OSError, SafetensorError, ValueError, RuntimeError, AssertionError, MemoryError) as error:  # disk, arrays
        result |= {"status": "failed", "reason": _in_words(error)}
    result["seconds"] = round(time.monotonic() - start + result.pop("seconds_before", 0.0), 2)
    write_atomic(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    progress.event("end", status=result["status"], reason=result["reason"])
    return result


def _in_words(error: BaseException) -> str:
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "out of memory" in told.lower() or "can't allocate memory" in told:
        return f"out of memory ({told.splitlines()[0][:200]}): {LESS_MEMORY}"
    return told


def _run(folder: Path, result: Result, progress: Progress, stop: Stop, seal: Seal) -> None:
    spec = read_spec(folder)
    result["baseline_after"] = spec.baseline
    preset = presets.resolve(spec.preset, spec.overrides)
    bounds = gate.Bounds.of(spec.gate)
    if preset.objective not in objective_kin.NAMES:
        raise RunError(f"there is no objective {preset.objective!r}; there are {', '.join(objective_kin.NAMES)}.")
    if spec.tensorboard:
        progress.also(Scalars(spec.tensorboard))
    framework, reason = policies.choose(spec.framework)
    device, why = policies.find_device(framework)
    progress.event("start", run=spec.run, device=device, why=why)
    progress.choice("framework", framework, reason)
    for made in spec.choices:
        progress.choice(**made)

    # load: one model load a run
    clock = Clock()
    progress.phase("load")
    found = weights.resolve(spec.weights)
    about = profile.read(found.path)
    progress.choice("model", str(about), about.counted)
    preset, told = fitting.fit(preset, spec.preset, spec.overrides, about)
    for name, choice in told.items():
        progress.choice(name, *choice)
    parent = spec.adapters[spec.parent] if spec.parent else None
    policy = policies.open_policy(
        framework,
        found.path,
        preset,
        parent=parent,
        threads=spec.threads,
        seed=spec.seed,
        compute=spec.compute,
        in_4bit=spec.load_in_4bit,
    )
    for name, value, reason in policy.choices:
        progress.choice(name, value, reason)
    optimiser, why = momentum.read(parent, policy.adapter()) if parent else ({}, "a new adapter")
    policy.restore(optimiser)
    progress.choice("optimiser", "warm" if optimiser else "cold", why)
    template = samples.Template(policy.tokenizer)
    loaded, unusable = samples.load(folder / SAMPLES, template, max_seq_len=preset.max_seq_len, seal=seal)
    calibration = samples.load_calibration(
        folder / "calibration.jsonl", template, version=spec.parent, max_seq_len=preset.max_seq_len, seal=seal
    )
    loaded = replay.choose(loaded, spec, preset, progress)
    training = [s for s in loaded if not s.held]
    preset = heed.comments(preset, training, progress)
    checks = ratings.judge([s for s in loaded if not s.held or s.version == spec.parent], template, bounds)
    result["gate"] = {name: check.json() for name, check in checks.items()}
    progress.event("gate", checks=result["gate"])
    if no := ratings.why(checks):
        if not heed.listens(preset, training):
            raise NothingToLearn(f"These ratings do not train: {no}.")
        preset = heed.only_teachers(preset, no, progress)
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
        cache=Cache(folder / "cache", seal),
        progress=progress,
        stop=stop,
    )
    result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    result["metrics"] = metrics_of(learned.metrics)
    progress.event("filter", **result["metrics"])
    teaching = [lesson for lesson in learned.train if lesson.teaches]
    repeated = {s.rating for s in loaded if s.replayed}
    new = [outcome for rating, outcome in learned.outcomes.items() if rating not in repeated]
    if all(lesson.sample.replayed for lesson in teaching):
        raise NothingToLearn(_why_nothing(new))
    left = [s.sample for s in learned.train if s.keep.any() and learned.outcomes[s.sample.rating].cause is None]
    contrast = ratings.contrast(left)
    if not contrast.ok and not any(lesson.taught for lesson in teaching):
        result["gate"]["contrast"] = contrast.json()
        raise NothingToLearn(f"Nothing to compare in {len(new)} samples: {_causes(new, 'the same')}.")
    preset = heed.pace(preset, sum(lesson.taught for lesson in teaching), len(teaching), progress)
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
    again, used = used & repeated, used - repeated
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
    manifest = {
        "run": spec.run,
        "version": spec.version,
        "parent": spec.parent,
        "model": spec.model,
        "weights": spec.weights,
        "objective": preset.objective,
        "samples": sorted(used),
        "replayed": sorted(again),
        "recomputed": sorted(r for r in used | again if not learned.outcomes[r].exact),
        "baseline": spec.baseline,
        "metrics": result["metrics"],
        "gate": result["gate"],
        "preset": tries.preset.model_dump(),
        "retried": tries.why,
    }
    adapter.write(out, partial(_save, policy), manifest)
    if no:
        too = " at half the rate too" if tries.why else ""
        result |= {"status": "rejected", "reason": f"The gate said no{too}: {no}.", "adapter": str(out)}
        return
    result["baseline_after"] = round(objective.ema(spec.baseline, rewards, preset.ema_decay), 9)
    what = f"{int(trained.metrics['steps'])} steps on {len(used)} samples"
    if again:
        what += f" and {len(again)} of earlier runs"
    reason = f"{what}, {trained.early}; it passed the gate." if trained.early else f"{what} passed the gate."
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
    progress.phase("train", **({"again": tries.why} if tries.why else {}))
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
    progress.event("gate", checks={name: check.json() for name, check in checks.items()})
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


def _why_nothing(outcomes: Sequence[Outcome]) -> str:
    if not outcomes:
        return "The run has no samples to train on."
    return f"Nothing to learn from in {len(outcomes)} samples: {_causes(outcomes, 'with an advantage of 0')}."


def _causes(outcomes: Sequence[Outcome], otherwise: str) -> str:
    """Why samples do not train, counted."""
    causes: dict[str, int] = {}
    for outcome in outcomes:
        cause = outcome.cause or otherwise
        causes[cause] = causes.get(cause, 0) + 1
    return ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in asdict(outcome).items() if value not in (None, []) or name == "cause"}
