"""Carries out runs, one at a time: claim, run folder, trainer process, result.

Owns the state of training (run_state) and the trainer process; nothing else changes either. A crash anywhere ends in a
run that resumes, or in one that failed and gave its samples back. A run that its rules keep from training stops at its
next step and goes on when they hold again. Not here: when a run may train (preconditions, schedule_rules), what it
reads (claim), what becomes of its result (publish), the mathematics and the gate (trainer).
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from pathlib import Path
from typing import Any, Final

import structlog

from proxy.core.errors import BackendDown, Conflict
from proxy.core.own_code.child import OwnCodeFailed
from proxy.training import run_folder
from proxy.training.claim import Claims
from proxy.training.cloud_student import StudentModel
from proxy.training.gpu_sharing import GpuSharing, NotLent
from proxy.training.preconditions import Preconditions
from proxy.training.publish import Ending, Publisher
from proxy.training.run_state import RunProgress, StageTimes
from proxy.training.schedule_rules import Kind, RunDecision
from proxy.training.system_load import CoreShare
from proxy.training.unlearning import Unlearning
from proxy.versions.live_version import LiveVersion
from proxy.versions.services import Services
from store.errors import RunEnded
from store.line_records import COMMON
from store.records import Run
from trainer.launch import Job, LaunchError, PlaceError

log = structlog.get_logger()

RECHECK_S: Final = 5.0  # for what no event tells: quiet, hours, how busy the machine is
FOLDER_HELD: Final = 75  # how a trainer ends that finds another at work in its folder
HELD_PAUSE_S: Final = 1.0
LET_GO_S: Final = 5.0
KILLED: Final = (
    ". The last time it was killed, most likely because the machine's memory was full: end what needs it, set "
    "train.max_memory_gb to what it may use, or train.share_gpu = true"
)
CANCELLED: Final = "cancelled by a person"


class RunSupervisor:
    def __init__(
        self,
        services: Services,
        live_version: LiveVersion,
        gpu_sharing: GpuSharing,
        preconditions: Preconditions,
        claims: Claims,
        publisher: Publisher,
        unlearning: Unlearning,
    ) -> None:
        self._settings = services.settings
        self._store = services.store
        self._launcher = services.launcher
        self._events = services.events
        self._tasks = services.tasks
        self._live_version = live_version
        self._gpu_sharing = gpu_sharing
        self._preconditions = preconditions
        self._cloud_student = preconditions.cloud_student
        self.state = preconditions.state
        self._claims = claims
        self._publisher = publisher
        self._unlearning = unlearning
        self._wake = asyncio.Event()
        self._job: Job | None = None
        self._requested: str | None = None  # somebody said `train` of this line: the threshold does not count
        self._start_settled = asyncio.Event()  # cleared: a run that was asked for may be about to begin
        self._start_settled.set()
        self._stopping = False
        self._halted = False  # whether the last trainer was told to stop: that is no failed attempt
        self._exceeded: str | None = None  # the limit that the last trainer was killed for
        self._cancelled: int | None = None  # the run that somebody wants no more
        self._last_event_s = 0.0  # when its trainer last said something, by the monotonic clock
        self._said_wait: tuple[int, str] | None = None  # what kept which run, as it was last told
        self._recorded = asyncio.Event()  # what became of the run under way; set where there is none
        self._recorded.set()

    async def start(self) -> asyncio.Task[None]:
        """Learn from now on, until `stop`; the task that does."""
        self._stopping = False
        self.state.paused = bool(await self._store.meta.get("paused", False))
        self.state.by_hand = await self._store.meta.get("by_hand", None)
        await self._preconditions.start()
        return self._tasks.spawn("learner", self._loop())

    def wake(self) -> None:
        self._wake.set()

    async def train(self, *, tune: bool = False, line: str = COMMON) -> RunDecision:
        """Start as soon as a run of the line can, whatever the threshold. `tune`: it looks for its learning rate
        first. Raises Conflict where it cannot, with the reason."""
        if self.state.run is not None:
            raise Conflict(f"Run {self.state.run.id} is under way already.")
        if tune and (rate := self._settings.train.overrides.get("learning_rate")) is not None:
            raise Conflict(f"train.overrides.learning_rate = {rate} goes before what a sweep finds: take it out first.")
        if not tune and not self.state.paused and (waiting := await self._store.runs.unfinished()):
            return await self._go_on(waiting[0])
        await self._preconditions.check_base_model(by_hand=True)
        due = await self._preconditions.due(by_hand=True, line=line)
        if not due.now:
            raise Conflict(f"No run was started: {due.reason}.")
        if tune:
            await self._claims.tune(line)
        if self.state.run is not None:  # it has begun meanwhile
            raise Conflict(f"Run {self.state.run.id} is under way already.")
        self._requested = line
        self._start_settled.clear()
        self.wake()
        return due

    async def _go_on(self, run: Run) -> RunDecision:
        """A run that waits for its rules, at once."""
        if (rule := await self._preconditions.blocking_rule(run.id, starting=True, by_hand=True)) is not None:
            raise Conflict(f"Run {run.id} does not go on: {rule}.")
        await self._by_hand(run)
        self.wake()
        return RunDecision(True, f"run {run.id} goes on")

    async def pause(self) -> None:
        """No new run; one under way stops at its next step and keeps its checkpoint."""
        await self._pause(True)
        self._events.emit("paused")
        await self._halt()

    async def resume(self) -> None:
        await self._pause(False)
        self._events.emit("resumed")
        self.wake()

    async def _pause(self, paused: bool) -> None:
        self.state.paused = paused
        await self._store.meta.set("paused", paused)

    async def _by_hand(self, run: Run) -> None:
        self.state.by_hand = run.id
        await self._store.meta.set("by_hand", run.id)

    async def cancel(self) -> Run:
        """End the run under way, or the one that waits; its ratings are fresh again. Raises Conflict."""
        await self._start_settled.wait()
        run = self.state.run or next(iter(await self._store.runs.unfinished()), None)
        if run is None:
            raise Conflict("There is no run to cancel.")
        if (running := self.state.run) is not None:
            await self._cancel_running(running)
            return running
        self._cancelled = run.id
        try:
            await self._end(run, "cancelled", CANCELLED)
        except RunEnded as error:  # somebody else was quicker
            raise Conflict(str(error)) from None
        await self._tidy(run)
        return run

    async def _cancel_running(self, run: Run) -> None:
        """Its end goes on record where it is carried out. Raises Conflict where it came to one by itself."""
        over = self._recorded.is_set() or run_folder.result(Path(run.folder)) is not None
        if not over:
            self._cancelled = run.id
            await self._halt()
        if over or run_folder.result(Path(run.folder)) is not None:  # it was at its last step
            self._cancelled = None
            raise Conflict(
                f"Run {run.id} had ended before that, and its result stays; "
                "`rlproxy rollback` takes a version of it back once it is live."
            )

    async def stop_retrain(self, actor: str) -> None:
        """No further round of the retrain, and the one under way ends. Raises Conflict where there is none."""
        await self._claims.retraining.stop(actor)
        run = self.state.run or next(iter(await self._store.runs.unfinished()), None)
        if run is not None and run.retrains:
            with contextlib.suppress(Conflict):  # it came to its end first
                await self.cancel()

    async def reset(self, actor: str, line: str = COMMON) -> None:
        """Back to the beginning: base, baseline 0, and the next run starts from there. Nothing is deleted."""
        if self._live_version.live_of(line):
            await self._live_version.to(0, "reset", actor, line=line)
        if self._cloud_student:
            await self._cloud_student.reset(actor)
        await self._claims.reset(line)

    async def stop(self) -> None:
        """The trainer stops at its next step; the run goes on when rlproxy starts again."""
        self._stopping = True
        self._start_settled.set()
        if self._job is not None:
            self._halted = True
            await self._job.leave()
        with contextlib.suppress(TimeoutError):  # until it is on record that this was no failed attempt
            async with asyncio.timeout(LET_GO_S):
                await self._recorded.wait()

    async def _halt(self) -> None:
        """The trainer, at its next step."""
        if self._job is not None:
            self._halted = True
            await self._job.terminate()

    # The loop

    async def _loop(self) -> None:
        if await self._store.checked():  # no version and no run is made of rows that may be damaged
            await self._publisher.finish_swap()
        while not self._stopping:
            self._wake.clear()  # before the step: what comes during it calls for another
            try:
                await self._step()
            except Exception as error:  # whatever it is: relaying, capture and ratings need no learner
                log.exception("learner")
                self._events.emit("problem", message=f"Training could not go on: {error}")
                self._start_settled.set()  # it did not begin, and may not for long
            if self._requested is None or self.state.paused:
                self._start_settled.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RECHECK_S):
                    await self._wake.wait()

    async def _step(self) -> None:
        if self.state.paused or self._stopping or self._preconditions.doubt is not None:
            return
        for run in await self._store.runs.unfinished():  # left by a crash, a stop, a pause or a rule
            over = self._cancelled == run.id or run_folder.result(Path(run.folder)) is not None
            self.state.blocking_rule = None if over else await self._preconditions.blocking_rule(run.id, starting=True)
            if self.state.blocking_rule is not None:
                return
            if await self._claims.is_strange(run):
                reason = "it was begun behind another kind of backend; its ratings are fresh again there"
                await self._end(run, "failed", reason)
                continue
            await self._carry_out(run)
            if self.state.blocking_rule is not None or self.state.paused or self._stopping:
                return
        await self._launcher.settle(self._settings.home / "runs", ())
        requested, self._requested = self._requested, None
        rebuilds = await self._unlearning.due_lines()
        await self._preconditions.check_base_model(by_hand=requested is not None)
        for line in await self._preconditions.turns() if requested is None else [requested]:
            by_hand = requested is not None
            due = await self._preconditions.due(by_hand=by_hand, line=line)
            if not due.now or (not by_hand and await self._preconditions.obstacle(anew=True, line=line) is not None):
                continue
            if await self._preconditions.place_problem(anew=True) is not None:
                return
            if (claimed := await self._claim(due.of, line, by_hand=by_hand, rebuilds=line in rebuilds)) is not None:
                if by_hand:
                    await self._by_hand(claimed)
                await self._carry_out(claimed)
                if line in rebuilds or len(self._live_version.lines) > 1:
                    self.wake()  # there may be more of it, or it is over, or it is another line's turn
                return
        await self._retrain()

    async def _claim(self, of: Kind, line: str, *, by_hand: bool, rebuilds: bool) -> Run | None:
        if of == "episodes":
            threshold = 1 if by_hand else await self._preconditions.episodes_threshold(line)
            return await self._claims.claim_episodes(min_total=threshold, line=line)
        needed = 1 if by_hand or rebuilds else (await self._preconditions.ratings_threshold(line))[0]
        return await self._claims.claim(min_total=needed, rebuilds=rebuilds, line=line)

    async def _retrain(self) -> None:
        """The next round of a retrain, where nothing of this base is due."""
        if not await self._claims.retraining.is_under_way():
            return
        reason = await self._preconditions.blocking_rule(None, starting=True)
        reason = reason or await self._preconditions.place_problem(anew=True)
        self._claims.retraining.wait(reason)
        if reason is None and (run := await self._claims.retraining.claim()) is not None:
            await self._carry_out(run)
            self.wake()

    async def trains(self) -> StudentModel | None:
        """For `status`: the model that trains, where it is another one than the one that answers."""
        return await self._cloud_student.report() if self._cloud_student else None

    async def _progress_of(self, run: Run) -> RunProgress:
        """With the time of earlier runs, and what this one has done before it was stopped."""
        progress = RunProgress(run.samples, StageTimes.of(await self._store.runs.recent(), run.model))
        progress.replay(await asyncio.to_thread(run_folder.progress, Path(run.folder)))
        return progress

    # One run

    async def _carry_out(self, run: Run) -> None:
        """From the claim to its end, or to where it was told to stop."""
        if self._cancelled == run.id:  # before it came here
            await self._call_off(run)
            return
        self.state.run, self.state.progress = run, RunProgress(run.samples)
        self._requested = self._requested if run.retrains or self._requested != run.line else None  # that is this run
        self._start_settled.set()
        self.state.blocking_rule, self.state.stalled = None, None
        self._recorded.clear()
        try:
            self.state.progress = await self._progress_of(run)
            try:
                await self._claims.write(run, self._preconditions.weights())
            except BackendDown as error:
                self._wait(run, f"the server of its replies cannot say how it renders their prompts: {error.message}")
                return
            except OwnCodeFailed as error:
                self._wait(run, f"train.loss: {error}")
                return
            await self._train(run)
            await self._called_off(run)  # whatever it was busy with, and whatever else has kept it from training
        finally:
            self.state.run, self.state.stalled = None, None
            self._recorded.set()

    async def _train(self, run: Run) -> None:
        result = run_folder.result(Path(run.folder))  # of a trainer that outlived us
        try:
            if result is None:
                async with self._gpu_sharing.lend(run.id, lambda: self._must_stop(run)):
                    result = await self._result(run)
        except NotLent as error:
            if not self._must_stop(run):
                self._wait(run, str(error))
            return
        if result is not None:
            published = await self._publisher.record(run, result)
            self._recorded.set()
            if published is not None and not run.retrains:  # a person has its server started first
                await self._publisher.make_live(published)
            await self._tidy(run)

    async def _end(self, run: Run, status: Ending, reason: str) -> None:
        """Without an adapter: its samples are fresh again."""
        await self._publisher.end(run, status, reason, None)
        self._recorded.set()

    async def _result(self, run: Run) -> dict[str, Any] | None:
        """Supervise the trainer until the run has a result; None where it failed, or was stopped at a checkpoint."""
        folder = Path(run.folder)
        rule = await self._preconditions.blocking_rule(run.id, starting=False) if self._gpu_sharing.on else None
        if self._must_stop(run):  # while the backend gave its memory back
            return None
        if rule is not None:
            self._gpu_sharing.postpone(rule)
            self._wait(run, rule)
            return None
        status = None
        while (result := run_folder.result(folder)) is None:
            if await self._called_off(run):
                return None
            if status == FOLDER_HELD:  # a trainer of ours before us is still ending; that is no attempt
                await asyncio.sleep(HELD_PAUSE_S)
                while not self._must_stop(run) and await asyncio.to_thread(run_folder.is_running, folder):
                    await asyncio.sleep(HELD_PAUSE_S)
            elif run.attempts >= self._settings.train.max_attempts:
                reason = f"the trainer ended {run.attempts} times without a result; see {folder}/trainer.log"
                reason += f". One of those times {self.state.stalled}" if self.state.stalled else ""
                reason += KILLED if status == -signal.SIGKILL else ""
                await self._end(run, "failed", reason)
                await self._launcher.forget(folder)
                return None
            else:
                await self._store.runs.started(run.id)
                run = await self._store.runs.get(run.id) or run
            status = await self._supervise(run)
            if self._cancelled == run.id:
                continue
            if self._exceeded is not None and run_folder.result(folder) is None:
                await self._end(run, "failed", self._exceeded)  # it would again
                await self._tidy(run)
                return None
            halted = self._halted and run_folder.result(folder) is None
            if halted:  # whatever holds by now
                await self._store.runs.paused(run.id)
            if halted or self.state.paused or self._stopping:
                return None
            log.info("trainer ended", run=run.id, status=status)
        return result

    async def _called_off(self, run: Run) -> bool:
        """Tell whether somebody wanted it no more before it had a result; then it has ended."""
        if self._cancelled != run.id or run_folder.result(Path(run.folder)) is not None:
            return False
        await self._call_off(run)
        return True

    async def _call_off(self, run: Run) -> None:
        with contextlib.suppress(RunEnded):  # by who cancelled it while it waited
            await self._end(run, "cancelled", CANCELLED)
        await self._tidy(run)

    async def _tidy(self, run: Run) -> None:
        await self._launcher.forget(Path(run.folder))
        await asyncio.to_thread(run_folder.tidy, Path(run.folder))

    def _must_stop(self, run: Run) -> bool:
        return self.state.paused or self._stopping or self._cancelled == run.id

    def _wait(self, run: Run, reason: str) -> None:
        """Say what keeps the run: it goes on when that is over."""
        self.state.blocking_rule = reason
        if self._said_wait != (run.id, reason):  # else it was tried again, and is as before
            self._said_wait = run.id, reason
            log.info("run waits", run=run.id, why=reason)
            self._events.emit("waiting", run=run.id, why=reason)

    async def _supervise(self, run: Run) -> int:
        """One trainer process, from start to end. It never outlives this call."""
        train = self._settings.train
        self._halted, self._exceeded = False, None
        try:
            job = await self._launcher.start(
                Path(run.folder),
                threads=train.threads,
                nice=0 if self.state.by_hand == run.id else train.nice,  # a person waits for it
                max_memory_gb=train.max_memory_gb,
                key=await self._store.runs.key(run.id),
            )
        except PlaceError as error:  # no attempt: it is tried again
            self._halted = True
            self._wait(run, str(error))
            return -1
        except LaunchError as error:
            log.error("trainer did not start", run=run.id, error=str(error))
            return -1
        if job.was_under_way:  # while no rlproxy followed it
            await self._store.runs.paused(run.id)
            run = await self._store.runs.get(run.id) or run
        self._events.emit("run", run=run.id, event="started", samples=run.samples, attempt=run.attempts)
        self.state.run, self._job, self.state.trainer = run, job, job.pid
        self._said_wait = None
        self.state.progress.launched = time.time()
        self._last_event_s = time.monotonic()
        minding = [
            asyncio.create_task(self._mind_rules(run), name="rules"),
            asyncio.create_task(self._mind_life(run, job), name="life"),
            asyncio.create_task(self._mind_share(job), name="share"),
        ]
        try:
            if self._must_stop(run):  # while the process was starting
                await self._halt()
            async for event in job.events():
                self._last_event_s = time.monotonic()
                self.state.progress.add(event)
                if event.get("event") == "alive":
                    continue
                if event.get("event") == "tuned" and isinstance(rate := event.get("rate"), float):
                    await self._claims.note_rate(run, rate)
                self._events.emit("run", **{**event, "run": run.id})
            status = await job.wait()
            self._exceeded = f"{job.exceeded} (train.max_memory_gb)" if job.exceeded else None
            return status
        finally:
            for task in minding:
                task.cancel()
            await asyncio.wait(minding)
            self._job = self.state.trainer = None
            await (job.leave() if self._stopping else job.terminate())

    async def _mind_rules(self, run: Run) -> None:
        """Hours end, and memory may be short: then the run stops at its next step."""
        while self.state.blocking_rule is None:
            await asyncio.sleep(RECHECK_S)
            self.state.blocking_rule = await self._preconditions.blocking_rule(run.id, starting=False)
        self._gpu_sharing.postpone(self.state.blocking_rule)  # or it would be freed for it again and again
        self._wait(run, self.state.blocking_rule)
        await self._halt()

    async def _mind_share(self, job: Job) -> None:
        """How much of a core the run gets, for people who wait for it."""
        if job.pid is None:  # elsewhere
            return
        meter = CoreShare(job.pid)
        while True:
            await asyncio.sleep(RECHECK_S)
            self.state.progress.core_share = await asyncio.to_thread(meter.look, time.monotonic())

    async def _mind_life(self, run: Run, job: Job) -> None:
        """A trainer that has long said nothing is hung: it is ended, and tried again as one that crashed."""
        minutes = self._settings.train.stall_minutes
        if not minutes:
            return
        while (remaining_s := self._last_event_s + minutes * 60 - time.monotonic()) > 0:
            await asyncio.sleep(remaining_s)
        phase = self.state.progress.events.get("phase", {}).get("phase", "start")
        self.state.stalled = (
            f"it had said nothing for {minutes:g} minutes (train.stall_minutes) in phase `{phase}`, and was ended"
        )
        log.error("trainer is hung", run=run.id, why=self.state.stalled)
        self._events.emit("problem", message=f"The trainer of run {run.id} is tried again: {self.state.stalled}.")
        self._job = None  # nobody else ends it: this attempt has failed, whatever is said from now on
        await job.terminate()
