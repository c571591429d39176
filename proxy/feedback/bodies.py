"""The shapes of what the routes of ratings take and answer, as JSON schemas come of them (proxy.web.openapi)."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, NamedTuple, cast

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from proxy.core.errors import ProblemBody
from store.learning.rater_quota import LEAST_WEIGHT, MOST_WEIGHT
from store.records import Rating, Scale

MAX_TEXT: Final = 20_000  # characters of each text of a rating
Text = Annotated[str, Field(max_length=MAX_TEXT)]

_ID: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": 200}
_WORDS: dict[str, Any] = {"type": "string", "enum": ["good", "bad", "up", "down", "👍", "👎"]}
_STARS: dict[str, Any] = {"type": "string", "pattern": "^[1-5](/5)?$"}
_NUMBER: dict[str, Any] = {"anyOf": [{"type": "number", "minimum": -1, "exclusiveMaximum": 1}, {"enum": [2, 3, 4, 5]}]}
_JUDGED: dict[str, Any] = {"anyOf": [_WORDS, _STARS, {"type": "boolean"}, *_NUMBER["anyOf"]]}
_ON_A_SCALE: dict[str, Any] = {
    "anyOf": [
        {"properties": {"scale": {"const": "stars"}, "rating": {"enum": [1, 2, 3, 4, 5]}}, "required": ["scale"]},
        {
            "properties": {"scale": {"const": "unit"}, "rating": {"type": "number", "minimum": -1, "maximum": 1}},
            "required": ["scale"],
        },
        {"properties": {"scale": {"type": "null"}, "rating": _JUDGED}},
    ]
}


def any_member(*members: str) -> dict[str, Any]:
    return {"anyOf": [{"properties": {key: _ID}, "required": [key]} for key in members]}


class FeedbackBody(BaseModel):
    model_config = ConfigDict(
        defer_build=True,  # once somebody asks for the document
        json_schema_extra={"allOf": [any_member("completion_id", "session"), _ON_A_SCALE]},
    )
    rating: Annotated[
        Any, Field(description='"good", "bad", true, false, a number from -1 to 1, or stars; a bare 1 needs `scale`.')
    ]
    completion_id: Annotated[str, Field(max_length=200)] | None = Field(None, description='An id, or "last".')
    session: Annotated[str, Field(max_length=200)] | None = Field(None, description="Its newest main turn.")
    scale: Literal["stars", "unit"] | None = None
    comment: Text | None = None
    correction: Text | None = Field(None, description="What would have been right.")
    weight: float = Field(1.0, ge=LEAST_WEIGHT, le=MOST_WEIGHT, description="Above 1 with an admin key only.")
    rater: Annotated[str, Field(max_length=200)] | None = Field(None, description="Default: `x-rl-user`, or owner.")
    source: Annotated[str, Field(max_length=100)] | None = None
    source_event_id: Annotated[str, Field(max_length=200)] | None = Field(
        None, description="Stored once a key, source and rater; 409 where it comes again with something else."
    )


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

    line: Annotated[str | None, Field(description="The answer's; null as `answer`.")]
    never_trains: Annotated[
        str | None, Field(description="Why this answer never trains; null where it may, or as `answer`.")
    ]


class TakenBackBody(RatingBody):
    trained: Annotated[list[int], Field(description="Versions that learned from it, and stay as they are.")]


class AnswerText(NamedTuple):
    """The rated answer, to who may read it."""

    words: str | None = None  # how it begins
    line: str | None = None
    never_trains: str | None = None


def whole(rating: Rating, answer: AnswerText) -> RatingBody:
    of_answer = {"answer": answer.words, "line": answer.line, "never_trains": answer.never_trains}
    members = {name: getattr(rating, name) for name in RatingBody.__annotations__ if name not in of_answer}
    return cast(RatingBody, members | of_answer)


class ShortRating(TypedDict):
    id: str
    rater: str
    value: Annotated[float, Field(ge=-1, le=1)]
    scale: Scale
    comment: str | None


def short(rating: Rating) -> ShortRating:
    return cast(ShortRating, {name: getattr(rating, name) for name in ShortRating.__annotations__})


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
