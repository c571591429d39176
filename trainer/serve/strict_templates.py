"""Messages as chat templates take them that refuse what other servers let pass.

Owns what is tried, in order. First come the messages as they are, with developers as the system where the template
does not know them (as llama.cpp does). Then one system message at the start, and no speaker twice in a row (as vLLM
does for Responses). Last, the system's text at the beginning of the first user's (as llama.cpp does). Most templates
take the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

Messages = list[dict[str, Any]]

DEVELOPER = "developer"


def attempts(messages: Sequence[Mapping[str, Any]], template: str) -> Iterator[Messages]:
    """The same messages in each form; contents are strings, or lists of parts. `template`: the text of the chat
    template."""
    has_developers = DEVELOPER in template
    mapped = [{**m, "role": "system"} if m["role"] == DEVELOPER and not has_developers else dict(m) for m in messages]
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
    head = [{"role": "system", "content": _join(texts)}] if texts else []
    return [*head, *({**turn[0], "content": _join([m["content"] for m in turn])} for turn in turns)]


class _Turn:
    """The turn that each message belongs to, counted. A tool's result, and a message with calls, is one of its own."""

    def __init__(self) -> None:
        self._count = 0
        self._role: str | None = None  # whose next message belongs to this turn

    def __call__(self, message: Mapping[str, Any]) -> int:
        is_separate = message["role"] == "tool" or bool(message.get("tool_calls"))
        if is_separate or message["role"] != self._role:
            self._count += 1
        self._role = None if is_separate else message["role"]
        return self._count


def _without_system(messages: Messages) -> Messages:
    system, *speakers = messages
    first = next((n for n, message in enumerate(speakers) if message["role"] == "user"), None)
    if first is None:
        return [{"role": "user", "content": system["content"]}, *speakers]
    merged = {**speakers[first], "content": _join([system["content"], speakers[first]["content"]])}
    return [*speakers[:first], merged, *speakers[first + 1 :]]


def _join(contents: Sequence[Any]) -> Any:
    """One text of several; one list of parts where one of them has pictures."""
    contents = [content for content in contents if content]
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    texts = ([{"type": "text", "text": content}] if isinstance(content, str) else content for content in contents)
    return [part for parts in texts for part in parts]
