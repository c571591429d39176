"""One run, top to bottom: load → ℓ_old, ℓ_ref → filter → optimiser steps → gate → write.

Owns the order of things. Every decision made on the way is an event with its reason. Left out on
purpose: learning-rate decay (a run is a dozen steps).
Not here: what a run trains with (plan), the optimiser steps (steps), how often they are tried (attempts), the
mathematics (mis_po, losses), the framework (policies).
"""

from __future__ import annotations

import json
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from config.errors import SettingsError
from trainer import mis_po, own_loss, ranks
from trainer.formats import adapter, model_code, model_info, sidecar_files, weights
from trainer.formats.manifest import AdapterError
from trainer.io.cache import Cache
from trainer.io.encrypted_files import IN_THE_CLEAR, Seal
from trainer.io.progress import Progress, Stop, rounded
from trainer.io.run_folder import SAMPLES, RunError, read_lines, read_spec, write_atomic
from trainer.lessons import acceptance, samples, trajectories
from trainer.lessons.acceptance import NoiseUnknown, Outcome
from trainer.lessons.chat_template import Template
from trainer.lessons.lesson import Lesson, goes_by_token
from trainer.lessons.lessons import LessonContext, Lessons, prepare
from trainer.lessons.line_members import has_pictures
from trainer.lessons.samples import Sample, UnusableSample
from trainer.lessons.scoring import Scorer
from trainer.out_of_memory import is_out_of_memory
from trainer.pictures import files
from trainer.pictures.album import Album, open_album
from trainer.policy import optimizer_state, policies
from trainer.policy.policy import Policy
from trainer.policy.tinker_client import TinkerServer
from trainer.run import answer_pairs, gate, lesson_gaps, rate_finder, ratings
from trainer.run import plan as planning
from trainer.run.attempts import Attempts, TrainedCandidate, learn
from trainer.run.context import Result, RunContext, RunModel, RunSamples
from trainer.run.plan import NothingToLearn, Plan, RatingCount
from trainer.run.scalars import Scalars
from trainer.run.steps import LESS_MEMORY, Diverged


def run(
    folder: Path, progress: Progress, stop: Stop, seal: Seal = IN_THE_CLEAR, tinker: TinkerServer | None = None
) -> Result:
    """result.json of this folder: read when it is there, else made. `tinker` takes the steps, where there is one.
    Raises Stopped when asked to stop half-way."""
    if (folder / "result.json").exists():
        finished: Result = json.loads((folder / "result.json").read_bytes())
        progress.event("end", status=finished["status"], reason=finished["reason"])
        return finished
    start = time.monotonic()
    result: Result = {"adapter": None, "baseline_after": None, "metrics": {}, "gate": {}, "samples": {}}
    try:
        with ranks.gpu_group(folder):
            _run(folder, result, progress, stop, seal, tinker)
    except NothingToLearn as end:
        result |= {"status": "empty", "reason": str(end)}
    except NoiseUnknown as wait:
        metrics = result["metrics"] | {"missing_answers": float(wait.missing_answers)}
        result |= {"status": "empty", "reason": str(wait), "metrics": metrics}
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
    if is_out_of_memory(error):
        return f"out of memory ({message.splitlines()[0][:200]}): {LESS_MEMORY}"
    return message


