"""Prompts that a server cut without a word, seen by how few tokens it says that it read.

Owns the estimate, which nobody's tokeniser is needed for, and what is known of it for `status`. Ollama leaves out whole
messages of what does not fit its context, the oldest first. Such a completion trains on what was read (served_prompts,
trainer.samples). Not here: what was left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from store.records import Message

WORTH: Final = 4000  # characters; less fits any context
A_TOKEN: Final = 12  # characters, at most, in a text of some length: prose and code have three to five
_READ: Final = {"system", "developer", "user", "tool"}  # of a model's own turns templates leave out the reasoning


class CutPrompts:
    """How often it was seen since the start."""

    def __init__(self, setting: str) -> None:
        self._setting = setting  # what to change at the server
        self.count = 0
        self.newest = ""

    def note(self, why: str) -> str | None:
        """One sentence to say aloud, the first time."""
        self.count, self.newest = self.count + 1, why
        return self.line if self.count == 1 else None

    @property
    def line(self) -> str | None:
        if not self.count:
            return None
        times = "a conversation was" if self.count == 1 else f"{self.count} conversations were"
        return (
            f"{times} longer than the server's context, and it left out the beginning: {self.newest}; {self._setting}"
        )


def why_cut(prompt: Sequence[Message], usage: Mapping[str, Any] | None) -> str | None:
    """Why the server cannot have read all of it; None where it may have."""
    tokens = (usage or {}).get("prompt_tokens")
    if type(tokens) is not int or tokens <= 0:
        return None
    most = tokens * A_TOKEN
    if (whole := sum(len(message.body) for message in prompt)) < WORTH or whole <= most:
        return None
    said = sum(len(_text(message)) for message in prompt if message.role in _READ)
    if said < WORTH or said <= most:
        return None
    return f"it read {tokens:,} tokens of {said:,} characters"


def _text(message: Message) -> str:
    content = orjson.loads(message.body).get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(text for part in parts if isinstance(part, dict) and isinstance(text := part.get("text"), str))
