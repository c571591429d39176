"""One run, top to bottom: load → ℓ_old, ℓ_ref → filter → optimiser steps → gate → write.

Owns the order of things and when to stop. Every decision made on the way is an event with its reason. Left out on
purpose: learning-rate decay and an optimiser that outlives the run (a run is a dozen steps), mixed precision (the
ratio arithmetic must not see it), replay. Not here: the mathematics (objective), the framework (torch_policy).
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from config import presets
from config.errors import SettingsError
from config.presets import Preset
from trainer import adapter, checkpoint, gate, lessons, objective, objective_kin, packing, samples, teacher, weights
from trainer.batch import loss_of, reference_point, score, terms
from trainer.checkpoint import Checkpoint
from trainer.lessons import Lesson, Lessons, metrics_of
from trainer.manifest import AdapterError
from trainer.policy import Policy
from trainer.progress import Progress, Stop
from trainer.run_folder import RunError, RunSpec, read_spec, write_atomic
from trainer.samples import Sample
from trainer.torch_policy import TorchPolicy, find_device

PROBE = 16  # lessons that the last step's drift is measured on: a second or two
Result = dict[str, Any]


class NothingToLearn(Exception):
    """No optimiser step was taken, and why."""


class Diverged(Exception):
    """The optimiser left the numbers or the trust region; nothing of this run can be used."""


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
    except (OSError, ValueError, RuntimeError, AssertionError) as error:  # disk, files, torch
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
    device, why = find_device()
    progress.event("start", run=spec.run, device=device, why=why)
    for name, value in preset.model_dump().items():
        source = "run.json" if name in spec.overrides else f"preset {spec.preset}"
        progress.choice(name, value, source)

    # load: one model load a run
    clock = Clock()
    progress.phase("load")
    found = weights.resolve(spec.weights)
    parent = spec.adapters[spec.parent] if spec.parent else None
    policy = TorchPolicy(found.path, preset, parent=parent, threads=spec.threads, seed=spec.seed)
    for name, value, reason in policy.choices:
        progress.choice(name, value, reason)
    template = samples.Template(policy.tokenizer)
    loaded, unusable = samples.load(folder / "samples.jsonl", template, max_seq_len=preset.max_seq_len)
    calibration = samples.load_calibration(
        folder / "calibration.jsonl", template, version=spec.parent, max_seq_len=preset.max_seq_len
    )
    preset = _heed(preset, [s for s in loaded if not s.held], progress)
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
    clock.lap("old")

    # train
    progress.phase("train")
    trained = train(policy, teaching, preset, spec, folder, progress, stop)
    used = {lesson.sample.rating for lesson in trained.lessons}
    for rating in used:
        learned.outcomes[rating].used = True
    rewards = [s.reward for s in loaded if s.rating in used]
    result["seconds_before"] = trained.seconds_before
    result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    result["metrics"] |= metrics_of(trained.metrics)
    clock.lap("train")

    # gate
    progress.phase("gate")
    checks = gate.judge(
        policy,
        template,
        bounds,
        parent=parent,
        lessons=teaching,
        held=learned.held,
        changed=trained.changed,
        asked=trained.asked,
        stop=stop,
    )
    result["gate"] = {name: check.json() for name, check in checks.items()}
    failed = {name: check for name, check in checks.items() if not check.ok}
    clock.lap("gate")

    # write: where it may go live, or beside the run for whoever wants to look at it
    progress.phase("write")
    result["metrics"] |= clock.laps
    out = folder / "rejected" if failed else spec.out
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
        "preset": preset.model_dump(),
    }
    adapter.write(out, policy.save, about)
    if failed:
        name, check = next(iter(failed.items()))
        reason = f"{name} is {check.value}, the bound is {check.bound}"
        result |= {"status": "rejected", "reason": f"The gate said no: {reason}.", "adapter": str(out)}
        return
    result["baseline_after"] = round(objective.ema(spec.baseline, rewards, preset.ema_decay), 9)
    steps, count = int(trained.metrics["steps"]), len(used)
    reason = f"{steps} steps on {count} samples passed the gate."
    if trained.early:
        reason = f"{steps} steps on {count} samples, {trained.early}; it passed the gate."
    result |= {"status": "passed", "reason": reason, "adapter": str(out)}


@dataclass
class Trained:
    lessons: list[Lesson]  # that an optimiser step used
    changed: float  # mean |ℓ_θ − ℓ_old| on the probe, nats a token
    metrics: dict[str, float]
    seconds_before: float  # in processes that this one resumed from
    early: str | None = None  # why it ended before its last step
    asked: float = 0.0  # KL(teacher ‖ θ) before the first steps moved it, nats a token


def train(
    policy: Policy,
    teaching: Sequence[Lesson],
    preset: Preset,
    spec: RunSpec,
    folder: Path,
    progress: Progress,
    stop: Stop,
) -> Trained:
    """The optimiser steps. A checkpoint after each, so that a run goes on where it was killed and never steps twice."""
    plan = plan_of(teaching, preset, spec.seed)
    why = f"{preset.passes} passes over {len(teaching)} samples in batches of {preset.batch}"
    if any(lesson.taught for lesson in teaching):
        why += f", {max(preset.passes, preset.passes_taught)} over what comments and corrections teach"
    progress.choice("steps", len(plan), why)
    loss = loss_of(preset)
    start = policy.adapter()
    at = Checkpoint(_fingerprint(spec, preset, teaching), adapter=start, good=start)
    match checkpoint.read(folder / "checkpoint", at.fingerprint):
        case str(problem):
            progress.warning(problem)
        case Checkpoint() as found:
            at = found
            policy.wear(at.adapter)
            policy.restore(at.optimiser)
            progress.choice("resume", at.step, "a checkpoint of this run was there")
    seconds_before, clock, early = at.seconds, time.monotonic(), None

    for step in range(at.step, len(plan)):
        batch = [teaching[i] for i in plan[step]]
        zero = reference_point(policy, batch) if preset.objective == "kto" else None
        sums: dict[str, float] = {}
        for members in packing.group([len(lesson.tokens) for lesson in batch], policy.budget):
            part = [batch[i] for i in members]
            packed = packing.pack([lesson.tokens for lesson in part])
            for name, value in policy.backward(packed, terms(part, len(batch), zero), loss).items():
                sums[name] = sums.get(name, 0.0) + value
        tokens = sum(len(lesson.old) for lesson in batch)
        per = {
            "loss": 1,
            "kl_old": sum(len(lesson.old) for lesson in batch if lesson.own),
            "kl_teacher": sum(len(lesson.old) for lesson in batch if lesson.teaching is not None),
        }
        now = {name: value / max(per.get(name, tokens), 1) for name, value in sums.items()}
        if not all(np.isfinite(value) for value in now.values()):
            raise Diverged(f"the loss is not finite at step {step + 1}; nothing was kept.")

        # The forward pass just measured how far the steps before this one have drifted.
        if now["kl_old"] > preset.drift_bound:
            early = f"stopped before step {step + 1} by the drift bound ({now['kl_old']:.3f} nats a token)"
            policy.wear(at.good)
            at.step = max(step - 1, 0)
            break
        good = policy.adapter()
        rate = preset.learning_rate * min(1.0, (step + 1) / (preset.warmup_steps + 1))
        norm = policy.step(rate, preset.max_grad_norm)
        if not np.isfinite(norm):
            raise Diverged(f"the gradient is not finite at step {step + 1}; nothing was kept.")
        elapsed = seconds_before + time.monotonic() - clock
        line = {
            **metrics_of(now),
            "grad_norm": round(norm, 6),
            "acceptance": round(sum(int(lesson.keep.sum()) for lesson in batch) / tokens, 6),
        }
        at = Checkpoint(
            at.fingerprint,
            step + 1,
            elapsed,
            [*at.history, line],
            policy.adapter(),
            good,
            policy.optimiser(),
        )
        checkpoint.write(folder / "checkpoint", at)
        eta = elapsed / (step + 1) * (len(plan) - step - 1)
        progress.event("step", step=step + 1, steps=len(plan), **line, eta_s=round(eta, 1))
        stop.check()

    # Nothing has measured the last step yet.
    probe = list(teaching[:: max(1, len(teaching) // PROBE)])[:PROBE]
    final, changed = _drift(policy, probe)
    if early is None and final["kl_old"] > preset.drift_bound:
        early = f"the last step undone by the drift bound ({final['kl_old']:.3f} nats a token)"
        policy.wear(at.good)
        at.step -= 1
        final, changed = _drift(policy, probe)
    if early:
        progress.warning(f"{early}: the last good step, {at.step} of {len(plan)}, is kept.")
    if at.step == 0:
        raise Diverged(f"the very first step went past the drift bound ({early}); lower learning_rate.")
    seen = sorted({i for indices in plan[: at.step] for i in indices})
    return Trained(
        lessons=[teaching[i] for i in seen],
        changed=changed,
        metrics={
            "steps": at.step,
            "loss": at.history[at.step - 1]["loss"],
            "grad_norm": at.history[at.step - 1]["grad_norm"],
            **{n: at.history[at.step - 1][n] for n in ("guarded", "kl_teacher") if n in at.history[at.step - 1]},
            **final,
        },
        seconds_before=seconds_before,
        early=early,
        asked=next((line["kl_teacher"] for line in at.history if "kl_teacher" in line), 0.0),
    )


def plan_of(teaching: Sequence[Lesson], preset: Preset, seed: int) -> list[list[int]]:
    """Indices of each step: every lesson `passes` times, then what comments and corrections teach some more.

    A rating's second pass only pushes on what has already moved; a teacher's has a place to arrive at.
    """
    advantages = [float(lesson.advantage.mean()) for lesson in teaching]
    plan = schedule(advantages, batch=preset.batch, passes=preset.passes, seed=seed)
    taught = [i for i, lesson in enumerate(teaching) if lesson.taught]
    more = max(0, preset.passes_taught - preset.passes) if taught else 0
    again = schedule([advantages[i] for i in taught], batch=preset.batch, passes=more, seed=seed + 1)
    return plan + [[taught[i] for i in step] for step in again]


def schedule(advantages: Sequence[float], *, batch: int, passes: int, seed: int) -> list[list[int]]:
    """Indices of each step. Shuffled by the seed, and both signs spread evenly, so that each batch mixes them."""
    shuffle = random.Random(seed)  # noqa: S311, an order, not a secret
    plan: list[list[int]] = []
    for _ in range(passes):
        places: list[tuple[float, int]] = []
        for sign in (True, False):
            members = [i for i, a in enumerate(advantages) if (a > 0) is sign]
            shuffle.shuffle(members)
            places += [((n + shuffle.random()) / len(members), i) for n, i in enumerate(members)]
        order = [i for _, i in sorted(places)]
        steps = max(1, round(len(order) / batch))  # as equal as can be: no step on the two that are left over
        plan += [[order[i] for i in part] for part in np.array_split(np.arange(len(order)), steps)]
    return plan


@dataclass
class Clock:
    """Seconds a phase, for the manifest."""

    since: float = field(default_factory=time.monotonic)
    laps: dict[str, float] = field(default_factory=dict)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[f"seconds_{name}"] = round(now - self.since, 2)
        self.since = now


def _drift(policy: Policy, probe: Sequence[Lesson]) -> tuple[dict[str, float], float]:
    """Mean drift from θ_old on its own replies, mean k3 to the reference and mean change of a log-prob on all."""
    now = np.concatenate(score(policy, [lesson.tokens for lesson in probe]))
    made = terms(probe, len(probe))
    if not np.isfinite(now).all():
        raise Diverged("log-probs are not finite after the last step; nothing was kept.")
    moved = objective.drift(np, made.old, now)[made.own > 0]
    kl_old, kl_ref = moved.mean() if len(moved) else 0.0, objective.k3(np, made.ref, now).mean()
    return {"kl_old": float(kl_old), "kl_ref": float(kl_ref)}, float(np.abs(now - made.old).mean())


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


def _fingerprint(spec: RunSpec, preset: Preset, teaching: Sequence[Lesson]) -> str:
    """Of everything that decides what a step does."""
    decides = [
        [spec.weights, spec.parent, spec.seed, preset.model_dump()],
        [
            [lesson.sample.rating, lesson.sample.comment, lesson.advantage.tolist(), lesson.tokens.reply]
            for lesson in teaching
        ],
    ]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def _why_nothing(learned: Lessons) -> str:
    causes: dict[str, int] = {}
    for outcome in learned.outcomes.values():
        cause = outcome.cause or "with an advantage of 0"
        causes[cause] = causes.get(cause, 0) + 1
    if not causes:
        return "The run has no samples to train on."
    told = ", ".join(f"{count} {cause}" for cause, count in sorted(causes.items()))
    return f"Nothing to learn from in {len(learned.outcomes)} samples: {told}."


def _outcome(outcome: lessons.Outcome) -> dict[str, Any]:
    kept = asdict(outcome)
    if kept["reason"] is None:
        del kept["reason"]
    return kept
