"""Carries out runs, one at a time: claim, run folder, trainer process, result.

Owns the claim and the supervision of the trainer process. A crash anywhere ends in a run that resumes, or in one that
failed and gave its samples back. A run that its rules keep from training stops at its next step and goes on when they
hold again. Not here: when a run may train (preconditions, schedule_rules), what becomes of its result (publish), the
mathematics and the gate (trainer).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import Any, Final

import structlog

from config import presets
from config.settings import Settings
from proxy.backends.base import Backend
from proxy.core.errors import BackendDown, Conflict
from proxy.core.events import Events
from proxy.core.tasks import Tasks
from proxy.training import run_folder, served_prompts
from proxy.training.cloud_student import Foreign
from proxy.training.gpu_sharing import Lending, NotLent
from proxy.training.preconditions import When
from proxy.training.publish import Outcome
from proxy.training.run_files import RunFiles
from proxy.training.schedule_rules import Due
from proxy.training.served_prompts import Served
from proxy.training.unlearning import Rebuilding
from proxy.training.weights_check import Match
from proxy.versions.live_version import Swap
from store.errors import RunEnded
from store.records import Run
from store.store import Store
from trainer.launch import Job, Launcher, LaunchError, Seal

log = structlog.get_logger()

LOOK_AGAIN_S: Final = 5.0  # for what no event tells: quiet, hours, how busy the machine is
HELD_BEFORE: Final = 32  # held-back samples of earlier runs that the gate sees again
HELD: Final = 75  # how a trainer ends that finds another at work in its folder
HELD_PAUSE_S: Final = 1.0
LET_GO_S: Final = 5.0
KILLED: Final = (
    ". The last time it was killed, most likely because the machine's memory was full: end what needs it, set "
    "train.max_memory_gb to what it may use, or train.share_gpu = true"
)
CANCELLED: Final = "cancelled by a person"


class Learner:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: Backend,
        swap: Swap,
        launcher: Launcher,
        events: Events,
        tasks: Tasks,
        lending: Lending,
        match: Match,
        foreign: Foreign | None,
        when: When,
        outcome: Outcome,
        rebuilding: Rebuilding,
        files: RunFiles,
    ) -> None:
        self._settings = settings
        self._store = store
        self._backend = backend
        self._swap = swap
        self._launcher = launcher
        self._events = events
        self._tasks = tasks
        self._lending = lending
        self._match = match
        self._foreign = foreign
        self._when = when
        self._outcome = outcome
        self._rebuilding = rebuilding
        self._files = files
        self._wake = asyncio.Event()
        self._job: Job | None = None
        self._asked = False  # somebody said `train`: the threshold does not count
        self._begun = asyncio.Event()  # cleared: a run that was asked for may be about to begin
        self._begun.set()
        self._stopping = False
        self._halted = False  # whether the last trainer was told to stop: that is no failed attempt
        self._exceeded: str | None = None  # the limit that the last trainer was killed for
        self._cancelled: int | None = None  # the run that somebody wants no more
        self._heard = 0.0  # when its trainer last said something, by the monotonic clock
        self.stalled: str | None = None  # why its trainer was ended, where it had stopped saying anything
        self.run: Run | None = None  # the one under way
        self.progress: dict[str, Any] = {}  # its last events, by kind

    # What others ask for

    async def start(self) -> None:
        await self._when.start()
        await self._match.start()
        self._tasks.spawn("learner", self._loop())

    def wake(self) -> None:
        self._wake.set()

    async def train(self) -> Due:
        """Start as soon as a run can, whatever the threshold. Raises Conflict where it cannot, with the reason."""
        if self.run is not None:
            raise Conflict(f"Run {self.run.id} is under way already.")
        if not self._when.paused and (waiting := await self._store.runs.still_open()):
            return await self._go_on(waiting[0])
        await self._when.look_at_base(asked=True)
        due = await self._when.due(asked=True)
        if not due.now:
            raise Conflict(f"No run was started: {due.why}.")
        self._asked = True
        self._begun.clear()
        self.wake()
        return due

    async def _go_on(self, run: Run) -> Due:
        """A run that waits for its rules, at once."""
        if (why := await self._when.kept_from(run.id, starting=True, by_hand=True)) is not None:
            raise Conflict(f"Run {run.id} does not go on: {why}.")
        await self._when.asked_for(run.id)
        self.wake()
        return Due(True, f"run {run.id} goes on")

    async def pause(self) -> None:
        """No new run; one under way stops at its next step and keeps its checkpoint."""
        await self._when.pause(True)
        self._events.emit("paused")
        await self._halt()

    async def resume(self) -> None:
        await self._when.pause(False)
        self._events.emit("resumed")
        self.wake()

    async def cancel(self) -> Run:
        """End the run under way, or the one that waits; its ratings are fresh again. Raises Conflict."""
        await self._begun.wait()
        run = self.run or next(iter(await self._store.runs.still_open()), None)
        if run is None:
            raise Conflict("There is no run to cancel.")
        if (at_work := self.run) is not None:
            await self._cancel_at_work(at_work)
            return at_work
        self._cancelled = run.id
        try:
            await self._outcome.end(run, "failed", CANCELLED, None)
        except RunEnded as error:  # somebody else was quicker
            raise Conflict(str(error)) from None
        await asyncio.to_thread(run_folder.tidy, Path(run.folder))
        return run

    async def _cancel_at_work(self, run: Run) -> None:
        """Its end goes on record where it is carried out. Raises Conflict where it came to one by itself."""
        over = self._outcome.recorded.is_set() or run_folder.result(Path(run.folder)) is not None
        if not over:
            self._cancelled = run.id
            await self._halt()
            over = run_folder.result(Path(run.folder)) is not None  # it was at its last step
        if over:
            self._cancelled = None
            raise Conflict(
                f"Run {run.id} had ended before that, and its result stays; "
                "`rlproxy rollback` takes a version of it back once it is live."
            )

    async def reset(self, actor: str) -> None:
        """Back to the beginning: base, baseline 0, and the next run starts from there. Nothing is deleted."""
        if self._swap.live:
            await self._swap.to(0, "reset", actor)
        if self._foreign:
            await self._foreign.reset(actor)
        await self._store.meta.set("baseline", 0.0)

    async def stop(self) -> None:
        """The trainer stops at its next step; the run goes on when rlproxy starts again."""
        self._stopping = True
        self._begun.set()
        await self._halt()
        with contextlib.suppress(TimeoutError):  # until it is on record that this was no failed attempt
            async with asyncio.timeout(LET_GO_S):
                await self._outcome.recorded.wait()

    async def _halt(self) -> None:
        """The trainer, at its next step."""
        if self._job is not None:
            self._halted = True
            await self._job.terminate()

    # The loop

    async def _loop(self) -> None:
        if await self._store.checked():  # no version and no run is made of rows that may be damaged
            await self._outcome.finish_swap()
        while not self._stopping:
            self._wake.clear()  # before the step: what comes during it calls for another
            try:
                await self._step()
            except Exception as error:  # whatever it is: relaying, capture and ratings need no learner
                log.exception("learner")
                self._events.emit("problem", message=f"Training could not go on: {error}")
                self._begun.set()  # it did not begin, and may not for long
            if not self._asked or self._when.paused:
                self._begun.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._wake.wait()

    async def _step(self) -> None:
        if self._when.paused or self._stopping or self._when.doubt is not None:
            return
        for run in await self._store.runs.still_open():  # left by a crash, a stop, a pause or a rule
            over = self._cancelled == run.id or run_folder.result(Path(run.folder)) is not None
            self._when.kept = None if over else await self._when.kept_from(run.id, starting=True)
            if self._when.kept is not None:
                return
            if await self._is_strange(run):
                why = "it was begun behind another kind of backend; its ratings are fresh again there"
                await self._outcome.end(run, "failed", why, None)
                continue
            await self._carry_out(run)
            if self._when.kept is not None or self._when.paused or self._stopping:
                return
        asked, self._asked = self._asked, False
        rebuilds = await self._rebuilding.wanted()
        await self._when.look_at_base(asked=asked)
        if not (await self._when.due(asked=asked)).now or (
            not asked and await self._when.obstacle(anew=True) is not None
        ):
            return
        if (claimed := await self._claim(asked, rebuilds)) is not None:
            await self._carry_out(claimed)
            if rebuilds:
                self.wake()  # there may be more of it, or it is over

    async def _is_strange(self, run: Run) -> bool:
        """Whether its samples are replies of a model that is not ours, and that of this backend is; or the reverse."""
        samples = await self._store.samples.of_run(run.id)
        return any((s.completion.new.version is None) != (self._foreign is not None) for s in samples)

    async def trains(self) -> dict[str, Any] | None:
        """For `status`: the model that trains, where it is another one than the one that answers."""
        return await self._foreign.report() if self._foreign else None

    async def _claim(self, asked: bool, rebuilds: bool) -> Run | None:
        train = self._settings.train
        runs = self._settings.home / "runs"
        newest = await asyncio.to_thread(run_folder.newest_version, self._model_folder())
        version = max(await self._store.versions.next(), 1 + newest)
        claimed = await self._store.samples.claim(
            model=self._foreign.model if self._foreign else self._swap.model,
            live=await self._foreign.parent() if self._foreign else self._swap.live,
            max_version_gap=train.max_version_gap,
            limit=train.max_samples,
            held_share=train.held_share,
            folder_of=lambda run: str(runs / f"r{run:05d}"),
            version=version,
            above=await asyncio.to_thread(run_folder.newest_run, runs),
            min_total=1 if asked or rebuilds else (await self._when.needed())[0],
            foreign=self._foreign is not None,
            share=train.max_rater_share,
            raters=train.raters,
            rebuilds=rebuilds,
        )
        if claimed is None:
            return None
        if asked:
            await self._when.asked_for(claimed[0].id)
        return claimed[0]

    def _model_folder(self) -> Path:
        model = self._foreign.model if self._foreign else self._swap.model
        return run_folder.of_model(self._settings.adapters_dir, model)

    async def _prepare(self, run: Run) -> None:
        """Write the run folder, unless an earlier attempt did. Under the lock of the run files.

        Raises BackendDown: its server renders the prompts.
        """
        if run_folder.complete(Path(run.folder)):
            return
        weights = self._when.weights()
        assert weights is not None, "due() has checked it"
        calibration = await self._store.completions.exact_unrated(
            version=run.parent, limit=self._settings.train.calibration
        )
        train = self._settings.train
        again = presets.resolve(train.preset, train.overrides).replays(run.samples - run.held)
        again = 0 if self._foreign else again
        adapters = {a.version: a.path for a in await self._store.versions.all() if not a.gone}
        if (rebuild := await self._store.unlearning.state()) is not None:
            adapters |= rebuild.paths  # to tell how likely they found their own replies
        groups = (
            await self._store.samples.of_run(run.id),
            await self._store.samples.recent_held(HELD_BEFORE),
            await self._store.samples.earlier(run, max_version_gap=train.max_version_gap, each=again) if again else [],
        )
        moments = await self._store.opinions.moments(train.max_rater_share, train.raters)
        lines = await asyncio.to_thread(run_folder.lines, *groups, train, moments)
        served = Served()
        if not self._foreign:  # whose replies no server of ours has given
            completions = {sample.completion.new.id: sample.completion for group in groups for sample in group}
            served = await served_prompts.add(self._backend, lines, completions)
        await asyncio.to_thread(
            run_folder.write,
            run,
            lines,
            calibration,
            settings=self._settings,
            weights=weights,
            adapters=adapters,
            out=self._model_folder() / f"v{run.version:04d}",
            baseline=float(await self._store.meta.get("baseline", 0.0)),
            neutral=served.neutral,
            objective=self._foreign.objective if self._foreign else None,
            choices=[*(self._foreign.choices if self._foreign else ()), *served.choices],
            seal=Seal(await self._store.runs.key(run.id)),
        )

    # One run

    async def _carry_out(self, run: Run) -> None:
        """From the claim to its end, or to where it was told to stop."""
        if self._cancelled == run.id:  # before it came here
            await self._call_off(run)
            return
        self.run, self.progress = run, {}
        self._begun.set()
        self._when.kept, self._when.under_way, self.stalled = None, True, None
        self._outcome.recorded.clear()
        try:
            try:
                async with self._files.lock:  # until the folder is whole nobody forgets what it is written from
                    await self._files.clean(run)
                    await self._prepare(run)
            except BackendDown as error:
                self._wait(run, f"the server of its replies cannot say how it renders their prompts: {error.message}")
                return
            await self._train(run)
            await self._called_off(run)  # whatever it was busy with, and whatever else has kept it from training
        finally:
            self.run, self._when.under_way, self.stalled = None, False, None
            self._outcome.recorded.set()

    async def _train(self, run: Run) -> None:
        found = run_folder.result(Path(run.folder))  # of a trainer that outlived us
        try:
            if found is None:
                async with self._lending.lent(run.id, lambda: self._told_to_stop(run)):
                    found = await self._result(run)
        except NotLent as error:
            if not self._told_to_stop(run):
                self._wait(run, str(error))
            return
        if found is not None:
            await self._outcome.take(run, found)
            await asyncio.to_thread(run_folder.tidy, Path(run.folder))

    async def _result(self, run: Run) -> dict[str, Any] | None:
        """Supervise the trainer until the run has a result; None where it failed, or was stopped at a checkpoint."""
        folder = Path(run.folder)
        short = await self._when.kept_from(run.id, starting=False) if self._lending.on else None
        if self._told_to_stop(run):  # while the backend gave its memory back
            return None
        if short is not None:
            self._lending.put_off(short)
            self._wait(run, short)
            return None
        status = None
        while (found := run_folder.result(folder)) is None:
            if await self._called_off(run):
                return None
            if status == HELD:  # a trainer of ours before us is still ending; that is no attempt
                await asyncio.sleep(HELD_PAUSE_S)
            elif run.attempts >= self._settings.train.max_attempts:
                reason = f"the trainer ended {run.attempts} times without a result; see {folder}/trainer.log"
                reason += f". One of those times {self.stalled}" if self.stalled else ""
                reason += KILLED if status == -signal.SIGKILL else ""
                await self._outcome.end(run, "failed", reason, None)
                return None
            else:
                await self._store.runs.started(run.id)
                run = await self._store.runs.get(run.id) or run
            self._events.emit("run", run=run.id, event="started", samples=run.samples, attempt=run.attempts)
            self._exceeded = None
            status = await self._supervise(run)
            if self._cancelled == run.id:
                continue
            if self._exceeded is not None and run_folder.result(folder) is None:
                await self._outcome.end(run, "failed", self._exceeded, None)  # it would again
                await asyncio.to_thread(run_folder.tidy, folder)
                return None
            halted = self._halted and run_folder.result(folder) is None
            if halted:  # whatever holds by now
                await self._store.runs.paused(run.id)
            if halted or self._when.paused or self._stopping:
                return None
            log.info("trainer ended", run=run.id, status=status)
        return found

    async def _called_off(self, run: Run) -> bool:
        """Whether somebody wanted it no more before it had a result; then it has ended."""
        if self._cancelled != run.id or run_folder.result(Path(run.folder)) is not None:
            return False
        await self._call_off(run)
        return True

    async def _call_off(self, run: Run) -> None:
        with contextlib.suppress(RunEnded):  # by who cancelled it while it waited
            await self._outcome.end(run, "failed", CANCELLED, None)
        await asyncio.to_thread(run_folder.tidy, Path(run.folder))

    def _told_to_stop(self, run: Run) -> bool:
        return self._when.paused or self._stopping or self._cancelled == run.id

    def _wait(self, run: Run, why: str) -> None:
        """What keeps the run, said: it goes on when that is over."""
        self._when.kept = why
        log.info("run waits", run=run.id, why=why)
        self._events.emit("waiting", run=run.id, why=why)

    async def _supervise(self, run: Run) -> int:
        """One trainer process, from start to end. It never outlives this call."""
        train = self._settings.train
        self._halted = False
        try:
            job = await self._launcher.start(
                Path(run.folder),
                threads=train.threads,
                nice=train.nice,
                max_memory_gb=train.max_memory_gb,
                key=await self._store.runs.key(run.id),
            )
        except LaunchError as error:
            log.error("trainer did not start", run=run.id, error=str(error))
            return -1
        self.run, self._job, self._when.trainer = run, job, job.pid
        self._heard = time.monotonic()
        minding = [
            asyncio.create_task(self._mind_rules(run), name="rules"),
            asyncio.create_task(self._mind_life(run, job), name="life"),
        ]
        try:
            if self._told_to_stop(run):  # while the process was starting
                await self._halt()
            async for event in job.events():
                self._heard = time.monotonic()
                if event.get("event") == "alive":
                    continue
                if event.get("event") == "phase":
                    self.progress.pop("step", None)  # it was of the phase before
                self.progress[event.get("event", "")] = event
                self._events.emit("run", **{**event, "run": run.id})
            status = await job.wait()
            self._exceeded = f"{job.exceeded} (train.max_memory_gb)" if job.exceeded else None
            return status
        finally:
            for task in minding:
                task.cancel()
            await asyncio.wait(minding)
            self._job = self._when.trainer = None
            await job.terminate()

    async def _mind_rules(self, run: Run) -> None:
        """Hours end, and memory may be short: then the run stops at its next step."""
        while self._when.kept is None:
            await asyncio.sleep(LOOK_AGAIN_S)
            self._when.kept = await self._when.kept_from(run.id, starting=False)
        self._lending.put_off(self._when.kept)  # or it would be freed for it again and again
        self._wait(run, self._when.kept)
        await self._halt()

    async def _mind_life(self, run: Run, job: Job) -> None:
        """A trainer that has long said nothing is hung: it is ended, and tried again as one that crashed."""
        minutes = self._settings.train.stall_minutes
        if not minutes:
            return
        while (left := self._heard + minutes * 60 - time.monotonic()) > 0:
            await asyncio.sleep(left)
        phase = self.progress.get("phase", {}).get("phase", "start")
        self.stalled = (
            f"it had said nothing for {minutes:g} minutes (train.stall_minutes) in phase `{phase}`, and was ended"
        )
        log.error("trainer is hung", run=run.id, why=self.stalled)
        self._events.emit("problem", message=f"The trainer of run {run.id} is tried again: {self.stalled}.")
        self._job = None  # nobody else ends it: this attempt has failed, whatever is said from now on
        await job.terminate()
