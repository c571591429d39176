"""The shape of `GET /rl/status`, which is long enough for a module of its own. What builds it is `proxy.web.status`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from proxy.training.unlearning import RebuildBody
from proxy.web.openapi.judge import JudgeBrief
from proxy.web.openapi.responses import RunBody, Seconds, Version


class Trains(TypedDict):
    """Behind a cloud API it is a local model that learns."""

    model: str | None
    weights: str | None
    objective: str
    version: Version | None
    adapter: str | None
    line: str


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


class EpisodeRequests(TypedDict):
    at_once: Annotated[int, Field(description="The most that are at the backend: backend.episodes_at_once.")]
    at_backend: int
    waiting: int


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


class Training(TypedDict):
    paused: bool
    share_gpu: bool
    run: int | None
    progress: dict[str, Any]
    waits_for: str | None
    line: str


class HeldBody(TypedDict):
    why: str | None
    requests: int


class RenderingBody(TypedDict):
    known: bool
    line: str
    server: Annotated[str | None, Field(description="The first prompt that differs, as the server renders it.")]
    weights: Annotated[str | None, Field(description="The same, by the chat template of the weights.")]
    read: NotRequired[Annotated[int | None, Field(description="How many tokens the server says that it read there.")]]
    made: NotRequired[Annotated[int | None, Field(description="How many the chat template of the weights makes.")]]


class MatchBody(TypedDict):
    state: Literal["unasked", "same", "other", "unknown"]
    line: str
    apart: float | None
    regret: float | None
    rendering: RenderingBody | None
    stops: bool


class KnownTokensBody(TypedDict):
    answers: int
    tokens: Annotated[int, Field(description="Of these answers.")]
    ids: Annotated[int, Field(description="Tokens whose ids are exact.")]
    log_probs: Annotated[int, Field(description="Tokens whose log-probs the server gave.")]
    line: str


class RehearsalBody(TypedDict):
    """Rehearsal: would a run take the newest answers?"""

    state: Annotated[
        Literal["untried", "prompts", "taken", "partly", "refused", "unknown"],
        Field(description="`prompts`: it would take the prompts, and the weights have not looked at the words yet."),
    ]
    tried: int
    refused: int
    why: Annotated[str | None, Field(description="Why most of those are refused.")]
    line: str
    known_tokens: Annotated[
        KnownTokensBody | None, Field(description="What the server told of the newest answers' tokens.")
    ]


class ShareBody(TypedDict):
    good: int
    rated: int


class ComparisonBody(TypedDict):
    new: ShareBody
    old: ShareBody
    p: float


class WatchBody(TypedDict):
    version: Version
    against: Version
    new: NotRequired[ShareBody | None]
    old: NotRequired[ShareBody | None]
    p: NotRequired[float | None]
    episodes: NotRequired[Annotated[ComparisonBody | None, Field(description="Of successes in evaluation episodes.")]]
    state: Literal["watching", "over", "rolled back"]
    line: str


class Counts(TypedDict):
    pending: int
    done: int
    partial: int
    error: int
    good: int
    bad: int
    captured_today: int


class Database(TypedDict):
    state: Literal["sound", "checking", "damaged"]
    line: str
    checked_since: Annotated[Seconds | None, Field(description="Since when the check of the file has run.")]


class StatusBody(TypedDict):
    model: str
    trains: Trains | None
    live: Version
    previous: Version
    live_since: Seconds | None
    live_because: str
    loaded: Annotated[list[int], Field(description="Versions that the backend holds.")]
    backend: BackendBody
    ratings: RatingsBody
    episodes: Annotated[WaitingEpisodes | None, Field(description="Null where there has never been one.")]
    baseline: float
    training: Training
    held: HeldBody
    match: MatchBody
    rehearsal: RehearsalBody
    judge: JudgeBrief | None
    cut: Annotated[str | None, Field(description="What the server has left out of prompts in silence since the start.")]
    watch: WatchBody | None
    rebuild: RebuildBody | None
    last_run: RunBody | None
    counts: Counts
    database: Database
    problem: str | None
