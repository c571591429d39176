"""OpenAI chat completions: `POST /v1/chat/completions`, streamed and whole.

Owns this wire format, with vLLM's `token_ids` and `prompt_token_ids`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, ClassVar

import orjson

from proxy.core import sse
from proxy.core.errors import NoPrompt, ProxyError, Unreadable
from proxy.core.json_edit import EACH, Rules
from proxy.core.sse import Event
from proxy.core.upstream import error_in
from proxy.dialects import token_entries
from proxy.dialects.base import Dialect, Fold, ParsedRequest, Renderer, Reply, join_pieces
from proxy.dialects.chat_form import (
    FOR_PROGRAMS,
    Calls,
    a_text,
    arguments_piece,
    call_name,
    choice_number,
    delta_of,
    is_for_words,
    reply_parts,
    text_part,
)
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


def choice_rules(self: Dialect, *, id: str, model: str | None, parsed: ParsedRequest, ours: bool = True) -> Rules:
    """For a body with choices. vLLM has the prompt's ids beside them in chat, and on each in legacy completions."""
    choice: dict[str, bytes] = {}
    top: dict[str, Any] = {"id": orjson.dumps(id)}
    if model is not None:
        top["model"] = orjson.dumps(model)
    # null, not removed: that is what vLLM sends to those who did not ask.
    if ours and not parsed.wants_logprobs:
        choice["logprobs"] = b"null"
    if ours and not parsed.wants_token_ids:
        choice["token_ids"] = choice["prompt_token_ids"] = top["prompt_token_ids"] = b"null"
        choice["unconstrained_logprobs"] = b"null"
        choice["response_token_ids"] = b"null"  # SGLang's name for them
    return {**top, "choices": {EACH: choice}} if choice else top


