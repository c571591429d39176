"""Why a completion never trains, in one word that is stored with it and shown.

Owns the kinds of parts that training, which sees text, cannot see. What a dialect's own members keep from training it
says itself (`ParsedRequest.untrainable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.images.parts import IMAGE_PARTS, is_inline, url_of

IMAGE: Final = "has_image"
REMOTE: Final = "remote_image"  # named by an address or an id: rlproxy fetches nothing, so it has not seen it
TOO_MANY: Final = "too_many_images"
FURTHER: Final = "further_model"  # of `[models.NAME]`: whatever is in it
IMAGE_REASONS: Final = (IMAGE, REMOTE, TOO_MANY)
_KINDS: Final = {
    "input_audio": "has_audio", "audio": "has_audio", "audio_url": "has_audio",
    "video_url": "has_video", "video": "has_video",
    "file": "has_file", "input_file": "has_file", "document": "has_file",
    "item_reference": "has_reference",
}  # fmt: skip
WORDS: Final = {
    IMAGE: "has a picture",
    REMOTE: "remote image",
    TOO_MANY: "more pictures than images.max_per_prompt",
    FURTHER: "a further model answered, and only the home's own model trains",
    "flagged": "liked, and flagged by your own check",
}


def first_non_text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The first thing in these messages that is not text; a picture that came with them only where nothing else is."""
    reason: str | None = None
    for message in messages:
        reason = decisive(reason, _first_in(message))
    return reason


def decisive(reason: str | None, next_reason: str | None) -> str | None:
    """Choose the reason that is stored: the first, but for a picture that came along."""
    return next_reason or reason if reason in (None, IMAGE) else reason


def in_words(reason: str) -> str:
    """A reason as people read it."""
    return WORDS.get(reason, reason)


def _first_in(message: Mapping[str, Any]) -> str | None:
    reason: str | None = None
    content = message.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping):
            reason = decisive(reason, _kind(part))
    return decisive(reason, "has_audio" if message.get("audio") else None)  # a spoken answer


def _kind(part: Mapping[str, Any]) -> str | None:
    kind = str(part.get("type"))
    if kind in IMAGE_PARTS:
        return IMAGE if is_inline(url_of(part)) else REMOTE
    return _KINDS.get(kind)
