"""The shape of `GET /rl/status`, which is long enough for a module of its own. `proxy.web.status` builds it.

Parts that another package builds have their shape there: what trains, the comparisons, the watch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from proxy.images.examiner import ImagesBody
from proxy.relay.episode_queue import EpisodeRequests
from proxy.relay.rollouts.bodies import RolloutsBody
from proxy.signals.bodies import JudgeBrief
from proxy.training.cloud_student import StudentModel
from proxy.training.rehearsal import RehearsalBody
from proxy.training.run_state import ProgressBody
from proxy.training.unlearning import RebuildBody
from proxy.training.weights_check import MatchBody
from proxy.versions.rollback_monitor import WatchBody
from proxy.versions.what_changed import ChangesBody
from proxy.web.openapi.responses import RunBody, Seconds, Version
from store.captured.stats import Counts


class LeftBody(TypedDict):
    line: str
    command: str


class BackendBody(TypedDict):
    kind: str
    state: str
    adapters: bool
    foreign: bool
    frees: bool
    exact: bool
    token_ids: bool
    logprobs: bool
    sampling: Annotated[
        str, Field(description="How it samples where a client says nothing, and from where that is known.")
    ]
    guessed: Annotated[bool, Field(description="Whether that is a guess; answers that hang on it are marked inexact.")]
    inexact: list[str]
    lacks: str | None
    obstacle: str | None
    growth: Annotated[str | None, Field(description="What a version takes beside its model, where it is a whole one.")]
    layers: Annotated[
        str | None,
        Field(description="The layers that train, and what of them this server cannot wear; null: not known."),
    ]
    left: Annotated[
        LeftBody | None, Field(description="Versions at the server that another home has made, or one that is gone.")
    ]
    dialects: dict[str, Literal["native", "translated", "untried"]]


class RatingsBody(TypedDict):
    fresh: int
    good: int
    bad: int
    stale: int
    dampened: dict[str, int]
    untrainable: dict[str, int]
    needed: int
    line: Annotated[str, Field(description="How many until the next run, and about when.")]


class WaitingEpisodes(TypedDict):
    open: int
    rewarded: int
    error: int
    unrewarded: Annotated[int, Field(description="Open, and without a request for an hour.")]
    ready: Annotated[int, Field(description="Rewarded, of groups that have closed, and not too old.")]
    groups: int
    forming: Annotated[int, Field(description="Rewarded, of groups that have not closed.")]
    closes_in_s: float | None
    left_out: dict[str, int]
    needed: int
    own_reward_problem: Annotated[str | None, Field(description="Why `train.reward` gave no reward last time.")]
    requests: Annotated[EpisodeRequests, Field(description="Of episodes; those of people do not wait for them.")]
    ended_lately: Annotated[int, Field(description="Episodes that ended in the last minute.")]


class PlaceBody(TypedDict):
    """Where runs train (`train.where`)."""

    line: str
    problem: Annotated[str | None, Field(description="Why none can train there now, as far as is known.")]


class BucketBody(TypedDict):
    """The bucket of `train.bucket`."""

    line: str
    problem: Annotated[str | None, Field(description="Why versions get no copy there, as of the last minute.")]


class TrainingBody(TypedDict):
    paused: bool
    place: PlaceBody
    bucket: BucketBody | None
    share_gpu: bool
    run: int | None
    progress: Annotated[dict[str, Any], Field(description="The trainer's last event of each kind.")]
    stage: Annotated[ProgressBody | None, Field(description="How far the run under way is.")]
    waits_for: str | None
    line: str


class HeldBody(TypedDict):
    why: str | None
    requests: int


class Database(TypedDict):
    state: Literal["sound", "checking", "damaged"]
    line: str
    checked_since: Annotated[Seconds | None, Field(description="Since when the check of the file has run.")]


class PromptsBody(TypedDict):
    """Obstacles between the answers and a run."""

    match: MatchBody
    rehearsal: RehearsalBody
    cut: Annotated[str | None, Field(description="What the server has left out of prompts in silence since the start.")]


class StatusBody(PromptsBody):
    model: str
    line: Annotated[str, Field(description="Of which most of this is: what is live, collected and trained.")]
    lines: Annotated[list[str], Field(description="Those that answer, as far as this key may use them.")]
    further_models: Annotated[
        dict[str, str], Field(description="Of `[models.NAME]`, each with its server. None of their answers trains.")
    ]
    trains: StudentModel | None
    live: Version
    previous: Version
    live_since: Seconds | None
    live_because: str
    loaded: Annotated[list[int], Field(description="Versions that the backend holds.")]
    backend: BackendBody
    ratings: RatingsBody
    images: ImagesBody
    episodes: Annotated[WaitingEpisodes | None, Field(description="Null where there has never been one.")]
    rollouts: Annotated[RolloutsBody | None, Field(description="Null where they are off (train.rollouts).")]
    baseline: float
    training: TrainingBody
    held: HeldBody
    judge: JudgeBrief | None
    watch: WatchBody | None
    rebuild: RebuildBody | None
    last_run: RunBody | None
    counts: Counts
    database: Database
    changed: Annotated[ChangesBody | None, Field(description="By the live version against the one before.")]
    problem: str | None
