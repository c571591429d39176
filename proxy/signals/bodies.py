"""The shapes of what the routes of signals and the judge answer, as JSON schemas come of them (proxy.web.openapi)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from store.learning.signals import SignalCount, VersionText


class SignalBody(TypedDict):
    """An event after a completion."""

    kind: Literal["message", "tool", "regenerated", "edited", "aborted", "copied", "own"]
    next_id: Annotated[str | None, Field(description="The request in which it was seen.")]
    said: str
    created_at: float
    state: Literal["waiting", "labelled", "dropped"]
    label: str | None
    value: Annotated[float, Field(ge=-1, le=1)]
    judge: Annotated[str | None, Field(description="Whose label it is: a model's name, or `rules`.")]
    hint: Annotated[str | None, Field(description="The part of `said` that says what should have been done.")]
    why: str | None
    rating_id: str | None


class AgreementTable(TypedDict):
    both: int
    person_only: int
    judge_only: int
    neither: int


class AgreementBody(TypedDict):
    """On one side, among the newest turns that people have rated, too."""

    shared: int
    needed: int
    table: AgreementTable
    agreement: float | None
    kappa: Annotated[float | None, Field(description="Cohen's kappa.")]
    interval: Annotated[list[float] | None, Field(description="Its 95 % bootstrap interval.")]
    trusted: bool
    weight: Annotated[float, Field(description="Of a label in training; 0 where it is not trusted.")]
    why: str | None


class SharedTurn(TypedDict):
    completion_id: str
    person: float
    judge: float


class OneJudge(TypedDict):
    judge: str
    state: str
    bad: AgreementBody
    good: AgreementBody
    disagreements: list[SharedTurn]


class JudgeCost(TypedDict):
    """Tokens."""

    today: int
    all: int
    daily: int


class JudgeBrief(TypedDict):
    mode: Literal["off", "shadow", "on"]
    model: str
    cost: JudgeCost
    waits_for: str | None
    line: str


class OwnReport(TypedDict):
    """The user's own code."""

    hash: Annotated[str | None, Field(description="sha256 of the file.")]
    left: Annotated[int, Field(description="Turns that it has not seen yet.")]
    problem: str | None


class AnswerCheckReport(TypedDict):
    """The user's own check over every answer."""

    flagged: int
    unchecked: Annotated[int, Field(description="Answers that it has not seen yet.")]
    problem: str | None


class Rescored(TypedDict):
    left: Annotated[int, Field(description="Turns, or episodes, that it will see.")]


class JudgeReport(TypedDict):
    mode: Literal["off", "shadow", "on"]
    model: str | None
    url: str | None
    votes: int
    leaves_this_machine: bool
    accepted: bool
    statement: Annotated[str, Field(description="What is sent, and where to.")]
    waits_for: str | None
    waiting: int
    cost: JudgeCost
    own: OwnReport | None
    check: AnswerCheckReport | None
    judges: list[OneJudge]
    signals: list[SignalCount]
    by_version: list[VersionText]
