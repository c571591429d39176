"""`rlproxy retrain`: people's ratings so far, once more, on another base.

Owns what a retrain takes, the claim and the folder of each round, and what it has come to. The rounds are runs like
all others, each built on the version of the one before. A kill anywhere goes on at the next start: the state is in the
store, and the run's in its folder. Its versions go live by a person's word only. Those of the base before stay.
Not here: who carries a round out (run_supervisor), what trains of it (the trainer's objective `kto-combine`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import structlog
from pydantic import Field
from typing_extensions import TypedDict

from proxy.core.errors import Conflict
from proxy.core.version_names import versions_in_words
from proxy.training import prompt_languages, run_folder
from proxy.training.cloud_student import CloudStudent
from proxy.training.retraining.lines import as_foreign
from proxy.versions.live_version import LiveVersion
from proxy.versions.services import Services
from store.learning.retraining import RatingHistory, Retrain, new_retrain, rounds_of
from store.learning.samples import SampleRequirements
from store.line_records import COMMON
from store.records import Run
from trainer.launch import Seal, out_of_reach

log = structlog.get_logger()

OBJECTIVE: Final = "kto-combine"  # needs neither log-probs nor a version of the model that answered
TUNED: Final = "tuned"  # meta: the learning rates that sweeps have found, by model
REASON: Final = "another model gave these answers: their words train, off-policy, against the base alone"


class RetrainPlanBody(TypedDict):
    of_line: str
    weights: str
    model: Annotated[str, Field(description="As its versions' folder is called.")]
    ratings: Annotated[int, Field(description="That can train.")]
    completions: int
    rounds: int
    liked: int
    disliked: int
    comments: Annotated[int, Field(description="On disliked answers; only those teach.")]
    corrections: int
    stars: int
    paired: Annotated[int, Field(description="Answers to a question that has a liked and a disliked one.")]
    tokens: Annotated[float | None, Field(description="Of a prompt with its answer: the mean, by the servers' counts.")]
    exclusions: Annotated[dict[str, int], Field(description="Live ratings that cannot train, by the reason.")]


class RoundBody(TypedDict):
    run: int
    status: str
    version: Annotated[int, Field(ge=1)] | None
    samples: int
    trained: Annotated[int, Field(description="Samples that an optimiser step used.")]
    reason: str | None


class RetrainBody(TypedDict):
    """The retrain under way, or the last one."""

    state: Literal["under way", "over"]
    line: Annotated[str, Field(description="How far it is, or what it came to.")]
    of_line: Annotated[str, Field(description="Whose ratings train.")]
    weights: str
    model: str
    ratings: int
    rounds: list[RoundBody]
    planned_rounds: int
    versions: list[int]
    trained: int
    causes: Annotated[dict[str, int], Field(description="Samples that did not train, by the trainer's reason.")]
    exclusions: Annotated[dict[str, int], Field(description="Live ratings that never reach a round, by the reason.")]
    untried: Annotated[int, Field(description="Ratings that could train and are in no round yet.")]
    started_at: float


class Retraining:
    def __init__(self, services: Services, live_version: LiveVersion, cloud_student: CloudStudent | None) -> None:
        self._settings = services.settings
        self._store = services.store
        self._backend = services.backend
        self._launcher = services.launcher
        self._events = services.events
        self._live_version = live_version
        self._cloud_student = cloud_student
        self._waits_for: str | None = None  # the rule that keeps its next round from starting

    # What people ask for

    async def plan(self, weights: str | None, left_out: Sequence[str], line: str) -> RetrainPlanBody:
        """Count the ratings of a line that a retrain on these weights would take; None: those that train now. Raises
        Conflict."""
        chosen = await self._weights(weights)
        history = await self._store.retraining.history(left_out, line)
        return _plan_body(chosen, self._model(chosen), history, self._settings.train.max_samples)

    async def begin(self, weights: str | None, left_out: Sequence[str], line: str, actor: str) -> None:
        """Begin one of a line. Raises Conflict where one is under way, the weights are not to be had, or nothing can
        train."""
        chosen = await self._weights(weights)
        if (state := await self.state()) is not None and state.over is None:
            raise Conflict(
                f"A retrain on {state.weights} is under way; `rlproxy retrain` follows it, `rlproxy retrain --stop` "
                "ends it. Nothing was begun."
            )
        history = await self._store.retraining.history(left_out, line)
        if not history.trains:
            raise Conflict(f"No rating can train on another base: {in_words(history.fates)}. Nothing was begun.")
        train = self._settings.train
        # So far above the versions before that no later run takes their answers for those of this base.
        first = await self._store.versions.next() + train.max_version_gap
        new = new_retrain(self._model(chosen), chosen, first, history, left_out, train.max_samples)
        await self._store.retraining.begin(new, actor)
        log.info("retrain begins", weights=chosen, ratings=new.ratings, rounds=new.rounds)
        self._events.emit("retrain", event="begun", weights=chosen, ratings=new.ratings)

    async def stop(self, actor: str) -> None:
        """Begin no further round; the versions so far stay. Raises Conflict where none is under way."""
        state = await self._under_way()
        if state is None:
            raise Conflict("No retrain is under way, so nothing was stopped.")
        await self._end(state, f"stopped by {actor}: {await self._outcome(state)}", actor)

    async def report(self) -> RetrainBody | None:
        """None where there has never been one."""
        if (state := await self.state()) is None:
            return None
        runs = await self._store.retraining.rounds(state)
        history = await self._store.retraining.history(state.left_out, state.line)
        rounds = [_round_body(run) for run in runs]
        return {
            "state": "under way" if state.over is None else "over",
            "line": state.over or _line(state, runs, self._waits_for),
            "of_line": state.line,
            "weights": state.weights,
            "model": state.model,
            "ratings": state.ratings,
            "rounds": rounds,
            "planned_rounds": state.rounds,
            "versions": [run.version for run in runs if run.status == "done"],
            "trained": sum(each["trained"] for each in rounds),
            "causes": _causes(runs),
            "exclusions": _exclusions(history.fates),
            "untried": await self._store.retraining.untried(state) if state.over is None else 0,
            "started_at": state.started_at,
        }

    # The rounds

    async def state(self) -> Retrain | None:
        return await self._store.retraining.state()

    async def is_under_way(self) -> bool:
        return await self._under_way() is not None

    def wait(self, reason: str | None) -> None:
        """Say what keeps the next round from starting; None: nothing does."""
        self._waits_for = reason

    async def claim(self) -> Run | None:
        """Make a run of the next ratings; None where nothing is left, and the retrain is over then."""
        state = await self._under_way()
        if state is None:
            return None
        runs, train = self._settings.home / "runs", self._settings.train
        newest = await asyncio.to_thread(run_folder.newest_version, self._folder(state.model))
        requirements = SampleRequirements(
            model=state.model,
            live=await self._store.retraining.parent(state),
            version=max(state.first_version, await self._store.versions.next(), 1 + newest),
            max_version_gap=train.max_version_gap,
            limit=state.round_size,
            min_total=1,
            folder_of=lambda run: str(runs / f"r{run:05d}"),
            last_number=await asyncio.to_thread(run_folder.newest_run, runs),
            held_share=train.held_share,
            share=train.max_rater_share,
            raters=train.raters,
            retrains=True,
            line=state.line,
        )
        if (run := await self._store.retraining.claim(requirements)) is None:
            await self._end(state, await self._outcome(state), "rlproxy")
        return run

    async def write(self, run: Run) -> None:
        """The folder of a round: its answers' words, for the new base to read."""
        state = await self.state()
        assert state is not None, "a round has one"
        train = self._settings.train
        samples = await self._store.samples.of_run(run.id)
        completions = {sample.completion.new.id: sample.completion for sample in samples}
        lessons = await self._store.lessons.in_prompts(set(completions))
        moments = await self._store.opinions.moments(train.max_rater_share, train.raters, run.line)
        lines = await asyncio.to_thread(run_folder.lines, samples, (), train, moments, lessons)
        foreign = [as_foreign(line, completions[line["completion"]]) for line in lines]
        languages = await prompt_languages.choose(self._launcher, foreign)
        adapters = {a.version: a.path for a in await self._store.versions.all() if not a.is_deleted}
        await asyncio.to_thread(
            run_folder.write,
            run,
            foreign,
            (),
            settings=self._settings,
            weights=state.weights,
            adapters=adapters,
            out=self._folder(state.model) / f"v{run.version:04d}",
            baseline=0.0,
            languages=languages.codes,
            neutral={},
            objective=OBJECTIVE,
            server_format="peft" if self._cloud_student else self._backend.server_format,
            tuned=(await self._store.meta.get(TUNED, {})).get(run.model),
            choices=[
                {"name": "retrain", "value": state.model, "why": REASON},
                {"name": "objective", "value": OBJECTIVE, "why": "it compares each answer with the base alone"},
                prompt_languages.as_choice(languages),
            ],
            seal=Seal(await self._store.runs.key(run.id)),
        )

    async def _weights(self, weights: str | None) -> str:
        """The weights to retrain on. Raises Conflict."""
        chosen = weights or self._settings.train.weights or self._backend.weights
        if not chosen:
            raise Conflict("Say on which weights: `rlproxy retrain --weights FOLDER`. Nothing was begun.")
        if (lacks := self._launcher.available()) is not None:
            raise Conflict(f"No retrain was begun: {lacks}.")
        if self._launcher.place == "local" and (reason := await asyncio.to_thread(out_of_reach, chosen)) is not None:
            raise Conflict(f"No retrain was begun: {reason}")
        return chosen

    def _model(self, weights: str) -> str:
        """Name of the folder of its versions; that of the served model where these weights are its own."""
        served = self._settings.train.weights or self._backend.weights
        return self._live_version.model if weights == served and not self._cloud_student else Path(weights).name

    def _folder(self, model: str) -> Path:
        return run_folder.of_model(self._settings.adapters_dir, model)

    async def _under_way(self) -> Retrain | None:
        state = await self.state()
        return state if state is not None and state.over is None else None

    async def _end(self, state: Retrain, line: str, actor: str) -> None:
        await self._store.retraining.end(line, actor)
        log.info("retrain over", weights=state.weights, line=line)
        self._events.emit("retrain", event="over", weights=state.weights, line=line)

    async def _outcome(self, state: Retrain) -> str:
        runs = await self._store.retraining.rounds(state)
        versions = [run.version for run in runs if run.status == "done"]
        trained = sum(_round_body(run)["trained"] for run in runs)
        product = versions_in_words(versions) if versions else "no version"
        rounds = f"{len(runs)} round{'s' * (len(runs) != 1)}"
        outcome = f"{rounds} made {product} on {state.model}; {trained} answers trained"
        if untried := await self._store.retraining.untried(state):
            outcome += f"; {untried} ratings are in no round (train.max_rater_share, or it was stopped)"
        return outcome


