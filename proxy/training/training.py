"""Ratings become versions, and versions answer: the subsystem, put together.

Owns which part is made of which, and the order of their start. Not here: what each does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import aiohttp
import structlog

from proxy.checks.candidate import CandidateChecks
from proxy.core.errors import ProxyError
from proxy.signals.answer_check import AnswerFlagger
from proxy.signals.follower import Follower
from proxy.signals.judging import JudgingLoop, SignalSources
from proxy.signals.own import OwnSignals
from proxy.training.admin_acts import AdminActs
from proxy.training.claim import Claims
from proxy.training.cloud_student import CloudStudent
from proxy.training.gpu_sharing import GpuSharing
from proxy.training.preconditions import Preconditions
from proxy.training.publish import Publisher
from proxy.training.rehearsal import Rehearsal
from proxy.training.retraining.retraining import Retraining
from proxy.training.run_files import RunFiles
from proxy.training.run_state import RunState
from proxy.training.run_supervisor import RunSupervisor
from proxy.training.unlearning import Unlearning
from proxy.training.weights_check import WeightsCheck
from proxy.versions.arms import Arms
from proxy.versions.experiments import Experiments
from proxy.versions.lines import Lines
from proxy.versions.live_version import LiveVersion
from proxy.versions.rollback_monitor import RollbackMonitor
from proxy.versions.services import Services
from proxy.versions.version_copies import VersionCopies
from proxy.versions.warm_up import WarmUp

log = structlog.get_logger()


def any_of(topics: Collection[str], *names: str) -> bool:
    """Tell whether one of these has changed; `*` is anything."""
    return "*" in topics or any(name in topics for name in names)


class Training:
    def __init__(self, services: Services, pinned: Callable[[], set[int]]) -> None:
        """`pinned`: versions that will be asked for again (LiveVersion)."""
        settings, store, backend, events = services.settings, services.store, services.backend, services.events
        self._services = services
        # one version answers, and another takes its place
        self.arms = arms = Arms()
        self.copies = VersionCopies(settings, store, services.tasks)
        self.live_version = LiveVersion(
            services, WarmUp(backend, services.recent), self.copies,
            lambda has_room: arms.versions() | (pinned() if has_room else set()),
        )  # fmt: skip
        self.lines = Lines(store, backend, self.live_version, events)
        self.gpu_sharing = GpuSharing(
            settings, store, backend, self.live_version, services.admission, events, services.tasks
        )
        self.experiments = Experiments(store, backend, self.live_version, arms, events)
        self.monitor = RollbackMonitor(settings.train, store, self.live_version, events)
        # a run: whether it may start, its samples, its trainer, its version
        self.weights_check = WeightsCheck(settings, store, backend, services.launcher, events)
        self.cloud_student = CloudStudent(settings, store, events) if backend.capabilities.is_foreign else None
        self.preconditions = Preconditions(
            services, self.live_version, self.gpu_sharing, self.weights_check, self.cloud_student, RunState(),
            self.experiments,
        )  # fmt: skip
        self.rehearsal = Rehearsal(services, self.weights_check, self.preconditions)
        self.unlearning = Unlearning(
            settings, store, self.live_version, backend, self.preconditions, self.cloud_student, events
        )
        self.run_files = RunFiles(store, settings.home)
        self.retraining = Retraining(services, self.live_version, self.cloud_student)
        claims = Claims(
            services, self.live_version, self.cloud_student, self.run_files, self.weights_check, self.retraining
        )
        self._publisher = publisher = Publisher(
            services, self.live_version, self.gpu_sharing, self.cloud_student, self.experiments,
            CandidateChecks(settings, backend, self.live_version), self.copies,
        )  # fmt: skip
        self.supervisor = RunSupervisor(
            services, self.live_version, self.gpu_sharing, self.preconditions, claims, publisher, self.unlearning
        )
        self.acts = AdminActs(store, self.supervisor, self.live_version, services.tasks)
        # what people say next is evidence, too
        sources = SignalSources(
            Follower(store, services.screen),
            OwnSignals(settings.signals),
            AnswerFlagger(settings.signals, store),
        )
        self.judging = JudgingLoop(settings.judge, store, backend, services.redactor, events, sources)
        claims.prepare, claims.extra_choices = self.judging.settle, self.judging.choices

    async def load(self, http: aiohttp.ClientSession) -> None:
        """The backend, with the versions that it should have."""
        await self.unlearning.start()
        await self.lines.refresh()
        await self._services.backend.start(http, self.live_version.restore)
        for server in self._services.further.values():
            server.open(http)
        if not await self.gpu_sharing.recover():
            try:
                await self.live_version.restore()
            except ProxyError as error:  # a backend that is not there yet does not keep the proxy from starting
                log.warning("adapters are not loaded yet", error=str(error))
        await self._services.picture_training.refresh()
        await self.experiments.restore()
        await self.judging.start(http)

    async def start(self) -> list[asyncio.Task[Any]]:
        """Learn from now on; the tasks that do."""
        tasks = self._services.tasks
        settling = tasks.spawn("forgotten", self.run_files.start())
        if self._services.store.integrity.doubt is None:
            await settling
        return [
            settling,
            tasks.spawn("gaps", self.run_files.keep_overwriting()),
            await self.supervisor.start(),
            tasks.spawn("watch", self.monitor.run()),
            tasks.spawn("experiments", self.experiments.run()),
            tasks.spawn("rehearsal", self.rehearsal.run()),
            tasks.spawn("signals", self.judging.run()),
            tasks.spawn("wake-on-ratings", self._wake_on_ratings()),
        ]

    async def follow(self, topics: Collection[str]) -> None:
        """Take over what another relay has changed, by the names of tables and `meta KEY`. Raises StoreError."""
        if any_of(topics, "lines"):
            await self.lines.refresh()
        if any_of(topics, "pointer", "adapters", "lines"):
            await self.live_version.follow()
        if any_of(topics, "experiments"):
            await self.experiments.follow()
        if any_of(topics, "meta paused", "ratings", "episodes"):
            paused = bool(await self._services.store.meta.get("paused", False))
            if paused != self.supervisor.state.paused:
                await (self.supervisor.pause() if paused else self.supervisor.resume())
            self.supervisor.wake()
            self.monitor.wake()

    async def stop(self) -> None:
        self.gpu_sharing.stopping()
        await self.supervisor.stop()
        await self.gpu_sharing.leave_awake()

    async def _wake_on_ratings(self) -> None:
        async for event in self._services.events.listen():
            if event.kind in ("rating", "rebuild", "episode", "judged", "retrain"):
                self.supervisor.wake()
            if event.kind in ("rating", "retracted", "episode"):
                self.monitor.wake()
            if event.kind in ("rating", "retracted"):
                self.judging.rated()
            if event.kind in ("rating", "retracted", "swap", "rebuild"):
                self.experiments.wake()
            if event.kind == "experiment" and event.data["event"] == "ended":
                self._services.tasks.spawn("after-experiment", self._experiment_ended())

    async def _experiment_ended(self) -> None:
        """First the version that waited for it, then the runs that did."""
        await self._publisher.finish_swap()
        self.supervisor.wake()
