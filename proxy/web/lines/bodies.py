"""Bodies about lines."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from proxy.versions.named_version import LINE as NAME
from proxy.web.openapi.shapes import RequestShape, Schema

LINE: Final[Schema] = {"type": "string", "pattern": f"^{NAME.pattern}$"}
Version = Annotated[int, Field(ge=0, description="0 is the base model.")]
Seconds = Annotated[float, Field(description="Unix seconds")]
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=1000)]


class LineBody(TypedDict):
    name: str
    model: Annotated[str, Field(description="By which a request names it.")]
    live: Version
    previous: Version
    live_since: Seconds | None
    live_because: str
    origin: Annotated[Version, Field(description="The version that it began with.")]
    created_at: Seconds | None
    retired_at: Seconds | None
    users: list[str]
    agents: list[str]
    fresh: Annotated[int, Field(ge=0, description="Ratings that its next run could take.")]
    needed: Annotated[int, Field(ge=0, description="That start one.")]
    completions: Annotated[int | None, Field(description="Null of the common line.")]
    ratings: int | None
    versions: Annotated[int, Field(ge=0, description="That it has made.")]
    adapter_bytes: Annotated[int, Field(ge=0, description="Of its live version's file; 0 for the base model.")]


class LinesBody(TypedDict):
    data: list[LineBody]


class LineWanted(RequestShape):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    start: Annotated[str, Field(alias="from", max_length=40, description="`common`, `base`, `v7` or another line.")] = (
        "common"
    )
    users: Annotated[Names, Field(description="Whose requests (`x-rl-user`) it answers.")] = Field(default_factory=list)
    agents: Annotated[Names, Field(description="Likewise, of these agents.")] = Field(default_factory=list)


class LineChanged(RequestShape):
    model_config = ConfigDict(extra="forbid")

    users: Annotated[Names | None, Field(description="In place of those before.")] = None
    agents: Names | None = None
