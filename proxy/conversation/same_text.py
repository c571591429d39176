"""Comparison of two conversations: are they the same one, though a client has rewritten it. Pure.

Clients drop the oldest turns, put a summary in their place, and add reminders and files to the newest message only.
They normalise white space, and leave out pictures, reasoning and calls. Owns how much of that two messages may differ
by, and how far two conversations go together, from their ends. Whatever the texts are, that takes time in proportion to
them; off the event loop, since it is much a character. Not here: which completion is meant (answer_on_screen).
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple

from proxy.conversation.conversations import loose_content
from proxy.conversation.user_text import EXCERPT_LENGTH, silent
from proxy.core.agent_wrappers import TEXT_PARTS

_NO_LETTERS: Final = re.compile(r"[\W_]+")
_LONG_NUMBER: Final = re.compile(r"&#[0-9]{8,}")  # of no character: Python refuses to read one of 5,000 digits
_MOST_ADDED: Final = 100  # characters that a client adds to an answer that was broken off
LONGEST: Final = 1 << 19  # characters of a text that may differ from another at all and still be the same
COUNTED_LENGTH: Final = 1000  # characters of a message whose letters are counted: a conversation is known by far fewer
_MARKS: Final = 30  # on one letter; more of them stand by themselves, as in Unicode's Stream-Safe Text Format
_JOINER: Final = "\u034f"  # which no mark is moved across


class Similarity(IntEnum):
    """How alike two texts are."""

    NOT = 0
    END = 1  # one of them shows more above the other: what its model said before a call, and the call
    LETTERS = 2  # in letters and digits: marks were lost, or written otherwise
    SPACES = 3  # but for white space
    EXACT = 4


class MessageText(NamedTuple):
    """Text of one message."""

    role: str
    text: str


class TextOverlap(NamedTuple):
    """How far two conversations go together, from their ends."""

    messages: int  # that are the same
    letters: int  # in the beginnings of them, and digits
    whole: bool  # the first one to its beginning: nothing in it speaks against the other


def text_in(message: Mapping[str, Any]) -> str:
    """The words of a message, without agents' blocks and reasoning; pictures and files say none."""
    content = loose_content(message)
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    texts = (p.get("text") for p in content if isinstance(p, Mapping) and p.get("type") in TEXT_PARTS)
    return "\n".join(text for text in texts if isinstance(text, str)).strip()


def spoken_texts(messages: Sequence[Mapping[str, Any]]) -> list[MessageText]:
    """Texts of people and the model. Results of tools and mere calls come and go in clients."""
    texts = []
    for message in messages:
        role = str(message.get("role"))
        if role in ("user", "assistant") and not silent(message) and (text := text_in(message)):
            texts.append(MessageText(role, text))
    return texts


class Forms:
    """Texts as they are compared. Each is made once for a search, which compares one text with hundreds."""

    def __init__(self) -> None:
        self._spaced: dict[str, str] = {}
        self._letters: dict[str, str] = {}
        self._lines: dict[str, list[str]] = {}

    def spaced(self, text: str) -> str:
        if (form := self._spaced.get(text)) is None:
            form = self._spaced[text] = _spaced(text)
        return form

    def letters(self, text: str) -> str:
        if (form := self._letters.get(text)) is None:
            form = self._letters[text] = letters_of(text)
        return form

    def lines(self, text: str) -> list[str]:
        if (form := self._lines.get(text)) is None:
            form = self._lines[text] = _lines(text)
        return form


def similarity(first: str, second: str, forms: Forms | None = None) -> Similarity:
    if first.strip() == second.strip():
        return Similarity.EXACT
    if max(len(first), len(second)) > LONGEST:
        return Similarity.NOT
    forms = forms or Forms()
    if forms.spaced(first) == forms.spaced(second):
        return Similarity.SPACES
    letters = forms.letters(first)
    return Similarity.LETTERS if letters and letters == forms.letters(second) else Similarity.NOT


