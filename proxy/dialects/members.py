"""Members of a request read with their types: what is wrong with one is said with its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.errors import BadRequest

MAX_CHOICES = 128  # OpenAI's own limit


def typed(body: Mapping[str, Any], key: str, kind: type, default: Any) -> Any:
    value = body.get(key)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise BadRequest(f"`{key}` must be a {kind.__name__}, not {type(value).__name__}.", param=key)
    return value


def number(body: Mapping[str, Any], key: str) -> bool:
    """Whether it is there; raises where it is, and is no number."""
    value = body.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise BadRequest(f"`{key}` must be a number, not {type(value).__name__}.", param=key)
    return value is not None


def count(body: Mapping[str, Any]) -> int:
    n = typed(body, "n", int, 1)
    if isinstance(n, bool) or not 1 <= n <= MAX_CHOICES:
        raise BadRequest(f"`n` must be between 1 and {MAX_CHOICES}.", param="n")
    return int(n)
