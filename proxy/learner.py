"""When to train, and what becomes of it.

Owns the claim, the supervision of the trainer process and the hand-over of its result to the store and the swap. A
crash anywhere ends in a run that resumes, or in one that failed and gave its samples back. A run that its rules keep
from training stops at its next step and goes on when they hold again. Not here: the rules themselves (due, machine),
what happens to a version once it is live (watch), the mathematics and the gate (trainer).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

from config import presets
from config.settings import Settings
from proxy import run_folder
from proxy.backends.base import Backend
from proxy.due import Due, dampened, enough, kept_from, needed
from proxy.errors import Conflict, ProxyError
from proxy.events import Events
from proxy.foreign import NEWEST, Foreign
from proxy.lending import Lending, NotLent
from proxy.lifecycle import Tasks
from proxy.machine import Machine
from proxy.match import Match
from proxy.metrics import Metrics
from proxy.refusal import Refusal
from proxy.swap import Swap
from store.records import Adapter, Fresh, Run
from store.store import Store
from trainer.launch import AdapterError, Job, Launcher, LaunchError, verify_adapter

log = structlog.get_logger()

LOOK_AGAIN_S: Final = 5.0  # for what no event tells: quiet, hours, how busy the machine is
HELD_BEFORE: Final = 32  # held-back samples of earlier runs that the gate sees again
RETRY_SWAP_S: Final = (2.0, 10.0, 60.0)
HELD: Final = 75  # how a trainer ends that finds another at work in its folder
HELD_PAUSE_S: Final = 1.0
LET_GO_S: Final = 5.0


def local_time() -> datetime:
    """What the clock on the wall shows; hours of training are in it."""
    return datetime.now()


class Learner:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: Backend,
        swap: Swap,
        launcher: Launcher,
        events: Events,
        metrics: Metrics,
        tasks: Tasks,
        machine: Machine,
        lending: Lending,
        match: Match,
        last_request: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._store = store
        self._backend = backend
        self._swap = swap
        self._launcher = launcher
        self._events = events
        self._metrics = metrics
        self._tasks = tasks
        self._machine = machine
        self._lending = lending
        self.match = match
        self._last_request = last_request
        self._foreign = Foreign(settings, store, events) if backend.capabilities.foreign else None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()  # what becomes of the run under way is on record
        self._idle.set()
        self._job: Job | None = None
        self._asked = False  # somebody said `train`: the threshold does not count
        self._by_hand: int | None = None  # the run that somebody asked for: it does not wait for its hours
        self._stopping = False
        self._kept: str | None = None  # the rule that keeps the open run from training
        self._refusal = Refusal(settings, backend, launcher)
        self.paused = False
        self.run: Run | None = None  # the one under way
        self.progress: dict[str, Any] = {}  # its last events, by kind

    # What others ask for

    async def start(self) -> None:
        self.paused = bool(await self._store.get_meta("paused", False))
        self._by_hand = await self._store.get_meta("by_hand", None)
        await self.match.start()
        self._tasks.spawn("learner", self._loop())

    def wake(self) -> None:
        self._wake.set()

    async def train(self) -> Due:
        """Start as soon as a run can, whatever the threshold. Raises Conflict where it cannot, with the reason."""
        if self.run is not None:
            raise Conflict(f"Run {self.run.id} is under way already.")
        if not self.paused and (waiting := await self._store.open_runs()):
            return await self._go_on(waiting[0])
        await self._look_at_base(asked=True)
        due = await self.due(asked=True)
        if not due.now:
            raise Conflict(f"No run was started: {due.why}.")
        self._asked = True
        self.wake()
        return due

    async def _go_on(self, run: Run) -> Due:
        """A run that waits for its rules, at once."""
        if (why := await self._kept_from(run.id, starting=True, by_hand=True)) is not None:
            raise Conflict(f"Run {run.id} does not go on: {why}.")
        await self._asked_for(run.id)
        self.wake()
        return Due(True, f"run {run.id} goes on")

    async def _asked_for(self, run_id: int) -> None:
        self._by_hand = run_id
        await self._store.set_meta("by_hand", run_id)

    async def pause(self) -> None:
        """No new run; one under way stops at its next step and keeps its checkpoint."""
        self.paused = True
        await self._store.set_meta("paused", True)
        self._events.emit("paused")
        if self._job is not None:
            await self._job.terminate()

    async def resume(self) -> None:
        self.paused = False
        await self._store.set_meta("paused", False)
        self._events.emit("resumed")
        self.wake()

    async def reset(self, actor: str) -> None:
        """Back to the beginning: base, baseline 0, and the next run starts from there. Nothing is deleted."""
        if self._swap.live:
            await self._swap.to(0, "reset", actor)
        if self._foreign:
            await self._foreign.reset(actor)
        await self._store.set_meta("baseline", 0.0)

    async def stop(self) -> None:
        """The trainer stops at its next step; the run goes on when rlproxy starts again."""
        self._stopping = True
        if self._job is not None:
            await self._job.terminate()
        with contextlib.suppress(TimeoutError):  # until it is on record that this was no failed attempt
            async with asyncio.timeout(LET_GO_S):
                await self._idle.wait()

    # When

    async def fresh(self, *, before: float | None = None) -> Fresh:
        gap = self._settings.train.max_version_gap
        foreign = self._foreign is not None
        share = self._settings.train.max_rater_share
        return await self._store.fresh(
            live=self._swap.live, max_version_gap=gap, before=before, foreign=foreign, share=share
        )

    async def needed(self) -> tuple[int, str]:
        """How many fresh ratings start a run, and why that many."""
        last = next(iter(await self._store.runs(limit=1)), None)
        seen = (await self.fresh(before=last.created_at)).total if last else 0
        return needed(self._settings.train, last, seen)

    async def due(self, *, asked: bool = False, early: bool = False) -> Due:
        """`early`: whatever the number of ratings and the served model, could a run train now?"""
        train = self._settings.train
        if not train.enabled and not asked:
            return Due(False, "training is off (train.enabled = false)")
        if self._foreign and (lacks := self._foreign.lacks()) is not None:
            return Due(False, lacks)
        if not (self._foreign or self._backend.capabilities.adapters):
            return Due(False, self._backend.capabilities.why_not)
        if (lacks := self._launcher.available(tensorboard=train.tensorboard)) is not None:
            return Due(False, lacks)
        if self._weights() is None:
            return Due(False, "train.weights does not say where the model's weights are")
        if (obstacle := await self.obstacle(anew=asked)) is not None:
            return Due(False, obstacle)
        if self.paused:
            return Due(False, "paused; `rlproxy resume` goes on")
        if self._kept is not None and (waiting := await self._store.open_runs()):
            return Due(False, f"run {waiting[0].id} waits at its last step: {self._kept}")
        if not early and self.match.no is not None:
            return Due(False, self.match.no)
        fresh = await self.fresh()
        if fresh.total == 0:
            return Due(False, dampened(fresh) or "there are no fresh ratings")
        if not asked and not early:
            lacks = enough(train, fresh, *await self.needed(), silent_s=time.time() - self._last_request())
            if lacks is not None:
                return Due(False, lacks)
        if (kept := await self._kept_from(None, starting=True, by_hand=asked)) is not None:
            return Due(False, kept)
        return Due(True, f"{fresh.total} fresh ratings")

    async def _look_at_base(self, *, asked: bool) -> None:
        """Is the served model the one that trains? Looked at from the first rating on, not only at the last one."""
        weights = self._weights()
        if weights is not None and (await self.due(asked=asked, early=True)).now:
            await self.match.check(weights, now=asked)

    async def obstacle(self, *, anew: bool = False) -> str | None:
        """What keeps the backend from taking what a run makes; asked `anew` before a run, else as far as is known."""
        weights = self._weights()
        if (lacks := self._backend.lacks) is not None:
            return lacks
        if weights is None or not self._backend.capabilities.adapters:
            return None
        if anew:
            return await self._refusal.anew(weights)
        return self._refusal.why if self.run is not None else await self._refusal.known(weights)

    async def _kept_from(self, run_id: int | None, *, starting: bool, by_hand: bool = False) -> str | None:
        """Which rule keeps a run from training now; None where none does."""
        if starting and (why := self._lending.why_not()) is not None:
            return why
        trainer = self._job.pid if self._job is not None else None
        use = await asyncio.to_thread(self._machine.look, time.monotonic(), trainer)
        by_hand = by_hand or (run_id is not None and run_id == self._by_hand)
        return kept_from(self._settings.train, use, local_time(), by_hand=by_hand, starting=starting)

    def _weights(self) -> str | None:
        return self._settings.train.weights or self._backend.weights

    # The loop

    async def _loop(self) -> None:
        await self._finish_swap()
        while not self._stopping:
            self._wake.clear()  # before the step: what comes during it calls for another
            try:
                await self._step()
            except Exception as error:  # whatever it is: relaying, capture and ratings need no learner
                log.exception("learner")
                self._events.emit("problem", message=f"Training could not go on: {error}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wake.wait()

    async def _step(self) -> None:
        if self.paused or self._stopping:
            return
        for run in await self._store.open_runs():  # left by a crash, a stop, a pause or a rule
            finished = run_folder.result(Path(run.folder)) is not None
            self._kept = None if finished else await self._kept_from(run.id, starting=True)
            if self._kept is not None:
                return
            if await self._is_strange(run):
                why = "it was begun behind another kind of backend; its ratings are fresh again there"
                await self._end(run, "failed", why, None)
                continue
            await self._carry_out(run)
            if self._kept is not None or self.paused or self._stopping:
                return
        asked, self._asked = self._asked, False
        await self._look_at_base(asked=asked)
        if not (await self.due(asked=asked)).now or (not asked and await self.obstacle(anew=True) is not None):
            return
        if (claimed := await self._claim(asked)) is not None:
            await self._carry_out(claimed)

    async def _is_strange(self, run: Run) -> bool:
        """Whether its samples are replies of a model that is not ours, and that of this backend is; or the reverse."""
        samples = await self._store.run_samples(run.id)
        return any((s.completion.new.version is None) != (self._foreign is not None) for s in samples)

    async def _finish_swap(self) -> None:
        """A version that was published just before a crash goes live now; not one that nobody was to serve."""
        adapters = await self._store.adapters()
        pointer = self._swap.pointer
        if adapters and not self._foreign:
            newest = max(adapters, key=lambda a: a.version)
            if newest.version == await self._store.get_meta(NEWEST, None):
                return
            if newest.withdrawn is None and newest.parent == pointer.live and newest.created_at > pointer.changed_at:
                await self._go_live(newest.version, newest.run_id)

    async def trains(self) -> dict[str, Any] | None:
        """For `status`: the model that trains, where it is another one than the one that answers."""
        return await self._foreign.report() if self._foreign else None

    async def _claim(self, asked: bool) -> Run | None:
        train = self._settings.train
        newest = await asyncio.to_thread(run_folder.newest_version, self._model_folder())
        version = max(await self._store.next_version(), 1 + newest)
        claimed = await self._store.claim(
            model=self._foreign.model if self._foreign else self._swap.model,
            live=await self._foreign.parent() if self._foreign else self._swap.live,
            max_version_gap=train.max_version_gap,
            limit=train.max_samples,
            held_share=train.held_share,
            folder_of=lambda run: str(self._settings.home / "runs" / f"r{run:05d}"),
            version=version,
            min_total=1 if asked else (await self.needed())[0],
            foreign=self._foreign is not None,
            share=train.max_rater_share,
        )
        if claimed is None:
            return None
        if asked:
            await self._asked_for(claimed[0].id)
        return claimed[0]

    def _model_folder(self) -> Path:
        model = self._foreign.model if self._foreign else self._swap.model
        return run_folder.of_model(self._settings.adapters_dir, model)

    async def _prepare(self, run: Run) -> None:
        """Write the run folder, unless an earlier attempt did."""
        if run_folder.complete(Path(run.folder)):
            return
        weights = self._weights()
        assert weights is not None, "due() has checked it"
        calibration = await self._store.unrated(version=run.parent, limit=self._settings.train.calibration)
        train = self._settings.train
        again = presets.resolve(train.preset, train.overrides).replays(run.samples - run.held)
        again = 0 if self._foreign else again
        adapters = {a.version: a.path for a in await self._store.adapters()}
        await asyncio.to_thread(
            run_folder.write,
            run,
            await self._store.run_samples(run.id),
            await self._store.recent_held(HELD_BEFORE),
            await self._store.earlier(run, max_version_gap=train.max_version_gap, each=again) if again else (),
            calibration,
            settings=self._settings,
            weights=weights,
            adapters=adapters,
            out=self._model_folder() / f"v{run.version:04d}",
            baseline=float(await self._store.get_meta("baseline", 0.0)),
            moments=await self._store.moments(),
            objective=self._foreign.objective if self._foreign else None,
            choices=self._foreign.choices if self._foreign else (),
        )

    # One run

    async def _carry_out(self, run: Run) -> None:
        """From the claim to its end, or to where it was told to stop."""
        self.run, self.progress, self._kept = run, {}, None
        self._idle.clear()
        try:
            await self._prepare(run)
            await self._train(run)
        finally:
            self.run = None
            self._idle.set()

    async def _train(self, run: Run) -> None:
        found = run_folder.result(Path(run.folder))  # of a trainer that outlived us
        try:
            if found is None:
                async with self._lending.lent(run.id, lambda: self.paused or self._stopping):
                    found = await self._result(run)
        except NotLent as error:
            if not (self.paused or self._stopping):
                self._wait(run, str(error))
            return
        if found is not None:
            await self._take(run, found)
            await asyncio.to_thread(run_folder.tidy, Path(run.folder))

    async def _result(self, run: Run) -> dict[str, Any] | None:
        """Supervise the trainer until the run has a result; None where it failed, or was stopped at a checkpoint."""
        folder = Path(run.folder)
        if self._lending.on and (short := await self._kept_from(run.id, starting=False)) is not None:
            self._lending.put_off(short)
            self._wait(run, short)
            return None
        if self.paused or self._stopping:  # said while the backend gave its memory back
            return None
        status = None
        while (found := run_folder.result(folder)) is None:
            if status == HELD:  # a trainer of ours before us is still ending; that is no attempt
                await asyncio.sleep(HELD_PAUSE_S)
            elif run.attempts >= self._settings.train.max_attempts:
                reason = f"the trainer ended {run.attempts} times without a result; see {folder}/trainer.log"
                await self._end(run, "failed", reason, None)
                return None
            else:
                await self._store.run_started(run.id)
                run = await self._store.run(run.id) or run
            self._events.emit("run", run=run.id, event="started", samples=run.samples, attempt=run.attempts)
            status = await self._supervise(run)
            if self.paused or self._stopping:
                await self._store.run_paused(run.id)  # told to stop: that was no failed attempt
                return None
            if self._kept is not None and run_folder.result(folder) is None:
                await self._store.run_paused(run.id)
                return None
            log.info("trainer ended", run=run.id, status=status)
        return found

    def _wait(self, run: Run, why: str) -> None:
        """What keeps the run, said: it goes on when that is over."""
        self._kept = why
        log.info("run waits", run=run.id, why=why)
        self._events.emit("waiting", run=run.id, why=why)

    async def _supervise(self, run: Run) -> int:
        """One trainer process, from start to end. It never outlives this call."""
        train = self._settings.train
        try:
            job = await self._launcher.start(Path(run.folder), threads=train.threads, nice=train.nice)
        except LaunchError as error:
            log.error("trainer did not start", run=run.id, error=str(error))
            return -1
        self.run, self._job = run, job
        minding = asyncio.create_task(self._mind_rules(run, job), name="rules")
        try:
            if self.paused or self._stopping:  # said while the process was starting
                await job.terminate()
            async for event in job.events():
                if event.get("event") == "phase":
                    self.progress.pop("step", None)  # it was of the phase before
                self.progress[event.get("event", "")] = event
                self._events.emit("run", **{**event, "run": run.id})
            return await job.wait()
        finally:
            minding.cancel()
            await asyncio.wait({minding})
            self._job = None
            await job.terminate()

    async def _mind_rules(self, run: Run, job: Job) -> None:
        """Hours end, and memory may be short: then the run stops at its next step."""
        while self._kept is None:
            await asyncio.sleep(LOOK_AGAIN_S)
            self._kept = await self._kept_from(run.id, starting=False)
        self._lending.put_off(self._kept)  # or it would be freed for it again and again
        self._wait(run, self._kept)
        await job.terminate()

    async def _take(self, run: Run, found: dict[str, Any]) -> None:
        """The trainer's last word, into the store; a passed candidate goes live."""
        if found["status"] != "passed":
            await self._end(run, found["status"], found.get("reason", ""), found)
            return
        try:
            path = Path(found["adapter"])
            if str(path) != run_folder.ordered(Path(run.folder)):
                raise AdapterError(f"{path} is not where this run was to write.")
            manifest = await asyncio.to_thread(verify_adapter, path)
        except (AdapterError, KeyError) as error:
            await self._end(run, "failed", f"the adapter is not what the trainer wrote: {error}", found)
            return
        adapter = Adapter(run.version, run.parent, run.id, run.model, str(path), time.time(), manifest)
        baseline = found.get("baseline_after", await self._store.get_meta("baseline", 0.0))
        if self._foreign:
            await self._foreign.publishes(run.version)
        await self._store.publish(run.id, adapter, found, float(baseline))
        self._ended(run, "done", found.get("reason", ""))
        if self._foreign:
            await self._foreign.published(run.version)
            return
        parent = await self._store.adapter(run.parent)
        if parent is not None and parent.withdrawn:  # while the run was under way
            message = f"v{run.version} was trained from v{run.parent}, which was rolled back: it waits for `promote`."
            log.warning("version waits", version=run.version, why=message)
            self._events.emit("problem", message=message)
            return
        await self._go_live(run.version, run.id)

    async def _go_live(self, version: int, run_id: int | None) -> None:
        """A backend that is down for a moment is asked again; then the version waits for `promote`."""
        await self._lending.awake()
        for pause in (*RETRY_SWAP_S, None):
            try:
                await self._swap.to(version, f"run {run_id} passed the gate", "rlproxy")
                self._metrics.swaps.inc()
                return
            except Conflict:
                return  # live already, or damaged: then swap.problem says so
            except ProxyError as error:
                if pause is None:
                    log.error("version waits", version=version, error=str(error))
                    return
                await asyncio.sleep(pause)

    async def _end(self, run: Run, status: Any, reason: str, found: dict[str, Any] | None) -> None:
        await self._store.end_run(run.id, status, reason, found)
        self._ended(run, status, reason)

    def _ended(self, run: Run, status: str, reason: str) -> None:
        self._idle.set()
        self._metrics.runs.labels(status).inc()
        log.info("run ended", run=run.id, status=status, reason=reason)
        self._events.emit("run", run=run.id, event="ended", status=status, reason=reason)
