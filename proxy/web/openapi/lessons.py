"""Bodies of answers about lessons."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from proxy.web.openapi.shapes import RequestShape
from store.learning.lessons import LONGEST


class LessonBody(TypedDict):
    id: Annotated[str, Field(description="Of the rating whose comment it is.")]
    completion: Annotated[str, Field(description="The answer that was disliked.")]
    user: Annotated[str | None, Field(description="Whose prompts it is in; null: those that name nobody.")]
    question: str
    text: Annotated[str, Field(description="As it stands in prompts.")]
    edited: bool
    always: Annotated[bool, Field(description="Whatever is asked, not on its topic alone.")]
    state: Literal["active", "removed", "retired"]
    why: Annotated[str | None, Field(description="How it ended.")]
    created_at: float
    learned: Annotated[int | None, Field(description="The first version that trained on it.")]


class LessonsBody(TypedDict):
    enabled: bool
    data: list[LessonBody]


ONE_AT_LEAST: Final[dict[str, Any]] = {
    "anyOf": [
        {"required": [name], "properties": {name: {"type": kind}}}
        for name, kind in (("text", "string"), ("always", "boolean"), ("active", "boolean"))
    ]
}


class LessonWanted(RequestShape):
    """A member that is null is not named."""

    model_config = ConfigDict(extra="forbid", json_schema_extra=ONE_AT_LEAST)

    text: Annotated[str, Field(max_length=LONGEST, pattern=r"\S")] | None = None
    always: bool | None = None
    active: bool | None = None
