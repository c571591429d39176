"""OpenAI chat completions: `POST /v1/chat/completions`, streamed and whole.

Owns this wire format, with vLLM's `token_ids` and `prompt_token_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, ClassVar

import orjson

from proxy.core import sse
from proxy.core.errors import NoPrompt, ProxyError, Unreadable
from proxy.core.json_edit import EACH, Rules
from proxy.core.sse import Event
from proxy.dialects import token_entries
from proxy.dialects.base import Asked, Dialect, Fold, Renderer, Reply, given_up, longer
from proxy.dialects.chat_form import FOR_PROGRAMS, Calls, a_text, is_for_words
from proxy.dialects.fields import basics, numbers

_ROLE = itemgetter("role")
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def choice_rules(self: Dialect, *, id: str, model: str | None, asked: Asked, ours: bool = True) -> Rules:
    """For a body with choices. vLLM has the prompt's ids beside them in chat, and on each in legacy completions."""
    choice: dict[str, bytes] = {}
    top: dict[str, Any] = {"id": orjson.dumps(id)}
    if model is not None:
        top["model"] = orjson.dumps(model)
    # null, not removed: that is what vLLM sends to those who did not ask.
    if ours and not asked.wants_logprobs:
        choice["logprobs"] = b"null"
    if ours and not asked.wants_token_ids:
        choice["token_ids"] = choice["prompt_token_ids"] = top["prompt_token_ids"] = b"null"
        choice["response_token_ids"] = b"null"  # SGLang's name for them
    return {**top, "choices": {EACH: choice}} if choice else top


class ChatCompletions(Dialect):
    name: ClassVar[str] = "chat"
    marks: ClassVar[tuple[bytes, ...]] = (b"[DONE]",)
    paths: ClassVar[tuple[str, ...]] = ("/v1/chat/completions",)

    def parse(self, body: Any) -> Asked:
        model, stream, n = basics(body)
        messages, tools, options = body.get("messages"), body.get("tools"), body.get("stream_options")
        if not isinstance(messages, list) or not messages:
            raise NoPrompt("`messages` must be a list with at least one message.", param="messages")
        try:  # two passes at the speed of C, so a long history costs little
            plain = set(map(type, map(_ROLE, messages))) == {str} and set(map(type, messages)) == {dict}
        except (KeyError, TypeError, IndexError):
            plain = False
        if not plain and (odd := _no_message(messages)) is not None:
            raise Unreadable(f"`messages[{odd}]` must be an object with a `role`.", param=f"messages[{odd}]")
        sampling, unclear = numbers(body, SAMPLING)
        return Asked(
            model=model,
            messages=messages,
            stream=stream,
            n=n,
            sampling=sampling,
            wants_logprobs=body.get("logprobs") is True,
            wants_token_ids=body.get("return_token_ids") is True,
            wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
            tools=tools if isinstance(tools, list) else None,
            typed=n == 1 and (FOR_PROGRAMS.isdisjoint(body) or is_for_words(body, body.get("response_format"))),
            unclear=unclear,
        )

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        return body["tools"] if isinstance(body.get("tools"), list) else None

    def keep(self, body: Any, asked: Asked, kept: Sequence[int]) -> dict[str, bytes]:
        return {"messages": orjson.dumps([asked.messages[i] for i in kept])}

    def whole(self, body: Any) -> list[Reply]:
        choices, replies = body["choices"], []
        for place, choice in enumerate(choices):
            found = choice.get("logprobs")
            entries = found.get("content") if found else None
            reply = Reply(
                index=choice.get("index", place),
                message=choice["message"],
                finish_reason=choice.get("finish_reason"),
                usage=body.get("usage"),
                # SGLang has them on each choice.
                prompt_token_ids=body.get("prompt_token_ids") or choice.get("prompt_token_ids"),
                token_ids=choice.get("token_ids")
                or choice.get("response_token_ids")
                or (token_entries.named(entries) if entries else None),
            )
            if entries is not None:
                token_entries.take(reply, entries)
            replies.append(reply)
        return replies

    def fold(self) -> Fold:
        return ChatFold()

    def terminal(self, event: Event) -> bool:
        return event.says_done

    def only_tokens(self, event: Mapping[str, Any]) -> bool:
        choices = event.get("choices") or []
        return bool(choices) and not event.get("usage") and all(map(token_entries.alone, choices))

    rules = choice_rules

    def to_chat(self, body: Any, asked: Asked) -> dict[str, Any]:
        return dict(body)

    def renderer(self, *, id: str, asked: Asked, created: int) -> Renderer:
        return ChatRenderer()

    def error_event(self, error: ProxyError, last: bytes | None = None) -> bytes:
        return sse.event(orjson.dumps(self.error(error)))


def _no_message(messages: list[Any]) -> int | None:
    """Find the first item without a role, or None."""
    odd = (i for i, m in enumerate(messages) if not isinstance(m, dict) or not isinstance(m.get("role"), str))
    return next(odd, None)


