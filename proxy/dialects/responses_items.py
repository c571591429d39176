"""The items of the Responses API as chat messages. The way back is `responses_history`.

Owns what an item is to a conversation, and what one model turn is. Items that a model put out one after the other
(reasoning, text, calls) are one assistant message, however many they are. So the reply that a client sends back is the
reply that was captured. An item is known by its members, not by a list of types: the next agent brings types of its
own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import orjson

from proxy.core.agent_wrappers import FAILED, TEXT_PARTS
from proxy.dialects.chat_form import content_of, mark_attached, text_part
from proxy.dialects.responses_builtin import BY_ITEM

Kind = Literal["message", "reasoning", "reference", "call", "result", "note", "settings", "unreadable"]

CALLS: Final = ("function_call", "custom_tool_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
# What a request may also change between its messages: tools and the effort. It is read elsewhere.
SETTINGS: Final = ("additional_tools", "configuration_update", "tool_search_output")
_REASONING: Final = "rs_"  # how its ids begin
_OURS: Final = re.compile(
    r"msg_(?:start\.)?rl-"
)  # a message that rlproxy named: an answer to a command, or a translated one
_ENCRYPTED: Final = "encrypted_content"
SUMMARY: Final = "A summary of the conversation so far:\n"  # how the text of a compaction begins that is ours
_CIPHER: Final = "gAAAA"  # how a Fernet token of OpenAI's begins
_READABLE: Final = (*TEXT_PARTS, _ENCRYPTED, "input_image", "input_file", "input_audio")  # parts of a result
# Members of a call that the model did not write.
_ENVELOPE: Final = frozenset((
    "type", "id", "call_id", "name", "namespace", "status", "caller", "created_by", "agent", "environment",
    "pending_safety_checks", "fingerprint",
))  # fmt: skip


def kind_of(item: Mapping[str, Any]) -> Kind:
    """Tell what an item is to the conversation. A call that its client answers has a `call_id`. One without was run by
    the server that made it, and nobody else can read what came of it."""
    name = str(item.get("type") or "message")
    if is_reference(item):
        return "reference"
    if name in ("message", "reasoning"):
        return "message" if name == "message" else "reasoning"
    if name.endswith("_output"):
        if item.get("call_id") or item.get("output"):
            return "result"
    elif name in CALLS or item.get("call_id"):
        return "call"
    elif _note(item):
        return "note"
    return "settings" if name in SETTINGS else "unreadable"


def to_messages(items: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[int | None]]:
    """The messages, and the first item of each. What a reference names is not known here: its place is kept, as an
    answer of the model."""
    turns = _Turns()
    for i, item in enumerate(items):
        kind = kind_of(item)
        if kind not in ("message", "settings") and not (kind == "reference" and _OURS.match(str(item.get("id")))):
            turns.mark_answered()
        match kind:
            case "message" if item.get("role") == "assistant":
                turns.text(i, plain(item.get("content")))
            case "message":
                role = "system" if item.get("role") == "developer" else str(item.get("role"))
                turns.add_message(i, {"role": role, "content": _parts(item.get("content"))})
            case "call":
                turns.call(i, item)
            case "reference" if not str(item.get("id")).startswith(_REASONING):
                turns.reference(i, str(item.get("id")))
            case "reasoning" | "reference":
                turns.reasoning(i, plain(item.get("content")) or plain(item.get("summary")))
            case "result":
                turns.result(i, item)
            case "note":
                role = "system" if item.get("role") in ("developer", "system") else "user"
                turns.add_message(i, {"role": role, "content": _note(item)})
    turns.end()
    return turns.messages, turns.origins


def unread_types(items: Iterable[Mapping[str, Any]]) -> list[str]:
    """Types of the items that the messages lack, and of parts that only OpenAI can read."""
    types = []
    for item in items:
        if kind_of(item) == "unreadable":
            types.append(str(item.get("type")))
        if any(map(_is_cipher, [*_listed(item.get("content")), *_listed(item.get("output"))])):
            types.append(_ENCRYPTED)
    return types


def is_reference(item: Mapping[str, Any]) -> bool:
    """Tell whether the item is only named."""
    return item.get("type") in (None, "item_reference") and "role" not in item and "id" in item


class _Turns:
    """`end` makes the last one whole: the texts of a turn are joined once."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.origins: list[int | None] = []
        self._open: dict[str, Any] | None = None
        self._first_index: int | None = None  # of this turn's items; until there is more, it may be reasoning alone
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._references: list[str] = []
        self._calls: dict[str, Any] = {}  # of each call that has an id of its own beside it
        self._marked = 0  # how many messages there were when the last of them was marked

    def assistant(self, i: int) -> dict[str, Any]:
        if self._open is None:
            self._open = {"role": "assistant", "content": None}
            self.messages.append(self._open)
            self.origins.append(i if self._first_index is None else self._first_index)
        return self._open

    def text(self, i: int, text: str) -> None:
        self.assistant(i)
        self._texts.append(text)

    def call(self, i: int, item: Mapping[str, Any]) -> None:
        call = to_call(item)
        self.assistant(i).setdefault("tool_calls", []).append(call)
        if item.get("id"):
            self._calls[str(item["id"])] = call["id"]

    def result(self, i: int, item: Mapping[str, Any]) -> None:
        """A result of no call, as newer agents report what they did themselves, is a text that nobody typed."""
        content, id = _result(item), item.get("id")
        call = item.get("call_id") or self._calls.get(str(id))  # of a local shell, the id of the call
        if call is None:
            parts = [text_part(content)] if isinstance(content, str) else content
            self.add_message(i, {"role": "user", "content": [mark_attached(part) for part in parts]})
        else:
            failed = {FAILED: "yes"} if _failed(item) else {}
            self.add_message(i, {"role": "tool", "tool_call_id": call, "content": content, **failed})

    def reference(self, i: int, id: str) -> None:
        self.assistant(i)
        self._references.append(id)

    def reasoning(self, i: int, text: str) -> None:
        if self._open is None and self._first_index is None:
            self._first_index = i
        self._thoughts.append(text)

    def mark_answered(self) -> None:
        """The model, or a tool, had its turn: a person's message right before it was not a command."""
        if self._open is not None or self._marked == len(self.messages) or self.messages[-1]["role"] != "user":
            return
        self._marked = len(self.messages)
        self.messages[-1] = _attached(self.messages[-1])

    def add_message(self, i: int, message: dict[str, Any]) -> None:
        self.end()
        self.messages.append(message)
        self.origins.append(i)

    def end(self) -> None:
        if self._open is not None:
            if self._texts:
                self._open["content"] = "".join(self._texts)
            if self._references:
                references = [{"type": "item_reference", "id": id} for id in self._references]
                self._open["content"] = [*map(text_part, self._texts), *references]
            if thought := "".join(self._thoughts):
                self._open["reasoning_content"] = thought
        self._open = self._first_index = None
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
    kind = str(item.get("type"))
    name = full_name(item.get("namespace"), str(item.get("name") or kind.removesuffix("_call")))
    function = {"name": name, "arguments": _arguments(kind, item)}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _arguments(kind: str, item: Mapping[str, Any]) -> str:
    if kind == "custom_tool_call":
        return orjson.dumps({"input": item.get("input")}).decode()
    if kind in BY_ITEM:
        return BY_ITEM[kind][1].arguments(item)
    if kind == "function_call" or "arguments" in item:
        wrote = item.get("arguments") or ""
        return wrote if isinstance(wrote, str) else orjson.dumps(wrote).decode()
    return orjson.dumps({key: value for key, value in item.items() if key not in _ENVELOPE}).decode()


