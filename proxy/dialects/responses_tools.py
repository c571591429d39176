"""The tools of a Responses request under the names that chat completions know them by.

Owns which tools those are: functions, custom tools, and what the client runs itself, wherever the request offers them.
Agents also add tools between the messages (`additional_tools`, found ones). Chat completions have no such place: there
a tool is offered from the start. What runs at OpenAI is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.core.errors import BadRequest
from proxy.dialects.responses_builtin import BuiltIn, built_in
from proxy.dialects.responses_items import SETTINGS, full_name


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool under its name in chat completions."""

    name: str  # in the Responses API
    namespace: str | None
    custom: bool
    built_in: BuiltIn | None  # where it has a type of its own
    chat: dict[str, Any]


def tools_of(body: Mapping[str, Any]) -> dict[str, Tool]:
    """The tools that chat completions have, by their names there. Of two with one name, the newer counts."""
    tools: dict[str, Tool] = {}
    for namespace, tool in _offered(body):
        kind, client_tool = tool.get("type"), built_in(tool)
        if client_tool is None and kind not in ("function", "custom"):
            continue
        name = str(tool.get("name") if client_tool is None else kind)
        chat_name = full_name(namespace, name)
        chat = _chat_tool(chat_name, tool, client_tool)
        tools[chat_name] = Tool(name, namespace, kind == "custom", client_tool, chat)
    return tools


def left_out_tools(body: Mapping[str, Any]) -> list[str]:
    """The types of the tools that the backend does not get."""
    offered = (tool for _, tool in _offered(body) if built_in(tool) is None)
    return [str(tool.get("type")) for tool in offered if tool.get("type") not in ("function", "custom")]


def added_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that stand between the messages."""
    items = body.get("input")
    added = [item for item in items if item.get("type") in SETTINGS] if isinstance(items, list) else []
    return [tool for item in added for tool in _objects(item)]


def _offered(body: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, Any]]]:
    """Each tool, and the namespace that it is in."""
    for tool in [*_objects(body), *added_tools(body)]:
        if tool.get("type") == "namespace":
            yield from ((tool.get("name"), inner) for inner in _objects(tool))
        else:
            yield None, tool


def _objects(holder: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools = holder.get("tools")
    return [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []


def _chat_tool(name: str, tool: Mapping[str, Any], client_tool: BuiltIn | None) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if description := tool.get("description") or (client_tool.description if client_tool else None):
        function["description"] = description
    if tool["type"] == "custom":
        grammar = tool.get("format")
        if isinstance(grammar, dict) and grammar.get("type") == "grammar":
            rule = f"The input must follow this {grammar.get('syntax')} grammar:\n{grammar.get('definition')}"
            function["description"] = "\n\n".join(filter(None, (function.get("description"), rule)))
        properties = {"input": {"type": "string"}}
        function["parameters"] = {"type": "object", "properties": properties, "required": ["input"]}
    elif client_tool is not None:
        function["parameters"] = tool.get("parameters") or client_tool.schema()
    else:
        function["parameters"] = tool.get("parameters") or {"type": "object", "properties": {}}
        if tool.get("strict") is not None:
            function["strict"] = tool["strict"]
    return {"type": "function", "function": function}


def choose_tools(body: Mapping[str, Any], chat: dict[str, Any]) -> None:
    """`tools`, `tool_choice`, `parallel_tool_calls`. Raises BadRequest where a tool is forced that is not there."""
    tools, choice = tools_of(body), body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choices = tools_of({"tools": choice.get("tools")})
        tools = {name: tool for name, tool in tools.items() if name in choices}
        choice = choice.get("mode", "auto")
    if isinstance(choice, dict):
        name = full_name(choice.get("namespace"), str(choice.get("name") or choice.get("type")))
        if name not in tools:
            raise _cannot_call(f"`tool_choice` forces the tool {name}, which", "tool_choice")
        choice = {"type": "function", "function": {"name": name}}
    if choice == "required" and not tools:
        kinds = ", ".join(dict.fromkeys(left_out_tools(body))) or "there is none"
        raise _cannot_call(f"`tool_choice` is required, and every tool of this request ({kinds})", "tools")
    if tools:
        chat["tools"] = [tool.chat for tool in tools.values()]
        if choice is not None:
            chat["tool_choice"] = choice
        if body.get("parallel_tool_calls") is not None:
            chat["parallel_tool_calls"] = body["parallel_tool_calls"]


def _cannot_call(reason: str, param: str) -> BadRequest:
    return BadRequest(
        f"{reason} this backend does not have: it knows functions, custom tools, and what the client runs itself. "
        "Nothing was sent to it.",
        param=param,
    )
