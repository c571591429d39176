"""Chat messages as items of the Responses API: the history of a request, and the pages of a stored one.

Owns which item a stored call or result becomes. A server answers a call in the kind of item that it knows the tool by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from proxy.dialects.chat_form import arguments_of
from proxy.dialects.responses_items import to_call
from proxy.dialects.responses_object import call_item
from proxy.dialects.responses_tools import Tool

_RESULTS: Final = {"custom_tool_call": "custom_tool_call_output"}  # of calls; of all others it is a function's


def to_items(messages: Iterable[Mapping[str, Any]], tools: Mapping[str, Tool]) -> list[dict[str, Any]]:
    """Messages of the tree as input items. `tools`: those of the request that they stand in."""
    messages = list(messages)
    answered = {message.get("tool_call_id") for message in messages if message.get("role") == "tool"}
    results: dict[Any, str] = {}  # types of results, by the ids of their calls
    items: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "tool":
            output = content if isinstance(content, str) else _input_parts(content)
            call_id = message.get("tool_call_id")
            kind = results.get(call_id, "function_call_output")
            items.append({"type": kind, "call_id": call_id, "output": output})
            continue
        if content or not message.get("tool_calls"):
            content = content if isinstance(content, str) else _input_parts(content)
            items.append({"type": "message", "role": message.get("role"), "content": content})
        for call in message.get("tool_calls") or ():
            item = _call(call, tools, is_answered=call.get("id") in answered)
            results[call.get("id")] = _RESULTS.get(item["type"], "function_call_output")
            items.append(item)
    return items


def _call(call: Mapping[str, Any], tools: Mapping[str, Tool], *, is_answered: bool) -> dict[str, Any]:
    """A call as the client knows its tool, where that says the same. The result of a shell or an editor is stored as a
    text, which only a function may have. So such a call is a function's once it is answered."""
    tool = tools.get(str(call["function"].get("name")))
    function = {"type": "function_call", "call_id": call.get("id"), **call["function"]}
    if tool is None or (tool.built_in is not None and is_answered):
        return function
    item = {key: value for key, value in call_item("", 0, call, tools).items() if key != "id"}
    return item if _arguments(to_call(item)) == _arguments(call) else function


def _arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    return arguments_of(call["function"].get("arguments") or "")


def listed_items(
    completion: str, messages: Iterable[Mapping[str, Any]], tools: Mapping[str, Tool]
) -> list[dict[str, Any]]:
    """The same as items that a server lists: each with an id and a status. An answer's parts are `output_text`."""
    return [_listed_item(f"{completion}_in{n}", item) for n, item in enumerate(to_items(messages, tools))]


def _listed_item(name: str, item: dict[str, Any]) -> dict[str, Any]:
    head = {"id": f"{'msg' if item['type'] == 'message' else 'fc'}_{name}", "status": "completed"}
    if item["type"] != "message":
        return {**item, **head}
    content = item["content"]
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    if item["role"] == "assistant":
        texts = [str(part.get("text") or "") for part in parts]
        parts = [{"type": "output_text", "annotations": [], "logprobs": [], "text": text} for text in texts]
    return {**item, **head, "content": parts}


def _input_parts(content: Any) -> list[dict[str, Any]]:
    parts = []
    for part in content or ():
        match part.get("type") if isinstance(part, Mapping) else None:
            case "text":
                parts.append({"type": "input_text", "text": part.get("text")})
            case "image_url":
                image = part["image_url"]
                sources = {"image_url": image["url"], "file_id": image.get("file_id")}
                members = {name: source for name, source in sources.items() if source is not None}
                parts.append({"type": "input_image", **members, "detail": image.get("detail", "auto")})
            case "file":
                parts.append({"type": "input_file", **part["file"]})
            case _:
                parts.append(part)
    return parts
