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
from proxy.dialects.base import Asked, Dialect, Fold, Renderer, Reply
from proxy.dialects.chat_form import is_for_words, tidy_arguments, usage
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
from proxy.dialects.messages_tools import chat_tools, offered, tool_changes

_FINISHED: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
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

    def parse(self, body: Any) -> Asked:
        body = an_object(body)
        items = objects(body, "messages")
        if not items:
            raise NoPrompt("`messages` must be a list with at least one message.", param="messages")
        for i, item in enumerate(items):
            if not isinstance(item.get("role"), str):
                raise Unreadable(f"`messages[{i}]` must have a `role`.", param=f"messages[{i}]")
        messages, origins = conversation(body)
        sampling, unclear = numbers(body, SAMPLING)
        return Asked(
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

    def keep(self, body: Any, asked: Asked, kept: Sequence[int]) -> dict[str, bytes]:
        """A `/rl` line typed beside a tool's result is taken out of its item; the result stays."""
        stay = {asked.origins[i] for i in kept}
        gone = set(range(len(asked.messages))) - set(kept)
        less = {asked.origins[i] for i in gone if asked.messages[i]["role"] == "user"}
        items = [results_of(item) if i in less else item for i, item in enumerate(body["messages"]) if i in stay]
        return {"messages": dumps(items)}

    def to_chat(self, body: Any, asked: Asked) -> dict[str, Any]:
        return chat_request(body)

    def left_out(self, body: Any) -> list[str]:
        return kinds(left_out(body))

    def without_messages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A template shows the tools that stand in the messages, too."""
        changed = {"tools": offered(body)} if tool_changes(body) else {}
        return {**super().without_messages(body), **changed}

    def renderer(self, *, id: str, asked: Asked, created: int) -> Renderer:
        return MessagesRenderer(id=id, model=asked.model)

    def whole(self, body: Any) -> list[Reply]:
        blocks = body["content"] or []  # Ollama says null where nothing was said
        return [_reply(blocks, body.get("stop_reason"), body.get("usage"))]

    def fold(self) -> Fold:
        return MessagesFold()

    def terminal(self, event: Event) -> bool:
        data = event.data
        return data is not None and b'"message_stop"' in data and _type(data) == "message_stop"

    def rules(self, *, id: str, model: str | None, asked: Asked, ours: bool = True) -> Rules:
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
    """Blocks by their index; their text in pieces, joined when asked for."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self._begun = False
        self._blocks: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}
        self._reason: str | None = None
        self._usage: dict[str, Any] = {}

    def add(self, chunk: Any) -> None:
        kind = chunk.get("type")
        if "error" in chunk:  # llama.cpp's have no type
            self.failed = str(chunk["error"].get("message"))
        elif kind == "message_start":
            self._begun = True
            self._count(chunk["message"].get("usage"))
        elif kind == "content_block_start":
            self._blocks[chunk["index"]] = dict(chunk["content_block"])  # llama.cpp may begin one twice
        elif kind == "content_block_delta":
            self._delta(chunk["index"], chunk["delta"])
        elif kind == "message_delta":
            self._reason = chunk["delta"].get("stop_reason") or self._reason
            self._count(chunk.get("usage"))
        elif kind not in ("ping", "content_block_stop", "message_stop"):
            raise ValueError(f"an unknown event: {kind}")

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Counts are running totals; the end may leave out what the start has told."""
        self._usage |= {k: v for k, v in (usage or {}).items() if v is not None}

    def _delta(self, index: int, delta: dict[str, Any]) -> None:
        for key in ("text", "thinking", "partial_json"):
            if key in delta and index in self._blocks:
                self._pieces.setdefault(index, []).append(delta[key])
                return
        if delta["type"] not in ("signature_delta", "citations_delta"):
            raise ValueError(f"an unknown delta: {delta['type']} of block {index}")

    def replies(self) -> list[Reply]:
        if not self._begun:
            return []
        blocks = [self._block(i) for i in sorted(self._blocks)]
        return [_reply(blocks, self._reason, self._usage)]

    def _block(self, index: int) -> dict[str, Any]:
        block, text = self._blocks[index], "".join(self._pieces.get(index, ()))
        if not text:
            return block
        if block["type"] == "tool_use":
            return {**block, "input": tidy_arguments(text)}
        return {**block, block["type"]: block.get(block["type"], "") + text}  # text: "…", thinking: "…"


def _reply(blocks: list[dict[str, Any]], reason: str | None, counted: Mapping[str, Any] | None) -> Reply:
    return Reply(
        index=0,
        message=assistant_message(blocks),
        finish_reason=_FINISHED.get(reason, reason) if reason else None,
        usage=_usage(counted) if counted else None,
    )


def _usage(counted: Mapping[str, Any]) -> dict[str, Any]:
    """In chat form, where the prompt's tokens are all of them, read from a cache or not."""
    cached = counted.get("cache_read_input_tokens") or 0
    prompt = (counted.get("input_tokens") or 0) + (counted.get("cache_creation_input_tokens") or 0) + cached
    return usage(prompt, counted.get("output_tokens") or 0, cached=cached)


def _type(data: bytes) -> Any:
    try:
        found = loads(data)
    except ValueError:
        return None
    return found.get("type") if isinstance(found, dict) else None
