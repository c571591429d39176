"""The `response` object of the Responses API, from what a chat completion says and the request repeats.

Owns its members and the ids of items: they carry the completion's id, so that a reference to one can be found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from proxy.core.json_edit import loads
from proxy.dialects.responses_tools import Tool

_ITEM: Final = re.compile(r"(?:msg|rs|fc|ctc|btc)_(.+)")
_NUMBER: Final = re.compile(r"_\d+$")


def item_id(kind: str, completion: str, n: int = 0) -> str:
    return f"{kind}_{completion}_{n}" if n else f"{kind}_{completion}"


def completions_of(item: str) -> list[str]:
    """The ids of completions that an item's id may carry."""
    match = _ITEM.fullmatch(item)
    return [] if match is None else list(dict.fromkeys((match[1], _NUMBER.sub("", match[1]))))


def response(
    request: Mapping[str, Any],
    *,
    id: str,
    model: str,
    created: float,
    status: str,
    output: list[dict[str, Any]],
    previous: str | None = None,
    usage: Mapping[str, Any] | None = None,
    incomplete: str | None = None,
    error: Mapping[str, Any] | None = None,
    completed: float | None = None,
) -> dict[str, Any]:
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": status,
        "background": False,
        "completed_at": int(completed) if completed is not None and status == "completed" else None,
        "error": error,
        "incomplete_details": {"reason": incomplete} if incomplete else None,
        "instructions": request.get("instructions"),
        "frequency_penalty": _value_or(request, "frequency_penalty", 0.0),
        "max_output_tokens": request.get("max_output_tokens"),
        "max_tool_calls": request.get("max_tool_calls"),
        "model": model,
        "output": output,
        "parallel_tool_calls": _value_or(request, "parallel_tool_calls", True),
        "presence_penalty": _value_or(request, "presence_penalty", 0.0),
        "previous_response_id": previous,
        "prompt_cache_key": request.get("prompt_cache_key"),
        "reasoning": {"effort": None, "summary": None, **(request.get("reasoning") or {})},
        "safety_identifier": request.get("safety_identifier"),
        "service_tier": "default",
        "store": _value_or(request, "store", True),
        "temperature": _value_or(request, "temperature", 1.0),
        "text": _text(request.get("text") or {}),
        "tool_choice": _value_or(request, "tool_choice", "auto"),
        "tools": [_tool(tool) for tool in request.get("tools") or ()],
        "top_logprobs": _value_or(request, "top_logprobs", 0),
        "top_p": _value_or(request, "top_p", 1.0),
        "truncation": _value_or(request, "truncation", "disabled"),
        "usage": None if usage is None else to_usage(usage),
        "user": request.get("user"),
        "metadata": request.get("metadata") or {},
    }


def _value_or(request: Mapping[str, Any], key: str, default: Any) -> Any:
    return default if request.get(key) is None else request[key]


def _text(text: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the text, with the members that a client may leave out."""
    form = text.get("format") or {"type": "text"}
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        form = {"description": None, "strict": False, **form}
    return {**text, "format": form}


def _tool(tool: Any) -> Any:
    """A function with the members that a client may leave out. Nothing was made strict that was not asked for."""
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": False, **tool}


def to_usage(chat: Mapping[str, Any]) -> dict[str, Any]:
    read, wrote = _count(chat, "prompt_tokens"), _count(chat, "completion_tokens")
    cached = _count(chat.get("prompt_tokens_details"), "cached_tokens")
    thought = _count(chat.get("completion_tokens_details"), "reasoning_tokens")
    return {
        "input_tokens": read,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": wrote,
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": _count(chat, "total_tokens") or read + wrote,
    }


def _count(counts: Any, key: str) -> int:
    """0 where a backend sends something else: also a stream that failed has to be ended with what was counted."""
    count = counts.get(key) if isinstance(counts, Mapping) else None
    return count if isinstance(count, int) else 0


def from_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """In the names of chat completions, which the store keeps."""
    return {
        "prompt_tokens": usage.get("input_tokens"),
        "completion_tokens": usage.get("output_tokens"),
        "total_tokens": usage.get("total_tokens"),
    }


def incomplete_reason(finish_reason: str | None) -> str | None:
    """Why an answer is incomplete; None where it is complete."""
    return {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish_reason or "")


def message_item(id: str, text: str, status: str = "completed") -> dict[str, Any]:
    return {"id": id, "type": "message", "status": status, "role": "assistant", "content": [text_part(text)]}


def text_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}


def call_item(
    completion: str, n: int, call: Mapping[str, Any], tools: Mapping[str, Tool], status: str = "completed"
) -> dict[str, Any]:
    """A tool call as the client knows the tool: custom, of a type of its own, or in a namespace."""
    function = call.get("function") or {}
    tool, arguments = tools.get(str(function.get("name"))), function.get("arguments") or ""
    call_id = call.get("id") or f"call_{completion}_{n}"
    if tool is not None and tool.custom:
        head = {"id": item_id("ctc", completion, n), "type": "custom_tool_call", "status": status}
        item = {**head, "call_id": call_id, "name": tool.name, "input": custom_input(arguments)}
    elif tool is not None and tool.built_in is not None:
        head = {"id": item_id("btc", completion, n), "type": tool.built_in.item, "status": status}
        item = {**head, "call_id": call_id, **tool.built_in.call(arguments)}
    else:
        head = {"id": item_id("fc", completion, n), "type": "function_call", "status": status}
        name = tool.name if tool is not None else function.get("name")
        item = {**head, "call_id": call_id, "name": name, "arguments": arguments}
    if tool is not None and tool.namespace:
        item["namespace"] = tool.namespace
    return item


def custom_input(arguments: str) -> str:
    """A custom tool is a function with one argument; a model that wrote anything else wrote its input bare."""
    try:
        return str(loads(arguments.encode())["input"])
    except (ValueError, KeyError, TypeError):
        return arguments


def reply_items(completion: str, reply: Mapping[str, Any], tools: Mapping[str, Tool]) -> list[dict[str, Any]]:
    """A captured reply as output items. Reasoning is not kept in the tree."""
    items = []
    content = reply.get("content")
    if content or not reply.get("tool_calls"):
        items.append(message_item(item_id("msg", completion), content if isinstance(content, str) else ""))
    calls = reply.get("tool_calls") or ()
    return items + [call_item(completion, n, call, tools) for n, call in enumerate(calls)]
