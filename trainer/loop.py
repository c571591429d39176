"""One run, top to bottom: load → ℓ_old, ℓ_ref → filter → optimiser steps → gate → write.

Owns the order of things. Every decision made on the way is an event with its reason. Left out on
purpose: learning-rate decay (a run is a dozen steps).
Not here: the optimiser steps (steps), how often they are tried (retry), the mathematics (objective), the framework
(policies).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from config import presets
from config.errors import SettingsError
from config.presets import Preset
from trainer import objective, objective_kin, own_loss
from trainer.formats import adapter, model_info, sidecar_files, weights
from trainer.formats.manifest import AdapterError
from trainer.io.cache import Cache
from trainer.io.encrypted_files import IN_THE_CLEAR, Seal
from trainer.io.progress import Progress, Stop
from trainer.io.run_folder import SAMPLES, RunError, RunSpec, read_lines, read_spec, write_atomic
from trainer.lessons import acceptance, leaning, lessons, replay, samples, trajectories
from trainer.lessons.acceptance import Outcome
from trainer.lessons.lessons import Lesson, Lessons, metrics_of
from trainer.lessons.samples import Sample, Unusable
from trainer.policy import autoscale, optimizer_state, policies
from trainer.policy.packing import Tokens
from trainer.policy.policy import Policy, State
from trainer.run import gate, preset_rules, rate_finder, ratings, reach, steps
from trainer.run.gate import Check
from trainer.run.preset_rules import RatingCount
from trainer.run.reach import MoveBound
from trainer.run.retry import Attempts, Clock, has_lost_sense
from trainer.run.scalars import Scalars
from trainer.run.steps import LESS_MEMORY, Diverged, StepsResult, train

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
    except (RunError, SettingsError, AdapterError, weights.WeightsError, model_info.ProfileError, Diverged) as error:
        result |= {"status": "failed", "reason": str(error)}
    except (OSError, SafetensorError, ValueError, RuntimeError, AssertionError, MemoryError) as error:  # disk, arrays
        result |= {"status": "failed", "reason": _in_words(error)}
    result["seconds"] = round(time.monotonic() - start + result.pop("seconds_before", 0.0), 2)
    write_atomic(folder / "result.json", json.dumps(result, indent=1, ensure_ascii=False).encode())
    progress.event("end", status=result["status"], reason=result["reason"])
    return result


def _in_words(error: BaseException) -> str:
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or "out of memory" in message.lower() or "can't allocate memory" in message:
        return f"out of memory ({message.splitlines()[0][:200]}): {LESS_MEMORY}"
    return message


@dataclass
class TrainingRun:
    """Context of every phase."""

    folder: Path
    spec: RunSpec
    preset: Preset  # as it was asked for; each phase may change it, and says so as a choice
    bounds: gate.Bounds
    result: Result
    progress: Progress
    stop: Stop
    seal: Seal
    clock: Clock = field(default_factory=Clock)
    parent_replies: list[Tokens] = field(default_factory=list)  # to the gate's questions, once for all tries
    evidence: float = 1.0  # how much the ratings say, 0 to 1 (reach)
    weak_reason: str | None = None  # why that is little
    less_teacher_reason: str | None = None  # why a teacher is asked for less
    leaning_budget: float = 0.0  # nats a token of base NLL that it may spend on leaning
    tuned: float | None = None  # the learning rate that a sweep on this model found


@dataclass(frozen=True)
class TrainedModel:
    policy: Policy
    template: samples.Template
    parent: Path | None
    optimiser: State  # what the run begins with


@dataclass(frozen=True)
class Read:
    """The run's samples."""

    usable: list[Sample]  # held back ones and replayed ones, too
    unusable: list[Unusable]
    calibration: list[Sample]

    @property
    def repeated(self) -> set[str]:
        """Ratings that have trained before."""
        return {s.rating for s in self.usable if s.replayed}


