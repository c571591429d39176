"""The shapes of what rlproxy's own routes take.

Owns what a sound body looks like, LangSmith's feedback included. What a handler makes of it is its own affair; it
takes a little more than is promised here (a rating in capitals, say).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from proxy.access.keys import NAME
from proxy.feedback.bodies import FeedbackBody, Text
from proxy.feedback.langsmith_form import ENDINGS, NAMES
from proxy.feedback.open_webui_form import LONGEST_ID, MOST_MESSAGES
from proxy.feedback.ratings import OWNER
from proxy.relay.capture.optout import LONGEST
from proxy.web.openapi.shapes import RequestShape
from store.records import Role

Name = Annotated[str, Field(min_length=1, max_length=500)]
Id = Annotated[str, Field(min_length=1, max_length=200)]


# LangSmith's words for it


ScoreName = Annotated[
    str, WithJsonSchema({"anyOf": [{"enum": sorted(NAMES)}, {"type": "string", "pattern": f"({'|'.join(ENDINGS)})$"}]})
]
Score = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"type": "boolean"}, {"type": "number", "minimum": 0, "maximum": 1}, {"enum": ["good", "bad"]}]}
    ),
]


class LangSmithFeedback(RequestShape):
    run_id: Id
    key: ScoreName
    score: Score
    comment: Text | None = None
    correction: Text | None = None
    id: Id | None = None


Piece = FeedbackBody | LangSmithFeedback
AnyFeedback = Piece | Annotated[list[Piece], Field(min_length=1, max_length=1000)]


class OpenWebUIThumb(RequestShape):
    rating: Annotated[Any, WithJsonSchema({"enum": [1, -1, "1", "-1"]})]
    reason: str | None = None
    comment: str | None = None
    details: dict[str, Any] | None = Field(None, description="`rating`: 1 to 10.")


class OpenWebUIRecord(RequestShape):
    """A feedback as Open WebUI keeps it, without its snapshot."""

    id: str = Field(min_length=1, max_length=LONGEST_ID)
    data: OpenWebUIThumb
    meta: dict[str, Any] | None = Field(None, description="`chat_id`: the session.")


class OpenWebUIFeedback(RequestShape):
    feedback: OpenWebUIRecord
    messages: list[dict[str, Any]] = Field(max_length=MOST_MESSAGES, description="The chat up to the rated answer.")
    rater: Id | None = Field(None, description="Who; default whom the answer was for.")
    how: Literal["given", "edited", "earlier"] = Field(
        "given", description="`edited`: the answer was, after it; `earlier`: what was said here since stays."
    )


class OpenWebUIDeletion(RequestShape):
    deleted: str = Field(min_length=1, description="A feedback's id, or `all`.")
    rater: Id | None = Field(None, description="Of `all`, this rater's only.")


class LinkBody(RequestShape):
    platform: Name
    channel: Name
    message_id: Name = Field(description="A platform's whole numbers are taken as they are, too.")
    completion_id: Name
    person: Name | None = Field(None, description="For whom it was, by their id there.")


class SignedEvent(RequestShape):
    what: Literal["reaction", "retraction", "command"]
    person: str
    text: str | None = None
    platform: str | None = None
    channel: str | None = None
    message_id: str | int | None = None
    completion_id: str | None = None
    session: str | None = None
    said: str | None = None
    at: float | None = None


class CaptureWanted(RequestShape):
    session: Annotated[str, Field(min_length=1, max_length=LONGEST)]
    capture: Literal["on", "off"]


class Forget(RequestShape):
    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"properties": {key: {"type": "string", "minLength": 1}}, "required": [key]}
                for key in ("completion", "session", "user", "rater")
            ]
        },
    )
    completion: str | None = None
    session: str | None = None
    user: str | None = None
    rater: str | None = None
    dry_run: bool = Field(False, description="Only say what would go.")
    retrain: bool = Field(False, description="Versions that learned from it are trained again without it.")
    purge_backups: bool = Field(False, description="Copies of the database in the home that hold it go, too.")


class RetrainWanted(RequestShape):
    weights: str | None = Field(None, description="A folder or a hub id; left out: the weights that train now.")
    without: list[str] = Field(
        [], description="Completions whose ratings are left out; `flagged`: all that your own check has flagged."
    )
    line: str | None = Field(None, description="Whose ratings train; left out: the common one's.")
    dry_run: bool = Field(False, description="Only say what it would take.")


class KeyWanted(RequestShape):
    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")] = Field(
        description=f"Not `{OWNER}`; unique among those that hold."
    )
    role: Role = "use"
    line: str | None = Field(default=None, description="The only line that it may use.")


class RescoreWanted(RequestShape):
    since: float = Field(default=0.0, ge=0, le=2**40, description="Unix seconds.")
    episodes: bool = Field(default=False, description="Episodes opened since then, with `train.reward`.")