def full_name(namespace: str | None, name: str) -> str:
    """Chat completions have no namespaces."""
    return f"{namespace}__{name}" if namespace else name


def _result(item: Mapping[str, Any]) -> Any:
    """The content of a tool's message. What has no parts of a message is JSON, and tools are their names."""
    tools = [str(tool.get("name")) for tool in _listed(item.get("tools"))]
    results = (item.get("output"), item.get("result"), tools or None, item.get("status"), "")
    result = next(result for result in results if result is not None)
    if isinstance(result, Mapping) and isinstance(result.get("image_url"), str):  # a screenshot
        return [_part({**result, "type": "input_image"})]
    if isinstance(result, str):
        return result
    is_list_of_parts = isinstance(result, list) and (item.get("type") in _OUTPUTS or all(map(_is_readable, result)))
    if result and is_list_of_parts:
        return _parts(result)
    return orjson.dumps(result).decode()


def _failed(item: Mapping[str, Any]) -> bool:
    """Tell whether a command failed, by the member in which the client says how it ended."""
    if item.get("type") != "shell_call_output":
        return False
    outcomes = [entry.get("outcome") for entry in _listed(item.get("output"))]
    return any(isinstance(outcome, Mapping) and outcome.get("exit_code") not in (None, 0) for outcome in outcomes)


def _is_readable(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") in _READABLE


def _note(item: Mapping[str, Any]) -> Any:
    """Words of another agent, or of an item whose type nobody here knows. They are never a command."""
    content = item.get("content") or (item.get(_ENCRYPTED) if item.get("type") == "compaction" else None)
    if isinstance(content, str) and content.startswith(_CIPHER):
        return ""
    listed = [{"type": "text", "text": content}] if isinstance(content, str) and content else _listed(content)
    parts = [_part(part) for part in listed if not _is_cipher(part)]
    return content_of([mark_attached(part) for part in parts if part.get("type") in ("text", "image_url", "file")])


def _listed(content: Any) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _parts(content: Any) -> Any:
    """Content in chat form; text alone is a string."""
    if not isinstance(content, list):
        return content
    parts = [_part(p) if isinstance(p, dict) else p for p in content if not _is_cipher(p)]
    if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].get("type") == "text":
        text = parts[0].get("text")
        return parts if text is not None and not isinstance(text, str) else text or ""
    return parts or ""


def _is_cipher(part: Any) -> bool:
    """Tell whether only OpenAI can read a part. What another server's model wrote, agents send back as it was, though
    they call it encrypted."""
    return isinstance(part, dict) and str(part.get(_ENCRYPTED) or "").startswith(_CIPHER)


def _attached(message: dict[str, Any]) -> dict[str, Any]:
    content = message["content"]
    parts = [text_part(content)] if isinstance(content, str) else content if isinstance(content, list) else []
    return {**message, "content": [mark_attached(p) if isinstance(p, dict) else p for p in parts]}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            return {"type": "text", "text": part.get("text")}
        case "encrypted_content":
            return {"type": "text", "text": part.get(_ENCRYPTED)}
        case "input_image":
            members = {name: part[name] for name in ("file_id", "detail") if part.get(name)}
            return {"type": "image_url", "image_url": {"url": part.get("image_url"), **members}}
        case "input_file":
            return {"type": "file", "file": {k: v for k, v in part.items() if k != "type"}}
        case _:
            return dict(part)  # audio is the same in both; what is unknown is the backend's to judge
