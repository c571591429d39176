"""At most two tries at a version: optimiser steps and gate, and the second from the start and more careful.

Owns their order, what a resumed run has to know of them, and the way half back of a candidate that lost too much sense.
Not here: the steps (steps), the checks (gate), what a run trains with (plan).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from config.presets import Preset
from trainer.io.run_folder import write_atomic
from trainer.lessons.lesson import Lesson, goes_by_token
from trainer.lessons.lessons import Lessons
from trainer.policy.policy import State
from trainer.run import checkpoint, gate, steps
from trainer.run.context import RunContext, RunModel
from trainer.run.gate import Check
from trainer.run.plan import Plan, move_bound
from trainer.run.steps import Diverged, StepsResult

MOST_SPENT = 0.5  # beyond it a second try with the whole weight would be much the same as the first


class TrainedCandidate(NamedTuple):
    steps: StepsResult
    checks: dict[str, Check]
    refusal: str | None  # the first check that says no; None: it may go live
    answers: gate.SideAnswers


class Attempts:
    """At most two, the second from the start. On disk, so that a resumed run knows which it is.

    A run by token takes its pushes back where they were not earned. It spends as much of the preset's weight on that as
    its parent had spent of the sense it might lose (`spent`, 0 to 1). On a version that has lost none it would only
    learn less (docs/lab/training-log.md, the thirteenth look). One that lost too much, half of the way back too, does
    so with the whole weight in its second try. That holds where the whole is at least twice what it was. Any other goes
    at half the rate.
    """

    def __init__(self, folder: Path, preset: Preset, spent: float = 0.0) -> None:
        self.folder = folder
        self._path = folder / "retry.json"
        self._full = preset
        self._spent = spent
        stored = json.loads(self._path.read_bytes()) if self._path.exists() else {}
        self.reason: str | None = stored.get("why")
        self._elsewhere: bool = stored.get("elsewhere", False)

    @property
    def preset(self) -> Preset:
        full = self._full
        if self._elsewhere:
            return full
        changes = {"w_elsewhere": full.w_elsewhere * self._spent}
        if self.reason is not None:
            changes |= {"learning_rate": full.learning_rate / 2, "drift_credited": full.drift_credited / 2}
            changes["drift_weak"] = full.drift_weak / 2
        return full.model_copy(update=changes)

    @property
    def weighed(self) -> str:
        """Why `w_elsewhere` is what it is."""
        if self._elsewhere:
            return "all of it in a second try"
        return f"{self._spent:.0%} of the sense that the gate lets a version lose (base_nll) was spent before"

    @property
    def how(self) -> str:
        """In which way the second one differs."""
        return "with its pushes taken back elsewhere" if self._elsewhere else "at half the rate"

    def retry(self, reason: str, checks: dict[str, Check], *, elsewhere: bool) -> bool:
        """Tell if a second try is worth it: not for what moved too little already. `elsewhere`: there are places to
        take pushes back at, and the objective has a loss for it."""
        if self.reason is not None or ("no_op" in checks and not checks["no_op"].ok):
            return False
        self.reason = reason
        may_push_down = self._full.w_elsewhere > 0 and self._spent <= MOST_SPENT
        self._elsewhere = elsewhere and may_push_down and has_lost_sense(checks)
        stored = {"why": reason, "elsewhere": self._elsewhere}
        write_atomic(self._path, json.dumps(stored, ensure_ascii=False).encode())
        shutil.rmtree(self.folder / checkpoint.FOLDER, ignore_errors=True)  # the first one's
        return True


def has_lost_sense(checks: dict[str, Check]) -> bool:
    """Tell whether base_nll says no, and nothing else does."""
    return [name for name, check in checks.items() if not check.ok] == ["base_nll"]


def learn(
    run: RunContext, plan: Plan, model: RunModel, lessons: Lessons, teaching: Sequence[Lesson], attempts: Attempts
) -> TrainedCandidate:
    """Optimiser steps and gate; where the gate says no, by token, less of the same; and once more and more careful.
    Raises Diverged where no try came to a candidate."""
    start = model.policy.adapter()
    has_places = any(lesson.anchor is not None and lesson.anchor.down.any() for lesson in teaching)
    elsewhere = has_places and goes_by_token(teaching)
    while True:
        if elsewhere:
            weight = float(f"{attempts.preset.w_elsewhere:.3g}")
            run.progress.choice("w_elsewhere", weight, attempts.weighed)
        candidate, problem = _try(run, plan, model, lessons, teaching, attempts, start)
        checks = candidate.checks if candidate else {}
        if problem is None or not attempts.retry(problem, checks, elsewhere=elsewhere):
            break
        run.progress.warning(f"{problem}; once more from the start, {attempts.how}.")
        model.policy.wear(start)
        model.policy.restore(model.optimiser)
    if candidate is None:
        raise Diverged(f"{problem}; lower train.overrides.learning_rate, or choose a more careful train.preset.")
    return candidate


def _try(
    run: RunContext,
    plan: Plan,
    model: RunModel,
    lessons: Lessons,
    teaching: Sequence[Lesson],
    attempts: Attempts,
    start: State,
) -> tuple[TrainedCandidate | None, str | None]:
    """Take the steps; return the candidate, and why it may not go live (None: it may)."""
    run.progress.phase("train", **({"again": attempts.reason} if attempts.reason else {}))
    preset = attempts.preset
    try:
        bound = move_bound(plan, preset, teaching, model)
        trained = steps.train(model.policy, teaching, preset, run.spec, run.folder, run.progress, run.stop, bound)
    except Diverged as error:
        return None, str(error).rstrip(".")
    finally:
        run.clock.lap("train")
    candidate = _judge(run, plan, model, lessons, teaching, trained)
    if candidate.refusal is not None and has_lost_sense(candidate.checks) and model.policy.interpolates:
        # It keeps half of what it learned, and is judged once more.
        run.progress.warning(f"{candidate.refusal}; half of the way back.")
        trained = steps.go_half_way_back(model.policy, start, teaching, trained, candidate.refusal)
        candidate = _judge(run, plan, model, lessons, teaching, trained)
        if candidate.refusal is not None:
            candidate = candidate._replace(refusal=f"{candidate.refusal}, half of the way back")
    return candidate, candidate.refusal


def _judge(
    run: RunContext,
    plan: Plan,
    model: RunModel,
    lessons: Lessons,
    teaching: Sequence[Lesson],
    trained: StepsResult,
) -> TrainedCandidate:
    run.progress.phase("gate")
    parent_answers = model.parent_answers
    run.stop.check()
    checks, answers = gate.judge(
        model.policy,
        model.template,
        plan.bounds,
        parent=model.parent,
        parent_answers=parent_answers,
        lessons=teaching,
        held_back=lessons.held_back,
        changed=trained.changed,
        replay_margin=trained.replay_margin,
        # Where it is 0, the parent's allowance stays.
        teacher_distance=0.0 if plan.less_teacher_reason or lessons.is_leaning else trained.teacher_distance,
        stop=run.stop,
        languages=model.languages,
        rated=model.rated_prompts,
        tell=lambda count: run.progress.event("checks", done=count, total=gate.CHECKS),
    )
    run.clock.lap("gate")
    run.progress.event("gate", checks={name: check.json() for name, check in checks.items()})
    failed = next(((name, check) for name, check in checks.items() if not check.ok), None)
    if failed is None:
        return TrainedCandidate(trained, checks, None, answers)
    name, check = failed
    return TrainedCandidate(trained, checks, f"{name} is {check.value}, the bound is {check.bound}", answers)