def _run(folder: Path, result: Result, progress: Progress, stop: Stop, seal: Seal, tinker: TinkerServer | None) -> None:
    spec = read_spec(folder)
    run = RunContext(folder, spec, result, progress, stop, seal, tinker)
    run.record(baseline_after=spec.baseline)
    plan = planning.start(spec)
    framework = _announce(run)

    progress.phase("load")
    model, plan = _load(run, plan, framework)
    read = _read(run, plan, model)
    plan = _heed_ratings(run, plan, model, read)
    model = replace(model, rated=tuple(answer_pairs.choose(read.usable)))
    run.clock.lap("load")

    progress.phase("old")
    lessons = _prepare(run, plan, model, read)
    model = _optimiser(run, model, lessons)
    teaching = _teaching(run, lessons)
    tuned_rate = _tuned_rate(run, plan, model, teaching)
    plan = planning.for_lessons(plan, lessons, teaching, tuned_rate, progress)
    if not model.policy.interpolates:
        plan = planning.careful_rate(plan, progress)
    # frozen from here on
    run.clock.lap("old")

    if reason := model.policy.round_products():  # not before served and trained log-probs were compared
        progress.choice("products", "bfloat16", reason)
    # Beside comments it was not tried: what those ask for is no loss of sense.
    spent = gate.spent_sense(model.parent, plan.bounds) if goes_by_token(teaching) else 0.0
    attempts = Attempts(folder, plan.preset, spent)
    candidate = learn(run, plan, model, lessons, teaching, attempts)
    used = {lesson.sample.rating for lesson in candidate.steps.lessons}
    _account(run, lessons, candidate, attempts, used)
    if candidate.refusal is None:
        _compare_answers(run, model, candidate)
        _measure_lessons(run, model, read)

    progress.phase("write")
    run.record(metrics=result["metrics"] | run.clock.laps)
    _write(run, plan, model, read, lessons, candidate, attempts, tuned_rate, used)
    if candidate.refusal is None:
        _move_baselines(run, plan, [s for s in reversed(read.usable) if s.rating in used])  # the newest last
        run.record(reason=_passed(candidate, attempts, len(used), plan.weak_reason))


# --- load ---------------------------------------------------------------------------------------------------------


def _announce(run: RunContext) -> str:
    """The request, and which framework does it where."""
    spec, progress = run.spec, run.progress
    if spec.tensorboard:
        progress.add_listener(scalars := Scalars(spec.tensorboard))
        scalars.samples(spec.run, (line for _, line in read_lines(run.folder / SAMPLES, run.seal)))
    framework, reason = policies.choose("torch" if run.tinker else spec.framework)
    device, device_reason = policies.find_device(framework)
    progress.event("start", run=spec.run, device=device, why=device_reason)
    progress.choice("framework", framework, reason)
    for choice in spec.choices:
        progress.choice(choice["name"], choice["value"], choice["why"])
    own_loss.load(run.folder, spec.loss)  # what is wrong with it is said before the model loads
    return framework


def _load(run: RunContext, plan: Plan, framework: str) -> tuple[RunModel, Plan]:
    """One model load a run: the weights, with the parent's adapter or a new one, and its optimiser."""
    spec, progress = run.spec, run.progress
    source = weights.resolve(spec.weights)
    if spec.trust_remote_code:
        model_code.trust(source.path)
        progress.choice("trust_remote_code", True, model_code.WARNING)
    profile = model_info.read(source.path)
    progress.choice("model", str(profile), profile.source)
    plan = planning.for_model(plan, spec, profile, progress)
    if run.tinker is not None:
        plan = planning.for_tinker(plan, progress)
    parent = spec.adapters[spec.parent] if spec.parent else None
    policy = _policy(run, plan, framework, source.path)
    for name, value, reason in policy.choices:
        progress.choice(name, value, reason)
    optimiser, reason = optimizer_state.read(parent, policy.adapter()) if parent else ({}, "a new adapter")
    policy.restore(optimiser)
    progress.choice("optimiser", "warm" if optimiser else "cold", reason)
    template = _template(run, policy, _album(run, policy, source.path))
    return RunModel(policy, template, parent, optimiser, spec.languages), plan


