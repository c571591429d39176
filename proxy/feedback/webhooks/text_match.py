"""Which recent answer a chat message shows, by its text. Pure.

Platforms mark up what is posted (`*bold*`, `&amp;`, links), so only letters and digits are compared. A long answer
may have been split over messages, or posted with a footer: then one must contain the other. Anything that fits two
answers fits none.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from store.learning.reactions import SeenAnswer

_NON_WORDS: Final = re.compile(r"[\W_]+")
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{8,}")  # of no character: Python refuses to read one of 5,000 digits
PART: Final = 60  # letters and digits that are enough to know a part of an answer by


class TextMatch(NamedTuple):
    completion_id: str | None
    reason: str = ""  # where there is none
    ambiguous: bool = False


def match(text: str, recent: Sequence[SeenAnswer]) -> TextMatch:
    target = _words(text)
    if not target:
        return TextMatch(None, "the message has no text to know its answer by")
    texts = [(answer.completion_id, _words(answer.text)) for answer in recent]
    ids = [id for id, words in texts if words == target]
    if not ids:
        ids = [
            id for id, words in texts if min(len(words), len(target)) >= PART and (target in words or words in target)
        ]
    if len(ids) > 1:
        return TextMatch(None, f"{len(ids)} recent answers have that text, and nothing says which one this is", True)
    return TextMatch(ids[0]) if ids else TextMatch(None, "no recent answer has that text")


def _words(text: str) -> str:
    """Letters and digits alone; the whole text where it has none."""
    plain = _LONG_NUMBER.sub("", text)
    plain = html.unescape(plain)
    return _NON_WORDS.sub("", plain.casefold()) or plain.strip()