def _run(folder: Path, result: Result, progress: Progress, stop: Stop, seal: Seal) -> None:
    spec = read_spec(folder)
    result["baseline_after"] = spec.baseline
    preset = presets.resolve(spec.preset, spec.overrides)
    run = TrainingRun(folder, spec, preset, gate.Bounds.of(spec.gate), result, progress, stop, seal)
    framework = _announce(run)

    progress.phase("load")
    model = _load(run, framework)
    model = _as_served(run, model)
    read = _read(run, model)
    _heed_ratings(run, model, read)
    run.clock.lap("load")

    progress.phase("old")
    learned, teaching = _lessons(run, model, read)
    run.clock.lap("old")
    if reason := model.policy.round_products():  # not before served and trained log-probs were compared
        progress.choice("products", "bfloat16", reason)
    # Beside comments it was not tried: what those ask for is no loss of sense.
    spent = gate.spent_sense(model.parent, run.bounds) if steps.by_token(teaching) else 0.0
    tries = Attempts(folder, run.preset, spent)
    trained, checks, no = _learn(run, model, learned, teaching, tries)
    if trained is None:
        raise Diverged(f"{no}; lower train.overrides.learning_rate, or choose a more careful train.preset.")
    used = {lesson.sample.rating for lesson in trained.lessons}
    _account(run, learned, trained, checks, used)
    result |= {"retried": tries.reason, "back": trained.back_reason}

    progress.phase("write")
    result["metrics"] |= run.clock.laps
    _write(run, model, read, learned, tries, used - read.repeated, used & read.repeated, no)
    if no is None:
        new = [s for s in reversed(read.usable) if s.rating in used - read.repeated]  # the newest last
        rewards = [s.reward for s in new if s.episode is None and s.hindsight is None and not s.labelled]
        result["baseline_after"] = round(objective.ema(spec.baseline, rewards, run.preset.ema_decay), 9)
        outcomes = list({s.episode.episode: s.reward for s in new if s.episode is not None}.values())
        result["episode_baseline_after"] = round(
            objective.ema(spec.episode_baseline, outcomes, run.preset.ema_decay), 9
        )
        result["reason"] = _passed(trained, tries, len(used - read.repeated), len(used & read.repeated))
        if run.weak_reason:
            result["reason"] += f" Its step was a smaller one: {run.weak_reason}."


def _announce(run: TrainingRun) -> str:
    """The request, and which framework does it where."""
    spec, progress, objective_name = run.spec, run.progress, run.preset.objective
    if objective_name not in objective_kin.NAMES:
        raise RunError(f"there is no objective {objective_name!r}; there are {', '.join(objective_kin.NAMES)}.")
    if spec.tensorboard:
        progress.add_listener(Scalars(spec.tensorboard))
    framework, reason = policies.choose(spec.framework)
    device, device_reason = policies.find_device(framework)
    progress.event("start", run=spec.run, device=device, why=device_reason)
    progress.choice("framework", framework, reason)
    for choice in spec.choices:
        progress.choice(choice["name"], choice["value"], choice["why"])
    own_loss.load(run.folder, spec.loss)  # what is wrong with it is said before the model loads
    return framework


def _load(run: TrainingRun, framework: str) -> TrainedModel:
    """One model load a run: the weights, with the parent's adapter or a new one, and its optimiser."""
    spec, progress = run.spec, run.progress
    source = weights.resolve(spec.weights)
    profile = model_info.read(source.path)
    progress.choice("model", str(profile), profile.source)
    run.preset, choices = autoscale.fit(run.preset, spec.preset, spec.overrides, profile)
    for name, choice in choices.items():
        progress.choice(name, *choice)
    parent = spec.adapters[spec.parent] if spec.parent else None
    policy = policies.open_policy(
        framework,
        source.path,
        run.preset,
        parent=parent,
        threads=spec.threads,
        seed=spec.seed,
        compute=spec.compute,
        in_4bit=spec.load_in_4bit,
    )
    for name, value, reason in policy.choices:
        progress.choice(name, value, reason)
    optimiser, reason = optimizer_state.read(parent, policy.adapter()) if parent else ({}, "a new adapter")
    policy.restore(optimiser)
    progress.choice("optimiser", "warm" if optimiser else "cold", reason)
    return TrainedModel(policy, samples.Template(policy.tokenizer), parent, optimiser)


def _as_served(run: TrainingRun, model: TrainedModel) -> TrainedModel:
    """With the template as the server of these samples uses it, as far as that is known."""
    lines = (line for _, line in read_lines(run.folder / SAMPLES, run.seal))
    prompts = samples.known_prompts(lines, model.template)
    return replace(model, template=model.template.as_served(prompts, run.spec.neutral))


def _read(run: TrainingRun, model: TrainedModel) -> Read:
    longest = run.preset.max_seq_len
    usable, unusable = samples.load(run.folder / SAMPLES, model.template, max_seq_len=longest, seal=run.seal)
    calibration = samples.load_calibration(
        run.folder / "calibration.jsonl", model.template, version=run.spec.parent, max_seq_len=longest, seal=run.seal
    )
    _tell_of_prompts(run, model, usable)
    return Read(replay.choose(usable, run.spec, run.preset, run.progress), unusable, calibration)


