"""Work on large bodies, off the event loop: 30 MB of pictures must not keep others waiting.

Owns what is large. Most requests are not, and a thread would cost them more than it saves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

LARGE: Final = 1 << 20
OBJECT: Final = 256  # bytes that an object counts as: an empty message is looked at as often as any other
ITEM: Final = 16  # bytes that any other member, or a list, does
LIGHT: Final = LARGE // (OBJECT + ITEM)  # bytes that are never large, whatever they say


class Marks(NamedTuple):
    """Numbers of brackets and commas in JSON, those in its texts among them."""

    objects: int
    lists: int
    commas: int


def marks(raw: bytes, start: int = 0) -> Marks:
    """Those from this byte on."""
    return Marks(raw.count(b"{", start), raw.count(b"[", start), raw.count(b",", start))


def weight(raw: bytes, counted: Marks | None = None) -> int:
    """Bytes that this JSON counts as: work takes as long as there are bytes, or as there are things in it.

    A bracket or a comma in a text counts, too. That costs a thread where none is needed, and no count can be evaded.
    `counted`: its marks, where they are known.
    """
    if len(raw) < LIGHT or len(raw) >= LARGE:  # or large in any case
        return len(raw)
    found = counted or marks(raw)
    return len(raw) + OBJECT * found.objects + ITEM * (found.commas + found.lists)


def length(value: Any) -> int:
    """Characters in a value of JSON, about; however deep it is."""
    total, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        else:
            total += 1
    return total


async def off_loop(size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work` on so many bytes, or what they count as. It must not touch what the loop may change meanwhile."""
    return await off_loop_above(LARGE, size, work, *args, **kwargs)


async def off_loop_above(least: int, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The same for work that takes longer a byte."""
    return work(*args, **kwargs) if size < least else await asyncio.to_thread(work, *args, **kwargs)
