"""Experiments on live traffic: a candidate beside the live version, until people's ratings decide.

Owns the start and the end of one, and which ratings count: the first of each conversation, by a person. Those of judges
and programs are shown beside them. Not here: who gets which version (arms), the mathematics (e_process), the bounds
(stopping_rule).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from typing import Any, Final

import structlog

from proxy.backends.base import Backend
from proxy.core.errors import Conflict, ProxyError, Unsupported
from proxy.core.events import Events
from proxy.core.version_names import version_first, version_in_words
from proxy.versions.arms import Arms
from proxy.versions.e_process import ArmRating
from proxy.versions.live_version import LiveVersion, Overtaken
from proxy.versions.stopping_rule import Standing, standing
from store.errors import ExperimentRuns, StoreError
from store.learning.experiments import Experiment, ExperimentRating
from store.line_records import COMMON
from store.records import BASE
from store.store import Store

log = structlog.get_logger()

ACTOR: Final = "rlproxy"
STOPPED: Final = "stopped"
LOOK_S: Final = 3600.0  # without a rating: the days go by all the same
RETRY_S: Final = 10.0
LEAST_SHARE: Final = 0.05  # below, and above 1 less it, one arm would get next to nothing
PLACES: Final = 3  # the base, the live version, the candidate


class Experiments:
    def __init__(self, store: Store, backend: Backend, live_version: LiveVersion, arms: Arms, events: Events) -> None:
        self._store = store
        self._backend = backend
        self._live_version = live_version
        self._arms = arms
        self._events = events
        self._wake = asyncio.Event()
        self._wake.set()

    @property
    def current(self) -> Experiment | None:
        """The one that runs."""
        return self._arms.experiment

    def delaying(self, line: str, *, every_line: bool) -> Experiment | None:
        """The running one that a new version of this line waits for. `every_line`: those of other lines count, too."""
        experiment = self._arms.experiment
        return experiment if experiment is not None and (every_line or experiment.line == line) else None

    async def start(self, version: int, against: int | None, share: float, actor: str) -> Experiment:
        """Load the candidate and begin. Raises Conflict, NotFound, Unsupported, BackendDown, BackendBroke."""
        adapter = await self._store.versions.get(version)
        line = COMMON if adapter is None else adapter.line
        live = self._live_version.live_of(line)
        self._check_room()
        if self._arms.experiment is not None:
            raise Conflict(str(ExperimentRuns(self._arms.experiment.version)))
        if version == live:
            raise Conflict(f"{version_first(version)} is live: compare another version with it.")
        if against not in (None, live):
            raise Conflict(
                f"{version_first(against)} is not live, and an experiment compares with the live version: "
                f"`rlproxy promote {'base' if against == BASE else f'v{against}'}` first."
            )
        if adapter is not None and adapter.withdrawn:
            raise Conflict(
                f"v{version} is withdrawn: {adapter.withdrawn}; `rlproxy promote v{version}` takes it all the same."
            )
        await self._live_version.prepare(version)
        try:
            experiment = await self._store.experiments.start(version, live, share, actor, line)
        except ExperimentRuns as error:
            raise Conflict(str(error)) from None
        self._arms.begin(experiment, {})
        log.info("experiment", version=version, against=live, share=share)
        self._events.emit("experiment", version=version, against=live, event="started")
        self._wake.set()
        return experiment

    def _check_room(self) -> None:
        """Raises Unsupported where two versions cannot answer side by side."""
        capabilities, places = self._backend.capabilities, self._backend.max_models
        if not capabilities.adapters:
            raise Unsupported(capabilities.limitation)
        if capabilities.single_version:
            raise Unsupported(
                "The backend holds one adapter at a time, so two versions cannot answer side by side: no experiment "
                "is possible there. `rlproxy promote` and the watch compare one after the other."
            )
        if places is not None and places < PLACES:
            raise Unsupported(
                f"The backend holds {places} models at once and an experiment needs {PLACES}; raise that number there."
            )

    async def stop(self, actor: str) -> Experiment:
        """End it without a decision: the live version stays. Raises Conflict where none runs."""
        experiment = self._arms.experiment
        if experiment is None:
            raise Conflict("No experiment is running.")
        await self._end(experiment, STOPPED, f"stopped by {actor}", await self.standing(experiment), actor)
        return experiment

    # By itself

    def wake(self) -> None:
        """A rating came or went, or another version is live."""
        self._wake.set()

    async def restore(self) -> None:
        """Take up the one that ran before a restart."""
        experiment = await self._store.experiments.running()
        if experiment is not None:
            self._arms.begin(experiment, await self._store.experiments.arms(experiment.id))

    async def follow(self) -> None:
        """Take over what another relay of this database has begun, or ended. Raises StoreError."""
        experiment, ours = await self._store.experiments.running(), self._arms.experiment
        if experiment is None and ours is not None:
            self._arms.end()
        elif experiment is not None and (ours is None or ours.id != experiment.id):
            self._arms.begin(experiment, await self._store.experiments.arms(experiment.id))

    async def run(self) -> None:
        """For ever."""
        wait_s = LOOK_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self.look()
                wait_s = LOOK_S
            except (ProxyError, StoreError) as error:
                log.error("an experiment could not be ended", error=str(error))
                wait_s = RETRY_S
            except Exception:  # whatever it is: the next rating is looked at again
                log.exception("experiment")

    async def look(self) -> None:
        """End the running experiment where its ratings decide it. Raises ProxyError, StoreError."""
        experiment = self._arms.experiment
        if experiment is None:
            return
        standing = await self.standing(experiment)
        reason = (
            f"experiment of v{experiment.version} against {version_in_words(experiment.against)}: {standing.needed}"
        )
        if standing.outcome is not None and await self._is_done(experiment, standing.outcome, reason):
            await self._end(experiment, standing.outcome, reason, standing, ACTOR)
        elif (obstacle := await self._obstacle(experiment)) is not None:
            await self._end(experiment, STOPPED, obstacle, standing, ACTOR)
        elif standing.outcome is not None:
            await self._decide(experiment, standing, reason)

    async def _is_done(self, experiment: Experiment, outcome: str, reason: str) -> bool:
        """Tell whether this decision has acted and its end is not on record: a kill came between, or another relay is
        about to write it."""
        if experiment.line not in self._live_version.lines:
            return False
        if outcome == "promoted":
            pointer = self._live_version.pointer_of(experiment.line)
            return (pointer.live, pointer.reason) == (experiment.version, reason)
        adapter = await self._store.versions.get(experiment.version)
        return outcome == "withdrawn" and adapter is not None and adapter.withdrawn == reason

    async def _obstacle(self, experiment: Experiment) -> str | None:
        """The reason why it cannot go on."""
        if experiment.line not in self._live_version.lines:
            return f"its line {experiment.line} was retired"
        live, adapter = self._live_version.live_of(experiment.line), await self._store.versions.get(experiment.version)
        if live != experiment.against:
            return f"{version_in_words(live)} went live meanwhile"
        if adapter is None or adapter.is_deleted:
            return f"v{experiment.version} learned from what was forgotten, and is gone"
        return f"v{experiment.version} was withdrawn: {adapter.withdrawn}" if adapter.withdrawn else None

    async def _decide(self, experiment: Experiment, standing: Standing, reason: str) -> None:
        outcome = standing.outcome
        assert outcome is not None
        if outcome == "promoted":
            try:
                await self._live_version.to(
                    experiment.version, reason, ACTOR, instead_of=experiment.against, line=experiment.line
                )
            except Overtaken as error:
                await self._end(experiment, STOPPED, error.message, standing, ACTOR)
                return
        elif outcome == "withdrawn":
            await self._store.versions.withdraw(experiment.version, reason, ACTOR)
        await self._end(experiment, outcome, reason, standing, ACTOR)

    async def _end(self, experiment: Experiment, outcome: str, reason: str, standing: Standing, actor: str) -> None:
        judged_arms = judged(await self._store.experiments.ratings(experiment.id))
        figures = self._figures(standing) | {"judged": judged_arms}
        await self._store.experiments.end(experiment.id, outcome, reason, figures, actor)
        if self._arms.experiment is not None and self._arms.experiment.id == experiment.id:
            self._arms.end()
        log.info("experiment ended", version=experiment.version, outcome=outcome, reason=reason)
        self._events.emit("experiment", version=experiment.version, event="ended", outcome=outcome, reason=reason)

    # How it stands

    async def standing(self, experiment: Experiment) -> Standing:
        ratings = first_ratings(await self._store.experiments.ratings(experiment.id))
        return await asyncio.to_thread(standing, ratings, experiment.share, time.time() - experiment.started_at)

    async def report(self) -> dict[str, Any]:
        """The running one, if any, and those before, newest first."""
        running, recent = self._arms.experiment, await self._store.experiments.recent()
        body: dict[str, Any] | None = None
        if running is not None:
            body = _described(running) | self._figures(await self.standing(running))
            body["judged"] = judged(await self._store.experiments.ratings(running.id))
        return {"running": body, "ended": [_described(each) | (each.figures or {}) for each in recent if each.ended_at]}

    def _figures(self, standing: Standing) -> dict[str, Any]:
        conversations = self._arms.conversations
        arms = {"candidate": standing.candidate, "parent": standing.parent}
        counts = {
            name: {"liked": count.good, "rated": count.rated, "mean": count.mean, "conversations": number}
            for (name, count), number in zip(arms.items(), conversations, strict=True)
        }
        return {
            **counts,
            "up": standing.up,
            "down": standing.down,
            "rate_p": standing.rate_p,
            "needed": standing.needed,
        }


def first_ratings(ratings: Iterable[ExperimentRating]) -> list[ArmRating]:
    """The first rating by a person of each conversation. One that is neither good nor bad says nothing."""
    first: dict[bytes, ArmRating] = {}
    for rating in ratings:
        if rating.is_human and rating.value and rating.conversation not in first:
            first[rating.conversation] = ArmRating(rating.is_candidate, rating.value > 0)
    return list(first.values())


def judged(ratings: Iterable[ExperimentRating]) -> dict[str, dict[str, int]]:
    """Count ratings by judges and programs: shown, and never part of the evidence."""
    values = [(rating.is_candidate, rating.value) for rating in ratings if not rating.is_human and rating.value]
    return {
        name: {
            "liked": sum(value > 0 for is_candidate, value in values if is_candidate is arm),
            "rated": sum(is_candidate is arm for is_candidate, _ in values),
        }
        for name, arm in (("candidate", True), ("parent", False))
    }


def _described(experiment: Experiment) -> dict[str, Any]:
    members = ("id", "version", "against", "share", "started_at", "ended_at", "outcome", "reason")
    return {name: getattr(experiment, name) for name in members}