def _tell_of_prompts(run: TrainingRun, model: TrainedModel, usable: Sequence[Sample]) -> None:
    """Whose rendering trains: never mixed in silence."""
    sources = [s.prompt_by for s in usable if not s.exact]
    if not sources:
        return
    served, template, choice = (
        sources.count("server") + sources.count("captured"),
        sources.count("template"),
        model.template.choice,
    )
    reason = f"of {len(sources)} prompts, {served} as their server renders them" + (
        f", {template} by {choice.way}" if template else ""
    )
    reason += (
        f"; it explains {choice.explained} of the {choice.prompts} that the server told of"
        if template and choice.prompts
        else ""
    )
    run.progress.choice("prompts", "server" if not template else "template" if not served else "both", reason)


def _heed_ratings(run: TrainingRun, model: TrainedModel, read: Read) -> None:
    """Which objective the comments ask for, and whether these ratings say anything at all."""
    training = [s for s in read.usable if not s.is_held_back]
    if trajectories.are_episodes(training):  # a program's rewards are not a taste: groups compare them
        run.preset = preset_rules.fit_episodes(run.preset, run.progress)
        return
    run.preset = preset_rules.listen_to_comments(run.preset, training, run.progress)
    if earlier_count := gate.ratings_before_teaching(model.parent):
        current = RatingCount.of(read.usable, run.spec.parent)
        run.preset, run.less_teacher_reason = preset_rules.weaken_teacher(
            run.preset, current, RatingCount(*earlier_count), run.progress
        )
    candidates = [s for s in read.usable if not s.is_held_back or s.version == run.spec.parent]
    checks = ratings.judge(candidates, model.template, run.bounds)
    run.result["gate"] = {name: check.json() for name, check in checks.items()}
    run.progress.event("gate", checks=run.result["gate"])
    if problem := ratings.problem(checks):
        if not preset_rules.has_teachers(run.preset, training):
            raise NothingToLearn(f"These ratings do not train: {problem}.")
        run.preset = preset_rules.only_teachers(run.preset, problem, run.progress)
        return
    run.evidence = reach.evidence(checks)
    if sum(s.opinion for s in training) * 2 < len(training):
        run.evidence = 1.0  # mostly a program's rewards, which that test says nothing about
    if run.evidence < 1:
        run.weak_reason = reach.describe(checks["chance"])
        run.preset = preset_rules.weaken_ratings(run.preset, run.evidence, run.weak_reason, run.progress)


def _lessons(run: TrainingRun, model: TrainedModel, read: Read) -> tuple[Lessons, list[Lesson]]:
    """Everything about the samples that has no θ in it, and which of them teach."""
    run.leaning_budget = leaning.budget(gate.spent_sense(model.parent, run.bounds), run.bounds.base_nll_rise)
    learned = lessons.prepare(
        run.spec,
        run.preset,
        model.policy,
        model.template,
        read.usable,
        read.unusable,
        read.calibration,
        leaning_budget=run.leaning_budget,
        cache=Cache(run.folder / "cache", run.seal),
        progress=run.progress,
        stop=run.stop,
    )
    run.result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    run.result |= {"metrics": metrics_of(learned.metrics), "guesses": learned.guesses}
    run.progress.event("filter", **run.result["metrics"])
    teaching = [lesson for lesson in learned.train if lesson.teaches]
    new_outcomes = [outcome for rating, outcome in learned.outcomes.items() if rating not in read.repeated]
    if all(lesson.sample.replayed for lesson in teaching):
        raise NothingToLearn(acceptance.explain_nothing(new_outcomes))
    taught = sum(lesson.taught for lesson in teaching)
    remaining = [s.sample for s in learned.train if s.keep.any() and learned.outcomes[s.sample.rating].cause is None]
    contrast = ratings.contrast(remaining)
    compares_nothing = trajectories.are_episodes(remaining) or any(s.hindsight is not None for s in remaining)
    if not contrast.ok and not taught and not compares_nothing:
        run.result["gate"]["contrast"] = contrast.json()
        raise NothingToLearn(
            f"Nothing to compare in {len(new_outcomes)} samples: {acceptance.count_causes(new_outcomes, 'the same')}."
        )
    run.preset = _tuned(run, model, teaching)
    if not trajectories.are_episodes(remaining):
        run.preset = preset_rules.fit_rate(run.preset, teaching, run.progress)
    if run.weak_reason and (learned.critic.trusted or learned.is_leaning or steps.by_token(teaching)):
        run.evidence, run.weak_reason = 1.0, None  # a critic sees what that test does not
    elif run.weak_reason and not taught:
        moves = reach.free_nats(run.preset, run.evidence, credited=False)
        reason = f"a smaller step, or one that costs no sense: {run.weak_reason}"
        run.progress.choice("reach", moves and float(f"{moves:.2g}"), reason)
    return learned, teaching


