"""The shapes of what rlproxy's own routes answer, as JSON schemas come of them.

Owns their members and what they mean, of routes in `proxy.web`; others have theirs beside what builds them. Handlers
build these and `document` reads them; as typed dicts they cost a start nothing. What the relayed formats answer is
theirs (`passthrough`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from proxy.access.keys import KeyBody
from proxy.feedback.bodies import ShortRating
from proxy.signals.bodies import SignalBody
from proxy.training.unlearning import RebuildBody
from proxy.versions.what_changed import ChangesBody, PairBody
from store.records import RunStatus, Status, Turn

Value = Annotated[float, Field(ge=-1, le=1)]
Seconds = Annotated[float, Field(description="Unix seconds")]
Version = Annotated[int, Field(ge=0, description="0 is the base model")]


class Ok(TypedDict):
    ok: Literal[True]


# Completions


class CompletionBody(TypedDict):
    seq: Annotated[int, Field(ge=1)]
    id: str
    status: Status
    created_at: Seconds
    model: str
    version: Annotated[Version | None, Field(description="null: a model that is not ours")]
    line: str
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
    images: Annotated[int, Field(ge=0, description="Pictures in its prompt.")]
    redacted: Annotated[list[str], Field(description="What was replaced before it was stored, as `prompt:api_key`.")]
    error: str | None
    ratings: list[ShortRating]


class CompletionsBody(TypedDict):
    data: list[CompletionBody]


class WholeCompletion(CompletionBody):
    prompt: Annotated[list[dict[str, Any]], Field(description="The messages as the model was asked them.")]
    signals: Annotated[list[SignalBody], Field(description="What happened after it.")]


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


class AdapterBody(TypedDict):
    version: Version
    line: str
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
    changes: Annotated[ChangesBody | None, Field(description="What it changed, measured after the gate had passed it.")]


class WholeAdapter(AdapterBody):
    pairs: Annotated[
        list[PairBody], Field(description="Three rated prompts, answered by the version before and by it.")
    ]


class AdaptersBody(TypedDict):
    data: list[AdapterBody]
    live: Version


class RunBody(TypedDict):
    id: int
    line: str
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


class NewKey(KeyBody):
    key: Annotated[str, Field(description="The key itself; only its hash is kept.")]


class AuditLine(TypedDict):
    seq: int
    created_at: Annotated[float, Field(description="Unix seconds")]
    actor: Annotated[str, Field(description="A key's name, `server.admin_key`, `command line`, `owner` or `rlproxy`.")]
    act: str
    detail: dict[str, Any]


class AuditBody(TypedDict):
    data: list[AuditLine]


class KeysBody(TypedDict):
    data: list[KeyBody]
    needed: Annotated[bool, Field(description="Whether everybody but commands of this machine has to show a key.")]
    fixed: Annotated[list[str], Field(description="Settings that hold a key: server.api_key, server.admin_key.")]
