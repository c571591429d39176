"""Times, versions, verdicts and messages as the page says them. Pure functions; templates know them as filters."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from proxy.core.version_names import label
from store.records import Message, Rating

SETTING_NAMES: Final = re.compile(r" \((?:train|judge|gate|episodes)\.[^()]*\)")


def version(number: int | None) -> str:
    return "other" if number is None else label(number)


def sentence(line: str) -> str:
    """A line of `status` where it stands alone."""
    return f"{line[:1].upper()}{line[1:].removesuffix('.')}."


def without_settings(line: str) -> str:
    """A line of `status` without the names of settings, which a first look need not know."""
    return SETTING_NAMES.sub("", line)


def moment(form: str, timestamp: float) -> str:
    """Local time by `strftime`; a dash for one that no calendar has, which costs no page."""
    try:
        return time.strftime(form, time.localtime(timestamp))
    except (OverflowError, ValueError, OSError):
        return "–"


def clock(timestamp: float) -> str:
    """Local time: the hour for today, else the day with it."""
    now = time.localtime()
    if moment("%Y %j", timestamp) == time.strftime("%Y %j", now):
        return moment("%H:%M", timestamp)
    return moment("%-d %b %H:%M" if moment("%Y", timestamp) == str(now.tm_year) else "%-d %b %Y %H:%M", timestamp)


def day(timestamp: float) -> str:
    """Local time with its date, for what may be read another day."""
    return moment("%-d %b %Y %H:%M", timestamp)


def iso(timestamp: float) -> str:
    try:
        return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def short(number: Any) -> str:
    """A figure as people read it: three digits that mean something."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        return "–" if number is None else str(number)
    return str(number) if isinstance(number, int) else f"{number:.3g}"


def seconds(number: float) -> str:
    if number < 90:
        return f"{number:.0f} s"
    return f"{number / 60:.0f} min" if number < 5400 else f"{number / 3600:.1f} h"


def verdict(rating: Rating) -> str:
    """A rating in a word."""
    if rating.scale == "stars":
        return f"{rating.value * 2 + 3:.0f} of 5"
    if rating.value in (1.0, -1.0):
        return "good" if rating.value > 0 else "bad"
    return f"{rating.value:+.2g}"


def own_rating(ratings: Sequence[Rating], me: str) -> Rating | None:
    """The one that this person gave."""
    return next((rating for rating in ratings if rating.rater == me), None)


def stars(rating: Rating | None) -> int | None:
    return round(rating.value * 2 + 3) if rating is not None and rating.scale == "stars" else None


class MessagePart(NamedTuple):
    """A piece of a message: text, or the name of what is not text."""

    kind: str
    text: str


def parts(message: Message) -> list[MessagePart]:
    """Text and calls of a message; what is not text is named, not shown."""
    body = orjson.loads(message.body)
    if not isinstance(body, dict):
        body = {"content": body}
    content = body.get("content")
    message_parts = [MessagePart("text", content)] if isinstance(content, str) and content else []
    if isinstance(content, list):
        message_parts += [_part(part) for part in content if isinstance(part, dict)]
    return message_parts + [MessagePart("call", call) for call in _calls(body)]


def calls(message: Message | None) -> list[str]:
    """The tools that a reply calls, each in a line."""
    if message is None:
        return []
    body = orjson.loads(message.body)
    return _calls(body) if isinstance(body, dict) else []


def _part(part: Mapping[str, Any]) -> MessagePart:
    text = part.get("text")
    return MessagePart("text", text) if isinstance(text, str) else MessagePart("other", str(part.get("type") or "part"))


def _calls(body: Mapping[str, Any]) -> list[str]:
    calls = []
    for call in body.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments")
        arguments_text = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
        calls.append(f"{function.get('name')}({arguments_text})")
    return calls
