"""The optimiser steps of a run: in which order, how far, and with a checkpoint after each.

Owns the plan of steps, the gradient of one within the memory there is, and when to stop. Not here: what comes before
and after (loop), the mathematics (mis_po, losses), the framework (policies).
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from config.presets import Preset
from trainer import mis_po, objectives, own_loss
from trainer.io.progress import Progress, Stop, rounded
from trainer.io.run_folder import RunError, RunSpec
from trainer.lessons import pairs, trajectories
from trainer.lessons.batch import make_terms, reference_point, score
from trainer.lessons.lesson import Lesson, goes_by_token
from trainer.mis_po import Floats
from trainer.objectives import Objective
from trainer.out_of_memory import OutOfMemory
from trainer.policy import packing
from trainer.policy.policy import Loss, Policy, State
from trainer.run import checkpoint, reach, replay_margin
from trainer.run.checkpoint import Checkpoint
from trainer.run.reach import MoveBound
from trainer.run.replay_margin import ReplayMargin

LESS_MEMORY = (
    "its ratings are fresh again; end what else needs memory, set a lower train.overrides.max_seq_len, or "
    "train.share_gpu = true where the model's server has the same memory."
)
BACK = 3  # times that it is looked whether a run by token has moved too far
POWERS = 1.0, 2.0  # of the way that the drift grows with: squared near the start, ever slower further on
PROBE = 16  # lessons that the last step's drift is measured on: a second or two
ROUNDED = 0.05  # nats a token: five times what bf16 rounds differently in other micro-batches

FINAL_METRICS = ("loss", "grad_norm", "guarded", "kl_teacher", "kl_stay", "elsewhere")  # of the last step that counts


class Diverged(Exception):
    """The optimiser left the numbers or the trust region; nothing of this run can be used."""


@dataclass
class StepsResult:
    lessons: list[Lesson]  # that an optimiser step used
    changed: float  # mean |ℓ_θ − ℓ_old| on the probe, nats a token
    replay_margin: ReplayMargin | None
    metrics: dict[str, float]
    seconds_before: float  # in processes that this one resumed from
    early_reason: str | None = None  # why it ended before its last step
    teacher_distance: float = 0.0  # KL(teacher ‖ θ) before the first steps moved it, nats a token
    back_reason: str | None = None  # why it went half of the way back to its start


class Drift(NamedTuple):
    """How far the last step went, measured on the probe without a gradient."""

    moved: float  # mean drift from θ_old on its own replies, nats a token
    to_ref: float  # mean k3 to the reference
    changed: float  # mean |ℓ_θ − ℓ_old|
    scored: Mapping[int, Floats]  # by place among the lessons: ℓ_θ (T,) of the probe

    @property
    def metrics(self) -> dict[str, float]:
        return {"kl_old": self.moved, "kl_ref": self.to_ref}


def train(
    policy: Policy,
    teaching: Sequence[Lesson],
    preset: Preset,
    spec: RunSpec,
    folder: Path,
    progress: Progress,
    stop: Stop,
    bound: MoveBound | None = None,
) -> StepsResult:
    """The optimiser steps. A checkpoint after each, so that a run goes on where it was killed and never steps twice.

    `bound`: how far the policy may have moved in the end (reach).
    """
    plan = plan_steps(teaching, preset, spec.seed)
    passes = "1 pass" if preset.passes == 1 else f"{preset.passes} passes"
    imitated = sum(lesson.is_imitated for lesson in teaching)
    addition = f" and {imitated} replies to imitate" if imitated else ""
    reason = f"{passes} over {len(teaching) - imitated} samples{addition} in batches of {preset.batch}"
    if trajectories.are_episodes([lesson.sample for lesson in teaching]):
        reason = f"{passes} over {len(teaching)} turns of episodes in batches of {preset.batch_episodes} episodes"
    if any(lesson.has_teacher for lesson in teaching):
        reason += f", and again over what has a teacher, to {preset.steps_taught} steps"
    progress.choice("steps", len(plan), reason)
    loss, early_reason = objectives.make_loss(preset, own_loss.load(folder, spec.loss)), None
    furthest = _furthest(teaching, preset)
    start = policy.adapter()
    spent = reach.cost(policy, bound.replies) if bound is not None and bound.replies and spec.parent else 0.0
    current = _resume(policy, teaching, _fingerprint(spec, preset, teaching), folder, progress)
    seconds_before, started = current.seconds, time.monotonic()

    for step in range(current.step, len(plan)):
        batch = [teaching[i] for i in plan[step]]
        if step:
            batch = _update_pairs(policy, batch, preset)
        sums = _gradient(policy, batch, loss, step, progress, objective=objectives.of(preset))
        # The forward pass just measured how far the steps before this one have drifted.
        if step == 1 and sums["kl_old"] > preset.drift_bound:
            halved = _halve_first_step(policy, teaching, current, preset.drift_bound, progress)
            if halved is not None:
                current, _ = halved
                policy.restore(current.optimiser)  # and no gradient of where the whole step led
                sums = _gradient(policy, batch, loss, step, progress, objective=objectives.of(preset))
        if sums["kl_old"] > preset.drift_bound:
            moved = f"{sums['kl_old']:.3f} nats a token"
            early_reason = (
                f"stopped before step {step + 1}, as the model had moved further than the drift bound ({moved})"
            )
            policy.wear(current.good)
            current = replace(current, step=max(step - 1, 0))
            break
        if sums["kl_old"] > furthest:
            break
        good = policy.adapter()
        rate = current.rate_share * preset.learning_rate
        norm = policy.step(rate, preset.max_grad_norm)
        if not np.isfinite(norm):
            raise Diverged(f"the gradient is not finite at step {step + 1}; nothing was kept.")
        elapsed = seconds_before + time.monotonic() - started
        line = {**rounded(sums), "grad_norm": round(norm, 6), "acceptance": _acceptance(batch)}
        current = replace(
            current,
            step=step + 1,
            seconds=elapsed,
            history=[*current.history, line],
            adapter=policy.adapter(),
            good=good,
            optimiser=policy.optimiser(),
        )
        checkpoint.write(folder / checkpoint.FOLDER, current)
        eta = elapsed / (step + 1) * (len(plan) - step - 1)
        progress.event("step", step=step + 1, steps=len(plan), **line, rate=rate, eta_s=round(eta, 1))
        stop.check()

    drift, current, early_reason = _last_drift(policy, teaching, current, early_reason, preset.drift_bound, progress)
    if early_reason:
        progress.warning(f"{early_reason}: the last good step, {current.step} of {len(plan)}, is kept.")
    if current.step == 0:
        raise Diverged(f"the very first step went too far: {early_reason}.")
    if bound is not None:
        drift = _go_back(policy, start, teaching, drift, bound, spent, progress)
    last = current.history[current.step - 1]
    metrics = {name: value for name, value in last.items() if name in FINAL_METRICS}
    stepped = {i for indices in plan[: current.step] for i in indices}
    return StepsResult(
        # A rating that went by token made the critic, whether a step came to it or not.
        lessons=[lesson for i, lesson in enumerate(teaching) if i in stepped or lesson.credited],
        changed=_changed(policy, start, teaching, drift),
        replay_margin=replay_margin.measure(policy, teaching, drift.scored),
        metrics={"steps": current.step, **metrics, **drift.metrics},
        seconds_before=seconds_before,
        early_reason=early_reason,
        teacher_distance=next((line["kl_teacher"] for line in current.history if "kl_teacher" in line), 0.0),
    )


def _furthest(teaching: Sequence[Lesson], preset: Preset) -> float:
    """Nats a token from its start, past which this run takes no further step."""
    if goes_by_token(teaching):
        return preset.drift_credited
    if all(lesson.taught for lesson in teaching):
        return preset.drift_taught
    return preset.drift_bound


def go_half_way_back(
    policy: Policy, start: State, teaching: Sequence[Lesson], trained: StepsResult, reason: str
) -> StepsResult:
    """Half of the way back to the start, measured again."""
    policy.wear(_between(start, policy.adapter(), 0.5))
    drift = measure_drift(policy, teaching)
    return replace(
        trained,
        changed=_changed(policy, start, teaching, drift),
        replay_margin=replay_margin.measure(policy, teaching, drift.scored),
        metrics=trained.metrics | drift.metrics,
        back_reason=reason,
    )


def _resume(
    policy: Policy, teaching: Sequence[Lesson], fingerprint: str, folder: Path, progress: Progress
) -> Checkpoint:
    """Where this run stands: at its checkpoint, which the policy then wears, or at its start."""
    pushed = {str(place): np.asarray(lesson.advantage) for place, lesson in enumerate(teaching)}
    match checkpoint.read(folder / checkpoint.FOLDER, fingerprint, pushed):
        case str(problem):
            progress.warning(problem)
        case Checkpoint() as found:
            policy.wear(found.adapter)
            policy.restore(found.optimiser)
            progress.choice("resume", found.step, "a checkpoint of this run was there")
            return found
    start = policy.adapter()
    return Checkpoint(fingerprint, adapter=start, good=start, pushed=pushed)


def _halve_first_step(
    policy: Policy, teaching: Sequence[Lesson], current: Checkpoint, bound: float, progress: Progress
) -> tuple[Checkpoint, Drift] | None:
    """Half of a first step that moved the policy further than `bound`; the steps after it are as much shorter. None
    where half is too far as well or the run goes by token, for a runaway is not brought back. None too where the policy
    takes no adapter from outside.

    AdamW's step is proportional to its rate, so half of the way is what half of the rate would have done. It costs a
    look at the probe, instead of a gradient and the run's second try.
    """
    if goes_by_token(teaching) or not policy.interpolates:
        return None
    end, whole = policy.adapter(), measure_drift(policy, teaching)
    policy.wear(_between(current.good, end, 0.5))
    drift = measure_drift(policy, teaching)
    if drift.moved > bound:
        policy.wear(end)
        return None
    reason = f"the whole of it moved {whole.moved:.3f} nats a token, and {bound:g} is the drift bound"
    progress.choice("first_step", 0.5, f"{reason}; half of it moved {drift.moved:.3f}")
    return replace(current, adapter=policy.adapter(), rate_share=0.5), drift


def _go_back(
    policy: Policy,
    start: State,
    teaching: Sequence[Lesson],
    drift: Drift,
    bound: MoveBound,
    spent: float,
    progress: Progress,
) -> Drift:
    """Back on the way from the start, to the first of two places. One is where the drift is `bound.nats`; the other
    where it is at most `reach.FULL` and the sense it costs (`spent` before) is `bound.cost`. Both grow with about the
    square of the way.

    What earned its rating pushes one way, and AdamW's steps are of one size: one may go too far. Weak evidence goes all
    the way first, so that every rating has its say in where it leads.
    """
    way, power, first, cost_note = 1.0, 2.0, drift.moved, ""
    for _ in range(BACK):
        if drift.moved <= 1.1 * bound.nats:
            break
        share = float((bound.nats / drift.moved) ** (1 / power))
        if bound.cost is not None:
            costs = reach.cost(policy, bound.replies) - spent
            cost_note = cost_note or f" at a cost of {costs:.3f} nats of sense; {bound.cost:.2g} are let through"
            if costs <= bound.cost and drift.moved <= 1.1 * reach.FULL:
                break
            further = min(reach.FULL / drift.moved, bound.cost / costs if costs > 0 else np.inf, 0.9)
            share = max(share, float(np.sqrt(further)))
        policy.wear(_between(start, policy.adapter(), share))
        previous, drift = drift, measure_drift(policy, teaching)
        way, power = way * share, _power(previous.moved, drift.moved, share)
    free = f"; {bound.nats:.2g} are free" if bound.nats else ""
    progress.choice("way", round(way, 3), f"it had moved {first:.3f} nats a token{cost_note}{free}")
    return drift


def _power(far: float, near: float, share: float) -> float:
    """The power of the way by which the drift fell, when this share of the way was left."""
    return float(np.clip(np.log(near / far) / np.log(share), *POWERS)) if near > 0 else POWERS[1]


def _between(start: State, end: State, share: float) -> State:
    return {name: start[name] + share * (end_tensor - start[name]) for name, end_tensor in end.items()}


def _probe(teaching: Sequence[Lesson]) -> range:
    """Their places."""
    return range(0, len(teaching), max(1, len(teaching) // PROBE))[:PROBE]


def _gradient(
    policy: Policy, batch: Sequence[Lesson], loss: Loss, step: int, progress: Progress, *, objective: Objective
) -> dict[str, float]:
    """The gradient of one step; the loss, and every other sum of it as nats a token."""
    sums = accumulate(policy, batch, loss, progress, objective=objective)
    per = {
        "loss": 1,
        "kl_old": sum(int(lesson.chosen.sum()) for lesson in batch if lesson.is_own),
        "kl_teacher": sum(len(lesson.old) for lesson in batch if lesson.teacher is not None),
        "kl_stay": sum(int((lesson.advantage == 0).sum()) for lesson in batch if lesson.anchor is not None),
        "elsewhere": sum(float(lesson.anchor.down.sum()) for lesson in batch if lesson.anchor is not None),
    }
    now = {name: value / (per.get(name, _tokens(batch)) or 1) for name, value in sums.items()}
    if not all(np.isfinite(value) for value in now.values()):
        raise Diverged(f"the loss is not finite at step {step + 1}; nothing was kept.")
    return now


def _update_pairs(policy: Policy, batch: Sequence[Lesson], preset: Preset) -> list[Lesson]:
    """The batch with what its pairs push now: less, the further apart a pair is already."""
    of_pairs = [index for index, lesson in enumerate(batch) if lesson.pair is not None]
    scored = score(policy, [batch[index].tokens for index in of_pairs])
    updated = list(batch)
    lessons = pairs.update_pairs([batch[index] for index in of_pairs], scored, preset.pair_beta)
    for index, lesson in zip(of_pairs, lessons, strict=True):
        updated[index] = lesson
    return updated


def _last_drift(
    policy: Policy,
    teaching: Sequence[Lesson],
    current: Checkpoint,
    early_reason: str | None,
    bound: float,
    progress: Progress,
) -> tuple[Drift, Checkpoint, str | None]:
    """Measure the last step, which nothing has measured yet, and go back to the one before where it went too far."""
    drift = measure_drift(policy, teaching)
    if early_reason is None and drift.moved > bound and current.step == 1:
        halved = _halve_first_step(policy, teaching, current, bound, progress)
        if halved is not None:
            current, drift = halved
    if early_reason is None and drift.moved > bound:
        moved = f"{drift.moved:.3f} nats a token"
        early_reason = f"the last step undone, as it had moved the model further than the drift bound ({moved})"
        policy.wear(current.good)
        current = replace(current, step=current.step - 1)
        drift = measure_drift(policy, teaching)
    return drift, current, early_reason


def _tokens(batch: Sequence[Lesson]) -> int:
    return sum(len(lesson.old) for lesson in batch)


def _acceptance(batch: Sequence[Lesson]) -> float:
    return round(
        sum(int(lesson.keep.sum()) for lesson in batch) / max(sum(int(lesson.chosen.sum()) for lesson in batch), 1), 6
    )


def accumulate(
    policy: Policy, batch: Sequence[Lesson], loss: Loss, progress: Progress, *, objective: Objective
) -> dict[str, float]:
    """The gradient of one step, and the loss's sums.

    Where memory runs out, the step's gradient begins anew in smaller micro-batches: nothing is counted twice.
    """
    sequences = [lesson.tokens for lesson in batch]
    zero = reference_point(policy, batch) if objective.has_reference_point else None
    units = trajectories.units([lesson.sample for lesson in batch])
    while True:
        sums: dict[str, float] = {}
        try:
            for members in packing.group(sequences, policy.budget):
                progress.alive()
                part = [batch[i] for i in members]
                packed = packing.pack([sequences[i] for i in members])
                for name, value in policy.backward(packed, make_terms(part, units, zero), loss).items():
                    sums[name] = sums.get(name, 0.0) + value
            return sums
        except OutOfMemory as error:
            size = packing.size(packed.sequences, trees=policy.budget.trees)
            if size <= max(len(sequence.computed) for sequence in packed.sequences):  # the turns before it cost nothing
                raise RunError(
                    f"out of memory with a single sequence of {size} tokens ({error}): {LESS_MEMORY}"
                ) from None
            budget, policy.budget = policy.budget, policy.budget.halved(size)
            progress.warning(
                f"out of memory with {size} tokens in a micro-batch: from at most {budget.tokens} they go down to at "
                f"most {policy.budget.tokens}, and the step begins anew."
            )


def plan_steps(teaching: Sequence[Lesson], preset: Preset, seed: int) -> list[list[int]]:
    """Indices of each step: every lesson `passes` times, an episode's turns together. Then what has a teacher some
    more, to `steps_taught` steps; where only a share of the lessons has one, that share of the missing steps.

    A rating's second pass only pushes on what has already moved; a teacher's has a place to arrive at.
    """
    units = _units(teaching)

    def steps(chosen: Sequence[list[int]], passes: int, seed: int) -> list[list[int]]:
        ways, sizes = [teaching[unit[0]].direction for unit in chosen], [len(unit) for unit in chosen]
        batch = preset.batch
        if trajectories.are_episodes([lesson.sample for lesson in teaching]):
            sizes, batch = [1] * len(chosen), preset.batch_episodes  # an episode is one, however many turns it has
        order = schedule(ways, batch=batch, passes=passes, seed=seed, sizes=sizes)
        return [[i for index in step for i in chosen[index]] for step in order]

    taught = [unit for unit in units if any(teaching[i].has_teacher for i in unit)]
    once = steps(units, preset.passes, seed)
    if not taught:
        return once
    further = max(0, math.ceil((preset.steps_taught - len(once)) * len(taught) / len(units)))
    return once + steps(taught, further, seed + 1)[:further]  # a pass has at least one step


def _units(teaching: Sequence[Lesson]) -> list[list[int]]:
    """Places of the lessons that are in one step: the two of a pair, the turns of an episode, else each alone."""
    if trajectories.are_episodes([lesson.sample for lesson in teaching]):
        return trajectories.group_indices([lesson.sample for lesson in teaching])
    members: dict[str, list[int]] = {}
    for index, lesson in enumerate(teaching):
        members.setdefault(lesson.pair.name if lesson.pair else f"\n{index}", []).append(index)
    return list(members.values())


def schedule(
    advantages: Sequence[float], *, batch: int, passes: int, seed: int, sizes: Sequence[int] = ()
) -> list[list[int]]:
    """Indices of each step. Shuffled by the seed, and both signs spread evenly, so that each batch mixes them. `sizes`:
    how many replies each is, one where it is not said."""
    shuffle = random.Random(seed)  # noqa: S311, an order, not a secret
    plan: list[list[int]] = []
    for _ in range(passes):
        places: list[tuple[float, int]] = []
        for sign in (True, False):
            members = [i for i, a in enumerate(advantages) if (a > 0) is sign]
            shuffle.shuffle(members)
            places += [((n + shuffle.random()) / len(members), i) for n, i in enumerate(members)]
        order = [i for _, i in sorted(places)]
        replies = sum(sizes) if sizes else len(order)
        steps = min(
            len(order), max(1, round(replies / batch))
        )  # as equal as can be: none on the two that are left over
        plan += [[order[i] for i in part] for part in np.array_split(np.arange(len(order)), steps)]
    return plan


def measure_drift(policy: Policy, teaching: Sequence[Lesson]) -> Drift:
    """How far the policy is from where these lessons were made. Raises Diverged where it is out of the numbers."""
    probe = [teaching[index] for index in _probe(teaching)]
    scored = score(policy, [lesson.tokens for lesson in probe])
    theta, constants = np.concatenate(scored), make_terms(probe, len(probe))
    if not np.isfinite(theta).all():
        raise Diverged("log-probs are not finite after the last step; nothing was kept.")
    moved = mis_po.drift(np, constants.old, theta)[constants.is_own > 0]
    kl_old, kl_ref = moved.mean() if len(moved) else 0.0, mis_po.k3(np, constants.ref, theta).mean()
    scored_by_index = dict(zip(_probe(teaching), scored, strict=True))
    return Drift(float(kl_old), float(kl_ref), float(np.abs(theta - constants.old).mean()), scored_by_index)


def _changed(policy: Policy, start: State, teaching: Sequence[Lesson], drift: Drift) -> float:
    """Mean |ℓ_θ − ℓ_old| on the probe; where that may be rounding, of the start in these very micro-batches."""
    if drift.changed > ROUNDED:
        return drift.changed
    tokens, end = [teaching[index].tokens for index in drift.scored], policy.adapter()
    policy.wear(start)
    start_log_probs = np.concatenate(score(policy, tokens))
    policy.wear(end)
    return float(np.abs(np.concatenate(list(drift.scored.values())) - start_log_probs).mean())


def _fingerprint(spec: RunSpec, preset: Preset, teaching: Sequence[Lesson]) -> str:
    """Hash everything that decides what a step does, but for the advantages: a checkpoint has these as numbers."""
    decides = [
        [spec.weights, spec.parent, spec.seed, preset.model_dump(), *([spec.loss.sha256] if spec.loss else [])],
        [[lesson.sample.rating, lesson.sample.comment, lesson.tokens.reply] for lesson in teaching],
    ]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
