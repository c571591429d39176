"""Reasons that keep a run from starting, or from going on, at this moment.

Owns what is found out for it: ratings that are fresh, the backend's and the trainer's obstacles, the machine, a pause.
Not here: the rules themselves (schedule_rules), who acts on them (run_supervisor).
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from config.sections import Train
from proxy.core.version_names import version_in_words
from proxy.training import own_loss
from proxy.training.adapter_check import AdapterCheck
from proxy.training.cloud_student import CloudStudent
from proxy.training.gpu_sharing import GpuSharing
from proxy.training.run_state import RunState
from proxy.training.schedule_rules import (
    RunDecision,
    blocking_rule,
    dampened,
    enough,
    episodes_threshold,
    ratings_threshold,
    too_many_programs,
)
from proxy.training.system_load import Machine
from proxy.training.weights_check import WeightsCheck
from proxy.versions.experiments import Experiments
from proxy.versions.live_version import LiveVersion
from proxy.versions.services import Services
from store.learning.episode_groups import ReadyEpisodes
from store.line_records import COMMON
from store.records import Fresh

log = structlog.get_logger()

PLACE_S: Final = 60.0  # that an answer of a place elsewhere counts
UNBOUNDED: Final = {
    "max_cpu_percent": 100.0,
    "max_gpu_percent": 100.0,
    "min_free_memory_gb": 0.0,
    "min_free_gpu_gb": 0.0,
}


def local_time() -> datetime:
    """Local time; hours of training are in it."""
    return datetime.now()


class Preconditions:
    def __init__(
        self,
        services: Services,
        live_version: LiveVersion,
        gpu_sharing: GpuSharing,
        weights_check: WeightsCheck,
        cloud_student: CloudStudent | None,
        state: RunState,
        experiments: Experiments,
    ) -> None:
        self._services = services
        self._settings = services.settings
        self._store = services.store
        self._backend = services.backend
        self._launcher = services.launcher
        self._live_version = live_version
        self._gpu_sharing = gpu_sharing
        self._weights_check = weights_check
        self.cloud_student = cloud_student
        self.state = state
        self._experiments = experiments
        train = self._settings.train
        if train.where != "local":  # what is free on this machine says nothing about another
            train = train.model_copy(update=UNBOUNDED)
        self._rules = train
        self._place_problem: str | None = None
        self._place_asked_s: float | None = None  # by the monotonic clock; None: not yet
        self._asking_place = asyncio.Lock()
        self._machine = Machine(
            cpu=train.max_cpu_percent < 100, gpu=train.max_gpu_percent < 100 or train.min_free_gpu_gb > 0
        )
        self._adapter_check = AdapterCheck(self._settings, self._backend, self._launcher)

    async def start(self) -> None:
        if trusted := self._settings.train.trust_remote_code:
            log.warning("Python code of models runs here, unchecked (train.trust_remote_code)", models=list(trusted))
        await self._weights_check.start()

    @property
    def doubt(self) -> str | None:
        """Why no run may read the database now; None where it may."""
        return self._store.integrity.doubt

    async def turns(self) -> list[str]:
        """The lines that a run could be of, in their turn: whose last run is longest ago comes first."""
        waiting = await self._store.lines.with_samples(foreign=self.cloud_student is not None)
        last_runs = await self._store.lines.last_runs()
        lines = [line for line in self._live_version.lines if line in waiting or line == COMMON]
        return sorted(lines, key=lambda line: last_runs.get(line, 0))

    async def fresh(self, *, before_run: int | None = None, line: str = COMMON) -> Fresh:
        train = self._settings.train
        return await self._store.samples.fresh(
            live=self._live_version.live_of(line),
            max_version_gap=train.max_version_gap,
            line=line,
            before_run=before_run,
            foreign=self.cloud_student is not None,
            share=train.max_rater_share,
            raters=train.raters,
            judge_share=self._settings.judge.max_share,
        )

    async def ratings_threshold(self, line: str = COMMON) -> tuple[int, str]:
        """How many fresh ratings start a run, and why that many."""
        last = await self._store.runs.last_of(line)
        previous_count = (await self.fresh(before_run=last.id, line=line)).most if last else 0
        return ratings_threshold(self._settings.train, last, previous_count)

    async def due(self, *, by_hand: bool = False, early: bool = False, line: str = COMMON) -> RunDecision:
        """`early`: whatever the number of ratings and the served model, could a run train now?"""
        await self._services.picture_training.refresh()
        if (lacks := await self._lacks(by_hand=by_hand, line=line)) is not None:
            return RunDecision(False, lacks)
        train = self._settings.train
        if not early and self._weights_check.no is not None:
            return RunDecision(False, self._weights_check.no)
        due = await self._ratings_due(train, line, by_hand=by_hand, early=early)
        if not due.now and not await self._rebuilds(line):  # people go first
            due = await self._episodes_due(due, line, by_hand=by_hand or early)
        if due.now and not early and (reason := self._comparison(line)) is not None:
            return RunDecision(False, reason)
        if due.now and (rule := await self.blocking_rule(None, starting=True, by_hand=by_hand)) is not None:
            return RunDecision(False, rule)
        if due.now and not early and self._weights_check.is_pending:  # a rule stood in its way a moment ago
            return RunDecision(False, "the served model is compared with the weights first")
        return due

    def _comparison(self, line: str) -> str | None:
        """The experiment that a run of this line waits for. Its end says which version the run is to go on from."""
        every_line = self._settings.train.publish == "by experiment"
        if (running := self._experiments.delaying(line, every_line=every_line)) is None:
            return None
        return (
            f"v{running.version} is compared with {version_in_words(running.against)}, and the ratings wait until that "
            "experiment ends; `rlproxy experiment stop` ends it"
        )

    async def _ratings_due(self, train: Train, line: str, *, by_hand: bool, early: bool) -> RunDecision:
        fresh = await self.fresh(line=line)
        if fresh.total == 0:
            return RunDecision(False, dampened(fresh) or "there are no fresh ratings")
        if not by_hand and not early and not await self._rebuilds(line):
            silent_s = time.monotonic() - self._services.last_request
            lacks = enough(train, fresh, *await self.ratings_threshold(line), silent_s=silent_s)
            if lacks is not None:
                return RunDecision(False, lacks)
        if fresh.total < fresh.from_judges and not by_hand and fresh.total < (await self.ratings_threshold(line))[0]:
            return RunDecision(True, f"{fresh.from_judges} labels of judges")
        return RunDecision(True, f"{fresh.total} fresh rating{'' if fresh.total == 1 else 's'}")

    async def episodes(self, line: str = COMMON) -> ReadyEpisodes:
        """Episodes that a run could take now."""
        train = self._settings.train
        return await self._store.episode_groups.ready(
            live=self._live_version.live_of(line),
            max_version_gap=train.max_version_gap,
            line=line,
            size=train.group_size,
            timeout_s=train.group_timeout_s,
        )

    async def episodes_threshold(self, line: str = COMMON) -> int:
        """How many rewarded episodes start a run."""
        last = await self._store.runs.last_of(line)
        returned = (await self._store.episode_groups.run_counts([last.id])).get(last.id, 0) if last else 0
        return episodes_threshold(self._settings.train, last, returned)

    async def _episodes_due(self, otherwise: RunDecision, line: str, *, by_hand: bool) -> RunDecision:
        """`otherwise`: what there is to say where there are no episodes."""
        train = self._settings.train
        if self.cloud_student is not None or not await self._store.episodes.any_waiting():
            return otherwise
        ready = await self.episodes(line)
        threshold = 1 if by_hand else await self.episodes_threshold(line)
        if ready.episodes < threshold:
            if not ready.episodes and not ready.forming:
                return otherwise
            forming = f", {ready.forming} in groups that have not closed" if ready.forming else ""
            return RunDecision(
                False, f"{ready.episodes} of {threshold} rewarded episodes (train.start_at_episodes){forming}"
            )
        if not by_hand and (silent_s := time.monotonic() - self._services.last_request) < train.quiet_s:
            return RunDecision(False, f"waiting for {train.quiet_s - silent_s:.0f} s without a request (train.quiet_s)")
        if not by_hand and (no := too_many_programs(train, *await self._store.episode_groups.recently_trained())):
            return RunDecision(False, no)
        return RunDecision(True, f"{ready.episodes} rewarded episode{'' if ready.episodes == 1 else 's'}", "episodes")

    async def _lacks(self, *, by_hand: bool, line: str = COMMON) -> str | None:
        """Needs that training lacks, whatever the ratings and the hour."""
        train = self._settings.train
        if self.doubt is not None:
            return self.doubt
        if not train.enabled and not by_hand and not await self._rebuilds(line):
            return "training is off (train.enabled = false)"
        if self.cloud_student and (lacks := self.cloud_student.lacks()) is not None:
            return lacks
        if not (self.cloud_student or self._backend.capabilities.adapters):
            return self._backend.capabilities.limitation
        if (lacks := self._launcher.available(tensorboard=train.tensorboard)) is not None:
            return lacks
        if self.weights() is None:
            return "train.weights does not say where the model's weights are"
        if train.loss and (lacks := await own_loss.lacks(train)) is not None:
            return lacks
        if (obstacle := await self.obstacle(anew=by_hand, line=line)) is not None:
            return obstacle
        if (problem := await self.place_problem(anew=by_hand)) is not None:
            return problem
        if self.state.paused:
            return "paused; `rlproxy resume` goes on"
        if self.state.blocking_rule is not None and (waiting := await self._store.runs.unfinished()):
            return f"run {waiting[0].id} waits at its last step: {self.state.blocking_rule}"
        return None

    async def _rebuilds(self, line: str) -> bool:
        """Tell whether the line's next run is one that a person asked for by forgetting, whatever the number of
        ratings."""
        return line in await self._store.unlearning.lines()

    async def trainable_weights(self) -> str | None:
        """The weights, where a run could train on them some day and none does now."""
        return None if self.state.run is not None or await self._lacks(by_hand=False) is not None else self.weights()

    async def check_base_model(self, *, by_hand: bool) -> None:
        """Is the served model the one that trains? Looked at from the first rating on, not only at the last one."""
        weights = self.weights()
        if weights is None:
            return
        for line in await self.turns():
            if (await self.due(by_hand=by_hand, early=True, line=line)).now:
                await self._weights_check.check(weights, now=by_hand)
                return

    @property
    def layers(self) -> str | None:
        """The layers that a run would train, as far as is known."""
        return None if self._adapter_check.layers is None else str(self._adapter_check.layers)

    async def obstacle(self, *, anew: bool = False, line: str = COMMON) -> str | None:
        """The backend's obstacle to taking what a run makes; asked `anew` before a run, else as far as is known."""
        weights = self.weights()
        if (lacks := await asyncio.to_thread(lambda: self._backend.obstacle)) is not None:
            return lacks
        if weights is None or not self._backend.capabilities.adapters:
            return None
        parent = await self._parent(line)
        if anew:
            return await self._adapter_check.check_now(weights, parent)
        if self.state.run is not None:
            return self._adapter_check.reason
        return await self._adapter_check.check(weights, parent)

    @property
    def place_line(self) -> str:
        """Where runs train, and whether that place answers."""
        if self._launcher.place == "local":
            return "runs train on this machine"
        if self._place_asked_s is None:
            return f"runs train at {self._launcher.place}, which has not been asked yet"
        return self._place_problem or f"runs train at {self._launcher.place}, which answers"

    async def place_problem(self, *, anew: bool) -> str | None:
        """Why no run can train where it is to; asked `anew` before a run, else beside the question, now and then."""
        if self._launcher.place == "local" or (weights := self.weights()) is None:
            return None
        if anew:
            await self._ask_place(weights)
        elif not self._asking_place.locked() and time.monotonic() - (self._place_asked_s or -PLACE_S) > PLACE_S:
            self._services.tasks.spawn("place", self._ask_place(weights))
        return self._place_problem

    async def _ask_place(self, weights: str) -> None:
        async with self._asking_place:
            problem = await self._launcher.refusal(weights, sealed=self._store.encrypted)
            if problem is not None and problem != self._place_problem:
                log.warning("no run can train where it is to", reason=problem)
            self._place_problem, self._place_asked_s = problem, time.monotonic()

    async def _parent(self, line: str) -> Path | None:
        """The adapter that a run would go on from; None: the base."""
        adapter = await self._store.versions.get(self._live_version.live_of(line))
        return None if adapter is None or adapter.is_deleted else Path(adapter.path)

    async def blocking_rule(self, run_id: int | None, *, starting: bool, by_hand: bool = False) -> str | None:
        """Which rule keeps a run from training now; None where none does."""
        if self.doubt is not None:
            return self.doubt
        if starting and (reason := self._gpu_sharing.blocking_reason()) is not None:
            return reason
        use = await asyncio.to_thread(self._machine.look, time.monotonic(), self.state.trainer)
        by_hand = by_hand or (run_id is not None and run_id == self.state.by_hand)
        return blocking_rule(self._rules, use, local_time(), by_hand=by_hand, starting=starting)

    def weights(self) -> str | None:
        return self._settings.train.weights or self._backend.weights
