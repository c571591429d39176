"""What no reply should be, whoever wrote it. Owns the tests that gate and teacher share; not what follows from them."""

from __future__ import annotations

from collections.abc import Sequence


def loops(ids: Sequence[int], gram: int = 4) -> bool:
    """More than half of its 4-grams were there before. Prose has a tenth, a numbered list a third."""
    return len(ids) - gram + 1 >= 2 * gram and repeated(ids, gram) > 0.5


def repeated(ids: Sequence[int], gram: int = 4) -> float:
    """The share of 4-grams that were there before."""
    grams = [tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
