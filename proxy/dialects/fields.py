"""Members of a request body: those that rlproxy has to read, and those that it reads as far as it can.

Owns the sentences that tell a client which member is wrong. What a member means belongs to the dialects. What rlproxy
need not read is the backend's to refuse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from proxy.core.errors import BadRequest, Unreadable

T = TypeVar("T")

MAX_CHOICES = 128  # OpenAI's own limit
_TRUE = ("1", "on", "t", "true", "y", "yes")  # texts that pydantic, and so most servers in Python, take for true
_KIND: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)
MOST_KINDS: Final = 20
_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "an integer"}


def an_object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


def member(body: Mapping[str, Any], key: str, kind: type[T], default: T, *, within: str = "") -> T:
    """The member, or `default` where it is missing or null. Raises Unreadable where it is of another type."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Unreadable(f"`{within}{key}` must be {_NAMES[kind]}, not {type(value).__name__}.", param=within + key)
    return value


def objects(body: Mapping[str, Any], key: str, *, within: str = "") -> list[dict[str, Any]]:
    """A list of objects; empty where it is missing or null."""
    items: list[Any] = member(body, key, list, [], within=within)
    for i, item in enumerate(items):
        if not isinstance(item, dict):
            raise Unreadable(f"`{within}{key}[{i}]` must be an object.", param=f"{within}{key}[{i}]")
    return items


def numbers(body: Mapping[str, Any], keys: Iterable[str]) -> tuple[dict[str, float], tuple[str, ...]]:
    """Those of `keys` that are set, as numbers; and those of which only the server knows what it takes them for."""
    values: dict[str, float] = {}
    unclear: list[str] = []
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        number = _number(value)
        if number is None or isinstance(value, str):
            unclear.append(key)
        if number is not None:
            values[key] = number
    return values, tuple(unclear)


def _number(value: Any) -> float | None:
    """A number, or the one that a text is; some servers take it for that."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def flag(body: Mapping[str, Any], key: str, default: bool) -> bool:
    """The member as a boolean, also where it is a text or a number that servers take for one."""
    value = body.get(key)
    if value is None:
        return default
    return value.strip().lower() in _TRUE if isinstance(value, str) else value == 1


def basics(body: Any) -> tuple[str, bool, int]:
    """Model, whether to stream, and how many answers (`n`). Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    model, stream, n = body.get("model"), body.get("stream"), body.get("n")
    if type(model) is str and (stream is None or type(stream) is bool) and n is None:  # as most
        return model, bool(stream), 1
    return member(body, "model", str, ""), flag(body, "stream", False), count(body)


def count(body: Mapping[str, Any]) -> int:
    """`n`: how many answers are wanted; 1 where it is not a number that makes sense. Raises BadRequest for more than
    rlproxy takes."""
    n = _number(body.get("n"))
    if n is None or n < 1 or n != int(n):
        return 1
    if n > MAX_CHOICES:
        raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
    return int(n)


def kinds(types: Iterable[str]) -> list[str]:
    """The different ones of these types, fit for a header whatever a client wrote."""
    return list(dict.fromkeys(type if _KIND.fullmatch(type) else "unknown" for type in types))[:MOST_KINDS]
