"""Token ids to text while they are being generated.

Owns two promises: half a UTF-8 character is never shown, and neither is a stop string or the beginning of one. What
was held back comes out as soon as it is harmless, at the latest with the end of the reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are no character (yet)
_CHARACTER = 4  # bytes at most, and so tokens
_WHOLE = 2 * _CHARACTER  # tokens that are decoded again and again, at most


class ReplyText:
    def __init__(self, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids: list[int] = []
        # Text is decoded from `_first` and what came out before `_next` is already known: a token's text can
        # depend on the one before it (spaces, in SentencePiece), never on the whole reply.
        self._first = self._next = 0
        self._pending = ""
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """The text that is safe to show after this token; sets `stopped_by` when a stop string is complete."""
        self._ids.append(token)
        return self._release(self._new_text(whole=False), last=False)

    def finish(self) -> str:
        """The text still held back, at the end of a reply that no stop string ended."""
        return self._release(self._new_text(whole=True), last=True)

    def _new_text(self, *, whole: bool) -> str:
        end = len(self._ids)
        shown_text = self._decode(self._ids[self._first : self._next])
        text = self._decode(self._ids[self._first :])
        overdue = end - self._next >= _WHOLE
        if text.endswith(_BROKEN) and not whole:
            if not overdue:
                return ""
            end, text = self._stable_end()
        if len(text) <= len(shown_text):
            if overdue:  # special tokens, which say nothing
                del self._ids[self._next : end]
            return ""
        self._first, self._next = self._next, end
        return text[len(shown_text) :]

    def _stable_end(self) -> tuple[int, str]:
        """Up to where no later token changes the text. It stays broken for so long because the model says so: bytes
        that are not text, or the sign for them itself."""
        end, text = len(self._ids), ""
        for count in range(1, _CHARACTER):
            end = len(self._ids) - count
            text = self._decode(self._ids[self._first : end])
            if not text.endswith(_BROKEN):
                break
        return end, text

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _release(self, new_text: str, *, last: bool) -> str:
        text = self._pending + new_text
        if not self._stop:
            return text
        matches = [(position, stop) for stop in self._stop if (position := text.find(stop)) >= 0]
        if matches:
            position, self.stopped_by = min(matches, key=lambda pair: pair[0])
            self._pending = ""
            return text[:position]
        pending_length = 0 if last else max(_overlap(text, stop) for stop in self._stop)
        visible, self._pending = text[: len(text) - pending_length], text[len(text) - pending_length :]
        return visible


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
