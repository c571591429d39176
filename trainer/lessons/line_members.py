"""Members of a line of samples.jsonl, with their types checked.

Owns the sentences that say which member is wrong. What a member means is in samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

# Parts of messages that are no text, by their names in chat form.
MEDIA: Final = {"image_url": "has_image", "image": "has_image", "input_audio": "has_audio", "file": "has_file"}


class BadLine(Exception):
    """One reason why this line cannot be used. A bad line costs that line."""


class TooLong(BadLine):
    """Longer than max_seq_len, and no turn can be left out."""


def ids_in(line: Mapping[str, Any], name: str, vocabulary: int) -> tuple[int, ...]:
    ids = line.get(name)
    if not isinstance(ids, list) or not ids:
        raise BadLine(f"says exact but has no {name}")
    for i in ids:
        if type(i) is not int or not 0 <= i < vocabulary:
            raise BadLine(f"{name} holds {i!r}, which this model's {vocabulary} tokens do not have")
    return tuple(ids)


def text_in(line: Mapping[str, Any], name: str) -> str | None:
    text = line.get(name)
    if text is not None and not isinstance(text, str):
        raise BadLine(f"{name} is {text!r}, not a text")
    return (text or "").strip() or None


def number_in(line: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = line.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadLine(f"{name} is {value!r}, not a number")
    return float(value)


def media_in(messages: Any) -> str | None:
    """Exact ids do not help: those of a picture are placeholders."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and (kind := MEDIA.get(str(part.get("type")))) is not None:
                return kind
    return None
