"""The tools of an Anthropic Messages request as functions.

Owns which tools those are, wherever the request offers them. Anthropic's models know a shell, an editor and a memory
without a schema, and the client runs them: their schemas are here. What runs on Anthropic's servers is left out. So is
a screen, which only trained models use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy.dialects.fields import objects

TOOL_CHANGES: Final = ("tool_addition", "tool_removal")  # blocks of messages
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_TEXT: Final = {"type": "string"}
_PATH: Final = {**_TEXT, "description": "An absolute path."}
_LINES: Final = {"type": "array", "items": {"type": "integer"}, "description": "The first and the last line to view."}
_LINE: Final = {"type": "integer", "description": "The line after which the text is inserted; 0 is the beginning."}


def _commands(*names: str, **properties: Any) -> dict[str, Any]:
    """The schema of a tool that has several commands."""
    command = {**_TEXT, "enum": list(names)}
    return {"type": "object", "properties": {"command": command, **properties}, "required": ["command"]}


# How their types begin, before the date; description, schema.
_RUN_BY_CLIENTS: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "bash_": (
        "Runs a command in a shell that stays open between calls; `restart` starts it anew.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor_": (
        "Views, creates and changes files. `str_replace` puts `new_str` in the place of `old_str`, which must stand in "
        "the file exactly once.",
        _commands(
            "view", "create", "str_replace", "insert",
            path=_PATH, view_range=_LINES, file_text=_TEXT, old_str=_TEXT, new_str=_TEXT, insert_line=_LINE,
            insert_text=_TEXT,
        ),
    ),
    "memory_": (
        "Keeps notes in files below /memories. `str_replace` puts `new_str` in the place of `old_str`, which must "
        "stand in the file exactly once.",
        _commands(
            "view", "create", "str_replace", "insert", "delete", "rename",
            path=_PATH, view_range=_LINES, file_text=_TEXT, old_str=_TEXT, new_str=_TEXT, insert_line=_LINE,
            insert_text=_TEXT, old_path=_PATH, new_path=_PATH,
        ),
    ),
}  # fmt: skip


def chat_tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The tools that chat completions have. None where the request offers none."""
    tools = [tool for tool in offered_tools(body) if schema_of(tool) is not None]
    return [_function(tool) for tool in tools] if tools or body.get("tools") is not None else None


def offered_tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools of the request, with those that its messages add and without those that they take away."""
    tools = {_name(tool): tool for tool in objects(body, "tools")}
    removed: set[str] = set()
    for block in tool_changes(body):
        change = block["tool"]
        if isinstance(definition := change.get("definition"), dict):
            tools[_name(definition)] = definition
            removed.discard(_name(definition))
        elif change.get("type") == "tool_reference":
            (removed.add if block["type"] == "tool_removal" else removed.discard)(_name(change))
    return [tool for name, tool in tools.items() if name not in removed]


def tool_changes(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of its messages that add a tool or take one away."""
    items = body.get("messages")
    contents = [item.get("content") for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    return [
        block
        for block in blocks
        if isinstance(block, dict) and block.get("type") in TOOL_CHANGES and isinstance(block.get("tool"), dict)
    ]


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("name") or tool.get("type"))


def schema_of(tool: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema of its arguments; None where chat completions cannot have the tool."""
    if isinstance(tool.get("input_schema"), dict):
        schema: dict[str, Any] = tool["input_schema"]
        return schema
    client_tool = _client_tool(tool)
    return None if client_tool is None else client_tool[1]


def tool_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    if choice.get("type") == "tool":
        members["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind := _CHOICES.get(str(choice.get("type"))):
        members["tool_choice"] = kind
    if choice.get("disable_parallel_tool_use"):
        members["parallel_tool_calls"] = False
    return members


def _client_tool(tool: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    kind = str(tool.get("type"))
    return next((tool for prefix, tool in _RUN_BY_CLIENTS.items() if kind.startswith(prefix)), None)


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    client_tool = _client_tool(tool) if "input_schema" not in tool else None
    function: dict[str, Any] = {"name": tool.get("name"), "parameters": schema_of(tool)}
    if client_tool is not None:
        function["description"] = client_tool[0]
    for key in ("description", "strict"):
        if tool.get(key) is not None:
            function[key] = tool[key]
    return {"type": "function", "function": function}
