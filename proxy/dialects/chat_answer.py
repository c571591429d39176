"""A server's chat answer with every reply in the one form that renderers read.

Owns the other forms that servers send. Content may be a list of parts, and a spoken answer has a transcript. A call may
be the one `function_call` of old, or have its arguments as an object. Each becomes texts and tool calls. Captures fold
what the server sent, not this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.core.json_edit import dumps
from proxy.dialects.chat_form import reasoning_of, reply_parts

_OTHER_FORMS: Final = ("function_call", "audio")


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
    """Pictures and sounds among the parts are left out: no other format has a place for a model's."""
    content = message.get("content")
    text, thinking, refusal, _ = reply_parts(content) if isinstance(content, list) else (content or "", "", "", [])
    texts = {
        "content": text + ((message.get("audio") or {}).get("transcript") or ""),
        "reasoning_content": thinking + reasoning_of(message),
        "refusal": refusal + (message.get("refusal") or ""),
    }
    plain = {key: value for key, value in message.items() if key not in (*_OTHER_FORMS, "reasoning", "tool_calls")}
    plain |= {member: text for member, text in texts.items() if text or member in plain}
    if calls := _calls(message):
        plain["tool_calls"] = calls
    return plain


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
