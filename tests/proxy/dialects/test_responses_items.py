"""Items of the Responses API: what each type of the OpenAI SDK is to a conversation, and what others are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from proxy.dialects.responses_items import Kind, kind_of, to_messages, unread_types

WORDS = [{"type": "input_text", "text": "x"}]
CALLED = {"call_id": "c"}
ITEMS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "message": ("message", {"role": "user", "content": WORDS}),
    "reasoning": ("reasoning", {"id": "rs_1", "summary": []}),
    "item_reference": ("reference", {"id": "msg_1"}),
    # Answered by the client.
    "function_call": ("call", {**CALLED, "name": "look", "arguments": "{}"}),
    "function_call_output": ("result", {**CALLED, "output": "42"}),
    "custom_tool_call": ("call", {**CALLED, "name": "exec", "input": "1"}),
    "custom_tool_call_output": ("result", {**CALLED, "output": WORDS}),
    "local_shell_call": ("call", {**CALLED, "action": {"type": "exec", "command": ["ls"], "env": {}}}),
    "local_shell_call_output": ("result", {"id": "c", "output": "{}"}),
    "shell_call": ("call", {**CALLED, "action": {"commands": ["ls"]}}),
    "shell_call_output": ("result", {**CALLED, "output": [{"stdout": "a", "stderr": ""}]}),
    "apply_patch_call": ("call", {**CALLED, "operation": {"type": "delete_file", "path": "a"}}),
    "apply_patch_call_output": ("result", {**CALLED, "status": "completed"}),
    "computer_call": ("call", {**CALLED, "action": {"type": "screenshot"}, "pending_safety_checks": []}),
    "computer_call_output": ("result", {**CALLED, "output": {"type": "computer_screenshot", "image_url": "data:x"}}),
    "tool_search_call": ("call", {**CALLED, "arguments": {"query": "pay"}}),
    "tool_search_output": ("result", {**CALLED, "tools": []}),
    "program": ("call", {**CALLED, "id": "p", "code": "1", "fingerprint": "f"}),
    "program_output": ("result", {**CALLED, "id": "o", "result": "1"}),
    "multi_agent_call": ("call", {**CALLED, "action": "spawn_agent", "arguments": "{}"}),
    "multi_agent_call_output": ("result", {**CALLED, "output": WORDS}),
    # Run by the server that made them.
    "web_search_call": ("unreadable", {"id": "w", "action": {"type": "search", "query": "x"}}),
    "file_search_call": ("unreadable", {"id": "f", "queries": ["x"], "results": None}),
    "code_interpreter_call": ("unreadable", {"id": "i", "code": "1", "container_id": "k", "outputs": None}),
    "image_generation_call": ("unreadable", {"id": "g", "result": "iV"}),
    "mcp_call": ("unreadable", {"id": "m", "name": "n", "server_label": "s", "arguments": "{}", "output": "42"}),
    "mcp_list_tools": ("unreadable", {"id": "m", "server_label": "s", "tools": []}),
    "mcp_approval_request": ("unreadable", {"id": "m", "name": "n", "server_label": "s", "arguments": "{}"}),
    "mcp_approval_response": ("unreadable", {"approval_request_id": "m", "approve": True}),
    # What changes the request, and what only OpenAI reads.
    "additional_tools": ("settings", {"role": "developer", "tools": []}),
    "configuration_update": ("settings", {"reasoning": {"effort": "low"}}),
    "compaction": ("unreadable", {"encrypted_content": "gAAAAABq"}),
    "compaction_trigger": ("unreadable", {}),
    "context_compaction": ("unreadable", {"encrypted_content": "gAAAAABq"}),
    "agent_message": ("note", {"author": "/root", "recipient": "/root/a", "content": WORDS}),
}


def documented() -> Iterator[str]:
    """The types of items that the SDK knows."""
    for each in get_args(ResponseInputItemParam):
        for member in get_args(each) if get_origin(each) is Union else (each,):
            for argument in get_args(get_type_hints(member)["type"]):
                yield from (name for name in (get_args(argument) or (argument,)) if isinstance(name, str))


@pytest.mark.parametrize("type", sorted({*documented(), *ITEMS}))
def test_every_type_has_its_place(type: str) -> None:
    kind, members = ITEMS[type]  # a new one: say what it is to a conversation, here and in docs/lab/dialects.md
    item = {"type": type, **members}
    assert kind_of(item) == kind
    (messages, origins), left = to_messages([item]), unread_types([item])
    assert len(messages) == len(origins) == (kind in ("message", "reference", "call", "result", "note"))
    assert (type in left) == (kind == "unreadable")


@pytest.mark.parametrize(
    "item",
    [
        {"type": "tool_search_call", "id": "t", "call_id": None, "execution": "server", "arguments": {}},
        {"type": "surprise", "content": []},
        {"type": "surprise", "content": [{"type": "encrypted_content", "encrypted_content": "gAAAAABq"}]},
        {"type": "surprise_output", "id": "o"},
        {"type": ["odd"], "content": 3},
    ],
)
def test_what_has_no_words_is_left_out(item: dict[str, Any]) -> None:
    assert kind_of(item) == "unreadable" and to_messages([item]) == ([], []) and unread_types([item])


def test_what_a_server_found_itself_is_tools_alone() -> None:
    item: dict[str, Any] = {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []}
    assert kind_of(item) == "settings" and to_messages([item]) == ([], []) and unread_types([item]) == []
