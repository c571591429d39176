"""The end of a run: its last word on record, its candidate published, and live.

Owns the hand-over from the trainer's result to the store and the swap. Not here: how the result came (run_supervisor),
what happens to a version once it is live (rollback_monitor).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import structlog

from proxy.checks.candidate import CandidateChecks
from proxy.checks.checks_file import ChecksError
from proxy.core.errors import BackendBroke, BrokeOff, Conflict, ProxyError
from proxy.core.version_names import version_in_words
from proxy.training import run_folder
from proxy.training.cloud_student import NEWEST, CloudStudent
from proxy.training.gpu_sharing import GpuSharing
from proxy.versions.experiments import Experiments
from proxy.versions.live_version import LiveVersion, Overtaken
from proxy.versions.services import Services
from proxy.versions.version_copies import VersionCopies
from store.errors import RunEnded
from store.file.meta import of_line
from store.learning.versions import ITSELF, WAITING
from store.records import Adapter, Run
from trainer.launch import AdapterError, Seal, verify_adapter

log = structlog.get_logger()

EVEN: Final = 0.5  # share of conversations: the most evidence for each rating
RETRY_SWAP_S: Final = (2.0, 10.0, 60.0)


Ending = Literal["rejected", "empty", "failed", "cancelled"]


class Obstacle(NamedTuple):
    """The reason that a version does not go live by itself."""

    reason: str
    is_own_change: bool = False  # rlproxy made another one live, and no person has decided about this one


class PublishResult(NamedTuple):
    adapter: Adapter
    obstacle: Obstacle | None


class Publisher:
    def __init__(
        self,
        services: Services,
        live_version: LiveVersion,
        gpu_sharing: GpuSharing,
        cloud_student: CloudStudent | None,
        experiments: Experiments,
        checks: CandidateChecks,
        copies: VersionCopies,
    ) -> None:
        self._store = services.store
        self._live_version = live_version
        self._gpu_sharing = gpu_sharing
        self._events = services.events
        self._metrics = services.metrics
        self._cloud_student = cloud_student
        self._experiments = experiments
        self._checks = checks
        self._copies = copies
        self._by_experiment = services.settings.train.publish == "by experiment"

    async def record(self, run: Run, result: dict[str, Any]) -> PublishResult | None:
        """The trainer's last word, into the store; the version that it leaves, if any."""
        if odds := result.get("guesses"):
            await self._store.guesses.replace_all(run.id, odds)
        if result["status"] != "passed":
            await self.end(run, result["status"], result.get("reason", ""), result)
            return None
        try:
            path = Path(result["adapter"])
            if str(path) != run_folder.ordered(Path(run.folder)):
                raise AdapterError(f"{path} is not where this run was to write.")
            manifest = await asyncio.to_thread(verify_adapter, path)
        except (AdapterError, KeyError) as error:
            await self.end(run, "failed", f"the adapter is not what the trainer wrote: {error}", result)
            return None
        adapter = Adapter(run.version, run.parent, run.id, run.model, str(path), time.time(), manifest, line=run.line)
        if self._cloud_student and not run.retrains:
            await self._cloud_student.publishes(run.version)
        obstacle = None if self._cloud_student or run.retrains else await self._overtaken(adapter)
        seal = Seal(await self._store.runs.existing_key(run.id))
        pairs = await asyncio.to_thread(run_folder.answer_pairs, Path(run.folder), seal)
        baseline = None if obstacle else result.get("baseline_after")
        await self._store.runs.publish(run.id, adapter, result, baseline, pairs)
        self._ended(run, "done", result.get("reason", ""))
        return PublishResult(adapter, obstacle)

    async def make_live(self, published: PublishResult) -> None:
        """Let the version answer, unless another one has taken the place of its parent."""
        adapter, obstacle = published
        await self._copies.copy(adapter)
        if self._cloud_student:
            await self._cloud_student.published(adapter.version)
        elif obstacle:
            await self._set_aside(adapter, obstacle)
        else:
            await self._go_live(adapter)

    async def _overtaken(self, adapter: Adapter) -> Obstacle | None:
        """Why a version is not to go live by itself: what it was trained from does not answer any more."""
        version = f"v{adapter.version}"
        parent = await self._store.versions.get(adapter.parent)
        name = version_in_words(adapter.parent)
        # Read last: the baseline that is published next goes by it.
        pointer = await self._store.versions.pointer(adapter.line)
        if pointer.live == adapter.version:  # a person was quicker
            return None
        is_by_person = pointer.live == adapter.parent and pointer.actor != ITSELF  # also where another line withdrew it
        if parent is not None and parent.withdrawn and not is_by_person:
            return Obstacle(f"{version} was trained from {name}, which was rolled back: it waits for `promote`.")
        if adapter.line not in self._live_version.lines:
            return Obstacle(f"{version} is of the line {adapter.line}, which was retired: it waits for `promote`.")
        if pointer.live == adapter.parent:
            return None
        if pointer.actor != ITSELF:
            return Obstacle(f"{version} was trained from {name}, which is not live any more: it waits for `promote`.")
        reason = (
            f"{version} was trained from {name}, and {version_in_words(pointer.live)} went live by itself meanwhile: "
            f"its ratings are fresh again; `rlproxy promote {version}` takes it all the same."
        )
        return Obstacle(reason, is_own_change=True)

    async def _set_aside(self, adapter: Adapter, obstacle: Obstacle) -> None:
        """It waits for a person where a person has left its parent. Else its ratings train on what answers now."""
        if obstacle.is_own_change:
            await self._return_ratings(adapter, obstacle.reason, "rejected")
        else:
            self._wait(adapter, obstacle.reason)

    def _wait(self, adapter: Adapter, reason: str) -> None:
        log.warning("version waits", version=adapter.version, why=reason)
        self._events.emit("problem", message=reason)

    async def _go_live(self, adapter: Adapter) -> None:
        """A backend that is down for a moment is asked again; then the version waits for `promote`. One that cannot be
        loaded gives its ratings back."""
        await self._gpu_sharing.awake()
        if await self._is_refused(adapter) or await self._is_compared(adapter):
            return
        version, reason = adapter.version, f"run {adapter.run_id} passed the gate"
        for pause in (*RETRY_SWAP_S, None):
            try:
                await self._live_version.to(version, reason, "rlproxy", instead_of=adapter.parent, line=adapter.line)
                self._metrics.swaps.inc()
                return
            except Overtaken:  # while it waited for the backend, for the next try or for its turn
                if (obstacle := await self._overtaken(adapter)) is not None:
                    await self._set_aside(adapter, obstacle)
                return
            except Conflict as error:  # live already, or it does not fit the server's model any more, or is damaged
                if self._live_version.live_of(adapter.line) != version:
                    await self._give_back(adapter, error)
                return
            except ProxyError as error:
                if pause is None:
                    await self._give_up(adapter, error)
                    return
                await asyncio.sleep(pause)

    async def _is_refused(self, adapter: Adapter) -> bool:
        """Tell whether a check of the user's own keeps it from going live. One that could not be made has it wait."""
        try:
            refusal = await self._checks.refusal(adapter.version)
        except (ProxyError, ChecksError, OSError) as error:
            self._wait(adapter, f"v{adapter.version} was not checked, and waits for `promote`: {error}")
            return True
        if refusal is None:
            return False
        version = adapter.version
        reason = f"{refusal} Its ratings are fresh again; `rlproxy promote v{version}` takes it all the same."
        await self._return_ratings(adapter, reason, "rejected")
        return True

    async def _is_compared(self, adapter: Adapter) -> bool:
        """Tell whether it does not go live now: another is compared, or it has to win an experiment first."""
        running = self._experiments.delaying(adapter.line, every_line=self._by_experiment)
        if running is not None:
            if running.version != adapter.version:
                self._wait(adapter, f"v{adapter.version} waits until the experiment with v{running.version} has ended.")
            return True
        if not self._by_experiment:
            return False
        try:
            await self._experiments.start(adapter.version, adapter.parent, EVEN, "rlproxy")
        except ProxyError as error:
            self._wait(
                adapter,
                f"v{adapter.version} cannot be compared with the live version, and waits for `promote`: {error}",
            )
        return True

    async def _give_up(self, adapter: Adapter, error: ProxyError) -> None:
        """A server that is away or lacks something may take the version later. One that answers and refuses it will
        not."""
        if isinstance(error, BackendBroke) and not isinstance(error, BrokeOff):
            await self._give_back(adapter, error)
        else:
            log.error("version waits", version=adapter.version, error=str(error))

    async def _give_back(self, adapter: Adapter, error: ProxyError) -> None:
        """A version that cannot be loaded has cost nobody a rating."""
        reason = (
            f"the server cannot load v{adapter.version}, so its ratings are fresh again: {error.message} "
            f"`rlproxy promote v{adapter.version}` tries it once more."
        )
        await self._return_ratings(adapter, reason, "failed")

    async def _return_ratings(self, adapter: Adapter, reason: str, status: Literal["failed", "rejected"]) -> None:
        """The version does not go live by itself, and its ratings are fresh again. While an unlearning trains anew, it
        only waits: its ratings would start the same run again at once."""
        rebuild = await self._store.unlearning.state()
        if adapter.run_id is None or (rebuild is not None and rebuild.over is None):
            log.error("version waits", version=adapter.version, error=reason)
            return
        try:
            await self._store.runs.give_back(adapter.run_id, reason, status)
        except RunEnded:  # somebody has forgotten what it learned from, meanwhile
            return
        log.error("version given back", version=adapter.version, run=adapter.run_id, error=reason)
        self._metrics.runs.labels(status).inc()
        self._events.emit("run", run=adapter.run_id, event="ended", status=status, reason=reason)

    async def end(self, run: Run, status: Ending, reason: str, result: dict[str, Any] | None) -> None:
        await self._store.runs.end(run.id, status, reason, result)
        self._ended(run, status, reason)

    def _ended(self, run: Run, status: str, reason: str) -> None:
        self._metrics.runs.labels(status).inc()
        log.info("run ended", run=run.id, status=status, reason=reason)
        self._events.emit("run", run=run.id, event="ended", status=status, reason=reason)

    async def finish_swap(self) -> None:
        """A version that was published just before a crash, or waited for an experiment, goes live now; not one that
        nobody was to serve. Where another one has taken its place, its ratings are fresh again."""
        if self._cloud_student:
            return
        newest = {adapter.line: adapter for adapter in await self._store.versions.all()}  # in their order
        for line in self._live_version.lines:
            adapter = newest.get(line)
            if adapter is None or adapter.version == await self._store.meta.get(NEWEST, None):
                continue
            waiting = await self._store.meta.get(of_line(WAITING, line), None) == adapter.version
            if not waiting or adapter.withdrawn is not None:
                continue
            # The pointer on disk counts: of a backend that is still asleep, the swap does not know it yet.
            obstacle = await self._overtaken(adapter)
            if obstacle is None:
                await self._go_live(adapter)
            elif obstacle.is_own_change:  # a person's has been told
                await self._set_aside(adapter, obstacle)
