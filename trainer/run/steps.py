"""The optimiser steps of a run: in which order, how far, and with a checkpoint after each.

Owns the plan of steps, the gradient of one within the memory there is, and when to stop. Not here: what comes before
and after (loop), the mathematics (objective, objective_kin), the framework (policies).
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from config.presets import Preset
from trainer import objective, own_loss
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import RunError, RunSpec
from trainer.lessons import pairs, trajectories
from trainer.lessons.batch import loss_of, reference_point, score, terms
from trainer.lessons.lessons import Lesson, metrics_of
from trainer.objective import Floats
from trainer.policy import packing
from trainer.policy.policy import Loss, OutOfMemory, Policy, State
from trainer.run import checkpoint, reach
from trainer.run.checkpoint import Checkpoint
from trainer.run.reach import Bound

LESS_MEMORY = (
    "its ratings are fresh again; end what else needs memory, set a lower train.overrides.max_seq_len, or "
    "train.share_gpu = true where the model's server has the same memory."
)
BACK = 3  # times that it is looked whether a run by token has moved too far
POWERS = 1.0, 2.0  # of the way that the drift grows with: squared near the start, ever slower further on
PROBE = 16  # lessons that the last step's drift is measured on: a second or two
ROUNDED = 0.05  # nats a token: five times what bf16 rounds differently in other micro-batches
REPLAYED = 8  # liked and disliked replies that the gate looks at once more, the newest: no more than the probe again

NOTHING: Mapping[int, Floats] = MappingProxyType({})
TOLD = ("loss", "grad_norm", "guarded", "kl_teacher", "kl_stay", "elsewhere")  # of the last step that counts


class Diverged(Exception):
    """The optimiser left the numbers or the trust region; nothing of this run can be used."""


@dataclass
class Trained:
    lessons: list[Lesson]  # that an optimiser step used
    changed: float  # mean |ℓ_θ − ℓ_old| on the probe, nats a token
    replayed: float | None  # mean ℓ_θ − ℓ_old of the last liked replies minus that of the last disliked ones
    metrics: dict[str, float]
    seconds_before: float  # in processes that this one resumed from
    early: str | None = None  # why it ended before its last step
    asked: float = 0.0  # KL(teacher ‖ θ) before the first steps moved it, nats a token
    back: str | None = None  # why it went half of the way back to its start


class Look(NamedTuple):
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
    bound: Bound | None = None,
) -> Trained:
    """The optimiser steps. A checkpoint after each, so that a run goes on where it was killed and never steps twice.

    `bound`: how far the policy may have moved in the end (reach).
    """
    plan = plan_of(teaching, preset, spec.seed)
    passes = "1 pass" if preset.passes == 1 else f"{preset.passes} passes"
    why = f"{passes} over {len(teaching)} samples in batches of {preset.batch}"
    if trajectories.any_of([lesson.sample for lesson in teaching]):
        why = f"{passes} over {len(teaching)} turns of episodes in batches of {preset.batch_episodes} episodes"
    if any(lesson.has_teacher for lesson in teaching):
        why += f", {max(preset.passes, preset.passes_taught)} over what has a teacher"
    progress.choice("steps", len(plan), why)
    loss, early = loss_of(preset, own_loss.load(folder, spec.loss)), None
    credited = by_token(teaching)
    start = policy.adapter()
    spent = reach.cost(policy, bound.said) if bound is not None and bound.said else 0.0
    at = _begun(policy, teaching, _fingerprint(spec, preset, teaching), folder, progress)
    seconds_before, clock = at.seconds, time.monotonic()

    for step in range(at.step, len(plan)):
        batch = [teaching[i] for i in plan[step]]
        if step:
            batch = _paired(policy, batch, preset)
        now = _gradient(policy, batch, loss, step, progress, kto=preset.objective == "kto")
        # The forward pass just measured how far the steps before this one have drifted.
        if now["kl_old"] > preset.drift_bound:
            moved = f"{now['kl_old']:.3f} nats a token"
            early = f"stopped before step {step + 1}, as the model had moved further than the drift bound ({moved})"
            policy.wear(at.good)
            at.step = max(step - 1, 0)
            break
        if credited and now["kl_old"] > preset.drift_credited:
            break
        good = policy.adapter()
        rate = preset.learning_rate * min(1.0, (step + 1) / (preset.warmup_steps + 1))
        norm = policy.step(rate, preset.max_grad_norm)
        if not np.isfinite(norm):
            raise Diverged(f"the gradient is not finite at step {step + 1}; nothing was kept.")
        elapsed = seconds_before + time.monotonic() - clock
        line = {**metrics_of(now), "grad_norm": round(norm, 6), "acceptance": _acceptance(batch)}
        history = [*at.history, line]
        at = replace(at, step=step + 1, seconds=elapsed, history=history)
        at.adapter, at.good, at.optimiser = policy.adapter(), good, policy.optimiser()
        checkpoint.write(folder / checkpoint.FOLDER, at)
        eta = elapsed / (step + 1) * (len(plan) - step - 1)
        progress.event("step", step=step + 1, steps=len(plan), **line, rate=rate, eta_s=round(eta, 1))
        stop.check()

    look, early = _last_look(policy, teaching, at, early, preset.drift_bound)
    if early:
        progress.warning(f"{early}: the last good step, {at.step} of {len(plan)}, is kept.")
    if at.step == 0:
        raise Diverged(f"the very first step went too far: {early}.")
    if bound is not None:
        look = _back(policy, start, teaching, look, bound, spent, progress)
    last = at.history[at.step - 1]
    told = {name: value for name, value in last.items() if name in TOLD}
    stepped = {i for indices in plan[: at.step] for i in indices}
    return Trained(
        # A rating that went by token made the critic, whether a step came to it or not.
        lessons=[lesson for i, lesson in enumerate(teaching) if i in stepped or lesson.credited],
        changed=_changed(policy, start, teaching, look),
        replayed=replay(policy, teaching, look.scored),
        metrics={"steps": at.step, **told, **look.metrics},
        seconds_before=seconds_before,
        early=early,
        asked=next((line["kl_teacher"] for line in at.history if "kl_teacher" in line), 0.0),
    )


def by_token(teaching: Sequence[Lesson]) -> bool:
    """Tell whether ratings that go by token are all there is to learn from."""
    return all(lesson.credited and not lesson.taught for lesson in teaching)


def look(policy: Policy, teaching: Sequence[Lesson]) -> Look:
    """How far the policy is from where these lessons were made. Raises Diverged where it is out of the numbers."""
    return _drift(policy, teaching)


def half_way(policy: Policy, start: State, teaching: Sequence[Lesson], trained: Trained, why: str) -> Trained:
    """Half of the way back to the start, measured again."""
    policy.wear(_between(start, policy.adapter(), 0.5))
    look = _drift(policy, teaching)
    metrics, again = trained.metrics | look.metrics, replay(policy, teaching, look.scored)
    return replace(trained, changed=_changed(policy, start, teaching, look), replayed=again, metrics=metrics, back=why)


def _begun(
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


def _back(
    policy: Policy,
    start: State,
    teaching: Sequence[Lesson],
    look: Look,
    bound: Bound,
    spent: float,
    progress: Progress,
) -> Look:
    """Back on the way from the start, to the first of two places. One is where the drift is `bound.nats`; the other
    where it is at most `reach.FULL` and the sense it costs (`spent` before) is `bound.cost`. Both grow with about the
    square of the way.

    What earned its rating pushes one way, and AdamW's steps are of one size: one may go too far. Weak evidence goes all
    the way first, so that every rating has its say in where it leads.
    """
    way, power, first, told = 1.0, 2.0, look.moved, ""
    for _ in range(BACK):
        if look.moved <= 1.1 * bound.nats:
            break
        share = float((bound.nats / look.moved) ** (1 / power))
        if bound.cost is not None:
            costs = reach.cost(policy, bound.said) - spent
            told = told or f" at a cost of {costs:.3f} nats of sense; {bound.cost:.2g} are let through"
            if costs <= bound.cost and look.moved <= 1.1 * reach.FULL:
                break
            further = min(reach.FULL / look.moved, bound.cost / costs if costs > 0 else np.inf, 0.9)
            share = max(share, float(np.sqrt(further)))
        policy.wear(_between(start, policy.adapter(), share))
        was, look = look, _drift(policy, teaching)
        way, power = way * share, _power(was.moved, look.moved, share)
    free = f"; {bound.nats:.2g} are free" if bound.nats else ""
    progress.choice("way", round(way, 3), f"it had moved {first:.3f} nats a token{told}{free}")
    return look


def _power(far: float, near: float, share: float) -> float:
    """The power of the way by which the drift fell, when this share of the way was left."""
    return float(np.clip(np.log(near / far) / np.log(share), *POWERS)) if near > 0 else POWERS[1]


def _between(start: State, end: State, share: float) -> State:
    return {name: start[name] + share * (there - start[name]) for name, there in end.items()}


def _probe(teaching: Sequence[Lesson]) -> range:
    """Their places."""
    return range(0, len(teaching), max(1, len(teaching) // PROBE))[:PROBE]


def _gradient(
    policy: Policy, batch: Sequence[Lesson], loss: Loss, step: int, progress: Progress, *, kto: bool
) -> dict[str, float]:
    """The gradient of one step; the loss, and every other sum of it as nats a token."""
    sums = accumulate(policy, batch, loss, progress, kto=kto)
    per = {
        "loss": 1,
        "kl_old": sum(len(lesson.old) for lesson in batch if lesson.own),
        "kl_teacher": sum(len(lesson.old) for lesson in batch if lesson.teaching is not None),
        "kl_stay": sum(int((lesson.advantage == 0).sum()) for lesson in batch if lesson.staying is not None),
        "elsewhere": sum(float(lesson.staying.down.sum()) for lesson in batch if lesson.staying is not None),
    }
    now = {name: value / (per.get(name, _tokens(batch)) or 1) for name, value in sums.items()}
    if not all(np.isfinite(value) for value in now.values()):
        raise Diverged(f"the loss is not finite at step {step + 1}; nothing was kept.")
    return now


def _paired(policy: Policy, batch: Sequence[Lesson], preset: Preset) -> list[Lesson]:
    """The batch with what its pairs push now: less, the further apart a pair is already."""
    of_pairs = [at for at, lesson in enumerate(batch) if lesson.pair is not None]
    now = score(policy, [batch[at].tokens for at in of_pairs])
    found = list(batch)
    for at, lesson in zip(of_pairs, pairs.pushes([batch[at] for at in of_pairs], now, preset.pair_beta), strict=True):
        found[at] = lesson
    return found


def _last_look(
    policy: Policy, teaching: Sequence[Lesson], at: Checkpoint, early: str | None, bound: float
) -> tuple[Look, str | None]:
    """Its drift where nothing has measured the last step yet, and the step before it where that went too far."""
    look = _drift(policy, teaching)
    if early is None and look.moved > bound:
        moved = f"{look.moved:.3f} nats a token"
        early = f"the last step undone, as it had moved the model further than the drift bound ({moved})"
        policy.wear(at.good)
        at.step -= 1
        look = _drift(policy, teaching)
    return look, early


def _tokens(batch: Sequence[Lesson]) -> int:
    return sum(len(lesson.old) for lesson in batch)


def _acceptance(batch: Sequence[Lesson]) -> float:
    return round(sum(int(lesson.keep.sum()) for lesson in batch) / _tokens(batch), 6)


def accumulate(
    policy: Policy, batch: Sequence[Lesson], loss: Loss, progress: Progress, *, kto: bool
) -> dict[str, float]:
    """The gradient of one step, and the loss's sums.

    Where memory runs out, the step's gradient begins anew in smaller micro-batches: nothing is counted twice.
    """
    sequences = [lesson.tokens for lesson in batch]
    zero = reference_point(policy, batch) if kto else None
    weigh = trajectories.units([lesson.sample for lesson in batch])
    while True:
        sums: dict[str, float] = {}
        try:
            for members in packing.group(sequences, policy.budget):
                progress.alive()
                part = [batch[i] for i in members]
                packed = packing.pack([sequences[i] for i in members])
                for name, value in policy.backward(packed, terms(part, weigh, zero), loss).items():
                    sums[name] = sums.get(name, 0.0) + value
            return sums
        except OutOfMemory as error:
            size = packing.size(packed.sequences, trees=policy.budget.trees)
            if size <= max(len(one.computed) for one in packed.sequences):  # the turns before it cost nothing
                raise RunError(
                    f"out of memory with a single sequence of {size} tokens ({error}): {LESS_MEMORY}"
                ) from None
            before, policy.budget = policy.budget, policy.budget.below(size)
            progress.warning(
                f"out of memory with {size} tokens in a micro-batch: from at most {before.tokens} they go down to at "
                f"most {policy.budget.tokens}, and the step begins anew."
            )


def plan_of(teaching: Sequence[Lesson], preset: Preset, seed: int) -> list[list[int]]:
    """Indices of each step: every lesson `passes` times, an episode's turns together, then what has a teacher
    some more.

    A rating's second pass only pushes on what has already moved; a teacher's has a place to arrive at.
    """
    units = _units(teaching)

    def steps(chosen: Sequence[list[int]], passes: int, seed: int) -> list[list[int]]:
        ways, sizes = [teaching[unit[0]].way for unit in chosen], [len(unit) for unit in chosen]
        batch = preset.batch
        if trajectories.any_of([lesson.sample for lesson in teaching]):  # an episode is one, however many turns it has
            sizes, batch = [1] * len(chosen), preset.batch_episodes
        order = schedule(ways, batch=batch, passes=passes, seed=seed, sizes=sizes)
        return [[i for at in step for i in chosen[at]] for step in order]

    taught = [unit for unit in units if any(teaching[i].has_teacher for i in unit)]
    more = max(0, preset.passes_taught - preset.passes) if taught else 0
    return steps(units, preset.passes, seed) + steps(taught, more, seed + 1)


def _units(teaching: Sequence[Lesson]) -> list[list[int]]:
    """Places of the lessons that are in one step: the two of a pair, the turns of an episode, else each alone."""
    if trajectories.any_of([lesson.sample for lesson in teaching]):
        return trajectories.together([lesson.sample for lesson in teaching])
    of: dict[str, list[int]] = {}
    for at, lesson in enumerate(teaching):
        of.setdefault(lesson.pair.name if lesson.pair else f"\n{at}", []).append(at)
    return list(of.values())


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


def _drift(policy: Policy, teaching: Sequence[Lesson]) -> Look:
    probe = [teaching[at] for at in _probe(teaching)]
    scored = score(policy, [lesson.tokens for lesson in probe])
    now, made = np.concatenate(scored), terms(probe, len(probe))
    if not np.isfinite(now).all():
        raise Diverged("log-probs are not finite after the last step; nothing was kept.")
    moved = objective.drift(np, made.old, now)[made.own > 0]
    kl_old, kl_ref = moved.mean() if len(moved) else 0.0, objective.k3(np, made.ref, now).mean()
    known = dict(zip(_probe(teaching), scored, strict=True))
    return Look(float(kl_old), float(kl_ref), float(np.abs(now - made.old).mean()), known)


def _changed(policy: Policy, start: State, teaching: Sequence[Lesson], look: Look) -> float:
    """Mean |ℓ_θ − ℓ_old| on the probe; where that may be rounding, of the start in these very micro-batches."""
    if look.changed > ROUNDED:
        return look.changed
    tokens, end = [teaching[at].tokens for at in look.scored], policy.adapter()
    policy.wear(start)
    before = np.concatenate(score(policy, tokens))
    policy.wear(end)
    return float(np.abs(np.concatenate(list(look.scored.values())) - before).mean())


def replay(policy: Policy, teaching: Sequence[Lesson], known: Mapping[int, Floats] = NOTHING) -> float | None:
    """How much more the last liked replies rose than the last disliked ones, nats a token; None without both. Where
    ratings went by token, how much the tokens rose that earned them.

    `known`: what the policy as it is gives lessons by place, so that they are not asked about twice.
    """
    if earned := [at for at, one in enumerate(teaching) if one.credited and (one.advantage > 0).any()][:REPLAYED]:
        weights = np.maximum(np.concatenate([teaching[at].advantage for at in earned]), 0.0)
        return float(np.average(np.concatenate(_risen(policy, teaching, earned, known)), weights=weights))
    sides = [[at for at, one in enumerate(teaching) if one.way * sign > 0][:REPLAYED] for sign in (1, -1)]
    if not all(sides):
        return None
    risen = iter(_risen(policy, teaching, [at for side in sides for at in side], known))
    liked, disliked = (np.mean([next(risen).mean() for _ in side]) for side in sides)
    return float(liked - disliked)


def _risen(
    policy: Policy, teaching: Sequence[Lesson], places: Sequence[int], known: Mapping[int, Floats]
) -> list[Floats]:
    """ℓ_θ − ℓ_old (T,) of the lessons at these places."""
    new = [at for at in places if at not in known]
    now = {**known, **dict(zip(new, score(policy, [teaching[at].tokens for at in new]), strict=True))}
    return [now[at] - teaching[at].old for at in places]


def _fingerprint(spec: RunSpec, preset: Preset, teaching: Sequence[Lesson]) -> str:
    """Hash everything that decides what a step does, but for the advantages: a checkpoint has these as numbers."""
    decides = [
        [spec.weights, spec.parent, spec.seed, preset.model_dump(), *([spec.loss.sha256] if spec.loss else [])],
        [[lesson.sample.rating, lesson.sample.comment, lesson.tokens.reply] for lesson in teaching],
    ]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()
