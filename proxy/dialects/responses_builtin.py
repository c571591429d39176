"""Tools of the Responses API that have a type of their own and are run by the client, as functions and back.

Owns their schemas for models that know only functions, and which member of a call has what the model wrote. A tool that
runs at OpenAI is not here: no other server has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from proxy.core.json_edit import dumps
from proxy.dialects.chat_form import arguments_of


class BuiltIn(NamedTuple):
    """One such tool. Its function has the name of its type."""

    item: str  # the type of its calls
    member: str  # of a call: what the model wrote
    description: str
    properties: Mapping[str, Any]  # of the arguments, as a JSON schema has them
    required: tuple[str, ...]
    fixed: Mapping[str, Any]  # what stands in that member, too, unless the model wrote it
    head: Mapping[str, Any]  # what stands beside that member

    def schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": dict(self.properties), "required": list(self.required)}

    def call(self, arguments: str) -> dict[str, Any]:
        """The members of a call, by what a model wrote. A text where the schema has a list is a list of one."""
        wrote = arguments_of(arguments)
        for name, value in wrote.items():
            if isinstance(value, str) and self.properties.get(name, {}).get("type") == "array":
                wrote[name] = [value]
        return {**self.head, self.member: {**self.fixed, **wrote}}

    def arguments(self, item: Mapping[str, Any]) -> str:
        """The other way round: what is empty, or not an argument, no model wrote."""
        wrote = item.get(self.member)
        if not isinstance(wrote, Mapping):
            return str(wrote or "")
        constant = self.fixed.keys() - self.properties.keys()
        return dumps({k: v for k, v in wrote.items() if k not in constant and v not in _EMPTY}).decode()


_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {})
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "array", "items": _TEXT}
_TIMEOUT: Final = {"type": "integer", "description": "In milliseconds."}

BUILT_IN: Final[Mapping[str, BuiltIn]] = {
    "local_shell": BuiltIn(
        "local_shell_call",
        "action",
        "Runs a command on the user's machine.",
        {
            "command": {**_TEXTS, "description": 'The program and its arguments, as ["bash", "-lc", "ls"].'},
            "working_directory": _TEXT,
            "timeout_ms": _TIMEOUT,
            "env": {"type": "object", "additionalProperties": _TEXT},
        },
        ("command",),
        {"type": "exec", "command": [], "env": {}},
        {},
    ),
    "shell": BuiltIn(
        "shell_call",
        "action",
        "Runs commands in the user's shell, one after the other.",
        {
            "commands": _TEXTS,
            "timeout_ms": _TIMEOUT,
            "max_output_length": {"type": "integer", "description": "Characters of output to return."},
        },
        ("commands",),
        {"commands": [], "timeout_ms": None, "max_output_length": None},
        {},
    ),
    "apply_patch": BuiltIn(
        "apply_patch_call",
        "operation",
        "Creates, changes or deletes one file. A diff has no file names and no line numbers. A line `@@` begins each "
        "part. Then come lines that begin with a space (as they are), `-` (to remove) or `+` (to add). All lines of a "
        "new file begin with `+`.",
        {
            "type": {**_TEXT, "enum": ["create_file", "update_file", "delete_file"]},
            "path": {**_TEXT, "description": "From the folder of the work."},
            "diff": {**_TEXT, "description": "For create_file and update_file."},
        },
        ("type", "path"),
        {"type": "update_file", "path": "", "diff": ""},
        {},
    ),
    "tool_search": BuiltIn(
        "tool_search_call",
        "arguments",
        "Finds further tools; they can be called once it has answered.",
        {"query": _TEXT},
        ("query",),
        {},
        {"execution": "client"},
    ),
}
BY_ITEM: Final = {tool.item: (name, tool) for name, tool in BUILT_IN.items()}


def built_in(tool: Mapping[str, Any]) -> BuiltIn | None:
    """The tool, if its client runs it: a shell may also run at OpenAI, and so may a search for tools."""
    environment = tool.get("environment")
    if isinstance(environment, Mapping) and environment.get("type") not in (None, "local"):
        return None
    if tool.get("type") == "tool_search" and tool.get("execution") != "client":
        return None
    return BUILT_IN.get(str(tool.get("type")))
