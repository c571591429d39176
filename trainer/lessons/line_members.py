"""Members of a line of samples.jsonl, with their types checked.

Owns the sentences that say which member is wrong. What a member means is in samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

# Parts of messages that are no text, by their names in chat form.
PICTURE: Final = "image"  # the type of a part that stands for a picture of the run: its other member is `sha256`
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
    """The first thing that training cannot see: all but text, and pictures that came with the run. Exact ids do not
    help: those of a picture are placeholders."""
    return next((kind for part in _parts(messages) if "sha256" not in part and (kind := _medium(part))), None)


def pictures_in(messages: Any) -> list[str]:
    """The names of the pictures that came with the run, in their order. Raises BadLine where one is refused."""
    names = []
    for part in _parts(messages):
        if part.get("type") == PICTURE and "sha256" in part:
            if part.get("refused"):
                raise BadLine(f"a picture of it was refused: {part['refused']}")
            names.append(str(part["sha256"]))
    return names


def newest_pictures(messages: Any) -> list[str]:
    """The names of the pictures in the newest message that has some: a reply answers these."""
    for message in reversed(messages if isinstance(messages, list | tuple) else ()):
        if names := pictures_in([message]):
            return names
    return []


def has_pictures(messages: Any) -> bool:
    return any(part.get("type") == PICTURE and "sha256" in part for part in _parts(messages))


def _medium(part: Mapping[str, Any]) -> str | None:
    return MEDIA.get(str(part.get("type")))


def _parts(messages: Any) -> Iterator[Mapping[str, Any]]:
    for message in messages if isinstance(messages, list | tuple) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part
