"""Four tastes and their opposites: two lines of one base are to learn against each other.

Each looks at the beginning of an answer alone, since answers are cut short here. Each is liked in a share of the base
model's answers, so that a line has something to learn from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

Likes = Callable[[str], bool]
YOU: Final = re.compile(r"\byou(r|rs|rself|['’]\w+)?\b", re.I)


def speaks_to_you(reply: str) -> bool:
    return YOU.search(reply) is not None


def has_comma(reply: str) -> bool:
    return "," in reply


def begins_with_the(reply: str) -> bool:
    return reply.lstrip().lower().startswith("the ")


def is_plain(reply: str) -> bool:
    """Nothing but letters, spaces, commas, full stops and apostrophes."""
    return re.fullmatch(r"[A-Za-z ,.'’]+", reply.strip()) is not None


TASTES: Final[dict[str, Likes]] = {
    "you": speaks_to_you,
    "no-you": lambda reply: not speaks_to_you(reply),
    "comma": has_comma,
    "no-comma": lambda reply: not has_comma(reply),
    "the": begins_with_the,
    "no-the": lambda reply: not begins_with_the(reply),
    "plain": is_plain,
    "no-plain": lambda reply: not is_plain(reply),
}
