"""Lines of an export as examples for another trainer: a prompt, its tools, and what people think of the reply.

Owns which completions are examples, and the reason of each that is not one. An example has words only. Each reason is
counted, and nothing is left out in silence. Not here: files of each trainer (formats), pairs (pairs).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.dialects import DIALECTS, chat_tools, chat_turns
from store.captured.tree import SYSTEM_ROLES

Message = dict[str, Any]

NO_OPINION: Final = "rated neither good nor bad"
PROGRAMS_ONLY: Final = "rated by judges or programs only"
UNFINISHED: Final = "not finished"
SILENT: Final = "without a reply"
PLAIN: Final = "a text to continue, not a conversation"
MEDIA: Final = "with pictures or other parts that are not text"
REDACTED: Final = "with a secret in the reply, which was taken out"
UNTRAINABLE: Final = "never used for training here"
UNRATED: Final = "not rated"
_PROMPTS: Final = frozenset(dialect.name for dialect in DIALECTS if dialect.is_prompt)


@dataclass(frozen=True, slots=True)
class Example:
    """A rated reply to a prompt, in OpenAI's chat form. Arguments of tool calls are values."""

    id: str
    prompt: Sequence[Message]
    reply: Message
    tools: Sequence[Mapping[str, Any]] | None
    value: float  # mean of people's ratings by weight, in [-1, 1], never 0
    correction: Message | None  # what a person would have liked to read instead

    @property
    def good(self) -> bool:
        return self.value > 0

    @property
    def key(self) -> bytes:
        """The same for replies to the same prompt with the same tools."""
        return hashlib.blake2b(
            orjson.dumps([self.prompt, self.tools], option=orjson.OPT_SORT_KEYS), digest_size=16
        ).digest()


class NotAnExample(Exception):
    """The reason, as a part of a sentence: "3 completions NOT RATED"."""


def read(line: Mapping[str, Any]) -> Example:
    """A line of `GET /rl/export`. Raises NotAnExample."""
    value, correction = _opinion(line["ratings"])
    if line["status"] != "done":
        raise NotAnExample(UNFINISHED)
    if line["untrainable"]:
        raise NotAnExample(REDACTED if line["untrainable"] == "redacted" else f"{UNTRAINABLE} ({line['untrainable']})")
    prompt, tools = prompt_of(line)
    reply = _message(line["reply"] or {"role": "assistant", "content": line["text"]})
    if not reply.get("content") and not reply.get("tool_calls"):
        raise NotAnExample(SILENT)
    return Example(
        id=line["id"],
        prompt=prompt,
        reply=reply,
        tools=tools,
        value=value,
        correction=None if correction is None else {"role": "assistant", "content": correction},
    )


def prompt_of(line: Mapping[str, Any]) -> tuple[list[Message], Sequence[Mapping[str, Any]] | None]:
    """The prompt of a line in OpenAI's chat form, and its tools. Raises NotAnExample."""
    if line["dialect"] in _PROMPTS:
        raise NotAnExample(PLAIN)
    turns = chat_turns(line["dialect"], line["messages"]) if line["translated"] else line["messages"]
    tools = chat_tools(line["dialect"], orjson.dumps(line["request"] or {}))
    return [_message(message) for message in turns], tools


def _opinion(ratings: Sequence[Mapping[str, Any]]) -> tuple[float, str | None]:
    """Mean of people's ratings, and the newest correction. Raises NotAnExample."""
    if not ratings:
        raise NotAnExample(UNRATED)
    people = [rating for rating in ratings if rating["human"]]
    if not people:
        raise NotAnExample(PROGRAMS_ONLY)
    value = sum(rating["value"] * rating["weight"] for rating in people) / sum(rating["weight"] for rating in people)
    correction = next((rating["correction"] for rating in people if rating["correction"]), None)
    if not value:
        raise NotAnExample(NO_OPINION)
    return value, correction if value < 0 else None


def _message(message: Mapping[str, Any]) -> Message:
    """In the words that every chat template knows: a developer's text is a system's, and content is a string."""
    content = message.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) != len(content):
            raise NotAnExample(MEDIA)
        content = "".join(str(text or "") for text in texts)
    elif not isinstance(content, str | None):
        raise NotAnExample(MEDIA)
    role = "system" if message["role"] in SYSTEM_ROLES else message["role"]
    members = ("tool_calls", "tool_call_id", "name", "reasoning_content")
    return {"role": role, "content": content or ""} | {key: message[key] for key in members if message.get(key)}
