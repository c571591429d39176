"""The items of the Responses API as chat messages, and back.

Owns what one model turn is. Items that a model put out one after the other (reasoning, text, calls) are one assistant
message, however many they are. So the reply that a client sends back is the reply that was captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from proxy.core.agent_wrappers import TEXT_PARTS
from proxy.dialects.chat_form import attached, text_part

CALLS: Final = ("function_call", "custom_tool_call")
_REASONING: Final = "rs_"  # how its ids begin
_OURS: Final = re.compile(
    r"msg_(?:start\.)?rl-"
)  # a message that rlproxy named: an answer to a command, or a translated one
OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")


def to_messages(items: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int | None]]:
    """The messages, and the first item of each. Built-in tools say nothing. What a reference names is not known here:
    its place is kept, as an answer of the model."""
    turns = _Turns()
    for i, item in enumerate(items):
        kind = "item_reference" if is_reference(item) else item.get("type") or "message"
        if kind != "message" and not (kind == "item_reference" and _OURS.match(str(item.get("id")))):
            turns.asked()
        if kind == "message" and item.get("role") == "assistant":
            turns.text(i, plain(item.get("content")))
        elif kind in CALLS:
            turns.assistant(i).setdefault("tool_calls", []).append(to_call(item))
        elif kind == "item_reference" and not str(item.get("id")).startswith(_REASONING):
            turns.reference(i, str(item.get("id")))
        elif kind in ("reasoning", "item_reference"):
            turns.reasoning(i, plain(item.get("content")) or plain(item.get("summary")))
        elif kind in OUTPUTS:
            output = item.get("output")
            content = output if isinstance(output, str) else _parts(output)
            turns.other(i, {"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
        elif kind == "message":
            role = "system" if item.get("role") == "developer" else str(item.get("role"))
            turns.other(i, {"role": role, "content": _parts(item.get("content"))})
    turns.end()
    return turns.messages, turns.origins


def is_reference(item: Mapping[str, Any]) -> bool:
    """Tell whether the item is only named."""
    return item.get("type") in (None, "item_reference") and "role" not in item and "id" in item


class _Turns:
    """`end` makes the last one whole: the texts of a turn are joined once."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origins: list[int | None] = []
        self._open: dict[str, Any] | None = None
        self._at: int | None = None  # the first item of this turn; until there is more, it may be reasoning alone
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._references: list[str] = []

    def assistant(self, i: int) -> dict[str, Any]:
        if self._open is None:
            self._open = {"role": "assistant", "content": None}
            self.messages.append(self._open)
            self.origins.append(i if self._at is None else self._at)
        return self._open

    def text(self, i: int, text: str) -> None:
        self.assistant(i)
        self._texts.append(text)

    def reference(self, i: int, id: str) -> None:
        self.assistant(i)
        self._references.append(id)

    def reasoning(self, i: int, text: str) -> None:
        if self._open is None and self._at is None:
            self._at = i
        self._thoughts.append(text)

    def asked(self) -> None:
        """The model, or a tool, had its turn: a person's message right before it was not a command."""
        if self._open is None and self.messages and self.messages[-1]["role"] == "user":
            self.messages[-1] = _attached(self.messages[-1])

    def other(self, i: int, message: dict[str, Any]) -> None:
        self.end()
        self.messages.append(message)
        self.origins.append(i)

    def end(self) -> None:
        if self._open is not None:
            if self._texts:
                self._open["content"] = "".join(self._texts)
            if self._references:
                named = [{"type": "item_reference", "id": id} for id in self._references]
                self._open["content"] = [*map(text_part, self._texts), *named]
            if thought := "".join(self._thoughts):
                self._open["reasoning_content"] = thought
        self._open = self._at = None
        self._texts, self._thoughts, self._references = [], [], []


def plain(content: Any) -> str:
    """The text of a list of parts, refusals included."""
    if isinstance(content, str):
        return content
    parts = [p for p in content if isinstance(p, dict)] if isinstance(content, list) else []
    return "".join(
        str(p.get("refusal") or "") if p.get("type") == "refusal" else str(p.get("text") or "") for p in parts
    )


def to_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """A call in chat form; a custom tool is there a function with one argument, its input."""
    custom = item.get("type") == "custom_tool_call"
    arguments = orjson.dumps({"input": item.get("input")}).decode() if custom else item.get("arguments")
    name = full_name(item.get("namespace"), str(item.get("name")))
    return {"id": item.get("call_id"), "type": "function", "function": {"name": name, "arguments": arguments or ""}}


def full_name(namespace: str | None, name: str) -> str:
    """Chat completions have no namespaces."""
    return f"{namespace}__{name}" if namespace else name


def _parts(content: Any) -> Any:
    """Content in chat form; text alone is a string."""
    if not isinstance(content, list):
        return content
    if len(content) == 1 and isinstance(content[0], dict) and content[0].get("type") in TEXT_PARTS:
        return content[0].get("text")
    return [_part(p) if isinstance(p, dict) else p for p in content]


def _attached(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    parts = [text_part(content)] if isinstance(content, str) else content if isinstance(content, list) else []
    return {**message, "content": [attached(p) if isinstance(p, dict) else p for p in parts]}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text")}
        case "input_image":
            image = {"url": part.get("image_url"), **({"detail": part["detail"]} if part.get("detail") else {})}
            return {"type": "image_url", "image_url": image}
        case "input_file":
            return {"type": "file", "file": {k: v for k, v in part.items() if k != "type"}}
        case _:
            return dict(part)  # audio is the same in both; what is unknown is the backend's to judge


def to_items(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages of the tree as input items."""
    items: list[dict[str, Any]] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") == "tool":
            output = content if isinstance(content, str) else _input_parts(content)
            items.append({"type": "function_call_output", "call_id": message.get("tool_call_id"), "output": output})
            continue
        if content or not message.get("tool_calls"):
            content = content if isinstance(content, str) else _input_parts(content)
            items.append({"type": "message", "role": message.get("role"), "content": content})
        for call in message.get("tool_calls") or ():
            items.append({"type": "function_call", "call_id": call.get("id"), **call["function"]})
    return items


def _input_parts(content: Any) -> list[dict[str, Any]]:
    found = []
    for part in content or ():
        match part.get("type") if isinstance(part, Mapping) else None:
            case "text":
                found.append({"type": "input_text", "text": part.get("text")})
            case "image_url":
                image = part["image_url"]
                found.append({"type": "input_image", "image_url": image["url"], "detail": image.get("detail", "auto")})
            case "file":
                found.append({"type": "input_file", **part["file"]})
            case _:
                found.append(part)
    return found
