"""The body of what became of a rating or an answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from proxy.web.openapi.responses import Seconds, Version
from store.records import RunStatus


class ExplainedRating(TypedDict):
    id: str
    rater: str
    human: bool
    value: Annotated[float, Field(ge=-1, le=1)]
    source: str
    created_at: Seconds
    state: Literal["live", "taken back", "replaced"]
    has_comment: bool
    has_correction: bool


class PushBody(TypedDict):
    """The push that a run gave its tokens; null: not kept, or not pushed."""

    used: Annotated[bool, Field(description="An optimiser step used it.")]
    cause: Annotated[str | None, Field(description="Why it, or a part of it, did not train.")]
    tokens: int
    accepted: Annotated[int, Field(description="Tokens that the filter let through.")]
    taught_by: Annotated[str | None, Field(description="`rating`, `token`, `comment`, `pair` or `leaning`.")]
    advantage: Annotated[float | None, Field(description="The mean of the accepted tokens, where the run began.")]
    up: Annotated[int | None, Field(description="Tokens pushed up.")]
    down: Annotated[int | None, Field(description="Tokens pushed down.")]
    loss: float | None
    flags: list[str]


class MadeVersion(TypedDict):
    version: Version
    state: Literal["live", "previous", "withdrawn", "gone", "kept"]
    reason: Annotated[str | None, Field(description="Why it was withdrawn.")]


class ExplainedRun(TypedDict):
    run: int
    status: RunStatus
    reason: Annotated[str | None, Field(description="How it ended, in a sentence.")]
    ended_at: Seconds | None
    split: Annotated[
        Literal["train", "held", "replay"],
        Field(description="`held`: for the gate only. `replay`: once more, in a run of an earlier release."),
    ]
    reward: Annotated[float | None, Field(description="Of all ratings that this run took of the answer.")]
    weight: float | None
    push: PushBody | None
    gate: Annotated[dict[str, Any] | None, Field(description="Each check: `value`, `bound`, `ok`.")]
    version: MadeVersion | None
    not_kept: Annotated[list[str], Field(description="What this run does not tell any more, and why.")]


class AnsweringWeights(TypedDict):
    """The weights that answered, as far as the home can prove."""

    model: Annotated[str, Field(description="The name by which the backend was asked.")]
    state: Annotated[
        Literal["intact", "changed", "gone", "base", "not ours"],
        Field(description="`intact`: the file has the hash that its run wrote down."),
    ]
    sha256: Annotated[str | None, Field(description="Of adapter_model.safetensors, as the run wrote it.")]
    run: Annotated[int | None, Field(description="That made it.")]


class ExplanationBody(TypedDict):
    completion: str
    rating: Annotated[str | None, Field(description="The rating that was asked about.")]
    version: Annotated[Version | None, Field(description="The one that answered; null: a model that is not ours.")]
    line: str
    weights: AnsweringWeights
    created_at: Seconds
    images: Annotated[int, Field(description="Pictures in its prompt.")]
    ratings: list[ExplainedRating]
    runs: Annotated[list[ExplainedRun], Field(description="Newest first.")]
    flag: Annotated[str | None, Field(description="What the user's own check has found in the answer.")]
    waiting: Annotated[str | None, Field(description="Why no run took it.")]
    not_kept: Annotated[list[str], Field(description="What no run keeps.")]
