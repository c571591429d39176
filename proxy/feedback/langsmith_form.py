"""Feedback in the words of LangSmith's client, said again in ours. Pure.

Owns what its `create_feedback` sends, as far as it means the same here. What does not is refused, never guessed. A
score of "toxicity" is not a rating. A number is one only where 1 is known to be the best.
"""

from __future__ import annotations

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


def to_own_format(body: Body) -> Body:
    """In our words; a body that is in our words already is returned as it is. Raises BadRequest."""
    if "rating" in body or "key" not in body or not {"run_id", "trace_id"} & body.keys():
        return body
    _is_a_rating(body["key"])
    correction = body.get("correction")
    if correction is not None and not isinstance(correction, str):
        raise BadRequest("`correction` must be text, the reply that would have been right.", param="correction")
    score = body.get("score") if body.get("score") is not None else body.get("value")
    if score is None and correction is None:
        raise BadRequest("A comment alone is not a rating: send a `score` with it.", param="score")
    rating = {"rating": "bad"} if score is None else _worth(score)
    translated = {
        "completion_id": body.get("run_id") or body.get("trace_id"),
        **rating,
        "comment": body.get("comment"),
        "correction": correction,
        "source": "langsmith",
        "source_event_id": body.get("id"),
    }
    return {key: value for key, value in translated.items() if value is not None}


def _is_a_rating(name: Any) -> None:
    plain = str(name).strip().lower().replace("-", "_").replace(" ", "_")
    if plain not in NAMES and not plain.endswith(ENDINGS):
        raise BadRequest(
            f"A score named {str(name)[:100]!r} is not known to be a person's rating; name it user_score, or send our "
            "own fields.",
            param="key",
        )


def _worth(value: Any) -> Body:
    """0 to 1 with 1 the best, true or false, or a word."""
    if isinstance(value, bool):
        return {"rating": value}
    if isinstance(value, int | float) and 0 <= value <= 1:
        return {"rating": bool(value)} if value in (0, 1) else {"rating": 2 * value - 1, "scale": "unit"}
    if isinstance(value, str) and (word := _WORDS.get(value.strip().lower().replace("-", "_").replace(" ", "_"))):
        return {"rating": word}
    raise BadRequest("`score` must be from 0 to 1, true or false, or a word as good and bad.", param="score")
