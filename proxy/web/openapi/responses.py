"""The shapes of what rlproxy's own routes answer, as JSON schemas come of them.

Owns their members and what they mean. What the relayed formats answer is theirs (`relayed`). No handler builds these:
tests/proxy/web/test_openapi.py holds the answers against them, member by member.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from proxy.web.openapi.judge import SignalBody
from proxy.web.openapi.requests import Capture
from store.records import Role, RunStatus, Scale, Status, Turn

Value = Annotated[float, Field(ge=-1, le=1)]
Seconds = Annotated[float, Field(description="Unix seconds")]
Version = Annotated[int, Field(ge=0, description="0 is the base model")]


class ProblemBody(BaseModel):
    message: str = Field(description="What happened, what was kept, what to do.")
    type: str
    param: str | None
    code: str


class Problem(BaseModel):
    error: ProblemBody


class Ok(BaseModel):
    ok: Literal[True]


# Ratings


class RatingBody(BaseModel):
    id: str
    completion_id: str
    answer: str | None = Field(description="How the rated answer begins; null where this key may not read it.")
    rater: str
    value: Value
    scale: Scale = Field(description="What it was given as: `unit` is a number.")
    comment: str | None
    correction: str | None
    weight: float = Field(gt=0)
    source: str
    created_at: Seconds
    live: bool = Field(description="False where a later one of the same rater, or an undo, has taken its place.")
    duplicate: bool = Field(description="This event, or a rating that says the same, had been stored before.")
    replaced: str | None = Field(description="The rating whose place this one took.")


class OpenWebUITaken(BaseModel):
    result: Literal["rated", "known", "taken back", "nothing"]
    line: str = Field(description="What a person would be told.")
    rating: RatingBody | None


class TakenBody(BaseModel):
    status: Literal[200, 201]
    rating: RatingBody


class RefusedBody(BaseModel):
    status: int = Field(ge=400)
    error: ProblemBody


class Batch(BaseModel):
    stored: int = Field(ge=0)
    refused: int = Field(ge=0)
    data: list[TakenBody | RefusedBody]


class Linked(BaseModel):
    platform: str
    channel: str
    message_id: str
    completion_id: str
    person: str | None


class Webhook(BaseModel):
    result: str
    line: str = Field(description="What a person would be told.")
    rating_id: str | None


# Completions


class ShortRating(BaseModel):
    id: str
    rater: str
    value: Value
    scale: Scale
    comment: str | None


class CompletionBody(BaseModel):
    seq: int = Field(ge=1)
    id: str
    status: Status
    created_at: Seconds
    model: str
    version: Version | None = Field(description="null: a model that is not ours")
    session: str | None
    user: str | None
    turn: Turn
    turn_rule: str
    dialect: str
    translated: bool | None
    text: str | None
    finish_reason: str | None
    usage: dict[str, Any] | None
    exact: bool | None = Field(description="Token ids and log-probs were captured one for one.")
    inexact_reason: str | None
    untrainable: str | None = Field(description="Why it never trains.")
    redacted: list[str] = Field(description="What was replaced before it was stored, as `prompt:api_key`.")
    error: str | None
    ratings: list[ShortRating]


class CompletionsBody(BaseModel):
    data: list[CompletionBody]


class WholeCompletion(CompletionBody):
    prompt: list[dict[str, Any]] = Field(description="The messages as the model was asked them.")
    signals: list[SignalBody] = Field(description="What happened after it.")


class Captures(BaseModel):
    off: list[str] = Field(description="Sessions of which nothing is kept.")


class Captured(BaseModel):
    session: str
    capture: Capture


class BadLineBody(BaseModel):
    line: int = Field(ge=1)
    why: str


class ImportedBody(BaseModel):
    stored: int = Field(ge=0)
    known: int = Field(ge=0, description="Completions that were here already.")
    ratings: int = Field(ge=0)
    forgotten: int = Field(ge=0, description="Completions and ratings that do not come back.")
    refused: list[BadLineBody]


class RebuildBody(BaseModel):
    """In place of versions that learned from what was forgotten."""

    versions: list[int] = Field(description="Those that are gone.")
    from_: Version = Field(alias="from", description="The newest that did not learn from it.")
    runs: list[int]
    state: Literal["under way", "over"]
    line: str


class CopiesBody(BaseModel):
    """A file of the database, in the home folder."""

    holding: list[str] = Field(description="Those that have it.")
    unread: list[str] = Field(description="Those that nobody could look into.")
    deleted: bool


class Forgotten(BaseModel):
    completions: int = Field(ge=0)
    ratings: int = Field(ge=0)
    reactions: int = Field(ge=0, description="Of a rater, on chat platforms, those taken back too.")
    trained: list[int] = Field(description="Versions that were trained on these ratings.")
    heirs: list[int] = Field(description="Versions that were built on those.")
    backups: CopiesBody
    rebuild: RebuildBody | None
    forgotten: bool = Field(description="False for a dry run.")


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


# Versions and runs


class PointerBody(BaseModel):
    live: Version
    previous: Version
    reason: str


class AdapterBody(BaseModel):
    version: Version
    parent: Version
    run: int | None
    model: str
    path: str
    created_at: Seconds
    live: bool
    previous: bool
    withdrawn: str | None = Field(description="Why it was rolled back by itself.")
    metrics: dict[str, Any] | None
    gate: dict[str, Any] | None


class Adapters(BaseModel):
    data: list[AdapterBody]
    live: Version


class RunBody(BaseModel):
    id: int
    status: RunStatus
    version: Version | None = Field(description="The version it made.")
    parent: Version
    samples: int
    held: int
    attempts: int
    created_at: Seconds
    started_at: Seconds | None
    ended_at: Seconds | None
    reason: str | None
    metrics: dict[str, Any] | None
    gate: dict[str, Any] | None
    retried: Any
    back: str | None
    folder: str


class RunsBody(BaseModel):
    data: list[RunBody]


class ChoiceBody(BaseModel):
    name: str
    value: Any
    why: str | None


class WholeRun(RunBody):
    choices: list[ChoiceBody]
    warnings: list[str]
    steps: list[dict[str, Any]] = Field(description="Each optimiser step: `loss`, `acceptance`, `kl_ref`, `kl_old`.")
    sweep: list[dict[str, Any]] = Field(description="Learning rates that were tried: `rate`, `moved` (nats a token).")
    tuned: float | None = Field(description="The rate that a sweep found.")
    account: list[dict[str, Any]] = Field(description="What became of each sample.")


class Started(BaseModel):
    started: Literal[True]
    why: str


class Paused(BaseModel):
    paused: bool


class Cancelled(BaseModel):
    cancelled: int = Field(description="The run's number.")


class Reset(BaseModel):
    live: Version
    baseline: float


class KeyBody(BaseModel):
    id: str
    name: str
    role: Role
    created_at: Seconds
    last_used: Seconds | None
    revoked_at: Seconds | None


class NewKey(KeyBody):
    key: str = Field(description="The key itself; only its hash is kept.")


class KeysBody(BaseModel):
    data: list[KeyBody]
