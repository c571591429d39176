"""Requests that an agent makes for its own sake, about the conversation: a summary, a title, a memory, a review.

Owns two tests. One finds out whether a text asks for such a thing at all, by single words and not by any client's
sentence. People ask for it, too. The other tells whether a request is made in another way than the turn above it, or
sooner than a person can write. Pure. Not here: requests that quote a conversation in one message (side_requests).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from config.languages import every, is_unspaced, written_size
from proxy.conversation.turns import limit_of

LOOKED_AT: Final = 400  # characters of a text, at either end: a task is said first or last
_NEAR: Final = 12  # words between a task and what it is about
_WORDS: Final = re.compile(r"[^\W\d_]+")
# How words begin, in any language: agents have their prompts in their own. A strong one is hardly said of anything but
# a conversation, or of keeping one.
_STRONG_TASKS: Final = tuple({stem for each in every() for stem in each.own_tasks.strong_tasks})
_TASKS: Final = tuple({stem for each in every() for stem in (*each.own_tasks.tasks, *_STRONG_TASKS)})
_STRONG_TALK: Final = tuple({stem for each in every() for stem in each.own_tasks.strong_talk})
_TALK: Final = tuple({stem for each in every() for stem in (*each.own_tasks.talk, *_STRONG_TALK)})
_LONGEST_STEM: Final = max(map(len, (*_TASKS, *_TALK)))

MOMENTS_S: Final = 3.0  # in which nobody reads an answer and writes a text of WRITTEN characters
WRITTEN: Final = 200
BRIEF: Final = 60  # characters (`written_size`): a person may ask for a summary in so many, under whatever settings


def asks_own_task(text: str) -> bool:
    """Tell whether a text says, near its beginning or end, to make something of a conversation."""
    ends = (text,) if len(text) <= 2 * LOOKED_AT else (text[:LOOKED_AT], text[-LOOKED_AT:])
    return any(_has_task(end.casefold()) for end in ends)


def _has_task(text: str) -> bool:
    """One of both words is a strong one."""
    if not any(part in text for part in _TALK):  # as in most
        return False
    words = [start for word in _WORDS.findall(text) for start in _starts(word)]
    return _near(words, _TASKS, _STRONG_TALK) or _near(words, _STRONG_TASKS, _TALK)


def _starts(word: str) -> Iterable[str]:
    """Where a word may begin: at each letter of a script without spaces."""
    if not is_unspaced(word):
        return (word,)
    return (word[index : index + _LONGEST_STEM] for index in range(len(word)))


def _near(words: Sequence[str], tasks: tuple[str, ...], talk: tuple[str, ...]) -> bool:
    task = subject = -_NEAR - 1
    for index, word in enumerate(words):
        if word.startswith(tasks):
            task = index
        if word.startswith(talk):
            subject = index
        if task >= 0 and subject >= 0 and abs(task - subject) <= _NEAR:
            return True
    return False


class Manner(NamedTuple):
    """How a request is made, beside its messages."""

    is_streamed: bool
    tools: frozenset[str]  # by name
    may_call: bool
    limit: int | None  # tokens of the answer


def manner_of(request: bytes, *, is_streamed: bool) -> Manner:
    """`request`: the members beside its messages, in any dialect."""
    body = orjson.loads(request)
    body = body if isinstance(body, Mapping) else {}
    tools = body.get("tools")
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    names = frozenset(_names(tools if isinstance(tools, list) else []))
    return Manner(is_streamed, names, bool(names) and kind != "none", limit_of(body))


def _names(tools: Iterable[Any]) -> Iterable[str]:
    for tool in tools:
        if isinstance(tool, Mapping):
            function = tool.get("function")
            name = function.get("name") if isinstance(function, Mapping) else tool.get("name") or tool.get("type")
            if isinstance(name, str):
                yield name


def is_made_otherwise(manner: Manner, previous: Manner) -> bool:
    """Tell whether a request differs from the one above it as no person's does. It may call nothing any more, is
    limited in another way, or comes whole where the other was streamed."""
    return (
        (previous.may_call and not manner.may_call)
        or (manner.limit is not None and manner.limit != previous.limit)
        or (previous.is_streamed and not manner.is_streamed)
    )


def is_too_soon(text: str, elapsed: float) -> bool:
    """Tell whether nobody can have written this since the answer above it was there."""
    return elapsed <= MOMENTS_S and written_size(text) >= WRITTEN