def _policy(run: RunContext, plan: Plan, framework: str, folder: Path) -> Policy:
    """The weights with the adapter that trains. What their own code, transformers' or PEFT's raises is told in one
    sentence; the whole of it is in the run's trainer.log."""
    spec = run.spec
    try:
        return policies.open_policy(
            framework,
            folder,
            plan.preset,
            parent=spec.adapters[spec.parent] if spec.parent else None,
            threads=spec.threads,
            seed=spec.seed,
            compute=spec.compute,
            in_4bit=spec.load_in_4bit,
            offload=spec.offload,
            server_format=spec.server_format,
            tinker=run.tinker,
            run_folder=run.folder,
        )
    except (RunError, AdapterError, OSError, MemoryError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        traceback.print_exc()
        message = " ".join(str(error).split())[:300]
        raise RunError(
            model_code.refusal(folder, error)
            or f"{spec.weights} cannot be trained here: it did not load with an adapter ({type(error).__name__}: "
            f"{message}). Its ratings are kept; another model of docs/reference/models.md would learn from them."
        ) from None


def _album(run: RunContext, policy: Policy, weights: Path) -> Album:
    """The pictures of this run's prompts, as this model reads them; why it does not, where it cannot."""
    album = open_album(files.read(run.folder, run.seal), weights, policy.words, policy.see)
    if not len(album):
        return album
    reason = "each read once by the frozen vision part, whose rows are those of the model's own forward pass"
    run.progress.choice("pictures", 0 if album.refusal else len(album.numbered), album.refusal or reason)
    return album


def _template(run: RunContext, policy: Policy, album: Album) -> Template:
    """The template as the server of these samples uses it, as far as that is known."""
    template = Template(policy.tokenizer, album=album)
    lines = (line for _, line in read_lines(run.folder / SAMPLES, run.seal))
    return template.as_served(samples.known_prompts(lines, template), run.spec.neutral)


def _read(run: RunContext, plan: Plan, model: RunModel) -> RunSamples:
    longest = plan.preset.max_seq_len
    usable, unusable = samples.load(run.folder / SAMPLES, model.template, max_seq_len=longest, seal=run.seal)
    calibration = samples.load_calibration(
        run.folder / "calibration.jsonl", model.template, version=run.spec.parent, max_seq_len=longest, seal=run.seal
    )
    _tell_of_prompts(run, model.template, usable)
    _tell_of_pictures(run, usable, unusable)
    return RunSamples(usable, unusable, calibration)


def _tell_of_prompts(run: RunContext, template: Template, usable: Sequence[Sample]) -> None:
    """Whose rendering trains: never mixed in silence."""
    sources = [s.prompt_by for s in usable if not s.exact]
    if not sources:
        return
    rendered, choice = sources.count("template"), template.choice
    served = len(sources) - rendered
    reason = f"of {len(sources)} prompts, {served} as their server renders them"
    if rendered:
        reason += f", {rendered} by {choice.way}"
    if rendered and choice.prompts:
        reason += f"; it explains {choice.explained} of the {choice.prompts} that the server told of"
    run.progress.choice("prompts", "server" if not rendered else "template" if not served else "both", reason)


def _tell_of_pictures(run: RunContext, usable: Sequence[Sample], unusable: Sequence[UnusableSample]) -> None:
    """How many samples with pictures train, and why others do not."""
    left_out = Counter(line.reason for line in unusable if line.has_pictures)
    trained = sum(has_pictures(sample.messages) for sample in usable)
    if trained or left_out:
        reasons = "; ".join(f"{count} left out: {reason}" for reason, count in left_out.most_common())
        run.progress.choice("samples_with_pictures", trained, reasons or "all that came")


def _heed_ratings(run: RunContext, plan: Plan, model: RunModel, read: RunSamples) -> Plan:
    """With what the samples ask for, and as much weight as the ratings have evidence."""
    plan = planning.for_samples(plan, read.usable, run.spec, model.parent, run.progress)
    if trajectories.are_episodes(read.training):  # a program's rewards are not a taste: groups compare them
        return plan
    judged = [s for s in read.usable if not s.is_held_back or s.version == run.spec.parent]
    checks = ratings.judge(judged, model.template, plan.bounds, model.policy.picture_features)
    run.record(gate={name: check.json() for name, check in checks.items()})
    run.progress.event("gate", checks=run.result["gate"])
    plan = planning.for_ratings(plan, read.training, checks, run.progress)
    if ratings.go_by_pictures(judged, model.template, model.policy.picture_features):
        plan = planning.for_pictures(plan, run.progress)
    return plan


# --- lessons ------------------------------------------------------------------------------------------------------


def _prepare(run: RunContext, plan: Plan, model: RunModel, read: RunSamples) -> Lessons:
    scorer = Scorer(model.policy, run.spec, Cache(run.folder / "cache", run.seal), run.stop)
    context = LessonContext(plan.preset, model.template, scorer, run.progress, plan.leaning_budget)
    lessons = prepare(context, read.usable, read.unusable, read.calibration)
    metrics, guesses = rounded(lessons.metrics), lessons.critic.guesses
    run.record(samples=_json(lessons.outcomes), metrics=metrics, guesses=guesses)
    run.progress.event("filter", **metrics)
    return lessons


def _optimiser(run: RunContext, model: RunModel, lessons: Lessons) -> RunModel:
    """A cold optimiser where the earlier ratings say nothing about these: its moments are of another taste."""
    if not lessons.critic.starts_anew or not model.optimiser:
        return model
    model.policy.restore({})
    run.progress.choice("optimiser", "cold", "earlier ratings say nothing about these: they may be of another taste")
    return replace(model, optimiser={})


def _teaching(run: RunContext, lessons: Lessons) -> list[Lesson]:
    """The lessons that teach. Raises NothingToLearn where there are none, or nothing to compare in them."""
    teaching = [lesson for lesson in lessons.train if lesson.teaches]
    outcomes = list(lessons.outcomes.values())
    if not teaching:
        raise NothingToLearn(acceptance.explain_nothing(outcomes))
    passed = [
        lesson.sample
        for lesson in lessons.train
        if lesson.keep.any() and lessons.outcomes[lesson.sample.rating].cause is None
    ]
    contrast = ratings.contrast(passed)
    if not contrast.ok and not trajectories.are_episodes(passed) and not any(lesson.taught for lesson in teaching):
        run.record(gate=run.result["gate"] | {"contrast": contrast.json()})
        causes = acceptance.count_causes(outcomes, "the same")
        raise NothingToLearn(f"Nothing to compare in {len(outcomes)} samples: {causes}.")
    return teaching


def _tuned_rate(run: RunContext, plan: Plan, model: RunModel, teaching: Sequence[Lesson]) -> float | None:
    """The rate that this model was found to bear: by a version before, or now where that is asked for."""
    spec = run.spec
    if "learning_rate" in spec.overrides:
        return None
    for_version = gate.tuned_rate(model.parent)
    rate = spec.tuned if for_version is None else for_version
    if spec.tune == "anew" or (spec.tune and rate is None):
        return rate_finder.find(model.policy, teaching, plan.preset, spec, run.folder, run.progress, run.stop)
    if rate is not None:
        origin = "for a version before" if for_version is not None else "in a run before"
        run.progress.choice("learning_rate", rate, f"found by a sweep on this model, {origin}")
    return rate


# --- what it came to ----------------------------------------------------------------------------------------------


def _account(
    run: RunContext, lessons: Lessons, candidate: TrainedCandidate, attempts: Attempts, used: set[str]
) -> None:
    trained = candidate.steps
    outcomes = {rating: replace(outcome, used=rating in used) for rating, outcome in lessons.outcomes.items()}
    own = [lesson for lesson in lessons.train if not lesson.is_imitated]
    late = [lesson.sample.rating for lesson in own if lesson.sample.version != run.spec.parent]
    late_counts = {"late": float(len(late)), "late_trained": float(len(used & set(late)))} if late else {}
    run.record(
        seconds_before=trained.seconds_before,
        samples=_json(outcomes),
        metrics=run.result["metrics"] | rounded(trained.metrics) | late_counts,
        gate=run.result["gate"] | {name: check.json() for name, check in candidate.checks.items()},
        retried=attempts.reason,
        back=trained.back_reason,
    )


def _compare_answers(run: RunContext, model: RunModel, candidate: TrainedCandidate) -> None:
    """Answers by parent and version to rated prompts, for people; the gate has passed it."""
    run.stop.check()
    pairs = answer_pairs.ask(model, candidate.answers.rated)
    run.clock.lap("gate")
    if not pairs:
        return
    content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in answer_pairs.lines(pairs, model.template))
    run.seal.write(run.folder / answer_pairs.FILE, content.encode())
    run.record(changes=answer_pairs.figures(pairs))


