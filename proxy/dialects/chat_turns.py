"""Messages in the order that strict chat templates take: one system text at the start, then speakers in turn.

Owns what becomes of the other system texts. Strict templates raise for a system message between the turns. They also
raise for the same speaker twice in a row. vLLM moves later system texts to the start. Here they go to the end of the
message before them. So a turn that has been sent once never changes, and prompts go on from each other.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from proxy.dialects.chat_form import text_part
from store.captured.tree import SYSTEM_ROLES

_Turn = list[dict[str, Any]]  # messages that are one, joined once all are there: each of them is read once


def in_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order messages as chat templates want them: system text only at the start, and no speaker twice in a row.

    Agents put system messages between the turns, also between a call and its result. They go to the end of the user's
    or tool's message before them.
    """
    out: list[_Turn] = []
    later_texts: list[dict[str, Any]] = []
    has_turns = False  # a message other than system text has come
    for message in messages:
        if message["role"] in SYSTEM_ROLES:
            message = {**message, "role": "system", "content": _text(message.get("content"))}
            if has_turns:
                later_texts += [message] if message["content"] else []
                continue
        has_turns = has_turns or message["role"] != "system"
        if message["role"] != "tool":
            _place(out, later_texts)
        _append(out, message, onto=("user", "system", "assistant"))
    _place(out, later_texts)
    return [_joined(turn) for turn in out]


def _text(content: Any) -> Any:
    """A system text is one string wherever it has nothing but text: many templates take no other."""
    parts = content if isinstance(content, list) else []
    texts = [str(part.get("text") or "") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "\n\n".join(filter(None, texts)) if texts and len(texts) == len(parts) else content


def _place(out: list[_Turn], later_texts: list[dict[str, Any]]) -> None:
    for message in later_texts:
        previous = out[-1][0]["role"]
        role = previous if previous in ("user", "tool") else "user"
        _append(out, {"role": role, "content": message["content"]}, onto=("user", "tool"))
    later_texts.clear()


def _append(out: list[_Turn], message: dict[str, Any], onto: tuple[str, ...]) -> None:
    previous = out[-1][-1] if out else None
    if previous is not None and previous["role"] == message["role"] in onto and _joins(previous) and _joins(message):
        out[-1].append(message)
    else:
        out.append([message])


def _joins(message: dict[str, Any]) -> bool:
    """Tell whether its content can stand beside another's. A call has its result right after it."""
    return isinstance(message.get("content"), str | list | None) and not message.get("tool_calls")


def _joined(turn: _Turn) -> dict[str, Any]:
    if len(turn) == 1:
        return turn[0]
    thoughts = "\n\n".join(str(m["reasoning_content"]) for m in turn if m.get("reasoning_content"))
    head = {**turn[0], **({"reasoning_content": thoughts} if thoughts else {})}
    contents = [message.get("content") for message in turn]
    if not any(isinstance(content, list) for content in contents):
        return {**head, "content": "\n\n".join(filter(None, contents))}
    # Texts up to the first list are one text.
    texts = list(takewhile(lambda content: not isinstance(content, list), contents))
    parts = _parts("\n\n".join(filter(None, texts)))
    return {**head, "content": parts + [part for content in contents[len(texts) :] for part in _parts(content)]}


def _parts(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [text_part(content)] if content else []
