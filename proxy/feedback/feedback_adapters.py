"""Feedback in the words of other tools, said again in ours. Pure.

Owns what OpenAI's ChatKit, LangSmith, Langfuse and TensorZero send, as far as it means the same here. The table is in
docs/reference/http-api.md. What does not is refused, never guessed. A score of "toxicity" is not a rating, and a number
is one only where 1 is known to be the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from proxy.core.errors import BadRequest

Body = dict[str, Any]

# What a score may be called to be a person's judgement, where more is better; `_`, `-` and spaces are the same.
NAMES: Final = frozenset({
    "accepted", "approved", "feedback", "good", "helpful", "helpfulness", "like", "liked", "quality", "rating",
    "satisfaction", "score", "thumb", "thumbs", "thumbs_up", "user_feedback", "user_rating", "user_score",
})  # fmt: skip
ENDINGS: Final = ("_accepted", "_approved", "_feedback", "_liked", "_rating", "_thumbs_up")
_WORDS: Final = {
    "good": "good", "bad": "bad", "up": "good", "down": "bad", "positive": "good", "negative": "bad", "👍": "good",
    "thumbs_up": "good", "thumbs_down": "bad", "👎": "bad", "like": "good", "dislike": "bad",
}  # fmt: skip


def unfold(body: Body) -> list[Any]:
    """The single pieces of feedback of a body that holds several; the body itself where it holds one."""
    if isinstance(events := body.get("batch"), list) and "rating" not in body:
        return events
    if body.get("type") == "items.feedback" and isinstance(ids := _inside(body, "params", "item_ids"), list):
        params = body["params"]
        return [{**body, "params": {**params, "item_ids": [id]}} for id in ids]
    return [body]


def to_own_format(body: Body) -> Body:
    """In our words; a body that is in our words already is returned as it is. Raises BadRequest."""
    if "rating" in body:
        return body
    for has_shape, convert in _SHAPES:
        if has_shape(body):
            return {key: value for key, value in convert(body).items() if value is not None}
    return body


def _chatkit(body: Body) -> Body:
    kind, ids = _inside(body, "params", "kind"), _inside(body, "params", "item_ids")
    if kind not in ("positive", "negative"):
        raise BadRequest('`params.kind` must be "positive" or "negative".', param="params")
    if not isinstance(ids, list) or len(ids) != 1:
        raise BadRequest("`params.item_ids` must name what is rated.", param="params")
    return {"completion_id": ids[0], "rating": _WORDS[kind], "source": "chatkit"}


def _langsmith(body: Body) -> Body:
    _is_a_rating(body.get("key"), "key")
    correction = body.get("correction")
    if correction is not None and not isinstance(correction, str):
        raise BadRequest("`correction` must be text, the reply that would have been right.", param="correction")
    score = body.get("score") if body.get("score") is not None else body.get("value")
    if score is None and correction is None:
        raise BadRequest("A comment alone is not a rating: send a `score` with it.", param="score")
    rating = {"rating": "bad"} if score is None else _worth(score, "score")
    return {
        "completion_id": body.get("run_id") or body.get("trace_id"),
        **rating,
        "comment": body.get("comment"),
        "correction": correction,
        "source": "langsmith",
        "source_event_id": body.get("id"),
    }


def _langfuse_event(body: Body) -> Body:
    """One of a batch to Langfuse's ingestion."""
    if body["type"] != "score-create" or not isinstance(body["body"], dict):
        raise BadRequest(f"An event of type {body['type']!r} is not a score.", param="type")
    return _langfuse({"id": body.get("id"), **body["body"]})


def _langfuse(body: Body) -> Body:
    _is_a_rating(body.get("name"), "name")
    kind, value = body.get("dataType"), body.get("value")
    if kind not in (None, "NUMERIC", "BOOLEAN", "CATEGORICAL"):
        raise BadRequest(f"A score of `dataType` {kind!r} is not a rating.", param="dataType")
    if kind == "BOOLEAN":
        value = {"true": True, "false": False, "1": True, "0": False, "1.0": True, "0.0": False}.get(str(value).lower())
    id = body.get("observationId") or body.get("traceId")
    return {
        "completion_id": id,
        "session": None if id else body.get("sessionId"),
        **_worth(value, "value"),
        "comment": body.get("comment"),
        "source": "langfuse",
        "source_event_id": body.get("id"),
    }


def _tensorzero(body: Body) -> Body:
    name, value = body.get("metric_name"), body.get("value")
    if body.get("dryrun"):
        raise BadRequest("`dryrun` is not known here; nothing was stored.", param="dryrun")
    id = body.get("inference_id")
    target = {"completion_id": id, "session": None if id else body.get("episode_id"), "source": "tensorzero"}
    if name == "comment":
        raise BadRequest("A comment alone is not a rating: send a boolean metric.", param="metric_name")
    if name == "demonstration":
        return {**target, "rating": "bad", "correction": _demonstrated(value)}
    _is_a_rating(name, "metric_name")
    if not isinstance(value, bool):
        raise BadRequest("Only boolean metrics are ratings: of a float it is not known what is good.", param="value")
    return {**target, "rating": value}


def _demonstrated(value: Any) -> str:
    """The text that would have been right: as text, or as content blocks of text alone."""
    blocks = value if isinstance(value, list) else [{"type": "text", "text": value}]
    texts = [_inside(block, "text") for block in blocks if _inside(block, "type") == "text"]
    if not texts or len(texts) < len(blocks) or not all(isinstance(text, str) for text in texts):
        raise BadRequest("A demonstration must be text.", param="value")
    return "".join(texts)


def _is_a_rating(name: Any, param: str) -> None:
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    if plain not in NAMES and not plain.endswith(ENDINGS):
        raise BadRequest(
            f"A score named {str(name)[:100]!r} is not known to be a person's rating; name it user_score, or send our "
            "own fields.",
            param=param,
        )


def _worth(value: Any, param: str) -> Body:
    """0 to 1 with 1 the best, true or false, or a word."""
    if isinstance(value, bool):
        return {"rating": value}
    if isinstance(value, int | float) and 0 <= value <= 1:
        return {"rating": bool(value)} if value in (0, 1) else {"rating": 2 * value - 1, "scale": "unit"}
    if isinstance(value, str) and (word := _WORDS.get(value.strip().lower().replace("-", "_").replace(" ", "_"))):
        return {"rating": word}
    raise BadRequest(f"`{param}` must be from 0 to 1, true or false, or a word as good and bad.", param=param)


def _inside(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


# Which tool speaks is seen by the members that only it has.
_SHAPES: Final[tuple[tuple[Callable[[Body], bool], Callable[[Body], Body]], ...]] = (
    (lambda body: body.get("type") == "items.feedback", _chatkit),
    (lambda body: isinstance(body.get("type"), str) and "body" in body, _langfuse_event),
    (lambda body: "metric_name" in body, _tensorzero),
    (lambda body: "key" in body and ("run_id" in body or "trace_id" in body), _langsmith),
    (lambda body: "name" in body and bool({"traceId", "observationId", "sessionId"} & body.keys()), _langfuse),
)
