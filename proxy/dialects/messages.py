"""Anthropic Messages: `POST /v1/messages`, streamed and whole.

Owns this wire format as servers speak it themselves. Requests in chat form are in `messages_chat`, chat completions
said in this format in `messages_render`. `/v1/messages/count_tokens` is `proxy.relay.count_tokens`.
Source: the types of Anthropic's own SDK, 2.11.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import orjson

from proxy.core.errors import NoPrompt, ProxyError, Unreadable
from proxy.core.json_edit import Rules, dumps, loads
from proxy.core.sse import Event
from proxy.core.upstream import error_in
from proxy.dialects.base import Dialect, Fold, ParsedRequest, Renderer, Reply, join_pieces
from proxy.dialects.chat_form import a_text, is_for_words, tidy_arguments, usage
from proxy.dialects.chat_turns import in_turns
from proxy.dialects.fields import an_object, flag, kinds, member, numbers, objects
from proxy.dialects.messages_chat import (
    SAMPLING,
    answer_format,
    assistant_message,
    chat_request,
    conversation,
    left_out,
    results_of,
    template_kwargs,
)
from proxy.dialects.messages_render import MessagesRenderer, event
from proxy.dialects.messages_tools import chat_tools, offered_tools, tool_changes

_FINISHED: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_TEXTS: Final = ("text", "thinking")  # types of blocks, and the members that have their text
_BLOCKS: Final = frozenset((*_TEXTS, "redacted_thinking", "tool_use"))
_DELTAS: Final = {"text": "text", "thinking": "thinking", "partial_json": "tool_use"}  # members, and their blocks
_ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Messages(Dialect):
    name: ClassVar[str] = "messages"
    marks: ClassVar[tuple[bytes, ...]] = (b"message_stop",)
    paths: ClassVar[tuple[str, ...]] = ("/v1/messages",)
    carriers: ClassVar[tuple[str, ...]] = ("messages", "system")
    may_be_empty: ClassVar[bool] = True

    def parse(self, body: Any) -> ParsedRequest:
        body = an_object(body)
        items = objects(body, "messages")
        if not items:
            raise NoPrompt("`messages` must be a list with at least one message.", param="messages")
        for i, item in enumerate(items):
            if not isinstance(item.get("role"), str):
                raise Unreadable(f"`messages[{i}]` must have a `role`.", param=f"messages[{i}]")
        messages, origins = conversation(body)
        sampling, unclear = numbers(body, SAMPLING)
        return ParsedRequest(
            model=member(body, "model", str, ""),
            messages=messages,
            stream=flag(body, "stream", False),
            n=1,
            sampling=sampling,
            wants_logprobs=False,
            wants_token_ids=False,
            wants_usage=True,  # part of the format
            origins=origins,
            tools=self.tools(body),
            typed=is_for_words(body, answer_format(body)),
            unclear=unclear,
        )

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        return chat_tools(body)

    def turns(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return in_turns(messages)

    def template_kwargs(self, body: Mapping[str, Any], *, translated: bool) -> Any:
        """A server that has this format takes what it knows of `thinking`, which is not said to be the template's."""
        return template_kwargs(body) if translated else None

    def keep(self, body: Any, parsed: ParsedRequest, indices: Sequence[int]) -> dict[str, bytes]:
        """A `/rl` line typed beside a tool's result is taken out of its item; the result stays."""
        stay = {parsed.origins[i] for i in indices}
        dropped = set(range(len(parsed.messages))) - set(indices)
        origins = {parsed.origins[i] for i in dropped if parsed.messages[i]["role"] == "user"}
        items = [results_of(item) if i in origins else item for i, item in enumerate(body["messages"]) if i in stay]
        return {"messages": dumps(items)}

    def to_chat(self, body: Any, parsed: ParsedRequest) -> dict[str, Any]:
        return chat_request(body)

    def left_out(self, body: Any) -> list[str]:
        return kinds(left_out(body))

    def without_messages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A template shows the tools that stand in the messages, too."""
        changed = {"tools": offered_tools(body)} if tool_changes(body) else {}
        return {**super().without_messages(body), **changed}

    def renderer(self, *, id: str, parsed: ParsedRequest, created: int) -> Renderer:
        return MessagesRenderer(id=id, model=parsed.model, tools=parsed.tools)

    def fold(self, tools: Sequence[Mapping[str, Any]] | None = None, n: int | None = None) -> Fold:
        return MessagesFold()

    def is_event(self, body: Mapping[str, Any]) -> bool:
        return body.get("type") != "message"

    def terminal(self, event: Event) -> bool:
        data = event.data
        return data is not None and b'"message_stop"' in data and _type(data) == "message_stop"

    def rules(self, *, id: str, model: str | None, parsed: ParsedRequest, ours: bool = True) -> Rules:
        mine = {"id": orjson.dumps(id)}
        if model is not None:
            mine["model"] = orjson.dumps(model)
        return {**mine, "message": mine}  # a whole body; the first event of a stream

    def error(self, error: ProxyError) -> Mapping[str, Any]:
        kind = _ERRORS.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}, "request_id": None}

    def error_event(self, error: ProxyError, last: bytes | None = None) -> bytes:
        return event(self.error(error))


class MessagesFold(Fold):
    """Blocks in the order in which they begin; their text in pieces, joined when asked for."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self._has_started = False
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}
        self._positions: dict[int | None, int] = {}  # by the index that the server gives: the newest block that has it
        self._closed: set[int] = set()
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}

    def add(self, chunk: Any) -> None:
        kind = chunk.get("type")
        if (failed := error_in(chunk)) is not None:  # llama.cpp's have no type
            self.failed = failed
        elif kind == "message_start":
            self._has_started = True
            self._count((chunk.get("message") or {}).get("usage"))
        elif kind == "content_block_start":
            self._start(_index(chunk), chunk["content_block"])
        elif kind == "content_block_delta":
            self._delta(_index(chunk), chunk["delta"])
        elif kind == "content_block_stop":
            self._closed.add(self._positions.get(_index(chunk), -1))
        elif kind == "message_delta":
            self._has_started = True
            self._count(chunk.get("usage"))
            self._reason = (chunk.get("delta") or {}).get("stop_reason") or self._reason
        elif kind not in ("ping", "message_stop"):
            self.skip(f"an event of the type `{kind}`")

    def take_whole(self, body: Any) -> None:
        """Raises KeyError and TypeError where it is not a message, or one of its blocks is broken."""
        self.failed = error_in(body)
        if self.failed is not None:
            return
        content = body["content"] or []  # Ollama says null where nothing was said
        self._has_started, self._reason = True, body.get("stop_reason")
        self._count(body.get("usage"))
        broken: Exception | None = None
        for index, block in enumerate([{"type": "text", "text": content}] if isinstance(content, str) else content):
            try:
                self._block(index, block)
            except (KeyError, TypeError, AttributeError) as error:
                broken = error
        if broken is not None:
            raise broken

    def _count(self, usage: Any) -> None:
        """Counts are running totals; the end may leave out what the start has told."""
        if isinstance(usage, Mapping):
            self._usage |= {k: v for k, v in usage.items() if isinstance(v, int)}

    def _start(self, index: int | None, block: Any) -> None:
        """A block begins. Some servers give every block the same index, or none; llama.cpp may begin one twice. Raises
        TypeError, KeyError, and AttributeError."""
        position = self._positions.get(index, -1)
        so_far = self._blocks.get(position, {})
        is_same = all(so_far.get(member) == block.get(member) for member in ("type", "id"))
        if position in self._closed or index is None or not is_same:
            position = len(self._blocks)
        self._block(position, block)
        self._positions[position if index is None else index] = position

    def _block(self, position: int, block: Any) -> None:
        """Raises TypeError, KeyError, and AttributeError."""
        kind = block["type"]
        if kind in _TEXTS:
            block = {**block, kind: a_text(block.get(kind))}
        elif kind not in _BLOCKS:
            self.skip(f"a block of the type `{kind}`")
        self._has_started = True
        self._blocks[position] = dict(block)

    def _delta(self, index: int | None, delta: dict[str, Any]) -> None:
        kind = _DELTAS.get(next((key for key in delta if key in _DELTAS), ""))
        if kind is None:
            if delta.get("type") not in ("signature_delta", "citations_delta"):
                self.skip(f"a delta of the type `{delta.get('type')}`")
            return
        position = len(self._blocks) - 1 if index is None else self._positions.get(index, -1)
        if self._blocks.get(position, {}).get("type") != kind:  # some servers begin no text block
            position = self._positions[index] = len(self._blocks)
            self._block(position, {"type": kind, **({"name": ""} if kind == "tool_use" else {})})
        self._pieces.setdefault(position, []).append(a_text(delta["partial_json" if kind == "tool_use" else kind]))

    def replies(self) -> list[Reply]:
        if not self._has_started:
            return []
        blocks = [self._so_far(i) for i in sorted(self._blocks)]
        reason = self._reason
        return [
            Reply(
                index=0,
                message=assistant_message(blocks),
                finish_reason=_FINISHED.get(str(reason), reason) if reason else None,
                usage=_usage(self._usage) if self._usage else None,
            )
        ]

    def _so_far(self, index: int) -> dict[str, Any]:
        block, text = self._blocks[index], join_pieces(self._pieces.get(index, []))
        kind = block["type"]
        if text and kind == "tool_use":
            return {**block, "input": tidy_arguments(text)}
        return {**block, kind: block[kind] + text} if text and kind in _TEXTS else block


def _index(chunk: Mapping[str, Any]) -> int | None:
    index = chunk.get("index")
    return index if type(index) is int else None


def _usage(counts: Mapping[str, Any]) -> dict[str, Any]:
    """In chat form, where the prompt's tokens are all of them, read from a cache or not."""
    cached = counts.get("cache_read_input_tokens") or 0
    prompt = (counts.get("input_tokens") or 0) + (counts.get("cache_creation_input_tokens") or 0) + cached
    return usage(prompt, counts.get("output_tokens") or 0, cached=cached)


def _type(data: bytes) -> Any:
    try:
        event = loads(data)
    except ValueError:
        return None
    return event.get("type") if isinstance(event, dict) else None
