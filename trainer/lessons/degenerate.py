"""Defects that no reply should have. Owns the tests that gate, teacher and samples share; not what follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Flag = Literal["empty", "looping", "truncated", "broken-off", "shortened"]


def flags(reply: Sequence[int], text: str, finish_reason: str | None) -> tuple[Flag, ...]:
    """Flags of a rated reply; `text` is what its tokens say."""
    flags: list[Flag] = []
    if not text.strip():
        flags.append("empty")
    if is_looping(reply):
        flags.append("looping")
    if finish_reason == "length":
        flags.append("truncated")
    if finish_reason is None:
        flags.append("broken-off")  # the stream was cut: the person rated what had come
    return tuple(flags)


def is_looping(ids: Sequence[int], gram: int = 4) -> bool:
    """More than half of its 4-grams were there before. Prose has a tenth, a numbered list a third."""
    return len(ids) - gram + 1 >= 2 * gram and repeated_share(ids, gram) > 0.5


def repeated_share(ids: Sequence[int], gram: int = 4) -> float:
    """The share of 4-grams that were there before."""
    grams = [tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
