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

_OTHER: Final = re.compile(r"[\W_]+")
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{8,}")  # of no character: Python refuses to read one of 5,000 digits
PART: Final = 60  # letters and digits that are enough to know a part of an answer by


class TextMatch(NamedTuple):
    completion_id: str | None
    why: str = ""  # where there is none
    ambiguous: bool = False


def match(text: str, recent: Sequence[SeenAnswer]) -> TextMatch:
    wanted = _words(text)
    if not wanted:
        return TextMatch(None, "the message has no text to know its answer by")
    texts = [(one.completion_id, _words(one.text)) for one in recent]
    found = [id for id, words in texts if words == wanted]
    if not found:
        found = [
            id for id, words in texts if min(len(words), len(wanted)) >= PART and (wanted in words or words in wanted)
        ]
    if len(found) > 1:
        return TextMatch(None, f"{len(found)} recent answers have that text, and nothing says which one this is", True)
    return TextMatch(found[0]) if found else TextMatch(None, "no recent answer has that text")


def _words(text: str) -> str:
    """Letters and digits alone; the whole text where it has none."""
    plain = _LONG_NUMBER.sub("", text)
    plain = html.unescape(plain)
    return _OTHER.sub("", plain.casefold()) or plain.strip()
