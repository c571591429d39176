"""The state of rlproxy, as one JSON value and as a few lines of text."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from proxy.backends.base import Backend
from proxy.backends.sampling_defaults import in_words as sampling_words
from proxy.conversation.modalities import in_words
from proxy.core.errors import ProxyError
from proxy.core.version_names import version_in_words
from proxy.dialects import DIALECTS
from proxy.feedback.episodes import Episodes
from proxy.relay.codecs import Formats
from proxy.relay.episode_queue import EpisodeQueue
from proxy.relay.rollouts.bodies import RolloutsBody
from proxy.relay.rollouts.sampler import RolloutSampler
from proxy.training.run_state import RunProgress
from proxy.training.schedule_rules import NEWEST_RATINGS, RunDecision, countdown
from proxy.training.training import Training
from proxy.training.weights_compare import WeightsVerdict
from proxy.versions.services import Services
from proxy.versions.what_changed import changes_body, chat_lines
from proxy.web.openapi.responses import RunBody
from proxy.web.openapi.status import Database, PromptsBody, StatusBody, WaitingEpisodes
from store.file.meta import of_line
from store.file.writer import ROOM
from store.learning.runs import BASELINE
from store.line_records import COMMON
from store.records import Fresh, RecentCompletion, Run

AS_IT_IS: Final = "Requests are relayed; nothing is captured, rated, trained or deleted."
READY_S: Final = 5.0  # for the backend to show that it is there


class StatusReport:
    def __init__(
        self,
        services: Services,
        training: Training,
        formats: Formats,
        episodes: Episodes,
        queue: EpisodeQueue,
        rollouts: RolloutSampler,
    ) -> None:
        self._store = services.store
        self._backend = services.backend
        self._further = services.further
        self._health = services.health
        self._images = services.images
        self._picture_training = services.picture_training
        self._admission = services.admission
        self._training = training
        self._live_version = training.live_version
        self._supervisor = training.supervisor
        self._preconditions = training.preconditions
        self._formats = formats
        self._episodes = episodes
        self._queue = queue
        self._rollouts = rollouts

    async def full(self, line: str = COMMON) -> StatusBody:
        last_run = await self._last_run(line)
        # After the run: one that is shown as ended has given its ratings back.
        fresh = await self._preconditions.fresh(line=line)
        needed, _ = await self._preconditions.ratings_threshold(line)
        due, pointer = await self._preconditions.due(line=line), self._live_version.pointer_of(line)
        run = self._supervisor.state.run
        live = await self._store.versions.get(pointer.live)
        return {
            "model": self._live_version.model,
            "line": line,
            "lines": self._live_version.lines,
            "further_models": {name: server.state for name, server in self._further.items()},
            "trains": await self._supervisor.trains(),
            "live": pointer.live,
            "previous": pointer.previous,
            "live_since": pointer.changed_at or None,
            "live_because": pointer.reason,
            "loaded": self._live_version.loaded,
            "backend": {
                "kind": self._backend.kind,
                "state": self._backend.state,
                "adapters": self._backend.capabilities.adapters,
                "foreign": self._backend.capabilities.is_foreign,
                "frees": self._backend.capabilities.can_free,
                "exact": self._backend.capabilities.token_ids and self._backend.capabilities.logprobs,
                "token_ids": self._backend.capabilities.token_ids,
                "logprobs": self._backend.capabilities.logprobs,
                "sampling": self._sampling(),
                "guessed": bool(self._backend.served.unsure),
                "inexact": self._formats.inexact(d.name for d in DIALECTS),
                "lacks": self._backend.capabilities.limitation or None,
                "obstacle": await self._preconditions.obstacle(),
                "growth": await asyncio.to_thread(lambda: self._backend.growth),
                "layers": self._preconditions.layers,
                "left": {"line": old.line, "command": old.command} if (old := self._backend.leftovers) else None,
                "dialects": self._formats.table(d.name for d in DIALECTS),
            },
            "ratings": {
                "fresh": fresh.total,
                "good": fresh.good,
                "bad": fresh.bad,
                "stale": fresh.stale,
                "dampened": fresh.dampened,
                "untrainable": await self._store.samples.untrainable(),
                "needed": needed,
                "line": await self._until_run(fresh, needed, line),
            },
            "images": await self._images.report(self._picture_training.reason),
            "episodes": await self.episodes(line),
            "rollouts": await self.rollouts(),
            "baseline": await self._store.meta.get(of_line(BASELINE, line), 0.0),
            "training": {
                "paused": self._supervisor.state.paused,
                "place": {
                    "line": self._preconditions.place_line,
                    "problem": await self._preconditions.place_problem(anew=False),
                },
                "bucket": self._training.copies.report(),
                "share_gpu": self._training.gpu_sharing.on,
                "run": run.id if run else None,
                "progress": dict(self._supervisor.state.progress.events) if run else {},  # of this moment
                "stage": self._supervisor.state.progress.body(time.time()) if run else None,
                "waits_for": None if run or due.now else due.reason,
                "line": training_line(
                    run,
                    self._supervisor.state.progress,
                    due,
                    self._training.weights_check.verdict,
                    is_learner=self._store.is_learner,
                ),
            },
            "held": {"why": self._admission.closed, "requests": self._admission.waiting},
            "match": self._training.weights_check.report(),
            "rehearsal": self._training.rehearsal.report(),
            "cut": self._health.cut.line,
            "judge": await self._training.judging.brief(),
            "watch": await self._training.monitor.report(line),
            "rebuild": await self._training.unlearning.report(),
            "last_run": run_json(last_run) if last_run else None,
            "counts": await self._store.stats.counts(),
            "database": self._database(),
            "changed": changes_body(live) if live else None,
            "problem": self._damage()
            or self._spooled()
            or self._health.problem
            or self._health.files.problem
            or self._slow_disk()
            or self._training.gpu_sharing.problem
            or self._training.unlearning.problem
            or self._live_version.problem
            or self._hung(run),
        }

    def _spooled(self) -> str | None:
        sharing = self._store.sharing
        if sharing is None:
            return None
        if not sharing.spooled:
            return sharing.refused
        return f"{sharing.spooled} answers are on this relay's own disk, and go to the database as soon as it is there."

    async def _last_run(self, line: str) -> Run | None:
        if len(self._live_version.lines) > 1:
            return await self._store.runs.last_of(line)
        return next(iter(await self._store.runs.recent(limit=1)), None)

    async def countdown(self, line: str = COMMON) -> str:
        """How many ratings there are until the next run, and about when it starts; or how far the one under way is."""
        if line not in self._live_version.lines:
            return f"the line {line} is retired, and its ratings are kept"
        if (run := self._supervisor.state.run) is not None:
            return f"run {run.id}: {self._supervisor.state.progress.line(time.time())}"
        needed, _ = await self._preconditions.ratings_threshold(line)
        return await self._until_run(await self._preconditions.fresh(line=line), needed, line)

    async def after_rating(self, answer: RecentCompletion) -> str:
        """The countdown of the line whose answer was rated; or why that answer never trains."""
        if answer.untrainable is not None:
            return f"the rating is kept, and this answer never trains: {in_words(answer.untrainable)}"
        return await self.countdown(answer.line)

    async def _until_run(self, fresh: Fresh, needed: int, line: str) -> str:
        if await self.never_trains():
            return f"{fresh.total} ratings are kept; no number of them starts a run here"
        # How fast ratings come is known of the whole home.
        is_alone = len(self._live_version.lines) == 1
        times = await self._store.ratings.newest_times(NEWEST_RATINGS) if is_alone else []
        return countdown(fresh, needed, times, time.time())

    async def never_trains(self) -> bool:
        """Tell if no number of ratings starts a run: a cloud without a local model, or a backend without adapters."""
        trains = await self._supervisor.trains()
        return not trains["model"] if trains else not self._backend.capabilities.adapters

    async def episodes(self, line: str = COMMON) -> WaitingEpisodes | None:
        """None where there has never been one."""
        counts = await self._store.episodes.counts()
        if not counts.open + counts.rewarded + counts.error:
            return None
        ready = await self._preconditions.episodes(line)
        return {
            "open": counts.open,
            "rewarded": counts.rewarded,
            "error": counts.error,
            "unrewarded": counts.unrewarded,
            "ready": ready.episodes,
            "groups": ready.groups,
            "forming": ready.forming,
            "closes_in_s": ready.closes_in_s,
            "left_out": ready.left_out,
            "needed": await self._preconditions.episodes_threshold(line),
            "own_reward_problem": self._episodes.own_reward_problem,
            "requests": self._queue.state(),
            "ended_lately": self._episodes.ended_lately(),
        }

    async def rollouts(self) -> RolloutsBody | None:
        """None where they are off."""
        return await self._rollouts.report()

    def prompts(self) -> PromptsBody:
        """Obstacles between the answers and a run; from memory, no query."""
        return {
            "match": self._training.weights_check.report(),
            "rehearsal": self._training.rehearsal.report(),
            "cut": self._health.cut.line,
        }

    def _sampling(self) -> str:
        served = self._backend.served
        return f"where a client says nothing: {sampling_words(served.sampling)} ({served.source})"

    def _database(self) -> Database:
        integrity = self._store.integrity
        checking = integrity.since if integrity.state == "checking" else None
        return {"state": integrity.state, "line": integrity.doubt or "sound", "checked_since": checking}

    def _damage(self) -> str | None:
        damage = self._store.integrity.refusal
        return None if damage is None else f"{damage} {AS_IT_IS}"

    def _slow_disk(self) -> str | None:
        if (waiting := self._store.waiting) < ROOM:
            return None
        return f"The disk is slow: {waiting} writes wait for it, and new requests with them; nothing is lost."

    def _hung(self, run: Run | None) -> str | None:
        reason = self._supervisor.state.stalled
        return f"The trainer of run {run.id} was started again: {reason}." if run and reason else None

    async def text(self, *, with_text: bool = False, line: str = COMMON) -> str:
        """For the chat: what a person wants to know, in three or four lines. `with_text`: prompts and answers too, for
        who may read others' and where they stay on this machine."""
        s = await self.full(line)
        live = version_in_words(s["live"])
        ratings = s["ratings"]
        trains = s["trains"]
        model = s["model"] if line == COMMON else f"{s['model']}@{line}"
        lines = [
            f"{model}, {live} answers." if trains is None else f"{s['backend']['state']} answers.",
            f"{ratings['fresh']} fresh ratings ({ratings['good']} good, {ratings['bad']} bad).",
        ]
        if s["episodes"]:
            lines.append(f"{s['episodes']['ready']} of {s['episodes']['needed']} rewarded episodes.")
        if s["rollouts"]:
            lines.append(f"Rollouts: {s['rollouts']['line']}.")
        lines.append(f"Training {s['training']['line']}.")
        lines += await chat_lines(self._store, s["live"], with_text=with_text)
        if trains is not None:
            lines.append(f"What trains: {trains['line']}.")
        if s["held"]["why"]:
            lines.append(f"{s['held']['why']}: {s['held']['requests']} requests wait.")
        if s["rebuild"] and s["rebuild"]["state"] == "under way":
            lines.append(f"{s['rebuild']['line']}.")
        if s["judge"]:
            lines.append(f"Judge {s['judge']['line']}.")
        if s["watch"]:
            lines.append(f"{s['watch']['line']}.")
        if s["database"]["state"] == "checking":
            lines.append(f"Nothing trains or expires yet: {s['database']['line']}.")
        if s["rehearsal"]["refused"]:
            lines.append(_sentence(s["rehearsal"]["line"]))
        if s["cut"]:
            lines.append(_sentence(s["cut"]))
        if s["problem"]:
            lines.append(f"Problem: {s['problem']}")
        return "\n".join(lines)


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


