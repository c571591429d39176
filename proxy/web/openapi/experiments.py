"""Bodies about experiments."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from proxy.web.openapi.shapes import RequestShape


class ArmBody(TypedDict):
    liked: int
    rated: Annotated[int, Field(description="Conversations: the first rating of each, by a person.")]
    mean: float | None
    conversations: int


class JudgedBody(TypedDict):
    liked: int
    rated: int


class JudgedArms(TypedDict):
    candidate: JudgedBody
    parent: JudgedBody


class ExperimentBody(TypedDict):
    id: int
    version: Annotated[int, Field(ge=0)]
    against: Annotated[int, Field(ge=0)]
    share: float
    started_at: float
    ended_at: float | None
    outcome: str | None
    reason: str | None
    candidate: ArmBody
    parent: ArmBody
    up: Annotated[float, Field(description="Evidence that the candidate is liked more; 20 decides.")]
    down: Annotated[float, Field(description="Evidence that it is liked less; 10 decides.")]
    rate_p: Annotated[float, Field(description="p of so uneven a split of the rated conversations.")]
    needed: Annotated[str, Field(description="What would still decide it, or what has.")]
    judged: NotRequired[Annotated[JudgedArms, Field(description="By judges and programs: never counted.")]]


class ExperimentsBody(TypedDict):
    running: ExperimentBody | None
    ended: list[ExperimentBody]


class ExperimentWanted(RequestShape):
    model_config = ConfigDict(extra="forbid")

    version: Annotated[int, Field(ge=0, lt=2**31)]
    against: Annotated[int, Field(ge=0, lt=2**31, description="The live one.")] | None = None
    share: Annotated[float, Field(ge=0.05, le=0.95, description="Of conversations that get the candidate.")] = 0.5
