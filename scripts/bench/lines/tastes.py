"""Four tastes and their opposites: two lines of one base are to learn against each other.

The model has two small layers and random weights, and says random words. So a taste is of letters, and each is liked in
a share of its answers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

Likes = Callable[[str], bool]


def _has(letter: str) -> Likes:
    return lambda reply: letter in reply.lower()


def _lacks(letter: str) -> Likes:
    return lambda reply: letter not in reply.lower()


TASTES: Final[dict[str, Likes]] = {
    "w": _has("w"),
    "no-w": _lacks("w"),
    "k": _has("k"),
    "no-k": _lacks("k"),
    "x": _has("x"),
    "no-x": _lacks("x"),
    "z": _has("z"),
    "no-z": _lacks("z"),
}
