"""Bodies of answers about lessons."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class LessonBody(BaseModel):
    id: str = Field(description="Of the rating whose comment it is.")
    completion: str = Field(description="The answer that was disliked.")
    user: str | None = Field(description="Whose prompts it is in; null: those that name nobody.")
    question: str
    text: str = Field(description="As it stands in prompts.")
    edited: bool
    always: bool = Field(description="Whatever is asked, not on its topic alone.")
    state: Literal["active", "removed", "retired"]
    why: str | None = Field(description="How it ended.")
    created_at: float
    learned: int | None = Field(description="The first version that trained on it.")


class LessonsBody(BaseModel):
    enabled: bool
    data: list[LessonBody]


class LessonWanted(BaseModel):
    text: str | None = Field(default=None, min_length=1, max_length=2000)
    always: bool | None = None
    active: bool | None = None
