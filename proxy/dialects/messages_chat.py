"""Anthropic Messages requests in chat form: the messages, and the whole request for backends that lack the format.

Owns what becomes of each content block. What a person sent and chat completions cannot say is refused by name. Tools
that run on Anthropic's servers, and what is left of their runs, are left out and named. What only steers those servers
(`cache_control`, `service_tier`, `context_management`, …) is left out. The way back is `messages_render`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from proxy.core.agent_wrappers import FAILED
from proxy.core.errors import BadRequest
from proxy.dialects.chat_form import (
    content_of,
    image_part,
    json_schema,
    mark_attached,
    text_part,
    tool_call,
    without_marks,
)
from proxy.dialects.chat_turns import in_turns
from proxy.dialects.fields import flag, member, objects
from proxy.dialects.messages_tools import TOOL_CHANGES, chat_tools, offered_tools, schema_of, tool_choice

SAMPLING: Final = ("temperature", "top_p", "top_k")

# Blocks of each speaker that chat completions have a place for.
_SAYABLE: Final = {
    "system": {"text", *TOOL_CHANGES},
    "user": {"text", "image", "document", "search_result", "tool_result", *TOOL_CHANGES},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use", "compaction"},
}
_WITHOUT_SOURCE: Final = {"thinking", "redacted_thinking", "tool_use", "compaction", *TOOL_CHANGES}
_SERVERS: Final = ("mcp_servers", "container")  # members about tools that run at Anthropic
# Claude Code's attribution line: another hash each time, so that no conversation would go on from its last request.
_ATTRIBUTION: Final = "x-anthropic-billing-header:"
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


class Conversation(NamedTuple):
    messages: list[dict[str, Any]]
    origins: tuple[int | None, ...]  # the item of `messages` each came from; None for `system`


def conversation(body: Mapping[str, Any]) -> Conversation:
    """Each item becomes one chat message or, with tool results, several; never none."""
    messages: list[dict[str, Any]] = []
    origins: list[int | None] = []
    text = body.get("system")
    if system := _paragraphs([text_part(text)] if isinstance(text, str) else objects(body, "system")):
        messages.append({"role": "system", "content": system})
        origins.append(None)
    for i, item in enumerate(objects(body, "messages")):
        item_messages = _chat_messages(item, _blocks(item, f"messages[{i}]."))
        messages += item_messages
        origins += [i] * len(item_messages)
    return Conversation(messages, tuple(origins))


def results_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """A user's message without what they said in it."""
    return {**item, "content": [block for block in _blocks(item, "") if block.get("type") == "tool_result"]}


