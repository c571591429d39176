"""Messages in the forms that strict chat templates take.

Owns the order of attempts. Most templates take the first:
1. the messages as they came; a template that does not know developers gets them as the system, as llama.cpp does it;
2. one system message at the start, and no speaker twice in a row, as vLLM does it for Responses;
3. the system's text at the beginning of the first user's message, as llama.cpp does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

Messages = list[dict[str, Any]]

DEVELOPER = "developer"


def attempts(messages: Sequence[Mapping[str, Any]], template: str) -> Iterator[Messages]:
    """The same messages in each form; their contents are strings. `template` is the text of the chat template."""
    renamed = {} if DEVELOPER in template else {DEVELOPER: "system"}
    mapped = [{**message, "role": renamed.get(message["role"], message["role"])} for message in messages]
    yield mapped
    strict = _in_turns(mapped)
    if strict != mapped:
        yield strict
    if strict[0]["role"] == "system":
        yield _without_system(strict)


def _in_turns(messages: Messages) -> Messages:
    texts = [m["content"] for m in messages if m["role"] in ("system", DEVELOPER)]
    speakers = [m for m in messages if m["role"] not in ("system", DEVELOPER)]
    turns = [list(turn) for _, turn in groupby(speakers, key=_Turn())]
    head = [{"role": "system", "content": _joined(texts)}] if texts else []
    return [*head, *({**turn[0], "content": _joined([m["content"] for m in turn])} for turn in turns)]


class _Turn:
    """The turn that each message belongs to, counted. A tool's result, and a message with calls, is one of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._role: str | None = None  # whose next message belongs to this turn

    def __call__(self, message: Mapping[str, Any]) -> int:
        is_single = message["role"] == "tool" or bool(message.get("tool_calls"))
        if is_single or message["role"] != self._role:
            self._count += 1
        self._role = None if is_single else message["role"]
        return self._count


def _without_system(messages: Messages) -> Messages:
    system, *turns = messages
    first = next((n for n, message in enumerate(turns) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system["content"]}, *turns]
    user = {**turns[first], "content": _joined([system["content"], turns[first]["content"]])}
    return [*turns[:first], user, *turns[first + 1 :]]


def _joined(texts: Sequence[str]) -> str:
    return "\n\n".join(filter(None, texts))
