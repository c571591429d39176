"""Anthropic Messages requests in chat form: the messages, and the whole request for backends that lack the format.

Owns what becomes of each content block. What chat completions cannot say is refused by name, but for what only
steers Anthropic's own servers (`cache_control`, `service_tier`, `context_management`, …): that is left out. The way
back is `messages_render`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple

from proxy.core.agent_wrappers import FAILED
from proxy.core.errors import BadRequest
from proxy.dialects.chat_form import attached, content_of, image_part, json_schema, text_part, tool_call, unmarked
from proxy.dialects.fields import flag, member, objects

SAMPLING: Final = ("temperature", "top_p", "top_k")

# Blocks that have no counterpart in chat completions: tools that run on Anthropic's servers, and their results.
_SAYABLE: Final = {
    "system": {"text"},
    "user": {"text", "image", "document", "search_result", "tool_result"},
    "assistant": {"text", "thinking", "redacted_thinking", "tool_use"},
}
# Claude Code's attribution line: another hash each time, so that no conversation would go on from its last request.
_ATTRIBUTION: Final = "x-anthropic-billing-header:"
_EFFORTS: Final = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}


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
        found = _chat_messages(item, _blocks(item, f"messages[{i}]."))
        messages += found
        origins += [i] * len(found)
    return Conversation(messages, tuple(origins))


def results_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """A user's message without what they said in it."""
    return {**item, "content": [block for block in _blocks(item, "") if block.get("type") == "tool_result"]}


