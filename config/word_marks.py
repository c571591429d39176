"""A mark of some words: enough to notice that they were changed, too short to tell what they were.

Owns the mark alone. Where words are forgotten, their mark may stay. Not here: what is marked (trainer.run.lesson_gaps,
store.learning.lessons).
"""

from __future__ import annotations

import zlib


def mark_of(text: str) -> int:
    """A number below 65,536; the same for the same words, whatever spaces are around them."""
    return zlib.crc32(text.strip().encode("utf-8", "surrogatepass")) & 0xFFFF
