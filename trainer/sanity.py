"""What no reply should be, whoever wrote it. Owns the tests that gate and teacher share; not what follows from them."""

from __future__ import annotations

from collections.abc import Sequence


def loops(ids: Sequence[int], gram: int = 4) -> bool:
    """More than half of its 4-grams were there before. Prose has a tenth, a numbered list a third."""
    grams = [tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1)]
    return len(grams) >= 2 * gram and len(set(grams)) < 0.5 * len(grams)