def _measure_lessons(run: RunContext, model: RunModel, read: RunSamples) -> None:
    """Measure how much lessons still change in the new version's answers: by that they retire."""
    if not run.spec.lessons:
        return
    run.stop.check()
    run.record(lessons=lesson_gaps.measure(model, read.usable))
    run.clock.lap("gate")


def _write(
    run: RunContext,
    plan: Plan,
    model: RunModel,
    read: RunSamples,
    lessons: Lessons,
    candidate: TrainedCandidate,
    attempts: Attempts,
    tuned_rate: float | None,
    used: set[str],
) -> None:
    """The adapter: where it may go live, or beside the run for whoever wants to look at it."""
    spec, result, refusal = run.spec, run.result, candidate.refusal
    out = run.folder / "rejected" if refusal else spec.out
    manifest = {
        "run": spec.run,
        "version": spec.version,
        "parent": spec.parent,
        "model": spec.model,
        "weights": spec.weights,
        "objective": spec.loss.name if spec.loss else plan.preset.objective,
        "samples": sorted(used),
        "recomputed": sorted(rating for rating in used if not lessons.outcomes[rating].exact),
        "baseline": spec.baseline,
        "metrics": result["metrics"],
        "gate": result["gate"],
        "answers": gate.kept_answers(candidate.answers),
        "base_nll_rise": plan.bounds.base_nll_rise,
        "liked": RatingCount.of(read.usable, spec.parent),  # of the parent, as the next run compares it
        "preset": attempts.preset.model_dump(),
        **({} if tuned_rate is None else {"tuned": tuned_rate}),
        "choices": {choice["name"]: choice["value"] for choice in spec.choices},
        "retried": attempts.reason,
        "back": result["back"],
        "changes": result.get("changes"),
    }
    adapter.write(out, partial(_save, model.policy, lessons), manifest)
    run.record(status="rejected" if refusal else "passed", adapter=str(out))
    if refusal:
        run.record(reason=f"The gate said no{f' {attempts.how} too' if attempts.reason else ''}: {refusal}.")


