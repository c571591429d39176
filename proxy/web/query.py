"""The query of a request, checked: a flag, a number, a turn.

Owns the sentences for what it must not say. What it means belongs to the routes.
"""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from proxy.core.errors import BadRequest
from store.records import Turn

_FLAGS: Final = {"": True, "1": True, "true": True, "0": False, "false": False}


def flag(request: web.Request, key: str) -> bool:
    """`?key` is true, as is `?key=true`; `?key=false` is not."""
    value = request.query.get(key)
    if value is None:
        return False
    if value not in _FLAGS:
        raise BadRequest(f"`{key}` must be true or false.", param=key)
    return _FLAGS[value]


def turn(request: web.Request) -> Turn | None:
    match request.query.get("turn"):
        case None:
            return None
        case "main":
            return "main"
        case "side":
            return "side"
        case _:
            raise BadRequest("`turn` must be main or side.", param="turn")


def number(request: web.Request, key: str, default: Any, low: int, high: int) -> Any:
    value = request.query.get(key)
    if value is None:
        return default
    if not value.isdecimal() or len(value) > 19 or not low <= int(value) <= high:
        raise BadRequest(f"`{key}` must be a number from {low} to {high}.", param=key)
    return int(value)