def assistant_message(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """An answer, whether it came from the model or is sent back by a client."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(str(b.get("text", "")) for b in blocks if b.get("type") == "text"),
    }
    if thinking := "".join(str(b.get("thinking", "")) for b in blocks if b.get("type") == "thinking"):
        message["reasoning_content"] = thinking
    calls = [b for b in blocks if b.get("type") == "tool_use"]
    if calls:
        message["tool_calls"] = [
            tool_call(str(b.get("id") or ""), str(b.get("name") or ""), b.get("input") or {}) for b in calls
        ]
    return message


def chat_tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The client's own tools; those that run on Anthropic's servers have no schema to show."""
    if body.get("tools") is None:
        return None
    return [_tool(tool) for tool in objects(body, "tools") if "input_schema" in tool]


def chat_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """Raises BadRequest for what chat completions cannot say."""
    _refuse(body)
    messages = [unmarked(message) for message in conversation(body).messages]
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
        request |= {"tools": tools, **_tool_choice(member(body, "tool_choice", dict, {}))}
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
        if block.get("type") != "tool_result":
            parts.append(_part(block))
            continue
        # A chat message of a tool holds text only: pictures follow in what the user says.
        found = [_part(b) for b in _blocks(block, "")]
        texts = [p for p in found if p.get("type") == "text"]
        content = "\n".join(str(p["text"]) for p in texts)
        result = {"role": "tool", "tool_call_id": str(block.get("tool_use_id") or ""), "content": content}
        messages.append({**result, FAILED: "yes"} if block.get("is_error") is True else result)
        parts += [p for p in found if p.get("type") != "text"]
    if role != "user":  # as `function`: that is no person, whatever a backend takes it for
        parts = [attached(part) for part in parts]
    if parts or not messages:
        messages.append({"role": "user", "content": content_of(parts)})
    return messages


def _part(block: dict[str, Any]) -> dict[str, Any]:
    """A block of a user as a part of a chat message; one that has no counterpart stays what it is."""
    kind = block.get("type")
    if kind == "text":
        return text_part(str(block.get("text", "")))
    if kind == "image" and (url := _url(block.get("source"))):
        return image_part(url)
    if kind == "document":
        return _document(block)
    if kind == "search_result":
        text = "".join(part["text"] for part in map(_part, _blocks(block, "")) if part.get("type") == "text")
        return attached(text_part(f"{block.get('title') or ''}\n{block.get('source') or ''}\n{text}"))
    return block


def _document(block: dict[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    title = str(block.get("title") or "")
    kind = source.get("type")
    if kind in ("text", "content"):
        parts = [_part(b) for b in _blocks({"content": source.get("data") or source.get("content")}, "source.")]
        if all(part.get("type") == "text" for part in parts):
            return attached(text_part("\n".join(filter(None, [title, *(str(part["text"]) for part in parts)]))))
    if kind == "base64":
        return {"type": "file", "file": {"filename": title or "document.pdf", "file_data": _url(source)}}
    return block


def _url(source: Any) -> str | None:
    if not isinstance(source, dict):
        return None
    if source.get("type") == "base64":
        return f"data:{source.get('media_type')};base64,{source.get('data')}"
    return str(source["url"]) if source.get("type") == "url" and source.get("url") else None


# Turns


def in_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Order messages as chat templates want them: system text only at the start, and no two users in a row.

    Claude Code puts system messages between the turns, also between a call and its result. They go to the end of
    the user's or tool's message before them; a turn that has been sent once never changes afterwards.
    """
    out: list[_Turn] = []
    held: list[dict[str, Any]] = []
    begun = False  # a message that is no system text has come
    for message in messages:
        if message["role"] == "system" and begun:
            held.append(message)
            continue
        begun = begun or message["role"] != "system"
        if message["role"] != "tool":
            _place(out, held)
        _append(out, message)
    _place(out, held)
    return [_joined(turn) for turn in out]


_Turn = list[dict[str, Any]]  # messages that are one, joined once all are there: each of them is read once


def _place(out: list[_Turn], held: list[dict[str, Any]]) -> None:
    for message in held:
        before = out[-1][0]["role"]
        role = before if before in ("user", "tool") else "user"
        _append(out, {"role": role, "content": message["content"]}, onto=("user", "tool"))
    held.clear()


def _append(out: list[_Turn], message: dict[str, Any], onto: tuple[str, ...] = ("user", "system")) -> None:
    if out and out[-1][0]["role"] == message["role"] and message["role"] in onto:
        out[-1].append(message)
    else:
        out.append([message])


def _joined(turn: _Turn) -> dict[str, Any]:
    if len(turn) == 1:
        return turn[0]
    contents = [message["content"] for message in turn]
    if all(isinstance(content, str) for content in contents):
        return {**turn[0], "content": "\n\n".join(filter(None, contents))}
    # Texts up to the first that is none are one text.
    texts = list(takewhile(lambda content: isinstance(content, str), contents))
    parts = _parts("\n\n".join(filter(None, texts)))
    return {**turn[0], "content": parts + [part for content in contents[len(texts) :] for part in _parts(content)]}


def _parts(content: Any) -> list[dict[str, Any]]:
    return ([text_part(content)] if content else []) if isinstance(content, str) else content


# Tools


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name"), "parameters": tool["input_schema"]}
    for key in ("description", "strict"):
        if tool.get(key) is not None:
            function[key] = tool[key]
    return {"type": "function", "function": function}


def _tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if choice.get("type") == "tool":
        found["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind := _CHOICES.get(str(choice.get("type"))):
        found["tool_choice"] = kind
    if choice.get("disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    return found


# What cannot be said


def _refuse(body: Mapping[str, Any]) -> None:
    for i, tool in enumerate(objects(body, "tools")):
        if "input_schema" not in tool:
            raise _cannot(f"tools[{i}]", f"the tool `{tool.get('type')}`, which has no schema of its own")
    for key in ("mcp_servers", "container"):
        if body.get(key):
            raise _cannot(key, f"`{key}`")
    items = objects(body, "messages")
    for i, item in enumerate(items):
        sayable = _SAYABLE.get(str(item.get("role")), set())
        for j, block in enumerate(_blocks(item, f"messages[{i}].")):
            where = f"messages[{i}].content[{j}]"
            if block.get("type") not in sayable:
                raise _cannot(where, f"a block `{block.get('type')}` of {item.get('role')}")
            _refuse_sources(block, where)
    if items and items[-1].get("role") == "assistant":
        raise _cannot(f"messages[{len(items) - 1}]", "the beginning of an answer that is to be continued")


def _refuse_sources(block: dict[str, Any], where: str) -> None:
    """Files that lie on Anthropic's servers, documents to be fetched, and what tools bring besides."""
    if block.get("type") == "tool_result":
        for k, inner in enumerate(_blocks(block, f"{where}.")):
            _refuse_sources(inner, f"{where}.content[{k}]")
    elif block.get("type") not in ("thinking", "redacted_thinking", "tool_use") and _part(block) is block:
        source = block.get("source")
        of = f" with a source `{source.get('type')}`" if isinstance(source, dict) else ""
        raise _cannot(where, f"a block `{block.get('type')}`{of}")


def _cannot(where: str, what: str) -> BadRequest:
    return BadRequest(
        f"`{where}`: this backend speaks chat completions, which cannot say {what}; nothing was sent to it.",
        param=where,
    )
