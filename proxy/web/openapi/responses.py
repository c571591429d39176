"""The shapes of what rlproxy's own routes answer, as JSON schemas come of them.

Owns their members and what they mean. Handlers build these and `document` reads them; as typed dicts they cost a start
nothing. What the relayed formats answer is theirs (`passthrough`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from proxy.training.unlearning import RebuildBody
from proxy.web.openapi.judge import SignalBody
from store.records import Role, RunStatus, Scale, Status, Turn

Value = Annotated[float, Field(ge=-1, le=1)]
Capture = Literal["on", "off"]
Seconds = Annotated[float, Field(description="Unix seconds")]
Version = Annotated[int, Field(ge=0, description="0 is the base model")]


class ProblemBody(TypedDict):
    message: Annotated[str, Field(description="What happened, what was kept, what to do.")]
    type: str
    param: str | None
    code: str


class Problem(TypedDict):
    error: ProblemBody


class Ok(TypedDict):
    ok: Literal[True]


# Ratings


class RatingBody(TypedDict):
    id: str
    completion_id: str
    answer: Annotated[
        str | None, Field(description="How the rated answer begins; null where this key may not read it.")
    ]
    rater: str
    value: Value
    scale: Annotated[Scale, Field(description="What it was given as: `unit` is a number.")]
    comment: str | None
    correction: str | None
    weight: Annotated[float, Field(gt=0)]
    source: str
    created_at: Seconds
    live: Annotated[
        bool, Field(description="False where a later one of the same rater, or an undo, has taken its place.")
    ]
    duplicate: Annotated[bool, Field(description="This event, or a rating that says the same, had been stored before.")]
    replaced: Annotated[str | None, Field(description="The rating whose place this one took.")]


class OpenWebUITaken(TypedDict):
    result: Literal["rated", "known", "taken back", "nothing"]
    line: Annotated[str, Field(description="What a person would be told.")]
    rating: RatingBody | None


class TakenBody(TypedDict):
    status: Literal[200, 201]
    rating: RatingBody


class RefusedBody(TypedDict):
    status: Annotated[int, Field(ge=400)]
    error: ProblemBody


class Batch(TypedDict):
    stored: Annotated[int, Field(ge=0)]
    refused: Annotated[int, Field(ge=0)]
    data: list[TakenBody | RefusedBody]


class Linked(TypedDict):
    platform: str
    channel: str
    message_id: str
    completion_id: str
    person: str | None


class Webhook(TypedDict):
    result: str
    line: Annotated[str, Field(description="What a person would be told.")]
    rating_id: str | None


# Completions


class ShortRating(TypedDict):
    id: str
    rater: str
    value: Value
    scale: Scale
    comment: str | None


class CompletionBody(TypedDict):
    seq: Annotated[int, Field(ge=1)]
    id: str
    status: Status
    created_at: Seconds
    model: str
    version: Annotated[Version | None, Field(description="null: a model that is not ours")]
    session: str | None
    user: str | None
    turn: Turn
    turn_rule: str
    dialect: str
    translated: bool | None
    text: str | None
    finish_reason: str | None
    usage: dict[str, Any] | None
    exact: Annotated[bool | None, Field(description="Token ids and log-probs were captured one for one.")]
    inexact_reason: str | None
    untrainable: Annotated[str | None, Field(description="Why it never trains.")]
    redacted: Annotated[list[str], Field(description="What was replaced before it was stored, as `prompt:api_key`.")]
    error: str | None
    ratings: list[ShortRating]


class CompletionsBody(TypedDict):
    data: list[CompletionBody]


class WholeCompletion(CompletionBody):
    prompt: Annotated[list[dict[str, Any]], Field(description="The messages as the model was asked them.")]
    signals: Annotated[list[SignalBody], Field(description="What happened after it.")]


class Captures(TypedDict):
    off: Annotated[list[str], Field(description="Sessions of which nothing is kept.")]


class Captured(TypedDict):
    session: str
    capture: Capture


class BadLineBody(TypedDict):
    line: Annotated[int, Field(ge=1)]
    why: str


class ImportedBody(TypedDict):
    stored: Annotated[int, Field(ge=0)]
    known: Annotated[int, Field(ge=0, description="Completions that were here already.")]
    ratings: Annotated[int, Field(ge=0)]
    forgotten: Annotated[int, Field(ge=0, description="Completions and ratings that do not come back.")]
    refused: list[BadLineBody]


class CopiesBody(TypedDict):
    """A file of the database, in the home folder."""

    holding: Annotated[list[str], Field(description="Those that have it.")]
    unread: Annotated[list[str], Field(description="Those that nobody could look into.")]
    deleted: bool


class ForgottenBody(TypedDict):
    completions: Annotated[int, Field(ge=0)]
    ratings: Annotated[int, Field(ge=0)]
    reactions: Annotated[int, Field(ge=0, description="Of a rater, on chat platforms, those taken back too.")]
    trained: Annotated[list[int], Field(description="Versions that were trained on these ratings.")]
    heirs: Annotated[list[int], Field(description="Versions that were built on those.")]
    backups: CopiesBody
    rebuild: RebuildBody | None
    forgotten: Annotated[bool, Field(description="False for a dry run.")]


class DeletedResponse(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


# Versions and runs


class PointerBody(TypedDict):
    live: Version
    previous: Version
    reason: str


class AdapterBody(TypedDict):
    version: Version
    parent: Version
    run: int | None
    model: str
    path: str
    created_at: Seconds
    live: bool
    previous: bool
    withdrawn: Annotated[str | None, Field(description="Why it was rolled back by itself.")]
    metrics: dict[str, Any] | None
    gate: dict[str, Any] | None


class AdaptersBody(TypedDict):
    data: list[AdapterBody]
    live: Version


class RunBody(TypedDict):
    id: int
    status: RunStatus
    version: Annotated[Version | None, Field(description="The version it made.")]
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


class RunsBody(TypedDict):
    data: list[RunBody]


class ChoiceBody(TypedDict):
    name: str
    value: Any
    why: str | None


class WholeRun(RunBody):
    choices: list[ChoiceBody]
    warnings: list[str]
    steps: Annotated[
        list[dict[str, Any]], Field(description="Each optimiser step: `loss`, `acceptance`, `kl_ref`, `kl_old`.")
    ]
    sweep: Annotated[
        list[dict[str, Any]], Field(description="Learning rates that were tried: `rate`, `moved` (nats a token).")
    ]
    tuned: Annotated[float | None, Field(description="The rate that a sweep found.")]
    account: Annotated[list[dict[str, Any]], Field(description="What became of each sample.")]


class Started(TypedDict):
    started: Literal[True]
    why: str


class Paused(TypedDict):
    paused: bool


class Cancelled(TypedDict):
    cancelled: Annotated[int, Field(description="The run's number.")]


class Reset(TypedDict):
    live: Version
    baseline: float


class KeyBody(TypedDict):
    id: str
    name: str
    role: Role
    created_at: Seconds
    last_used: Seconds | None
    revoked_at: Seconds | None


class NewKey(KeyBody):
    key: Annotated[str, Field(description="The key itself; only its hash is kept.")]


class KeysBody(TypedDict):
    data: list[KeyBody]