class ChatCompletions(Dialect):
    name: ClassVar[str] = "chat"
    marks: ClassVar[tuple[bytes, ...]] = (b"[DONE]",)
    paths: ClassVar[tuple[str, ...]] = ("/v1/chat/completions",)

    def parse(self, body: Any) -> ParsedRequest:
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
        if body.get("logit_bias"):
            unclear = (*unclear, "logit_bias")
        return ParsedRequest(
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

    def keep(self, body: Any, parsed: ParsedRequest, indices: Sequence[int]) -> dict[str, bytes]:
        return {"messages": orjson.dumps([parsed.messages[i] for i in indices])}

    def fold(self, tools: Sequence[Mapping[str, Any]] | None = None, n: int | None = None) -> Fold:
        return ChatFold(tools, n)

    def is_event(self, body: Mapping[str, Any]) -> bool:
        choices = body.get("choices")
        choice = choices[0] if choices and isinstance(choices, list) else None
        return not isinstance(choice, dict) or "delta" in choice or "message" not in choice

    def terminal(self, event: Event) -> bool:
        return event.says_done

    def only_tokens(self, event: Mapping[str, Any]) -> bool:
        choices = event.get("choices") or []
        return bool(choices) and not event.get("usage") and all(map(token_entries.has_only_logprobs, choices))

    rules = choice_rules

    def to_chat(self, body: Any, parsed: ParsedRequest) -> dict[str, Any]:
        return dict(body)

    def renderer(self, *, id: str, parsed: ParsedRequest, created: int) -> Renderer:
        return ChatRenderer()

    def error_event(self, error: ProxyError, last: bytes | None = None) -> bytes:
        return sse.event(orjson.dumps(self.error(error)))


def chat_body(replies: Sequence[Reply]) -> dict[str, Any]:
    """Replies as one plain answer."""
    choices = [{"index": r.index, "message": r.message, "finish_reason": r.finish_reason} for r in replies]
    return {"object": "chat.completion", "choices": choices, "usage": replies[0].usage if replies else None}


def as_chunk(body: Mapping[str, Any]) -> dict[str, Any]:
    """A plain answer as the one chunk of a stream. Raises KeyError and TypeError."""
    return {**body, "choices": [_chunk_choice(choice) for choice in body["choices"]]}


def _chunk_choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    return {**choice, "delta": delta_of(choice["message"])}


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

    def add(self, function: Mapping[str, Any]) -> None:
        """Raises TypeError."""
        if name := a_text(function.get("name")):
            self.name.append(name)
        self.arguments.append(arguments_piece(function.get("arguments")))

    def function(self, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, str]:
        return {"name": call_name(self.name, tools), "arguments": join_pieces(self.arguments)}


class ChatFold(Fold):
    """Texts in pieces, joined when asked for."""

    def __init__(self, tools: Sequence[Mapping[str, Any]] | None = None, n: int | None = None) -> None:
        self.failed: str | None = None
        self._tools, self._n = tools, n
        self._replies: dict[int, Reply] = {}
        self._pieces: dict[int, dict[str, list[str]]] = {}  # of each reply's texts, from the first one on
        self._calls: dict[int, list[_Call]] = {}
        self._legacy: dict[int, _Call] = {}  # `function_call`, which tool calls have replaced
        self._transcripts: dict[int, list[str]] = {}
        self._rich_parts: dict[int, list[Any]] = {}  # parts of the content that are more than text
        self._places: dict[int, Calls] = {}
        self._usage: dict[str, Any] | None = None
        self._prompt_token_ids: list[int] | None = None

    def add(self, chunk: Any) -> None:
        """Members are looked for before they are read: most chunks have none but a piece of the text."""
        if "usage" in chunk and isinstance(chunk["usage"], dict):
            self._usage = chunk["usage"]
        if "prompt_token_ids" in chunk and isinstance(chunk["prompt_token_ids"], list):
            self._prompt_token_ids = chunk["prompt_token_ids"]
        choices = chunk.get("choices")
        if choices is None or "error" in chunk:
            self._without_choices(chunk)
        broken: Exception | None = None
        for place, choice in enumerate(choices or ()):
            if type(choice) is not dict:
                broken = TypeError(f"{type(choice).__name__} where a choice should be")
                continue
            index = choice_number(choice, place, self._n)
            reply = self._replies.get(index) or self._begin(index)
            delta = choice.get("delta")
            if not delta and isinstance(message := choice.get("message"), Mapping) and not self._has_begun(index):
                delta = delta_of(message)
            if delta:
                pieces = self._pieces[index]
                try:
                    if len(delta) == 1 and "content" in pieces and type(text := delta.get("content")) is str:
                        pieces["content"].append(text)
                    else:
                        self._delta(reply, delta)
                except Exception as error:
                    broken = error
            if "finish_reason" in choice and (reason := choice["finish_reason"]):
                reply.finish_reason = reason
            if "token_ids" in choice and (ids := choice["token_ids"]) is not None:
                token_entries.take_ids(reply, ids)
            if "logprobs" in choice and (logprobs := choice["logprobs"]):
                self._logprobs(reply, logprobs)
            if "unconstrained_logprobs" in choice:
                token_entries.take_unconstrained(reply, choice["unconstrained_logprobs"])
        if broken is not None:
            raise broken

    def _without_choices(self, chunk: Mapping[str, Any]) -> None:
        if (failed := error_in(chunk)) is not None:
            self.failed = failed
        elif not (chunk.keys() & {"choices", "usage", "prompt_token_ids"}):
            self.skip(f"an event without choices: {list(chunk)}")

    def _logprobs(self, reply: Reply, logprobs: Any) -> None:
        entries = logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs
        if entries is not None:
            token_entries.take(reply, entries)

    def _has_begun(self, index: int) -> bool:
        """Tell whether anything of this reply has come but its role."""
        calls = self._calls[index] or index in self._legacy
        return bool(calls or self._pieces[index] or index in self._transcripts or index in self._rich_parts)

    def _begin(self, index: int) -> Reply:
        self._pieces[index], self._calls[index], self._places[index] = {}, [], Calls()
        self._replies[index] = Reply(index)
        return self._replies[index]

    def _delta(self, reply: Reply, delta: dict[str, Any]) -> None:
        broken: Exception | None = None
        for key, value in delta.items():
            try:
                if key == "tool_calls":
                    self._call(reply, value)
                elif key == "role":
                    reply.message["role"] = value or "assistant"
                elif isinstance(value, str):  # content, reasoning_content, refusal and what else streams as text
                    self._text(reply, key, value)
                elif value is not None:
                    self._member(reply, key, value)
            except Exception as error:
                broken = error
        if broken is not None:
            raise broken

    def _text(self, reply: Reply, key: str, text: str) -> None:
        pieces = self._pieces[reply.index].get(key)
        if pieces is None:
            pieces = self._pieces[reply.index][key] = _text_so_far(reply.message, key)
        pieces.append(text)

    def _member(self, reply: Reply, key: str, value: Any) -> None:
        """A member that is not a text. Raises TypeError for a content that is neither text nor parts."""
        if key == "content":
            if not isinstance(value, list):
                raise TypeError(f"{type(value).__name__} where the content should be")
            self._parts(reply, value)
        elif key == "function_call":
            self._legacy.setdefault(reply.index, _Call()).add(value)
        elif key == "audio" and isinstance(value, Mapping):
            self._transcripts.setdefault(reply.index, []).append(a_text(value.get("transcript")))
            # The sound itself is not kept.
            members = {k: v for k, v in value.items() if k not in ("data", "transcript")}
            reply.message.setdefault("audio", {}).update(members)
        else:
            self._pieces[reply.index].pop(key, None)
            reply.message[key] = value

    def _parts(self, reply: Reply, content: list[Any]) -> None:
        text, thinking, refusal, other_parts = reply_parts(content)
        for key, piece in (("content", text), ("reasoning_content", thinking), ("refusal", refusal)):
            if piece:
                self._text(reply, key, piece)
        if other_parts:
            self._rich_parts.setdefault(reply.index, []).extend(other_parts)

    def _call(self, reply: Reply, deltas: list[dict[str, Any]] | None) -> None:
        """Arguments arrive in pieces, ids at once. Some servers send an empty list with each piece of a text: it takes
        nothing away."""
        if not isinstance(deltas, list):
            if not deltas:
                return
            raise TypeError(f"{type(deltas).__name__} where the tool calls should be")
        reply.message.setdefault("tool_calls", [])
        calls = self._calls[reply.index]
        for delta in deltas:
            position = self._places[reply.index].place(delta)
            if position == len(calls):
                calls.append(_Call())
            calls[position].id = delta.get("id") or calls[position].id
            calls[position].add(delta.get("function") or {})

    def take_whole(self, body: Any) -> None:
        """Raises KeyError and TypeError where it is not a chat completion, or one of its choices is broken."""
        self.failed = error_in(body)
        choices = body["choices"] if self.failed is None else body.get("choices") or ()
        self._usage = body.get("usage")
        broken: Exception | None = None
        for place, choice in enumerate(choices):
            try:
                self._take_choice(choice, place, body.get("prompt_token_ids"))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                broken = error
        if broken is not None:
            raise broken

    def _take_choice(self, choice: Any, place: int, prompt_token_ids: Any) -> None:
        index, logprobs = choice.get("index", place), choice.get("logprobs")
        entries = logprobs.get("content") if isinstance(logprobs, Mapping) else logprobs
        token_ids = token_entries.bare_ids(entries) if entries else None
        reply = Reply(
            index=index if type(index) is int else place,
            message=dict(choice["message"]),
            finish_reason=choice.get("finish_reason"),
            # SGLang has them on each choice.
            prompt_token_ids=prompt_token_ids or choice.get("prompt_token_ids"),
            token_ids=choice.get("token_ids") or choice.get("response_token_ids") or token_ids,
        )
        if entries is not None:
            token_entries.take(reply, entries)
        token_entries.take_unconstrained(reply, choice.get("unconstrained_logprobs"))
        self._replies[reply.index] = reply

    def replies(self) -> list[Reply]:
        return [self._finished(self._replies[i]) for i in sorted(self._replies)]

    def _finished(self, reply: Reply) -> Reply:
        reply.usage = self._usage
        if reply.index not in self._pieces:  # it came in one piece
            return reply
        reply.prompt_token_ids = self._prompt_token_ids
        if reply.token_ids is not None:
            reply.pieces = None
        message = reply.message
        message |= {key: join_pieces(pieces) for key, pieces in self._pieces[reply.index].items()}
        if calls := self._calls[reply.index]:
            message["tool_calls"] = [
                {"type": "function", "function": call.function(self._tools), **({"id": call.id} if call.id else {})}
                for call in calls
            ]
        if (legacy := self._legacy.get(reply.index)) is not None:
            message["function_call"] = legacy.function(self._tools)
        if transcript := join_pieces(self._transcripts.get(reply.index, [])):
            message["audio"] = {**message["audio"], "transcript": transcript}
        if other_members := self._rich_parts.get(reply.index):
            text = [text_part(message["content"])] if message["content"] else []
            return replace(reply, message={**message, "content": [*text, *other_members]})
        return reply


def _text_so_far(message: dict[str, Any], key: str) -> list[str]:
    """Prefix of the text `key`; it keeps its place among the members."""
    text = message.setdefault(key, "") or ""
    return [text if isinstance(text, str) else ""]
