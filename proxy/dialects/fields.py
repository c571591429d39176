"""Members of a request body, with their types checked.

Owns the sentences that tell a client which member is wrong. What a member means belongs to the dialects.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from proxy.core.errors import BadRequest

T = TypeVar("T")

MAX_CHOICES = 128  # OpenAI's own limit
_KIND: Final = re.compile(r"[\w.-]{1,64}", re.ASCII)
MOST_KINDS: Final = 20
_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "an integer"}


def an_object(body: Any) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    return body


def member(body: Mapping[str, Any], key: str, kind: type[T], default: T, *, within: str = "") -> T:
    """The member, or `default` where it is missing or null. Raises BadRequest where it is of another type."""
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise BadRequest(f"`{within}{key}` must be {_NAMES[kind]}, not {type(value).__name__}.", param=within + key)
    return value


def objects(body: Mapping[str, Any], key: str, *, within: str = "") -> list[dict[str, Any]]:
    """A list of objects; empty where it is missing or null."""
    found: list[Any] = member(body, key, list, [], within=within)
    for i, item in enumerate(found):
        if not isinstance(item, dict):
            raise BadRequest(f"`{within}{key}[{i}]` must be an object.", param=f"{within}{key}[{i}]")
    return found


def numbers(body: Mapping[str, Any], keys: Iterable[str], *, within: str = "") -> dict[str, float]:
    """Those of `keys` that are set."""
    found = {}
    for key in keys:
        value = body.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadRequest(f"`{within}{key}` must be a number, not {type(value).__name__}.", param=within + key)
        if not math.isfinite(value):
            raise BadRequest(f"`{within}{key}` must be a finite number.", param=within + key)
        found[key] = float(value)
    return found


def basics(body: Any) -> tuple[str, bool, int]:
    """Model, whether to stream, and how many answers (`n`). Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest("The body must be a JSON object.")
    model, stream, n = body.get("model"), body.get("stream"), body.get("n")
    if type(model) is str and (stream is None or type(stream) is bool) and n is None:  # as most
        return model, bool(stream), 1
    return member(body, "model", str, ""), member(body, "stream", bool, False), count(body)


def count(body: Mapping[str, Any]) -> int:
    """`n`: how many answers are wanted."""
    n = member(body, "n", int, 1)
    if not 1 <= n <= MAX_CHOICES:
        raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
    return n


def kinds(types: Iterable[str]) -> list[str]:
    """The different ones of these types, fit for a header whatever a client wrote."""
    return list(dict.fromkeys(type if _KIND.fullmatch(type) else "unknown" for type in types))[:MOST_KINDS]
