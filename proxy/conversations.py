"""Which reply belongs to which conversation.

Owns the canonical form of a message (so that a reply sent back by a client is the reply we captured), the
`/rl` lines in a history and how they are removed, and session, user and turn of a request. The tree itself
is the store's.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from proxy.errors import BadRequest
from store.records import Message, Turn

# What makes a message the same message. Reasoning, refusals, audio, annotations and ids come and go in clients.
_IDENTITY: Final = ("name", "tool_call_id")
_COMMAND: Final = re.compile(r"/rl(?:\s|$)")
_NAME: Final = re.compile(r"[\x21-\x7e]{1,200}")


def canonical(message: Mapping[str, Any]) -> Message:
    """The message as the tree keeps it. Equal for all the ways in which clients send the same message back."""
    body: dict[str, Any] = {"content": _content(message.get("content"))}
    if calls := message.get("tool_calls"):
        body["tool_calls"] = [_tool_call(call) for call in calls if isinstance(call, dict)]
    for key in _IDENTITY:
        if message.get(key):
            body[key] = message[key]
    return Message(str(message.get("role") or "assistant"), orjson.dumps(body, option=orjson.OPT_SORT_KEYS))


def _content(content: Any) -> Any:
    """Text parts and a plain string are the same text; outer white space does not count."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content.strip()
    if isinstance(content, list):
        parts = [p for p in content if isinstance(p, dict)]
        if len(parts) == len(content) and all(p.get("type") in ("text", "input_text", "output_text") for p in parts):
            return "".join(str(p.get("text", "")) for p in parts).strip()
    return content


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    with contextlib.suppress(orjson.JSONDecodeError):  # a model may write anything; then the text itself is compared
        arguments = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    found = {"type": "function", "function": {"name": function.get("name"), "arguments": arguments}}
    return {**found, "id": call["id"]} if call.get("id") else found


def as_chat(message: Message) -> dict[str, Any]:
    """A message of the tree in OpenAI chat form, for chat templates and exports."""
    return {"role": message.role, **orjson.loads(message.body)}


def text_of(message: Mapping[str, Any]) -> str | None:
    content = _content(message.get("content"))
    return content if isinstance(content, str) else None


def is_command(message: Mapping[str, Any]) -> bool:
    """Whether this is a person's `/rl …` line."""
    if message.get("role") != "user":
        return False
    text = text_of(message)
    return text is not None and _COMMAND.match(text) is not None


def without_commands(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Which messages of the history the model may see: no `/rl` line, and none of our answers to one.

    A command never reaches the model, so the assistant message after it can only be ours.
    """
    kept: list[int] = []
    ours = False
    for i, message in enumerate(messages):
        if is_command(message):
            ours = True
        elif ours and message.get("role") == "assistant":
            ours = False
        else:
            ours = False
            kept.append(i)
    return kept


class Speaker(NamedTuple):
    """Whose request this is, and what kind of turn."""

    session: str | None
    user: str | None
    turn: Turn
    turn_rule: str


def speaker(headers: Mapping[str, str], *, path_session: str | None, user: str | None) -> Speaker:
    """Session and user: headers first, then the path, then the body. Raises BadRequest on names that are none."""
    session = _name(headers, "x-rl-session") or path_session
    turn = headers.get("x-rl-turn")
    if turn not in (None, "main", "side"):
        raise BadRequest("The header `x-rl-turn` must be `main` or `side`.", param="x-rl-turn")
    who = _name(headers, "x-rl-user") or user
    if turn is None:
        return Speaker(session, who, "main", "default")
    return Speaker(session, who, "side" if turn == "side" else "main", "header")


def _name(headers: Mapping[str, str], header: str) -> str | None:
    value = headers.get(header)
    if value is not None and not _NAME.fullmatch(value):
        raise BadRequest(f"The header `{header}` must be 1 to 200 printable ASCII characters.", param=header)
    return value
