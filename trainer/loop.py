"""One run, top to bottom: load → ℓ_old, ℓ_ref → filter → optimiser steps → gate → write.

Owns the order of things and when to stop. Every decision made on the way is an event with its reason. Left out on
purpose: learning-rate decay (a run is a dozen steps), mixed precision (the ratio arithmetic must not see it), replay.
Not here: the mathematics (objective), the framework (policies).
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from config import presets
from config.errors import SettingsError
from config.presets import Preset
from trainer import adapter, checkpoint, gate, lessons, momentum, objective, packing, policies, samples, weights
from trainer.checkpoint import Checkpoint
from trainer.gate import Check
from trainer.lessons import Lesson, Lessons, metrics_of
from trainer.manifest import AdapterError
from trainer.objective import Floats, Terms
from trainer.policy import Loss, OutOfMemory, Policy
from trainer.progress import Progress, Stop
from trainer.run_folder import RunError, RunSpec, read_spec, write_atomic

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
    if preset.objective != "mis-po":
        raise RunError(f"there is no objective {preset.objective!r} in this version; use mis-po.")
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
    clock.lap("load")

    # old: everything about the samples that has no θ in it
    progress.phase("old")
    learned = lessons.prepare(
        spec,
        preset,
        policy,
        loaded,
        unusable,
        calibration,
        cache=folder / "cache",
        progress=progress,
        stop=stop,
    )
    result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    result["metrics"] = metrics_of(learned.metrics)
    teaching = [lesson for lesson in learned.train if lesson.advantage != 0 and lesson.keep.any()]
    if not teaching:
        raise NothingToLearn(_why_nothing(learned))
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
    rewards = [lesson.sample.reward for lesson in teaching if lesson.sample.rating in used]
    result["seconds_before"] = trained.seconds_before
    result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    result["metrics"] |= metrics_of(trained.metrics)
    result["gate"] = {name: check.json() for name, check in checks.items()}
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
        stop=stop,
    )
    clock.lap("gate")
    failed = next(((name, check) for name, check in checks.items() if not check.ok), None)
    if failed is None:
        return trained, checks, None
    name, check = failed
    return trained, checks, f"{name} is {check.value}, the bound is {check.bound}"


@dataclass
class Trained:
    lessons: list[Lesson]  # that an optimiser step used
    changed: float  # mean |ℓ_θ − ℓ_old| on the probe, nats a token
    replayed: float | None  # mean ℓ_θ − ℓ_old of the probe's liked replies minus that of its disliked ones
    metrics: dict[str, float]
    seconds_before: float  # in processes that this one resumed from
    early: str | None = None  # why it ended before its last step


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
    plan = schedule([lesson.advantage for lesson in teaching], batch=preset.batch, passes=preset.passes, seed=spec.seed)
    progress.choice(
        "steps", len(plan), f"{preset.passes} passes over {len(teaching)} samples in batches of {preset.batch}"
    )
    loss = partial(objective.mis_po, kl_ref=preset.kl_ref, guard_low=preset.guard_low, guard_high=preset.guard_high)
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
        sums = accumulate(policy, batch, loss, progress)
        tokens = sum(len(lesson.old) for lesson in batch)
        now = {name: value / (1 if name == "loss" else tokens) for name, value in sums.items()}
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
    final, changed, replayed = _drift(policy, probe)
    if early is None and final["kl_old"] > preset.drift_bound:
        early = f"the last step undone by the drift bound ({final['kl_old']:.3f} nats a token)"
        policy.wear(at.good)
        at.step -= 1
        final, changed, replayed = _drift(policy, probe)
    if early:
        progress.warning(f"{early}: the last good step, {at.step} of {len(plan)}, is kept.")
    if at.step == 0:
        raise Diverged(f"the very first step went past the drift bound ({early}); lower learning_rate.")
    seen = sorted({i for indices in plan[: at.step] for i in indices})
    return Trained(
        lessons=[teaching[i] for i in seen],
        changed=changed,
        replayed=replayed,
        metrics={
            "steps": at.step,
            "loss": at.history[at.step - 1]["loss"],
            "grad_norm": at.history[at.step - 1]["grad_norm"],
            "guarded": at.history[at.step - 1]["guarded"],
            **final,
        },
        seconds_before=seconds_before,
        early=early,
    )


def accumulate(policy: Policy, batch: Sequence[Lesson], loss: Loss, progress: Progress) -> dict[str, float]:
    """The gradient of one step, and the loss's sums.

    Where memory runs out, the step's gradient begins anew in smaller micro-batches: nothing is counted twice.
    """
    sequences = [lesson.sample.tokens for lesson in batch]
    while True:
        sums: dict[str, float] = {}
        try:
            for members in packing.group(sequences, policy.budget):
                part = [batch[i] for i in members]
                packed = packing.pack([sequences[i] for i in members])
                for name, value in policy.backward(packed, terms(part, len(batch)), loss).items():
                    sums[name] = sums.get(name, 0.0) + value
            return sums
        except OutOfMemory as error:
            size = packing.size(packed.sequences, trees=policy.budget.trees)
            if len(members) == 1:
                raise RunError(
                    f"out of memory with a single sequence of {size} tokens ({error}); nothing was kept. "
                    "Free some memory, or lower max_seq_len."
                ) from None
            before, policy.budget = policy.budget, policy.budget.below(size)
            progress.warning(
                f"out of memory with {size} tokens in a micro-batch: from at most {before.tokens} they go down to at "
                f"most {policy.budget.tokens}, and the step begins anew."
            )


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


def terms(batch: Sequence[Lesson], replies: int) -> Terms:
    """Constants of the loss for these lessons of a step of `replies`; (N,) each."""

    def spread(values: Sequence[float]) -> Any:
        return np.repeat(np.asarray(values, np.float64), [len(lesson.old) for lesson in batch])

    return Terms(
        old=np.concatenate([lesson.old for lesson in batch]),
        ref=np.concatenate([lesson.ref for lesson in batch]),
        keep=np.concatenate([lesson.keep for lesson in batch]).astype(np.float64),
        advantage=spread([lesson.advantage for lesson in batch]),
        share=spread([1 / (len(lesson.old) * replies) for lesson in batch]),
    )


@dataclass
class Clock:
    """Seconds a phase, for the manifest; those of a second try on top."""

    since: float = field(default_factory=time.monotonic)
    laps: dict[str, float] = field(default_factory=dict)

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self.laps[f"seconds_{name}"] = round(self.laps.get(f"seconds_{name}", 0.0) + now - self.since, 2)
        self.since = now


def _drift(policy: Policy, probe: Sequence[Lesson]) -> tuple[dict[str, float], float, float | None]:
    """How far the last step went, without a gradient: KL to θ_old and to the reference; mean |ℓ_θ − ℓ_old|; the
    margin, None with one sign only."""
    moved: list[Floats] = [np.empty(0)] * len(probe)
    for members in packing.group([lesson.sample.tokens for lesson in probe], policy.budget):
        packed = packing.pack([probe[i].sample.tokens for i in members])
        parts = np.split(policy.log_probs(packed).plain, np.cumsum(packed.lengths)[:-1])
        for i, part in zip(members, parts, strict=True):
            moved[i] = part - probe[i].old
    flat, was = np.concatenate(moved), np.concatenate([lesson.old for lesson in probe])
    if not np.isfinite(flat).all():
        raise Diverged("log-probs are not finite after the last step; nothing was kept.")
    base = np.concatenate([lesson.ref for lesson in probe])
    kl_old, kl_ref = objective.drift(np, was, was + flat).mean(), objective.k3(np, base, was + flat).mean()
    signs: dict[bool, list[float]] = {True: [], False: []}
    for lesson, part in zip(probe, moved, strict=True):
        signs[lesson.advantage > 0].append(float(part.mean()))
    margin = float(np.mean(signs[True]) - np.mean(signs[False])) if signs[True] and signs[False] else None
    return {"kl_old": float(kl_old), "kl_ref": float(kl_ref)}, float(np.abs(flat).mean()), margin


def _save(policy: Policy, folder: Path) -> None:
    policy.save(folder)
    momentum.write(folder, policy.optimiser())


def _fingerprint(spec: RunSpec, preset: Preset, teaching: Sequence[Lesson]) -> str:
    """Of everything that decides what a step does."""
    decides = [
        [spec.weights, spec.parent, spec.seed, preset.model_dump()],
        [[lesson.sample.rating, lesson.advantage, lesson.sample.tokens.reply] for lesson in teaching],
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
