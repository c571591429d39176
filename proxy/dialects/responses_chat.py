"""A Responses request as chat completions.

Owns which member becomes which, which tools chat completions have, and what cannot be said there. The table is in
docs/reference/dialects.md. What only changes how OpenAI serves (caching, tiers, storing) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from proxy.core.errors import BadRequest, UnknownPrevious
from proxy.dialects.chat_form import unmarked
from proxy.dialects.responses_items import full_name

log = structlog.get_logger()

# Members with a meaning of their own here; all others (top_k, seed, stop, chat_template_kwargs, …) go on as they are.
_OWN: Final = frozenset((
    "background", "client_metadata", "context_management", "conversation", "include", "input", "instructions",
    "max_output_tokens", "max_tool_calls", "metadata", "moderation", "previous_response_id", "prompt",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "reasoning", "safety_identifier",
    "service_tier", "store", "stream_options", "text", "tool_choice", "tools", "top_logprobs", "truncation",
    "enable_response_messages", "parallel_tool_calls", "n",
))  # fmt: skip
_UNSAYABLE: Final = ("background", "conversation", "prompt")
_TOOLS: Final = ("function", "custom", "namespace")
LOGPROBS: Final = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool under its name in chat completions."""

    name: str  # in the Responses API
    namespace: str | None
    custom: bool
    chat: dict[str, Any]


def tools_of(body: Mapping[str, Any]) -> dict[str, Tool]:
    """The tools that chat completions have, by their names there. Built-in ones run at OpenAI: no backend has them."""
    found: dict[str, Tool] = {}
    for tool in body.get("tools") or ():
        inner = tool.get("tools") or () if tool.get("type") == "namespace" else (tool,)
        namespace = tool.get("name") if tool.get("type") == "namespace" else None
        for one in inner:
            if one.get("type") in ("function", "custom"):
                name = full_name(namespace, str(one.get("name")))
                found[name] = Tool(str(one.get("name")), namespace, one["type"] == "custom", _tool(name, one))
    return found


def _tool(name: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if tool.get("description"):
        function["description"] = tool["description"]
    if tool["type"] == "custom":
        grammar = tool.get("format") or {}
        if grammar.get("type") == "grammar":
            said = f"The input must follow this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
            function["description"] = "\n\n".join(filter(None, (function.get("description"), said)))
        properties = {"input": {"type": "string"}}
        function["parameters"] = {"type": "object", "properties": properties, "required": ["input"]}
    else:
        function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
        if tool.get("strict") is not None:
            function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def to_chat(body: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if body.get("previous_response_id"):
        raise UnknownPrevious(
            f"Previous response with id '{body['previous_response_id']}' not found.", param="previous_response_id"
        )
    for member in _UNSAYABLE:
        if body.get(member):
            raise BadRequest(
                f"This backend has no Responses API, and chat completions cannot say `{member}`.", param=member
            )
    items = body.get("input")
    for item in items if isinstance(items, list) else ():
        if item.get("type") == "item_reference":
            raise BadRequest(f"Item with id '{item.get('id')}' not found; send the item itself.", param="input")
    chat = {key: value for key, value in body.items() if key not in _OWN}
    chat["messages"] = one_system([unmarked(message) for message in messages])
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    if (effort := (body.get("reasoning") or {}).get("effort")) is not None:
        chat["reasoning_effort"] = effort
    if (form := _response_format((body.get("text") or {}).get("format"))) is not None:
        chat["response_format"] = form
    if LOGPROBS in (body.get("include") or ()):
        chat["logprobs"] = True
        if body.get("top_logprobs"):
            chat["top_logprobs"] = body["top_logprobs"]
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    _choose_tools(body, chat)
    return chat


def one_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Many templates take one system message, at the beginning; agents send instructions and developer messages."""
    texts: list[str] = []
    at = 0
    while at < len(messages) and messages[at].get("role") == "system":
        if (found := _texts(messages[at].get("content"))) is None:
            break
        texts += found
        at += 1
    rest = [dict(m) for m in messages[at:]]
    return [{"role": "system", "content": "\n\n".join(texts)}, *rest] if texts else rest


def _texts(content: Any) -> list[str] | None:
    """None where it is not text alone."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return None
    texts = [str(p.get("text") or "") for p in content if isinstance(p, dict) and p.get("type") == "text"]
    return texts if texts and len(texts) == len(content) else None


def _response_format(form: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if form is None or form.get("type") == "text":
        return None
    if form.get("type") != "json_schema":
        return dict(form)
    schema = {k: form[k] for k in ("name", "schema", "strict", "description") if form.get(k) is not None}
    return {"type": "json_schema", "json_schema": schema}


def _choose_tools(body: Mapping[str, Any], chat: dict[str, Any]) -> None:
    """`tools`, `tool_choice`, `parallel_tool_calls`. Raises BadRequest where a tool is forced that is not there."""
    tools, choice = tools_of(body), body.get("tool_choice")
    if left := [t.get("type") for t in body.get("tools") or () if t.get("type") not in _TOOLS]:
        log.info("built-in tools are left out: chat completions have none", tools=left)
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = tools_of({"tools": choice.get("tools")})
        tools = {name: tool for name, tool in tools.items() if name in allowed}
        choice = choice.get("mode", "auto")
    if isinstance(choice, dict):
        name = full_name(choice.get("namespace"), str(choice.get("name")))
        if choice.get("type") not in ("function", "custom") or name not in tools:
            raise BadRequest(
                f"`tool_choice` forces the tool {choice.get('name') or choice.get('type')}, "
                "which this backend does not have.",
                param="tool_choice",
            )
        choice = {"type": "function", "function": {"name": name}}
    if choice == "required" and not tools:
        raise BadRequest("`tool_choice` is required, but none of `tools` is one that this backend has.", param="tools")
    if tools:
        chat["tools"] = [tool.chat for tool in tools.values()]
        if choice is not None:
            chat["tool_choice"] = choice
        if body.get("parallel_tool_calls") is not None:
            chat["parallel_tool_calls"] = body["parallel_tool_calls"]
