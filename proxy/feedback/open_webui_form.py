"""Open WebUI's own feedback, said again in our words. Pure.

Owns what a thumb, the scale of 1 to 10, a reason and a comment are worth here. It also tells how a message of a chat
reads to a model. As Open WebUI 0.12.4 keeps both. Not here: which completion is meant (open_webui).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from proxy.core.errors import BadRequest
from store.records import Scale

MAX_TEXT: Final = 20_000  # characters of a comment; what is over it is cut
MOST_MESSAGES: Final = 2000
LONGEST_ID: Final = 100
_MIDDLE, _HALF = 5.5, 4.5  # of 1 to 10
# What the person chose beside the thumb, in Open WebUI's own words; "other" says nothing.
_REASONS: Final = {
    "accurate_information": "Accurate information",
    "followed_instructions_perfectly": "Followed instructions perfectly",
    "showcased_creativity": "Showcased creativity",
    "positive_attitude": "Positive attitude",
    "attention_to_detail": "Attention to detail",
    "thorough_explanation": "Thorough explanation",
    "dont_like_the_style": "Don't like the style",
    "too_verbose": "Too verbose",
    "not_helpful": "Not helpful",
    "not_factually_correct": "Not factually correct",
    "didnt_fully_follow_instructions": "Didn't fully follow instructions",
    "refused_when_it_shouldnt_have": "Refused when it shouldn't have",
    "being_lazy": "Being lazy",
    "other": "",
}
# Blocks that Open WebUI puts into the text of a message, where it keeps no `output` beside it.
_BLOCKS: Final = (('<details type="', "</details>"), ("<think>", "</think>"))


class OpenWebUIVote(NamedTuple):
    """One feedback."""

    id: str
    user_id: str | None
    chat: str | None
    model: str
    value: float
    scale: Scale
    word: str  # for people
    comment: str
    changed_at: float  # when it was last changed, in Unix seconds


def parse_vote(feedback: Mapping[str, Any]) -> OpenWebUIVote:
    """Raises BadRequest."""
    data, meta = _object(feedback, "data"), _object(feedback, "meta")
    id = feedback.get("id")
    if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
        raise BadRequest("A feedback of Open WebUI has an `id`; nothing was stored.", param="feedback")
    thumb, ten = data.get("rating"), _object(data, "details").get("rating")
    if isinstance(thumb, bool) or thumb not in (1, -1, "1", "-1"):
        raise BadRequest("This feedback of Open WebUI has no 👍 and no 👎; nothing was stored.", param="feedback")
    up = thumb in (1, "1")
    value, scale, word = (1.0, "thumb", "good") if up else (-1.0, "thumb", "bad")
    # One of 10 on the other side is left from before the thumb was turned.
    if isinstance(ten, int) and not isinstance(ten, bool) and 1 <= ten <= 10 and (ten > _MIDDLE) == up:
        value, scale, word = round((ten - _MIDDLE) / _HALF, 4), "unit", f"{ten} of 10"
    changed_at = feedback.get("updated_at")
    return OpenWebUIVote(
        id,
        _text(feedback, "user_id"),
        _text(meta, "chat_id"),
        _text(data, "model_id") or "",
        value,
        "thumb" if scale == "thumb" else "unit",
        word,
        _comment(data),
        float(changed_at) if isinstance(changed_at, int | float) and not isinstance(changed_at, bool) else 0.0,
    )


def chat_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """A path of a chat, from its first message on, as a model is sent it. Raises BadRequest."""
    if len(messages) > MOST_MESSAGES:
        raise BadRequest(f"A chat of over {MOST_MESSAGES} messages is not looked through; nothing was stored.")
    history: list[dict[str, Any]] = []
    for message in messages:
        if not isinstance(message, Mapping):
            raise BadRequest("`messages` must be objects, as Open WebUI keeps them.", param="messages")
        if message.get("role") == "user":
            history.append({"role": "user", "content": _text(message, "content") or ""})
        elif message.get("role") == "assistant":
            history += answers(message)
    return history


def answers(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One message of the assistant is several answers of a model, where tools were called between them."""
    output = message.get("output")
    if not isinstance(output, list) or not output:
        return [{"role": "assistant", "content": plain(_text(message, "content") or "")}]
    messages: list[dict[str, Any]] = []
    texts: list[str] = []
    calls: list[dict[str, Any]] = []

    def end() -> None:
        if texts or calls:
            answer: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
            messages.append({**answer, "tool_calls": list(calls)} if calls else answer)
        texts.clear()
        calls.clear()

    for item in output:
        kind = item.get("type") if isinstance(item, Mapping) else None
        if kind == "message":
            texts.append(_parts(item.get("content")))
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            calls.append({"type": "function", "id": item.get("call_id"), "function": function})
        elif kind == "function_call_output":
            end()
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": _parts(item.get("output"))}
            )
    end()
    return messages


def plain(text: str) -> str:
    """Without reasoning and calls; in one pass, whatever the model wrote."""
    for begin, end in _BLOCKS:
        text = _without(text, begin, end)
    return text.strip()


def _without(text: str, begin: str, end: str) -> str:
    parts, position = [], 0
    while (start := text.find(begin, position)) >= 0 and (stop := text.find(end, start)) >= 0:
        parts.append(text[position:start])
        position = stop + len(end)
    return "".join(parts) + text[position:]


def _comment(data: Mapping[str, Any]) -> str:
    reason, words = (_text(data, "reason") or "").strip(), (_text(data, "comment") or "").strip()
    reason = _REASONS.get(reason, reason.replace("_", " "))
    return ": ".join(part for part in (reason, words) if part)[:MAX_TEXT]


def _parts(content: Any) -> str:
    if isinstance(content, str):
        return content
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    return "".join(text for part in parts if isinstance(text := part.get("text"), str))


def _object(body: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = body.get(key)
    return value if isinstance(value, Mapping) else {}


def _text(body: Mapping[str, Any], key: str) -> str | None:
    value = body.get(key)
    return value if isinstance(value, str) and value else None
