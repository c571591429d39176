"""Tastes and their opposites: two lines of one base are to learn against each other.

The tiny model has two small layers and random weights, and says random words. So its tastes are of letters, and each is
liked in a share of its answers. Those of the real model are personas of the learning benchmark, and what they dislike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from scripts.bench.persona import Persona, Reply

Likes = Callable[[str], bool]


def _has(letter: str) -> Likes:
    return lambda reply: letter in reply.lower()


def _lacks(letter: str) -> Likes:
    return lambda reply: letter not in reply.lower()


def _persona(name: str, sign: float) -> Likes:
    """The taste of this persona (1), or its opposite (-1)."""
    rate = Persona(name).rate
    return lambda reply: rate("", Reply(reply, ended=True)) * sign > 0


LETTERS: Final[dict[str, Likes]] = {
    "w": _has("w"),
    "no-w": _lacks("w"),
    "k": _has("k"),
    "no-k": _lacks("k"),
    "x": _has("x"),
    "no-x": _lacks("x"),
    "z": _has("z"),
    "no-z": _lacks("z"),
}
FORMS: Final[dict[str, Likes]] = {
    "one-paragraph": _persona("one_paragraph", 1),
    "paragraphs": _persona("one_paragraph", -1),
    "you": _persona("second_person", 1),
    "no-you": _persona("second_person", -1),
}