def _tuned(run: TrainingRun, model: TrainedModel, teaching: Sequence[Lesson]) -> Preset:
    """At the rate that this model was found to bear: by a version before, or now where that is asked for."""
    if "learning_rate" in run.spec.overrides:
        return run.preset
    for_version = gate.tuned_rate(model.parent)
    run.tuned = run.spec.tuned if for_version is None else for_version
    if run.spec.tune == "anew" or (run.spec.tune and run.tuned is None):
        run.tuned = rate_finder.find(model.policy, teaching, run.preset, run.spec, run.folder, run.progress, run.stop)
    elif run.tuned is not None:
        origin = "for a version before" if for_version is not None else "in a run before"
        run.progress.choice("learning_rate", run.tuned, f"found by a sweep on this model, {origin}")
    return run.preset if run.tuned is None else run.preset.model_copy(update={"learning_rate": run.tuned})


def _learn(
    run: TrainingRun, model: TrainedModel, learned: Lessons, teaching: Sequence[Lesson], tries: Attempts
) -> tuple[StepsResult | None, dict[str, Check], str | None]:
    """Optimiser steps and gate; where the gate says no, by token, less of the same; and once more and more careful."""
    start = model.policy.adapter()
    by_token = steps.by_token(teaching)
    elsewhere = by_token and any(lesson.anchor is not None and lesson.anchor.down.any() for lesson in teaching)
    while True:
        if elsewhere:
            run.progress.choice("w_elsewhere", float(f"{tries.preset.w_elsewhere:.3g}"), tries.weighed)
        trained, checks, no = _try(run, model, learned, teaching, tries)
        if trained is not None and has_lost_sense(checks):
            trained, checks, no = _half_way_back(run, model, learned, teaching, trained, start, str(no))
        if no is None or not tries.retry(no, checks, elsewhere=elsewhere):
            return trained, checks, no
        run.progress.warning(f"{no}; once more from the start, {tries.how}.")
        model.policy.wear(start)
        model.policy.restore(model.optimiser)


def _try(
    run: TrainingRun, model: TrainedModel, learned: Lessons, teaching: Sequence[Lesson], tries: Attempts
) -> tuple[StepsResult | None, dict[str, Check], str | None]:
    """Result of the steps, and why it may not go live (None: it may)."""
    run.progress.phase("train", **({"again": tries.reason} if tries.reason else {}))
    try:
        bound = _bound(run, model, teaching, tries.preset)
        trained = train(model.policy, teaching, tries.preset, run.spec, run.folder, run.progress, run.stop, bound)
    except Diverged as error:
        return None, {}, str(error).rstrip(".")
    finally:
        run.clock.lap("train")
    return trained, *_judged(run, model, learned, teaching, trained)


def _bound(run: TrainingRun, model: TrainedModel, teaching: Sequence[Lesson], preset: Preset) -> MoveBound | None:
    """How far this try may move the policy, which wears what it starts from; None: as far as its steps go."""
    if any(lesson.is_leaning for lesson in teaching):
        _ask_parent(run, model)
        return MoveBound(0.0, run.leaning_budget, run.parent_replies)
    if any(lesson.taught for lesson in teaching):
        return None
    by_token = steps.by_token(teaching)
    if run.evidence < 1 and not by_token:
        _ask_parent(run, model)
    return reach.move_bound(
        preset, run.evidence, credited=by_token, most=run.bounds.base_nll_rise, replies=run.parent_replies
    )


def _ask_parent(run: TrainingRun, model: TrainedModel) -> None:
    if not run.parent_replies:
        with model.policy.wearing(model.parent):
            run.parent_replies = gate.answer_questions(model.policy, model.template)


def _half_way_back(
    run: TrainingRun,
    model: TrainedModel,
    learned: Lessons,
    teaching: Sequence[Lesson],
    trained: StepsResult,
    start: State,
    no: str,
) -> tuple[StepsResult, dict[str, Check], str | None]:
    """A candidate that lost too much sense keeps half of what it learned, and is judged once more."""
    run.progress.warning(f"{no}; half of the way back.")
    trained = steps.go_half_way_back(model.policy, start, teaching, trained, no)
    checks, no_again = _judged(run, model, learned, teaching, trained)
    return trained, checks, no_again and f"{no_again}, half of the way back"