def _plan_body(weights: str, model: str, history: RatingHistory, most: int) -> RetrainPlanBody:
    return {
        "of_line": history.line,
        "weights": weights,
        "model": model,
        "ratings": history.trains,
        "completions": history.completions,
        "rounds": rounds_of(history.completions, most)[0] if history.trains else 0,
        "liked": history.liked,
        "disliked": history.disliked,
        "comments": history.comments,
        "corrections": history.corrections,
        "stars": history.stars,
        "paired": history.paired,
        "tokens": history.tokens,
        "exclusions": _exclusions(history.fates),
    }


def _round_body(run: Run) -> RoundBody:
    outcomes = ((run.result or {}).get("samples") or {}).values()
    return {
        "run": run.id,
        "status": run.status,
        "version": run.version if run.status == "done" else None,
        "samples": run.samples,
        "trained": sum(bool(outcome.get("used")) for outcome in outcomes) if run.status == "done" else 0,
        "reason": run.reason or (run.result or {}).get("reason"),
    }


def _causes(runs: Sequence[Run]) -> dict[str, int]:
    """Samples of ended rounds that did not train: held back for the gate, by the trainer's cause, or the run's end."""
    causes: Counter[str] = Counter()
    for run in runs:
        if run.status in ("claimed", "running"):
            continue
        causes["held"] += run.held
        if run.status != "done":
            causes[run.status] += run.samples - run.held
            continue
        for outcome in ((run.result or {}).get("samples") or {}).values():
            if not outcome.get("used"):
                causes[outcome.get("cause") or "pushes_nothing"] += 1
    return dict(+causes)


def _line(state: Retrain, runs: Sequence[Run], waits_for: str | None) -> str:
    ended = sum(run.status not in ("claimed", "running") for run in runs)
    of_line = "" if state.line == COMMON else f" of the line {state.line}"
    line = f"{state.ratings} ratings{of_line} train on {state.model}: {ended} of {state.rounds} rounds have ended"
    return f"{line}; it waits: {waits_for}" if waits_for else line


def _exclusions(fates: Mapping[str, int]) -> dict[str, int]:
    return {fate: count for fate, count in fates.items() if fate != "trains"}


def in_words(fates: Mapping[str, Any]) -> str:
    """Why ratings cannot train, counted."""
    return (
        ", ".join(f"{count} {fate.replace('_', ' ')}" for fate, count in _exclusions(fates).items()) or "there is none"
    )
