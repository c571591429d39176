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
        self._held = ""
        self.stopped_by: str | None = None

    def push(self, token: int) -> str:
        """The text that is safe to show after this token; sets `stopped_by` when a stop string is complete."""
        self._ids.append(token)
        return self._release(self._fresh(whole=False), last=False)

    def finish(self) -> str:
        """The text still held back, at the end of a reply that no stop string ended."""
        return self._release(self._fresh(whole=True), last=True)

    def _fresh(self, *, whole: bool) -> str:
        end = len(self._ids)
        before = self._decode(self._ids[self._first : self._next])
        now = self._decode(self._ids[self._first :])
        overdue = end - self._next >= _WHOLE
        if now.endswith(_BROKEN) and not whole:
            if not overdue:
                return ""
            end, now = self._settled()
        if len(now) <= len(before):
            if overdue:  # special tokens, which say nothing
                del self._ids[self._next : end]
            return ""
        self._first, self._next = self._next, end
        return now[len(before) :]

    def _settled(self) -> tuple[int, str]:
        """Up to where no later token changes the text. It stays broken for so long because the model says so: bytes
        that are not text, or the sign for them itself."""
        end, now = len(self._ids), ""
        for held in range(1, _CHARACTER):
            end = len(self._ids) - held
            now = self._decode(self._ids[self._first : end])
            if not now.endswith(_BROKEN):
                break
        return end, now

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _release(self, fresh: str, *, last: bool) -> str:
        text = self._held + fresh
        if not self._stop:
            return text
        found = [(at, stop) for stop in self._stop if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found, key=lambda pair: pair[0])
            self._held = ""
            return text[:at]
        kept = 0 if last else max(_overlap(text, stop) for stop in self._stop)
        shown, self._held = text[: len(text) - kept], text[len(text) - kept :]
        return shown


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` begin `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
