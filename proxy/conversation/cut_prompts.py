"""Prompts that a server cut without a word, seen by how few tokens it says that it read.

Owns the estimate, which nobody's tokeniser is needed for, and what is known of it for `status` and the page. Ollama
leaves out whole messages of what does not fit its context, the oldest first. Such a completion trains on what was read
(served_prompts, trainer.lessons.samples). Not here: what was left out.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from store.errors import StoreError
from store.records import Message
from store.store import Store

CUT: Final = "the server cut the prompt: "  # of such a completion, why it is not exact
LAST: Final = 50  # answers that are spoken of
WORTH: Final = 4000  # characters; less fits any context
A_TOKEN: Final = 12  # characters, at most, in a text of some length: prose and code have three to five
_READ: Final = {"system", "developer", "user", "tool"}  # of a model's own turns templates leave out the reasoning


class CutPrompts:
    """Among the last answers: what was put right is no longer said when enough others have come."""

    def __init__(self, setting: str) -> None:
        self.setting = setting  # what to change at the server
        self._last: deque[str | None] = deque(maxlen=LAST)

    async def start(self, store: Store) -> None:
        """Puts what was seen before the start in front of what has been seen since. A damaged database says so itself;
        only an old warning is missed then."""
        with contextlib.suppress(StoreError):
            completions = reversed(await store.completions.page(limit=LAST, turn="main"))
            reasons = [(completion.end and completion.end.inexact_reason) or "" for completion in completions]
            cut = [reason.removeprefix(CUT) if reason.startswith(CUT) else None for reason in reasons]
            self._last = deque([*cut, *self._last], maxlen=LAST)

    def note(self, reason: str | None) -> str | None:
        """State of the newest answer. One sentence to say aloud, where it is the first that was cut."""
        first = reason is not None and not any(tuple(self._last))  # some answers end in threads
        self._last.append(reason)
        return self.line if first else None

    @property
    def line(self) -> str | None:
        if not (cut := [reason for reason in tuple(self._last) if reason is not None]):
            return None
        times = "a conversation was" if len(cut) == 1 else f"{len(cut)} conversations were"
        return f"{times} longer than the server's context, and it left out the beginning: {cut[-1]}; {self.setting}"


def cut_reason(prompt: Sequence[Message], usage: Mapping[str, Any] | None) -> str | None:
    """Why the server cannot have read all of it; None where it may have."""
    tokens = (usage or {}).get("prompt_tokens")
    if type(tokens) is not int or tokens <= 0:
        return None
    most, whole = tokens * A_TOKEN, 0
    for message in prompt:
        whole += len(message.body)
    if whole < WORTH or whole <= most:
        return None
    characters = _characters([message.body for message in prompt if message.role in _READ])
    if characters < WORTH or characters <= most:
        return None
    return f"it read {tokens:,} tokens of {characters:,} characters"


def _characters(bodies: Sequence[bytes]) -> int:
    """Characters of text in messages; one parse for all of them, as a cut conversation has hundreds."""
    count = 0
    for body in orjson.loads(b"[%s]" % b",".join(bodies)):
        content = body.get("content")
        if isinstance(content, str):
            count += len(content)
        elif isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, dict)]
            count += sum(len(text) for text in texts if isinstance(text, str))
    return count
