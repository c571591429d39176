"""Secrets taken out of what is stored; what is sent stays as it is.

Owns what stands in a secret's place, and what that means for training. All texts of a request and an answer are looked
at, the names of members too. The same text always becomes the same text, so a conversation that comes back is known
again by what was stored of it. Not here: what a secret looks like (`secret_shapes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from hashlib import blake2b
from typing import Any, Final

from config.re2_patterns import TextPattern
from config.sections import Redaction
from proxy.conversation.secret_shapes import BASE64_FINDERS, FINDERS, MARKS, STEP, Span, room_in
from proxy.core.json_edit import dumps, loads
from store.records import Message

PLACE: Final = "[redacted:"
UNTRAINABLE: Final = "redacted"  # the reply was: nobody should learn to say what stands there
INEXACT: Final = "a secret was redacted, so token ids and log-probs were not kept"
WORTH_A_THREAD: Final = 1 << 15  # bytes: about a millisecond of looking
REMEMBERED: Final = 50_000  # messages
MOST_NAMES: Final = 2000
SHORTEST: Final = 14  # characters of a card's number; keys are longer
LEAST_NUMBER: Final = 10**12  # of JSON's: less is no number of a card
SLICED: Final = 1024  # characters from which a text may be a picture rather than words
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\r\n]*={0,2}")
_DATA_URL: Final = re.compile(r"data:[a-z]{1,20}/[a-z0-9.+-]{1,80};base64,")
_AT_ONCE: Final = 1 << 18  # characters: a search holds up all other threads

Kinds = set[str]


class Redactor:
    """Made once of the settings; may be used from any thread."""

    def __init__(self, settings: Redaction) -> None:
        kinds = ["private_key", "jwt", "api_key"] * settings.keys + ["card"] * settings.cards
        kinds += ["email"] * settings.emails
        self._finders = [(kind, FINDERS[kind]) for kind in kinds]
        self._base64_finders = [(kind, BASE64_FINDERS[kind]) for kind in kinds if kind in BASE64_FINDERS]
        self._any_length = settings.emails or bool(settings.patterns)
        self._clean: set[bytes] = set()  # messages without a secret: they come again with every turn
        self._newest = ""  # the text looked through last that has none: a request is shown, typed and stored
        self._names: set[str] = set()  # of members, without a secret: nearly all come with every answer
        self._own_patterns = [TextPattern(pattern) for pattern in settings.patterns]

    def text(self, text: str, kinds: Kinds | None = None) -> str:
        """The text with every secret replaced, itself where it has none. `kinds` takes what was found."""
        if text == self._newest or (not self._any_length and len(text) < SHORTEST):
            return text
        whole = text
        # Most texts have room for none, and that is seen at once. A longer one is not measured.
        if self._any_length or room_in(text[: STEP + 1].encode("ascii", "replace")):
            text = self._without_secrets(text, kinds)
        if text is whole and len(whole) < WORTH_A_THREAD:
            self._newest = whole
        return text

    def _without_secrets(self, text: str, kinds: Kinds | None) -> str:
        start = _start_of_base64(text) if len(text) >= SLICED else None
        for kind, find in self._finders if start is None else self._base64_finders:
            if (mark := MARKS.get(kind)) is None or mark in text:
                text = _replaced(text, kind, find(text), kinds)
        # Letters at random, in which a short pattern finds something in every picture.
        for pattern in () if start else self._own_patterns:
            text = _replaced(text, "own", (Span(*span) for span in pattern.spans(text)), kinds)
        return text

    # Most JSON has no room for a secret, and that is seen in one pass: no secret has what JSON escapes.

    def value(self, value: Any, kinds: Kinds | None = None) -> Any:
        """The same of any JSON value; the very same object where it has no secret."""
        return self.walked(value, kinds) if self._any_length or room_in(dumps(value)) else value

    def walked(self, value: Any, kinds: Kinds | None = None) -> Any:
        """Do `value` for JSON whose names have room for a secret, as `usage`."""
        if isinstance(value, str):
            return self.text(value, kinds)
        if isinstance(value, list):
            items = [self.walked(item, kinds) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else items
        if isinstance(value, dict):
            pairs, same = [], True
            for key, item in value.items():
                clean = item if type(item) is int and -LEAST_NUMBER < item < LEAST_NUMBER else self.walked(item, kinds)
                name = key if key in self._names else self._name(key, kinds)
                pairs.append((name, clean))
                same = same and name is key and clean is item
            return value if same else dict(pairs)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= LEAST_NUMBER:
            text = str(value)
            return value if (clean_text := self.text(text, kinds)) is text else clean_text
        return value

    def _name(self, key: Any, kinds: Kinds | None) -> str:
        clean = self.text(str(key), kinds)
        if clean == key and len(clean) < SLICED and len(self._names) < MOST_NAMES:
            self._names.add(clean)
        return clean

    def json(self, raw: bytes, kinds: Kinds | None = None) -> bytes:
        """The same of JSON; the very same bytes where it has no secret."""
        return self._looked_through(raw, kinds, in_order=False) if self._any_length or room_in(raw) else raw

    def _looked_through(self, raw: bytes, kinds: Kinds | None, *, in_order: bool) -> bytes:
        value = loads(raw)
        clean = self.walked(value, kinds)
        return raw if clean is value else dumps(clean, in_order=in_order)

    def message(self, message: Message, kinds: Kinds | None = None) -> Message:
        """A message in canonical form, in canonical form again."""
        if not (self._any_length or room_in(message.body)):
            return message
        key = blake2b(message.body, digest_size=16).digest()
        if key in self._clean:
            return message
        body = self._looked_through(message.body, kinds, in_order=True)
        if body is not message.body:
            return Message(message.role, body)
        if len(self._clean) >= REMEMBERED:
            self._clean.clear()
        self._clean.add(key)
        return message


def places(**kinds_by_place: Set[str]) -> tuple[str, ...]:
    """Finds and their places, as it is stored with the completion: `prompt:api_key`."""
    return tuple(f"{place}:{kind}" for place, kinds in kinds_by_place.items() for kind in sorted(kinds))


def was_redacted(text: str | None) -> bool:
    return text is not None and PLACE in text


def _start_of_base64(text: str) -> int | None:
    """Where the letters of base64 begin, where the text has no others: behind 0 characters or those of a `data:` URL.

    Such a text is a picture, a sound, or a file. A list of numbers, one a line, looks alike, so it may hold a secret.
    """
    head = _DATA_URL.match(text)
    start = 0 if head is None else head.end()
    pieces = range(start, len(text), _AT_ONCE)
    return start if all(_BASE64.fullmatch(text, position, position + _AT_ONCE) for position in pieces) else None


def _replaced(text: str, kind: str, spans: Iterator[Span], kinds: Kinds | None) -> str:
    if not (ordered := sorted(spans)):
        return text
    out: list[str] = []
    position = 0
    for start, end in ordered:
        if start >= position:
            out += [text[position:start], f"{PLACE}{kind}]"]
        position = max(position, end)
    if kinds is not None:
        kinds.add(kind)
    return "".join([*out, text[position:]])
