"""Which learning rate does this model bear? A short sweep on the run's own samples, that stops at the first harm.

All rates of the presets were found on one model of 135 M parameters. Elsewhere they follow from size, which is a rule
and no measurement (policy.autoscale). Owns the sweep: two steps at each rate, from low to high, each from where the run
begins, and how far they moved the policy. Not here: when it is asked for, and what is kept of it (loop).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from config.presets import Preset
from trainer import objectives, own_loss
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import RunSpec, read_lines
from trainer.lessons.lesson import Lesson
from trainer.policy.policy import Loss, Policy
from trainer.run import steps
from trainer.run.steps import Diverged

FACTORS = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0)  # of the preset's rate for this model
STEPS = 2
HARM = 0.1  # nats a token after them: what a whole run by token may move


def earlier_moves(folder: Path) -> dict[float, float]:
    """Nats a token that each rate moved, in a sweep of this run that was stopped: it goes on from there."""
    moves: dict[float, float] = {}
    for _, event in read_lines(folder / "progress.jsonl"):
        if event is not None and event.get("event") == "tune":
            moves[event["rate"]] = float("inf") if event["moved"] is None else event["moved"]
    return moves


def find(
    policy: Policy,
    teaching: Sequence[Lesson],
    preset: Preset,
    spec: RunSpec,
    folder: Path,
    progress: Progress,
    stop: Stop,
) -> float:
    """The highest rate that did no harm; the policy wears what it wore before."""
    moves = earlier_moves(folder)
    start, optimiser = policy.adapter(), policy.optimiser()
    plan = steps.plan_steps(teaching, preset, spec.seed)[:STEPS]
    loss = objectives.make_loss(preset, own_loss.load(folder, spec.loss))
    best_rate, reason = preset.learning_rate * FACTORS[0], "each of them went too far"
    for factor in FACTORS:
        stop.check()
        rate = preset.learning_rate * factor
        name = float(f"{rate:.3g}")
        moved = moves.get(name, -1.0)
        if moved < 0:
            policy.wear(start)
            policy.restore(optimiser)
            batches = [[teaching[i] for i in step] for step in plan]
            moved = _move(policy, batches, preset, rate, loss, teaching, progress)
            progress.event("tune", rate=name, moved=round(moved, 4) if np.isfinite(moved) else None)
        if not moved <= HARM:
            if factor > FACTORS[0]:
                reason = f"at {rate:.2g} they moved it further than {HARM:g} nats a token"
            break
        best_rate, reason = rate, "no rate that was tried did harm"
    policy.wear(start)
    policy.restore(optimiser)
    name = float(f"{best_rate:.3g}")
    progress.event("tuned", rate=name, why=reason)
    progress.choice("learning_rate", name, f"the highest of a sweep of {STEPS} steps each: {reason}")
    return best_rate


def _move(
    policy: Policy,
    batches: Sequence[Sequence[Lesson]],
    preset: Preset,
    rate: float,
    loss: Loss,
    teaching: Sequence[Lesson],
    progress: Progress,
) -> float:
    """How far the policy is from its start after these steps, nats a token; infinite where it left the numbers."""
    try:
        for batch in batches:
            steps.accumulate(policy, batch, loss, progress, objective=objectives.of(preset))
            if not np.isfinite(policy.step(rate, preset.max_grad_norm)):
                return float("inf")
        return steps.measure_drift(policy, teaching).moved
    except Diverged:
        return float("inf")
