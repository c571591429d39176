"""The shape of what `status` says of rollouts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict


class RolloutsBody(TypedDict):
    """Answers that rlproxy samples itself to captured prompts (`train.rollouts`)."""

    state: Literal["sampling", "waiting"]
    line: str
    problem: Annotated[str | None, Field(description="The failure that it waits after.")]
    answers: Annotated[int, Field(description="That are stored.")]
    prompts: Annotated[int, Field(description="That those answer.")]
    tokens_today: Annotated[int, Field(description="Of prompts and answers; the most is train.rollout_tokens.")]
    minutes_today: Annotated[float, Field(description="Of sampling; the most is train.rollout_minutes.")]
