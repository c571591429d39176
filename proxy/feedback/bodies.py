"""The shapes of what the routes of ratings answer, as JSON schemas come of them (proxy.web.openapi)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from proxy.core.errors import ProblemBody
from store.records import Scale


class RatingBody(TypedDict):
    id: str
    completion_id: str
    answer: Annotated[
        str | None, Field(description="How the rated answer begins; null where this key may not read it.")
    ]
    rater: str
    value: Annotated[float, Field(ge=-1, le=1)]
    scale: Annotated[Scale, Field(description="What it was given as: `unit` is a number.")]
    comment: str | None
    correction: str | None
    weight: Annotated[float, Field(gt=0)]
    source: str
    created_at: Annotated[float, Field(description="Unix seconds")]
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
