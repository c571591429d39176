"""A server's chat answer with every reply in the one form that renderers read.

Owns the other forms that servers send. Content may be a list of parts, and a spoken answer has a transcript. A call may
be the one `function_call` of old, or have its arguments as an object. Each becomes texts and tool calls. Captures fold
what the server sent, not this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.core.json_edit import dumps
from proxy.dialects.chat_form import reasoning_of

_OTHER_FORMS: Final = ("function_call", "audio")
_THINKING: Final = ("thinking", "reasoning", "reasoning_text", "summary_text")


def plain_answer(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A chunk or a whole answer; the same object where every reply is in that form already."""
    choices = body.get("choices") or ()
    if all(_is_plain(_message(choice)) for choice in choices):
        return body
    return {**body, "choices": [_plain_choice(choice) for choice in choices]}


def _message(choice: Mapping[str, Any]) -> Mapping[str, Any]:
    return choice.get("delta") or choice.get("message") or {}


def _is_plain(message: Mapping[str, Any]) -> bool:
    if type(message.get("content")) is list or any(message.get(member) for member in _OTHER_FORMS):
        return False
    calls = message.get("tool_calls")
    return not calls or not any(isinstance(_arguments(call), Mapping) for call in calls)


def _plain_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    member = "delta" if choice.get("delta") else "message"
    return {**choice, member: _plain_message(_message(choice))}


def _plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    texts: dict[str, list[str]] = {"content": [], "reasoning_content": [], "refusal": []}
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        member, text = _text_of(part)
        texts[member].append(text)
    texts["content"].append((message.get("audio") or {}).get("transcript") or "")
    texts["reasoning_content"].append(reasoning_of(message))
    texts["refusal"].append(message.get("refusal") or "")
    plain = {key: value for key, value in message.items() if key not in (*_OTHER_FORMS, "reasoning", "tool_calls")}
    plain |= {member: joined for member, pieces in texts.items() if (joined := "".join(pieces)) or member in plain}
    if calls := _calls(message):
        plain["tool_calls"] = calls
    return plain


def _text_of(part: Any) -> tuple[str, str]:
    """The member of a message that a part's text belongs to, and the text; none of a picture or a sound."""
    if not isinstance(part, Mapping):
        return "content", part if isinstance(part, str) else ""
    kind = part.get("type")
    if kind == "refusal":
        return "refusal", str(part.get("refusal") or "")
    text = next((part[key] for key in ("text", "thinking", "reasoning", "transcript") if part.get(key)), "")
    if isinstance(text, list):  # Mistral's thinking has parts of its own
        text = "".join(str(inner.get("text") or "") for inner in text if isinstance(inner, Mapping))
    return "reasoning_content" if kind in _THINKING else "content", text if isinstance(text, str) else ""


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    if calls := message.get("tool_calls"):
        return [_plain_call(call) for call in calls]
    function = message.get("function_call")
    return [_plain_call({"index": 0, "type": "function", "function": function})] if function else []


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = _arguments(call)
    if not isinstance(arguments, Mapping):
        return dict(call)
    return {**call, "function": {**call["function"], "arguments": dumps(arguments).decode()}}


def _arguments(call: Mapping[str, Any]) -> Any:
    return (call.get("function") or {}).get("arguments")
