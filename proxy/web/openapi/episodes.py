"""The routes of episodes and the shapes of their bodies.

Owns what docs and clients are told of them. The handlers are in proxy.web.episode_routes.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from proxy.feedback.episodes import ID, LONGEST, MOST_IN_GROUP
from proxy.web.openapi.responses import Seconds, Value, Version
from proxy.web.openapi.shapes import RequestShape, Schema

Split = Literal["train", "eval"]
State = Literal["open", "rewarded", "error"]
GROUP: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[^\x00-\x1f\x7f]+$"}
Group = Annotated[str, Field(min_length=1, max_length=200, pattern=GROUP["pattern"])]
Text = Annotated[str, Field(max_length=LONGEST["comment"])]
Size = Annotated[int, Field(ge=1, le=MOST_IN_GROUP)]


class EpisodeWanted(RequestShape):
    model_config = ConfigDict(extra="forbid")

    id: Annotated[str, Field(pattern=f"^{ID.pattern}$")] | None = None
    task: Text | None = None
    group: Group | None = Field(None, description="Attempts at one task, compared with each other.")
    group_size: Size | None = Field(None, description="Default: train.group_size.")
    split: Split = Field("train", description="`eval`: never trains.")
    meta: dict[str, Any] | None = None


# A missing reward is not 0: there is one, or an error, which is the whole episode's.
EITHER: Final[dict[str, Any]] = {
    "anyOf": [
        {"required": ["reward"], "properties": {"reward": {"type": "number"}, "error": {"type": "null"}}},
        {
            "required": ["error"],
            "properties": {"error": {"type": "string"}, "reward": {"type": "null"}, "completion_id": {"type": "null"}},
        },
    ]
}


class Reward(RequestShape):
    model_config = ConfigDict(extra="forbid", json_schema_extra=EITHER)

    reward: Value | None = Field(None, description="Of the outcome, or of the turn `completion_id`.")
    completion_id: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    group: Group | None = None
    group_size: Size | None = None
    final: bool | None = Field(None, description="Ends the episode; default: true without `completion_id`.")
    error: Text | None = Field(None, description="The harness failed: the episode never trains.")
    comment: Text | None = None
    split: Split | None = Field(None, description="Default: as the episode was opened, else `train`.")


class EpisodeBody(TypedDict):
    seq: int
    id: str
    state: State
    task: str | None
    group: str | None
    split: Split
    version: Annotated[Version | None, Field(description="That all its requests get; null where none is pinned.")]
    turn_count: int
    reward: Value | None
    comment: str | None
    error: str | None
    opened_at: Seconds
    ended_at: Seconds | None
    run: Annotated[int | None, Field(description="The run that took it.")]
    left_out: Annotated[
        str | None, Field(description="Why it never trains: no-variance, stale, mixed, no-turns, forgotten.")
    ]
    prompt: Annotated[str | None, Field(description="Of a rollout: the completion whose prompt it answers again.")]
    meta: dict[str, Any] | None


class OpenedEpisode(EpisodeBody):
    base_url: Annotated[str, Field(description="Where its agent asks.")]


class RewardedEpisode(EpisodeBody):
    result: Literal["stored", "changed", "same"]


class RefusedReward(TypedDict):
    line: Annotated[int, Field(ge=1)]
    status: Annotated[int, Field(description="As the route for one reward would have answered.")]
    why: str


class RewardsBody(TypedDict):
    stored: int
    changed: int
    same: int
    refused: list[RefusedReward]


class EpisodeTurn(TypedDict):
    completion_id: str
    created_at: Seconds
    segment: Annotated[
        int, Field(ge=0, description="Turns of one segment each go on from the whole of the one before.")
    ]
    version: Version | None
    asked: str
    text: str
    prompt_tokens: int | None
    tokens: int | None
    exact: bool | None
    reward: Value | None


class WholeEpisode(EpisodeBody):
    turns: list[EpisodeTurn]
    segments: int
    side_turns: int


class EpisodeCounts(TypedDict):
    open: int
    rewarded: int
    error: int
    unrewarded: Annotated[int, Field(description="Open, and without a request for an hour.")]


class EpisodesOfVersion(TypedDict):
    version: Version | None
    split: Split
    rollouts: Annotated[bool, Field(description="True: those that rlproxy sampled itself, and no others.")]
    episodes: int
    success: Annotated[float, Field(ge=0, le=1, description="Share with a reward above 0.")]
    mean_reward: Value


class EpisodesBody(TypedDict):
    data: list[EpisodeBody]
    counts: EpisodeCounts
    versions: list[EpisodesOfVersion]
