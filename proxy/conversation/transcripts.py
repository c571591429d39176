"""A transcript inside one text: whose words stand where, as `User: …` and `Assistant: …` label them.

Owns the labels. A label begins a line, possibly behind brackets or stars, or is a member `content` of JSON. The words
may stand in a tag behind it. Each text is read once, line by line, so that the time grows with its length only.
Not here: what a quotation means (side_requests).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from config.languages import every
from proxy.conversation.user_text import PREFIX

ENDS: Final = 20_000  # characters of a text that are read, at either end
KNOWN_BY: Final = 120  # characters by which a quoted message is known: many quote no more of it
Speaker = Literal["person", "model", "either"]

_SPEAKERS: Final[dict[str, Speaker]] = {
    **{label: "person" for language in every() for label in language.speakers["person"]},
    **{label: "model" for language in every() for label in language.speakers["model"]},
}
_LONGEST: Final = max(map(len, _SPEAKERS))
_MARKS: Final = 6  # characters before a label, and behind it
_LABEL: Final = re.compile(rf"\n[^\w\n]{{0,{_MARKS}}}(?:{'|'.join(map(re.escape, _SPEAKERS))})(?!\w)")
_PUNCTUATION: Final = frozenset(":：;,.()[]{}*_=#|>-–— \n")  # of these, where the words may begin with any other
_TAG: Final = 100  # characters of a tag behind a label
_KEYS: Final = ('"content"', '"text"')
_ROLE: Final = 60  # characters before such a key, in which JSON says the role
SHORT: Final = 24  # characters: fewer may be how other words begin, too
_ENDINGS: Final = ("\n", '"', "<", "...", "…", "\\n")  # right behind quoted words
_TRIES: Final = 20  # places of the same words in one text


class Words(NamedTuple):
    """Words in a transcript."""

    speaker: Speaker
    label: int  # where the label begins
    start: int  # where the words do
    is_marked: bool  # by a colon or the end of the line: else any line could begin so


class Transcript:
    """A normalised text and the words in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts: dict[int, Speaker] = {}  # every offset at which a speaker's words may begin
        self.words = sorted([*self._labelled_lines(), *self._members()], key=lambda words: words.start)

    def _labelled_lines(self) -> Iterator[Words]:
        offset = 0
        for line in self.text.split("\n"):
            if (label := label_of(line)) is not None:
                yield self._words_after(offset + label[0], offset + label[1], _SPEAKERS[line[label[0] : label[1]]])
            offset += len(line) + 1

    def _words_after(self, label: int, end: int, speaker: Speaker) -> Words:
        text, marks = self.text, end
        while marks < min(len(text), end + _MARKS) and not (text[marks].isalnum() or text[marks] == "_"):
            marks += 1
        for start in range(end, marks + 1):
            self._starts[start] = speaker
        start = end
        while start < marks and text[start] in _PUNCTUATION:
            start += 1
        if (start_in_tag := self._after_tag(start)) is not None:
            self._starts[start_in_tag] = speaker
            start = start_in_tag
        near = text[end : end + 4]
        return Words(speaker, label, start, ":" in near or "：" in near or "\n" in near or len(near) < 4)

    def _after_tag(self, start: int) -> int | None:
        if not self.text.startswith("<", start):
            return None
        end = self.text.find(">", start, start + _TAG)
        if end < 0 or "\n" in self.text[start:end]:
            return None
        return end + 2 if self.text[end + 1 : end + 2] in ("\n", " ") else end + 1

    def _members(self) -> Iterator[Words]:
        """Strings that are members of JSON."""
        for key in _KEYS:
            position = self.text.find(key)
            while position >= 0:
                start = position + len(key)
                for mark in (":", '"'):
                    start += self.text.startswith(" ", start)
                    if not self.text.startswith(mark, start):
                        break
                    start += 1
                else:
                    head = self.text[max(0, position - _ROLE) : position]
                    person, model = head.rfind('"user"'), head.rfind('"assistant"')
                    speaker: Speaker = "either" if person == model else "person" if person > model else "model"
                    self._starts[start] = speaker
                    yield Words(speaker, position, start, speaker != "either")
                position = self.text.find(key, start)

    def find(self, words: str, speaker: Speaker, start: int = 0) -> int | None:
        """Where this speaker's words begin so, right behind their label."""
        for _ in range(_TRIES):
            if (position := self.text.find(words, start)) < 0:
                return None
            if self._starts.get(position) in (speaker, "either") and self._is_whole(words, position):
                return position
            start = position + 1
        return None

    def begins_with(self, words: str, start: int) -> bool:
        """Tell whether the words at `start` are these, or long ones that begin so."""
        return self.text.startswith(words, start) and self._is_whole(words, start)

    def _is_whole(self, words: str, start: int) -> bool:
        end = start + len(words)
        return len(words) >= SHORT or end == len(self.text) or self.text.startswith(_ENDINGS, end)

    def persons(self) -> Iterator[tuple[Words, bool]]:
        """The words of a person, the newest first, each with whether the model answers it there."""
        for index in range(len(self.words) - 1, -1, -1):
            words = self.words[index]
            if words.speaker == "person" and words.is_marked:
                yield words, self._is_answered(index)

    def _is_answered(self, index: int) -> bool:
        if index + 1 == len(self.words) or self.words[index + 1].speaker != "model":
            return False
        answer = self.words[index + 1]
        end = self.words[index + 2].label if index + 2 < len(self.words) else len(self.text)
        return bool(self.text[answer.start : end].strip())

    def is_command(self, words: Words) -> bool:
        return PREFIX.match(self.text, words.start) is not None

    def commands(self) -> Iterator[int]:
        """Where each exchange of a `/rl` line and our answer ends."""
        for words, answer in zip(self.words, self.words[1:], strict=False):
            is_ours = answer.speaker == "model" and self.text.startswith("rlproxy: ", answer.start)
            if is_ours and words.speaker == "person" and self.is_command(words):
                yield answer.start

    def around(self, size: int) -> str:
        """The text before the first label, and the end of all: there its writer says what to do."""
        head = self.words[0].label if self.words else len(self.text)
        return f"{self.text[:head][-size:]}\n{self.text[:head][:size]}\n{self.text[-size:]}"


def label_of(line: str) -> tuple[int, int] | None:
    """Where the label of a line begins and ends, if it has one."""
    start = 0
    while start < min(len(line), _MARKS) and not (line[start].isalnum() or line[start] == "_"):
        start += 1
    end = start
    while end < min(len(line), start + _LONGEST + 1) and (line[end].isalnum() or line[end] == "_"):
        end += 1
    return (start, end) if line[start:end] in _SPEAKERS else None


def normalise(text: str) -> str:
    """Both ends of it, as they are compared: in small letters, each run of white space in a line as one space."""
    return "\n".join(" ".join(line.split()) for line in _ends(text).casefold().splitlines())


def _ends(text: str) -> str:
    return text if len(text) <= 2 * ENDS + 1 else f"{text[:ENDS]}\n{text[-ENDS:]}"


def has_labels(text: str) -> bool:
    """Tell whether a text says of some words whose they are, once it is normalised. Most do not."""
    folded = _ends(text).casefold()
    if any(key in folded for key in _KEYS):
        return True
    heads = (" ".join(line.split(None, _MARKS + 1)[: _MARKS + 1]) for line in folded.splitlines())
    return _LABEL.search("\n" + "\n".join(heads)) is not None


def beginning(text: str) -> str:
    """The first line of a message, as far as it is compared."""
    return next((line for line in normalise(text[: 4 * KNOWN_BY]).split("\n") if line), "")[:KNOWN_BY].rstrip()