def _save(policy: Policy, lessons: Lessons, folder: Path) -> None:
    policy.save(folder)
    sidecar_files.write(folder, sidecar_files.OPTIMISER, policy.optimiser())
    sidecar_files.write(folder, sidecar_files.CRITIC, lessons.critic.labels)


def _move_baselines(run: RunContext, plan: Plan, new: Sequence[Sample]) -> None:
    spec, decay = run.spec, plan.preset.ema_decay
    rewards = [s.reward for s in new if s.episode is None and not s.labelled]
    outcomes = list({s.episode.episode: s.reward for s in new if s.episode is not None}.values())
    run.record(
        baseline_after=round(mis_po.ema(spec.baseline, rewards, decay), 9),
        episode_baseline_after=round(mis_po.ema(spec.episode_baseline, outcomes, decay), 9),
    )


def _passed(candidate: TrainedCandidate, attempts: Attempts, used: int, weak_reason: str | None) -> str:
    trained = candidate.steps
    early_note = f", {trained.early_reason}; it" if trained.early_reason else ""
    reason = f"{int(trained.metrics['steps'])} steps on {used} samples{early_note} passed the gate."
    if attempts.reason:
        reason += f" That was a second try, {attempts.how}; the first was dropped: {attempts.reason}."
        reason += " Nothing is left to do."
    if trained.back_reason:
        reason += f" Half of what it had learned was taken back, since at the end of its steps {trained.back_reason}."
    if weak_reason:
        reason += f" Its step was a smaller one: {weak_reason}."
    return reason


def _json(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Any]]:
    """Outcomes as result.json has them: without what is empty."""
    return {
        rating: {name: value for name, value in asdict(outcome).items() if value not in (None, []) or name == "cause"}
        for rating, outcome in outcomes.items()
    }
