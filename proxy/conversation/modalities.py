"""Why a completion never trains, in one word that is stored with it and shown.

Owns the kinds of parts that training, which sees text, cannot see. What a dialect's own members keep from training it
says itself (`ParsedRequest.untrainable`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_KINDS: Final = {
    "image_url": "has_image", "image": "has_image", "input_image": "has_image",
    "input_audio": "has_audio", "audio": "has_audio", "audio_url": "has_audio",
    "video_url": "has_video", "video": "has_video",
    "file": "has_file", "input_file": "has_file", "document": "has_file",
    "item_reference": "has_reference",
}  # fmt: skip


def first_non_text(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The first thing in these messages that is not text."""
    for message in messages:
        if message.get("audio"):  # a spoken answer
            return "has_audio"
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and (kind := _KINDS.get(str(part.get("type")))) is not None:
                return kind
    return None