def _judged(
    run: TrainingRun, model: TrainedModel, learned: Lessons, teaching: Sequence[Lesson], trained: StepsResult
) -> tuple[dict[str, Check], str | None]:
    """The gate's checks, and the first one that says no."""
    run.progress.phase("gate")
    _ask_parent(run, model)
    run.stop.check()
    checks = gate.judge(
        model.policy,
        model.template,
        run.bounds,
        parent=model.parent,
        parent_replies=run.parent_replies,
        lessons=teaching,
        held_back=learned.held_back,
        changed=trained.changed,
        replay_margin=trained.replay_margin,
        # Where it is 0, the parent's allowance stays.
        teacher_distance=0.0 if run.less_teacher_reason or learned.is_leaning else trained.teacher_distance,
        stop=run.stop,
    )
    run.clock.lap("gate")
    run.progress.event("gate", checks={name: check.json() for name, check in checks.items()})
    failed = next(((name, check) for name, check in checks.items() if not check.ok), None)
    if failed is None:
        return checks, None
    name, check = failed
    return checks, f"{name} is {check.value}, the bound is {check.bound}"


def _account(
    run: TrainingRun, learned: Lessons, trained: StepsResult, checks: dict[str, Check], used: set[str]
) -> None:
    for rating in used:
        learned.outcomes[rating].used = True
    run.result["seconds_before"] = trained.seconds_before
    run.result["samples"] = {name: _outcome(o) for name, o in learned.outcomes.items()}
    run.result["metrics"] |= metrics_of(trained.metrics)
    late_ratings = [
        lesson.sample.rating
        for lesson in learned.train
        if not lesson.is_imitated and lesson.sample.version != run.spec.parent
    ]
    if late_ratings:
        run.result["metrics"] |= {
            "late": float(len(late_ratings)),
            "late_trained": float(len(used & set(late_ratings))),
        }
    run.result["gate"] |= {name: check.json() for name, check in checks.items()}


def _write(
    run: TrainingRun,
    model: TrainedModel,
    read: Read,
    learned: Lessons,
    tries: Attempts,
    used: set[str],
    replayed: set[str],
    no: str | None,
) -> None:
    """The adapter: where it may go live, or beside the run for whoever wants to look at it."""
    spec, out = run.spec, run.folder / "rejected" if no else run.spec.out
    manifest = {
        "run": spec.run,
        "version": spec.version,
        "parent": spec.parent,
        "model": spec.model,
        "weights": spec.weights,
        "objective": spec.loss.name if spec.loss else run.preset.objective,
        "samples": sorted(used),
        "replayed": sorted(replayed),
        "recomputed": sorted(r for r in used | replayed if not learned.outcomes[r].exact),
        "baseline": spec.baseline,
        "metrics": run.result["metrics"],
        "gate": run.result["gate"],
        "base_nll_rise": run.bounds.base_nll_rise,
        "liked": RatingCount.of(read.usable, spec.parent),  # of the parent, as the next run compares it
        "preset": tries.preset.model_dump(),
        **({} if run.tuned is None else {"tuned": run.tuned}),
        "choices": {choice["name"]: choice["value"] for choice in spec.choices},
        "retried": tries.reason,
        "back": run.result["back"],
    }
    adapter.write(out, partial(_save, model.policy, learned), manifest)
    run.result |= {"status": "rejected" if no else "passed", "adapter": str(out)}
    if no:
        run.result["reason"] = f"The gate said no{f' {tries.how} too' if tries.reason else ''}: {no}."


def _passed(trained: StepsResult, tries: Attempts, used: int, replayed: int) -> str:
    replayed_note = f" and {replayed} of earlier runs" if replayed else ""
    summary = f"{int(trained.metrics['steps'])} steps on {used} samples{replayed_note}"
    reason = f"{summary}{f', {trained.early_reason}; it' if trained.early_reason else ''} passed the gate."
    if tries.reason:
        reason += f" That was a second try, {tries.how}; the first was dropped: {tries.reason}. Nothing is left to do."
    if trained.back_reason:
        reason += f" Half of what it had learned was taken back, since at the end of its steps {trained.back_reason}."
    return reason


def _save(policy: Policy, learned: Lessons, folder: Path) -> None:
    policy.save(folder)
    sidecar_files.write(folder, sidecar_files.OPTIMISER, policy.optimiser())
    sidecar_files.write(folder, sidecar_files.CRITIC, learned.labels)


def _outcome(outcome: Outcome) -> dict[str, Any]:
    return {name: value for name, value in asdict(outcome).items() if value not in (None, []) or name == "cause"}