def partial_similarity(visible: str, stored: str, forms: Forms | None = None) -> Similarity:
    """The same for an answer that broke off: a client may have shown less of it, or may say below it that it did."""
    forms = forms or Forms()
    likeness = similarity(visible, stored, forms)
    if likeness is not Similarity.NOT or max(len(visible), len(stored)) > LONGEST:
        return likeness
    first, second = forms.spaced(visible), forms.spaced(stored)
    shorter, longer = sorted((first, second), key=len)
    fits = (
        bool(shorter) and longer.startswith(shorter) and (longer is second or len(longer) - len(shorter) <= _MOST_ADDED)
    )
    return Similarity.SPACES if fits else Similarity.NOT


def whole_turn(visible: str, stored: str, forms: Forms | None = None) -> Similarity:
    """The same for an answer after a tool's result: a client may keep the turn as its screen showed it, as one text."""
    forms = forms or Forms()
    likeness = similarity(visible, stored, forms)
    if likeness is not Similarity.NOT or max(len(visible), len(stored)) > LONGEST:
        return likeness
    lines, visible_lines = forms.lines(stored), forms.lines(visible)
    return (
        Similarity.END
        if 0 < len(lines) < len(visible_lines) and visible_lines[-len(lines) :] == lines
        else Similarity.NOT
    )


def letters_of(text: str) -> str:
    """Letters and digits alone; the whole text where it has none. Marks of Markdown and HTML do not count."""
    plain = html.unescape(_LONG_NUMBER.sub("", _normal("NFKC", text)))
    return _NO_LETTERS.sub("", plain.casefold()) or plain.strip()


def _spaced(text: str) -> str:
    return " ".join(_normal("NFC", text).split())


def _normal(form: Literal["NFC", "NFKC"], text: str) -> str:
    """Python sorts the marks of one letter in time that grows with the square of their number."""
    return unicodedata.normalize(form, text if text.isascii() else _many_marks().sub(rf"\g<0>{_JOINER}", text))


@cache
def _many_marks() -> re.Pattern[str]:
    """So many characters in a row that are marks, or become some; there are none beyond those that are tried."""
    tried = map(chr, range(0x300, 0x20000))
    marks = "".join(c for c in tried if unicodedata.combining(unicodedata.normalize("NFKD", c)[0]))
    return re.compile(f"[{re.escape(marks)}]{{{_MARKS}}}")


def overlap(resent: Sequence[MessageText], original: Sequence[MessageText], forms: Forms | None = None) -> TextOverlap:
    """`resent` is a conversation as it was sent back, `original` as the model had seen it; both from their ends."""
    forms = forms or Forms()
    count = letters = 0
    for mine, theirs in zip(reversed(resent), reversed(original), strict=False):
        if mine.role != theirs.role or not _same(mine, theirs, forms):
            return TextOverlap(count, letters, False)
        count += 1
        letters += min(len(forms.letters(text.text[:COUNTED_LENGTH])) for text in (mine, theirs))
    return TextOverlap(count, letters, count == len(resent))


def asked_alike(text: str, question: str, forms: Forms | None = None) -> bool:
    """Tell whether a question may be the one whose beginning was kept for lists."""
    return len(question) >= EXCERPT_LENGTH or _same(
        MessageText("user", text), MessageText("user", question), forms or Forms()
    )


def _same(first: MessageText, second: MessageText, forms: Forms) -> bool:
    if similarity(first.text, second.text, forms):
        return True
    if first.role != "user" or max(len(first.text), len(second.text)) > LONGEST:
        return False
    return _within(first.text, second.text, forms) or _within(second.text, first.text, forms)


def _within(text: str, longer: str, forms: Forms) -> bool:
    """All of the text, on lines of its own in the longer one, or behind a label at its end (`Question: …`). That is
    where clients put files, context and reminders. Words that go on in the same line are other words."""
    lines, longer_lines = forms.lines(text), forms.lines(longer)
    joined, around = " ".join(lines), " ".join(longer_lines)
    if not joined or len(joined) >= len(around):
        return False
    starts = set(accumulate((len(line) + 1 for line in longer_lines), initial=0))
    if around.startswith(joined) and len(joined) + 1 in starts:
        return True
    if around.endswith(joined) and (
        len(around) - len(joined) in starts or around[: -len(joined)].endswith((": ", "> "))
    ):
        return True
    return "\n".join(("", *lines, "")) in "\n".join(("", *longer_lines, ""))


def _lines(text: str) -> list[str]:
    return [line for part in text.splitlines() if (line := _spaced(part))]
