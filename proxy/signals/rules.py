"""Labels that need no model: what a rule alone can say of what followed an answer.

Owns the labels and their values, and when a tool's result, a message or an act of the client says something. A rule
looks only at places that the agent itself writes, never at text that a page or a file may have brought. Pure functions.
Not here: which answer a signal belongs to (follower), what a model says of it (judge).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from typing import Final, NamedTuple
from unicodedata import combining, normalize

from config.languages import every, written_size
from store.records import SignalKind

VALUES: Final = {
    "correction": -1.0, "redo": -1.0, "complaint": -1.0, "failed": -1.0, "solved": 1.0,
    "nothing": 0.0,  # someone went on, and had nothing to say of the answer
    "unclear": 0.0,  # nobody can tell what was said, or who said it
}  # fmt: skip
RULES: Final = "rules"  # in place of a judge's name
LONGEST_POLITE: Final = 120  # characters
REPEATED: Final = 12  # letters and digits (`written_size`) below which a message said twice may be a greeting or a yes

_WORD: Final = re.compile(r"[^\W_]+")


class Label(NamedTuple):
    """A label of an answer: a label, its value in [-1, 1], and why, for people."""

    name: str
    value: float
    reason: str


def label(name: str, reason: str) -> Label:
    return Label(name, VALUES[name], reason)


def of_kind(kind: SignalKind) -> Label | None:
    """The label that the kind alone gives; None where it takes the words."""
    match kind:
        case "regenerated":
            return label("redo", "the same question was asked again")
        case "edited":
            return label("nothing", "the question changed, which says nothing about the answer")
        case "aborted":
            return label("nothing", "the answer was broken off, which may have any reason")
        case "copied":
            return label("solved", "the answer was copied from the page")
        case _:
            return None


def of_tool(*, marked: bool) -> Label:
    """A tool's result. `marked`: its client says, in a member of its own, that it is an error. The text says nothing:
    a page or a file may begin as agents begin the results of commands."""
    if marked:
        return label("failed", "the client marked the tool's result as an error")
    return label("nothing", "a tool that runs says nothing about the answer")


def of_message(text: str, questions: Collection[str]) -> Label | None:
    """A person's own words; None where it takes a judge. `questions`: what the person had asked before."""
    letters = _letters(text)
    if not letters:
        return label("unclear", "it has no words")
    if written_size(letters) >= REPEATED and any(letters == _letters(question) for question in questions):
        return label("redo", "the person said the same once more")
    if is_polite(text):
        return label("nothing", "politeness is no verdict")
    return None


def is_polite(text: str) -> bool:
    """Nothing but thanks, praise and assent, all in one language: said after good and bad answers alike."""
    if len(text) > LONGEST_POLITE:
        return False
    words = {_plain(word) for word in _WORD.findall(text)}
    return any(words <= polite for polite in _polite_words())


@cache
def _polite_words() -> tuple[frozenset[str], ...]:
    """The words of each language, without accents, as many people type."""
    return tuple(frozenset(map(_plain, language.polite)) for language in every())


def _plain(word: str) -> str:
    """In small letters, without accents."""
    return "".join(letter for letter in normalize("NFKD", word.casefold()) if not combining(letter))


def _letters(text: str) -> str:
    return "".join(_WORD.findall(text)).lower()
