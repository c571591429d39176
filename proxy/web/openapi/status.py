"""The shape of `GET /rl/status`, which is long enough for a module of its own. What builds it is `proxy.web.status`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from proxy.web.openapi.judge import JudgeBrief
from proxy.web.openapi.responses import RebuildBody, RunBody, Seconds, Version


class Trains(BaseModel):
    """Behind a cloud API it is a local model that learns."""

    model: str | None
    weights: str | None
    objective: str
    version: Version | None
    adapter: str | None
    line: str


class LeftBody(BaseModel):
    line: str
    command: str


class BackendBody(BaseModel):
    kind: str
    state: str
    adapters: bool
    foreign: bool
    frees: bool
    exact: bool
    token_ids: bool
    logprobs: bool
    sampling: str = Field(description="How it samples where a client says nothing, and from where that is known.")
    guessed: bool = Field(description="Whether that is a guess; answers that hang on it are marked inexact.")
    inexact: list[str]
    lacks: str | None
    obstacle: str | None
    left: LeftBody | None = Field(description="Versions at the server that another home has made, or one that is gone.")
    dialects: dict[str, Literal["native", "translated", "untried"]]


class RatingsBody(BaseModel):
    fresh: int
    good: int
    bad: int
    stale: int
    dampened: dict[str, int]
    untrainable: dict[str, int]
    needed: int


class WaitingEpisodes(BaseModel):
    open: int
    rewarded: int
    error: int
    unrewarded: int = Field(description="Open, and without a request for an hour.")
    ready: int = Field(description="Rewarded, of groups that have closed, and not too old.")
    groups: int
    forming: int = Field(description="Rewarded, of groups that have not closed.")
    closes_in_s: float | None
    left_out: dict[str, int]
    needed: int


class Training(BaseModel):
    paused: bool
    share_gpu: bool
    run: int | None
    progress: dict[str, Any]
    waits_for: str | None
    line: str


class HeldBody(BaseModel):
    why: str | None
    requests: int


class RenderingBody(BaseModel):
    known: bool
    line: str
    server: str | None = Field(description="The first prompt that differs, as the server renders it.")
    weights: str | None = Field(description="The same, by the chat template of the weights.")
    read: int | None = Field(default=None, description="How many tokens the server says that it read there.")
    made: int | None = Field(default=None, description="How many the chat template of the weights makes.")


class MatchBody(BaseModel):
    state: Literal["unasked", "same", "other", "unknown"]
    line: str
    apart: float | None
    regret: float | None
    rendering: RenderingBody | None
    stops: bool


class KnownTokensBody(BaseModel):
    answers: int
    tokens: int = Field(description="Of these answers.")
    ids: int = Field(description="Tokens whose ids are exact.")
    log_probs: int = Field(description="Tokens whose log-probs the server gave.")
    line: str


class RehearsalBody(BaseModel):
    """Rehearsal: would a run take the newest answers?"""

    state: Literal["untried", "prompts", "taken", "partly", "refused", "unknown"] = Field(
        description="`prompts`: it would take the prompts, and the weights have not looked at the words yet."
    )
    tried: int
    refused: int
    why: str | None = Field(description="Why most of those are refused.")
    line: str
    known_tokens: KnownTokensBody | None = Field(description="What the server told of the newest answers' tokens.")


class ShareBody(BaseModel):
    good: int
    rated: int


class ComparisonBody(BaseModel):
    new: ShareBody
    old: ShareBody
    p: float


class WatchBody(BaseModel):
    version: Version
    against: Version
    new: ShareBody | None = None
    old: ShareBody | None = None
    p: float | None = None
    episodes: ComparisonBody | None = Field(default=None, description="Of successes in evaluation episodes.")
    state: Literal["watching", "over", "rolled back"]
    line: str


class Counts(BaseModel):
    pending: int
    done: int
    partial: int
    error: int
    good: int
    bad: int
    captured_today: int


class Database(BaseModel):
    state: Literal["sound", "checking", "damaged"]
    line: str
    checked_since: Seconds | None = Field(description="Since when the check of the file has run.")


class StatusBody(BaseModel):
    model: str
    trains: Trains | None
    live: Version
    previous: Version
    live_since: Seconds | None
    live_because: str
    loaded: list[int] = Field(description="Versions that the backend holds.")
    backend: BackendBody
    ratings: RatingsBody
    episodes: WaitingEpisodes | None = Field(description="Null where there has never been one.")
    baseline: float
    training: Training
    held: HeldBody
    match: MatchBody
    rehearsal: RehearsalBody
    judge: JudgeBrief | None
    cut: str | None = Field(description="What the server has left out of prompts in silence since the start.")
    watch: WatchBody | None
    rebuild: RebuildBody | None
    last_run: RunBody | None
    counts: Counts
    database: Database
    problem: str | None