class ChatRenderer(Renderer):
    """Chat completions are what they are."""

    def chunk(self, chunk: Mapping[str, Any]) -> list[bytes]:
        return [sse.event(orjson.dumps(chunk))]

    def end(self) -> tuple[list[bytes], bytes]:
        return [], sse.event(b"[DONE]")

    def whole(self, body: Mapping[str, Any]) -> bytes:
        return orjson.dumps(body)


class _Call:
    """A tool call on its way, its texts in pieces."""

    def __init__(self) -> None:
        self.id: Any = None
        self.name: list[str] = []
        self.arguments: list[str] = []

    def said(self) -> dict[str, Any]:
        function = {"name": "".join(self.name), "arguments": "".join(self.arguments)}
        return {"type": "function", "function": function, **({"id": self.id} if self.id else {})}


class ChatFold(Fold):
    """Texts in pieces, joined when asked for."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self._replies: dict[int, Reply] = {}
        self._pieces: dict[int, dict[str, list[str]]] = {}  # of each reply's texts, from the first one on
        self._calls: dict[int, list[_Call]] = {}
        self._places: dict[int, Calls] = {}
        self._usage: dict[str, Any] | None = None
        self._prompt_token_ids: list[int] | None = None

    def add(self, chunk: Any) -> None:
        """Members are looked for before they are read: most chunks have none but a piece of the text."""
        if "usage" in chunk and isinstance(chunk["usage"], dict):
            self._usage = chunk["usage"]
        if "prompt_token_ids" in chunk and isinstance(chunk["prompt_token_ids"], list):
            self._prompt_token_ids = chunk["prompt_token_ids"]
        if "error" in chunk and (error := chunk["error"]):
            self.failed = given_up(error)
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            reply = self._replies.get(index) or self._begin(index)
            if delta := choice.get("delta"):
                pieces = self._pieces[index]
                if len(delta) == 1 and "content" in pieces and type(said := delta.get("content")) is str:
                    pieces["content"].append(said)
                else:
                    self._delta(reply, delta)
            if "finish_reason" in choice and (reason := choice["finish_reason"]):
                reply.finish_reason = reason
            if "token_ids" in choice and (ids := choice["token_ids"]) is not None:
                reply.token_ids = longer(reply.token_ids, ids)
            if "logprobs" in choice and (said := choice["logprobs"]) and (entries := said.get("content")) is not None:
                token_entries.take(reply, entries)

    def _begin(self, index: Any) -> Reply:
        if not isinstance(index, int):
            raise TypeError(f"the index {index!r} of a choice is no number")
        self._pieces[index], self._calls[index], self._places[index] = {}, [], Calls()
        self._replies[index] = Reply(index)
        return self._replies[index]

    def _delta(self, reply: Reply, delta: dict[str, Any]) -> None:
        for key, value in delta.items():
            if key == "tool_calls":
                self._call(reply, value)
            elif key == "role":
                reply.message["role"] = value or "assistant"
            elif isinstance(value, str):  # content, reasoning_content, refusal and what else streams as text
                pieces = self._pieces[reply.index].get(key)
                if pieces is None:
                    pieces = self._pieces[reply.index][key] = _text_so_far(reply.message, key)
                pieces.append(value)
            elif value is not None:
                self._pieces[reply.index].pop(key, None)
                reply.message[key] = value

    def _call(self, reply: Reply, deltas: list[dict[str, Any]] | None) -> None:
        """Arguments arrive in pieces, names and ids at once. Some servers send an empty list with each piece of a text:
        it takes nothing away."""
        if deltas is None:
            return
        if not isinstance(deltas, list):
            raise TypeError(f"{type(deltas).__name__} where the tool calls should be")
        reply.message.setdefault("tool_calls", [])
        calls = self._calls[reply.index]
        for delta in deltas:
            at = self._places[reply.index].place(delta)
            if at == len(calls):
                calls.append(_Call())
            call, function = calls[at], delta.get("function") or {}
            call.id = delta.get("id") or call.id
            call.name.append(a_text(function.get("name")))
            call.arguments.append(a_text(function.get("arguments")))

    def replies(self) -> list[Reply]:
        for reply in self._replies.values():
            reply.usage = self._usage
            reply.prompt_token_ids = self._prompt_token_ids
            if reply.token_ids is not None:
                reply.pieces = None
            reply.message |= {key: "".join(pieces) for key, pieces in self._pieces[reply.index].items()}
            if calls := self._calls[reply.index]:
                reply.message["tool_calls"] = [call.said() for call in calls]
        return [self._replies[i] for i in sorted(self._replies)]


def _text_so_far(message: dict[str, Any], key: str) -> list[str]:
    """Prefix of the text `key`; it keeps its place among the members."""
    found = message.setdefault(key, "") or ""
    if not isinstance(found, str):
        raise TypeError(f"a text for `{key}`, which was none before")
    return [found]