def assistant_message(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """An answer, whether it came from the model or is sent back by a client."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(map(_words, blocks)),
    }
    if thinking := "".join(str(b.get("thinking", "")) for b in blocks if b.get("type") == "thinking"):
        message["reasoning_content"] = thinking
    calls = [b for b in blocks if b.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = [
            tool_call(str(b.get("id") or ""), str(b.get("name") or ""), b.get("input") or {}) for b in calls
        ]
    return message


def _words(block: Mapping[str, Any]) -> str:
    """A compaction is the conversation so far in the model's words."""
    member = {"text": "text", "compaction": "content"}.get(str(block.get("type")), "")
    return str(block.get(member) or "")


def left_out(body: Mapping[str, Any]) -> list[str]:
    """The types of tools and blocks that the backend does not get."""
    tools = [str(tool.get("type")) for tool in offered_tools(body) if schema_of(tool) is None]
    servers = [key for key in _SERVERS if body.get(key)]
    blocks = [
        str(block.get("type"))
        for item in objects(body, "messages")
        if item.get("role") == "assistant"
        for block in _blocks(item, "")
        if str(block.get("type")) not in _SAYABLE["assistant"]
    ]
    return [*tools, *servers, *blocks]


def chat_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Raises BadRequest for what chat completions cannot say."""
    _refuse(body)
    messages = [without_marks(message) for message in conversation(body).messages]
    request: dict[str, Any] = {"model": body.get("model"), "messages": in_turns(messages)}
    for key in ("max_tokens", *SAMPLING):
        if body.get(key) is not None:
            request[key] = body[key]
    if stops := member(body, "stop_sequences", list, []):
        request["stop"] = stops
    if flag(body, "stream", False):
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    if user := member(body, "metadata", dict, {}).get("user_id"):
        request["user"] = user
    if tools := chat_tools(body):
        request |= {"tools": tools, **tool_choice(member(body, "tool_choice", dict, {}))}
    output = member(body, "output_config", dict, {})
    if effort := _EFFORTS.get(str(output.get("effort"))):
        request["reasoning_effort"] = effort
    if isinstance(form := answer_format(body), dict):
        request["response_format"] = json_schema(form.get("schema") or {})
    if (kwargs := template_kwargs(body)) is not None:
        request["chat_template_kwargs"] = kwargs
    return request


def answer_format(body: Mapping[str, Any]) -> Any:
    """The wanted form of the answer, if one is named."""
    output = body.get("output_config")
    return (output.get("format") if isinstance(output, Mapping) else None) or body.get("output_format")


def template_kwargs(body: Mapping[str, Any]) -> dict[str, Any] | None:
    disabled = member(body, "thinking", dict, {}).get("type") == "disabled"
    return {"enable_thinking": False} if disabled else None  # what vLLM, SGLang, llama.cpp and MLX take


# Blocks


def _blocks(item: Mapping[str, Any], within: str) -> list[dict[str, Any]]:
    if isinstance(text := item.get("content"), str):
        return [text_part(text)]
    return objects(item, "content", within=within)


def _paragraphs(blocks: list[dict[str, Any]]) -> str:
    """System blocks' text, each a paragraph of its own."""
    texts = (str(block.get("text", "")) for block in blocks)
    return "\n\n".join(text for text in texts if text and not text.startswith(_ATTRIBUTION))


def _chat_messages(item: Mapping[str, Any], blocks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    role = item.get("role")
    if role == "assistant":
        return [assistant_message(blocks)]
    if role == "system":
        return [{"role": "system", "content": _paragraphs(blocks)}]
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in blocks:
        if block.get("type") in TOOL_CHANGES:
            continue
        if block.get("type") != "tool_result":
            parts.append(_part(block))
            continue
        # A chat message of a tool holds text only: pictures follow in what the user says.
        block_parts = [_part(b) for b in _blocks(block, "")]
        texts = [p for p in block_parts if p.get("type") == "text"]
        content = "\n".join(str(p["text"]) for p in texts)
        result = {"role": "tool", "tool_call_id": str(block.get("tool_use_id") or ""), "content": content}
        messages.append({**result, FAILED: "yes"} if block.get("is_error") is True else result)
        parts += [p for p in block_parts if p.get("type") != "text"]
    if role != "user":  # as `function`: that is no person, whatever a backend takes it for
        parts = [mark_attached(part) for part in parts]
    if parts or not messages:
        messages.append({"role": "user", "content": content_of(parts)})
    return messages


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """A block of a user as a part of a chat message; one that has no counterpart stays what it is."""
    kind = block.get("type")
    if kind == "text":
        return text_part(str(block.get("text", "")))
    if kind == "tool_reference":  # what a search for tools found; the tool itself is offered all the time
        return text_part(str(block.get("tool_name") or ""))
    if kind == "image" and (url := _url(block.get("source"))):
        return image_part(url)
    if kind == "document":
        return _document(block)
    if kind == "search_result":
        text = "".join(part["text"] for part in map(_part, _blocks(block, "")) if part.get("type") == "text")
        return mark_attached(text_part(f"{block.get('title') or ''}\n{block.get('source') or ''}\n{text}"))
    return block


def _document(block: dict[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    title = str(block.get("title") or "")
    kind = source.get("type")
    if kind in ("text", "content"):
        parts = [_part(b) for b in _blocks({"content": source.get("data") or source.get("content")}, "source.")]
        if all(part.get("type") == "text" for part in parts):
            return mark_attached(text_part("\n".join(filter(None, [title, *(str(part["text"]) for part in parts)]))))
    if kind == "base64":
        return {"type": "file", "file": {"filename": title or "document.pdf", "file_data": _url(source)}}
    return block


def _url(source: Any) -> str | None:
    if not isinstance(source, dict):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source["url"]) if source.get("type") == "url" and source.get("url") else None


# What cannot be said


def _refuse(body: Mapping[str, Any]) -> None:
    _refuse_tools(body)
    items = objects(body, "messages")
    for i, item in enumerate(items):
        role = str(item.get("role"))
        for j, block in enumerate(_blocks(item, f"messages[{i}].")):
            location = f"messages[{i}].content[{j}]"
            if str(block.get("type")) in _SAYABLE.get(role, ()):
                _refuse_sources(block, location)
            elif role != "assistant":  # what came of tools that ran there is left out
                raise _cannot(location, f"a block `{block.get('type')}` of {role}")
    if items and items[-1].get("role") == "assistant":
        raise _cannot(f"messages[{len(items) - 1}]", "the beginning of an answer that is to be continued")


def _refuse_tools(body: Mapping[str, Any]) -> None:
    """A request all of whose tools run on Anthropic's servers is about these: an answer without them would pretend."""
    lacking = [(i, tool) for i, tool in enumerate(objects(body, "tools")) if schema_of(tool) is None]
    choice = member(body, "tool_choice", dict, {})
    for i, tool in lacking:
        if not chat_tools(body) or (choice.get("type") == "tool" and choice.get("name") == tool.get("name")):
            raise _cannot(f"tools[{i}]", f"the tool `{tool.get('type')}`, which runs on Anthropic's servers")
    for key in _SERVERS:
        if body.get(key) and not chat_tools(body):
            raise _cannot(key, f"`{key}`")


def _refuse_sources(block: dict[str, Any], location: str) -> None:
    """Files that lie on Anthropic's servers, documents to be fetched, and what tools bring besides."""
    if block.get("type") == "tool_result":
        for k, inner in enumerate(_blocks(block, f"{location}.")):
            _refuse_sources(inner, f"{location}.content[{k}]")
    elif str(block.get("type")) not in _WITHOUT_SOURCE and _part(block) is block:
        source = block.get("source")
        of = f" with a source `{source.get('type')}`" if isinstance(source, dict) else ""
        raise _cannot(location, f"a block `{block.get('type')}`{of}")


def _cannot(location: str, subject: str) -> BadRequest:
    return BadRequest(
        f"`{location}`: this backend speaks chat completions, which cannot say {subject}; nothing was sent to it.",
        param=location,
    )