def training_line(
    run: Run | None, progress: RunProgress, due: RunDecision, verdict: WeightsVerdict | None, *, is_learner: bool = True
) -> str:
    """The state of training in words. `verdict`: of the served model and the weights, which a run needs first.
    `is_learner`: runs start here, and not at another relay of the database."""
    if run is not None:
        return f"run {run.id}, {progress.line(time.time())}"
    if not due.now:
        return f"waits: {due.reason}"
    if not is_learner:
        return "is done by the relay of this database that learns; ask that one for its progress"
    compared = verdict is not None and verdict.scored
    return "starts now" if compared else "starts now: first the served model is compared with the weights"


def run_json(run: Run) -> RunBody:
    result = run.result or {}
    return {
        "id": run.id,
        "line": run.line,
        "status": run.status,
        "version": run.version if run.status == "done" else None,
        "parent": run.parent,
        "samples": run.samples,
        "held": run.held,
        "attempts": run.attempts,
        "created_at": run.created_at,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "reason": run.reason or result.get("reason"),
        "metrics": result.get("metrics"),
        "gate": result.get("gate"),
        "retried": result.get("retried"),
        "back": result.get("back"),
        "folder": run.folder,
    }


async def reachable(backend: Backend) -> str | None:
    """None where the backend answers within READY_S, else why not."""
    try:
        async with asyncio.timeout(READY_S):
            await backend.models()
    except TimeoutError:
        return (
            f"The backend ({backend.state}) did not answer GET /v1/models within {READY_S:g} s: it is stopped, or busy "
            "with something else. Its log may say which; requests still wait for it."
        )
    except ProxyError as error:
        return error.message
    return None
