"""Bodies of answers about lessons."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict


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


class LessonWanted(BaseModel):
    text: str | None = Field(default=None, min_length=1, max_length=2000)
    always: bool | None = None
    active: bool | None = None
