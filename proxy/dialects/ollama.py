"""Ollama's own API: `POST /api/chat` and `POST /api/generate`, as lines of JSON or whole.

Owns these wire formats; requests in chat form are in `ollama_chat`. Nothing in these bodies carries an id: a client
finds ours in the response header. Tool calls are numbered within their message, since most clients lose their ids.
Source: Ollama's `api/types.go` and `server/routes.go` of August 2026; no server can be had here.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, Literal

from proxy.core.errors import NoPrompt, ProxyError, Unreadable
from proxy.core.json_edit import Rules, dumps
from proxy.core.offload import length
from proxy.core.sse import Event
from proxy.core.upstream import error_in
from proxy.dialects import token_entries
from proxy.dialects.base import PIECE, Dialect, Fold, ParsedRequest, Renderer, Reply, join_pieces
from proxy.dialects.chat import ChatFold
from proxy.dialects.chat_form import a_text, arguments_of, reasoning_of, reply_parts, token_counts, usage, words_of
from proxy.dialects.chat_turns import in_turns
from proxy.dialects.fields import an_object, flag, member, numbers, objects
from proxy.dialects.ollama_chat import (
    NOT_CHAT,
    SAMPLING,
    chat_message,
    chat_messages,
    chat_request,
    prompt_messages,
    template_kwargs,
)

RENDERS: Final = "_debug_render_only"  # Ollama then sends the prompt as the model would read it
_NO_PROMPT: Final = "`{}` is empty: nothing was generated."


class _Ollama(Dialect):
    framing: ClassVar[Literal["sse", "ndjson"]] = "ndjson"
    empty_answer: ClassVar[Mapping[str, Any]]  # an answer without a word
    extra_members: ClassVar[tuple[str, ...]] = ()  # members by which the model sees something else than the messages

    @abstractmethod
    def _messages(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        """The request's messages in chat form. Raises NoPrompt where it only loads or unloads a model."""

    @abstractmethod
    def message_of(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The message of one line or a whole answer, as `/api/chat` has it: role, content, thinking, tool_calls."""

    def parse(self, body: Any) -> ParsedRequest:
        body = an_object(body)
        if body.get(RENDERS):
            raise Unreadable(f"`{RENDERS}` asks for a prompt, and for no answer.", param=RENDERS)
        options = member(body, "options", dict, {})
        sampling, unclear = numbers(options, SAMPLING)
        key_beside = next((key for key in self.extra_members if body.get(key)), None)
        return ParsedRequest(
            model=member(body, "model", str, ""),
            messages=self._messages(body),
            stream=flag(body, "stream", True),
            n=1,
            sampling={SAMPLING[key]: value for key, value in sampling.items()},
            wants_logprobs=body.get("logprobs") is True,
            wants_token_ids=False,
            wants_usage=True,  # part of the format
            tools=self.tools(body),
            typed=not body.get("format") and key_beside is None,
            untrainable=key_beside,
            unclear=tuple(SAMPLING[key] for key in unclear),
        )

    def without_prompt(self, body: Mapping[str, Any], *, model: str, created: int) -> bytes | None:
        """Ollama's answer once it has loaded or unloaded the model: one object, also where a stream was asked for."""
        head = {"model": model, "created_at": _time(created), **self.empty_answer}
        return dumps({**head, "done": True, "done_reason": "unload" if _is_zero(body.get("keep_alive")) else "load"})

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        return objects(body, "tools") or None

    def template_kwargs(self, body: Mapping[str, Any], *, translated: bool) -> Any:
        return template_kwargs(body)  # what Ollama's own templates make of it, too

    def turns(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return in_turns(messages)

    def to_chat(self, body: Any, parsed: ParsedRequest) -> dict[str, Any]:
        return chat_request(body, in_turns(self._messages(body)), stream=parsed.stream)

    def fold(self, tools: Sequence[Mapping[str, Any]] | None = None, n: int | None = None) -> Fold:
        return OllamaFold(self)

    def terminal(self, event: Event) -> bool:
        if b"true" not in event.raw:
            return False
        try:
            line = event.json()
        except ValueError:
            return False
        return isinstance(line, dict) and line.get("done") is True

    def only_tokens(self, event: Mapping[str, Any]) -> bool:
        if not event.get("logprobs") or event.get("done"):
            return False
        message = self.message_of(event)
        return not any(message.get(key) for key in ("content", "thinking", "tool_calls", "images"))

    def rules(self, *, id: str, model: str | None, parsed: ParsedRequest, ours: bool = True) -> Rules:
        rules: dict[str, bytes | None] = {}
        if model is not None:
            rules["model"] = dumps(model)
        if ours and not parsed.wants_logprobs:
            rules["logprobs"] = None  # Ollama leaves it out too
        return rules

    def error(self, error: ProxyError) -> Mapping[str, Any]:
        return {"error": error.message}

    def error_event(self, error: ProxyError, last: bytes | None = None) -> bytes:
        return _line(self.error(error))


class OllamaChat(_Ollama):
    name: ClassVar[str] = "ollama"
    has_one_text: ClassVar[bool] = True
    marks: ClassVar[tuple[bytes, ...]] = (b"true",)
    paths: ClassVar[tuple[str, ...]] = ("/api/chat",)
    empty_answer: ClassVar[Mapping[str, Any]] = {"message": {"role": "assistant", "content": ""}}

    def _messages(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        messages = objects(body, "messages")
        if not messages:
            raise NoPrompt(_NO_PROMPT.format("messages"), param="messages")
        for i, message in enumerate(messages):
            if not isinstance(message.get("role"), str):
                raise Unreadable(f"`messages[{i}]` must have a `role`.", param=f"messages[{i}]")
        return chat_messages(body)

    def message_of(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        message: Mapping[str, Any] = body["message"]
        return message

    def keep(self, body: Any, parsed: ParsedRequest, indices: Sequence[int]) -> dict[str, bytes]:
        return {"messages": dumps([body["messages"][i] for i in indices])}

    def renderer(self, *, id: str, parsed: ParsedRequest, created: int) -> Renderer:
        return OllamaRenderer(parsed, created)


class OllamaGenerate(_Ollama):
    name: ClassVar[str] = "ollama-generate"
    paths: ClassVar[tuple[str, ...]] = ("/api/generate",)
    empty_answer: ClassVar[Mapping[str, Any]] = {"response": ""}
    carriers: ClassVar[tuple[str, ...]] = ("prompt", "system", "images")
    extra_members: ClassVar[tuple[str, ...]] = NOT_CHAT
    is_prompt: ClassVar[bool] = True

    def _messages(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        if not body.get("prompt"):  # Ollama then looks at nothing else, images included
            raise NoPrompt(_NO_PROMPT.format("prompt"), param="prompt")
        return prompt_messages(body)

    def message_of(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"content": body["response"], "thinking": body.get("thinking"), "tool_calls": body.get("tool_calls")}

    def keep(self, body: Any, parsed: ParsedRequest, indices: Sequence[int]) -> dict[str, bytes]:
        return {}  # one prompt, which is a command or is not

    def renderer(self, *, id: str, parsed: ParsedRequest, created: int) -> Renderer:
        return GenerateRenderer(parsed, created)


class OllamaFold(Fold):
    def __init__(self, dialect: _Ollama) -> None:
        self.failed: str | None = None
        self._message_of = dialect.message_of
        self._has_started = False
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._tokens = Reply(0)  # what is known of each of its tokens
        self._end: Mapping[str, Any] = {}

    def add(self, chunk: Any) -> None:
        if (failed := error_in(chunk)) is not None:
            self.failed = failed
            return
        if chunk.get("done"):
            self._end = chunk
        if chunk.get("logprobs") is not None:
            token_entries.take(self._tokens, chunk["logprobs"])
        try:
            message = self._message_of(chunk)
        except KeyError:
            self.skip(f"a line without an answer: {list(chunk)}")
            return
        self._has_started = True
        content, thinking = message.get("content"), message.get("thinking")
        if isinstance(content, list):
            content, thought, _, _ = reply_parts(content)
            thinking = thinking or thought
        calls = message.get("tool_calls") or ()
        sound_calls = [
            call for call in calls if isinstance(call, dict) and isinstance(call.get("function"), dict | None)
        ]
        self._calls += sound_calls
        self._thinking.append(a_text(thinking))
        self._text.append(a_text(content))
        if len(sound_calls) < len(calls):
            raise TypeError("a tool call without a function")

    def take_whole(self, body: Any) -> None:
        """Raises KeyError where it is not an answer."""
        self.add(body)
        if self.failed is None:
            self._message_of(body)

    def replies(self) -> list[Reply]:
        if not self._has_started:
            return []
        raw = {"content": join_pieces(self._text), "thinking": join_pieces(self._thinking), "tool_calls": self._calls}
        message = chat_message({"role": "assistant", **raw})
        counts = usage(_count(self._end, "prompt_eval_count"), _count(self._end, "eval_count"))
        used = counts if self._end else None
        tokens = self._tokens
        return [replace(tokens, message=message, finish_reason=self._finished(), usage=used)]

    def _finished(self) -> str | None:
        reason = self._end.get("done_reason") or ("stop" if self._end else None)
        return "tool_calls" if reason == "stop" and self._calls else reason


class OllamaRenderer(Renderer):
    """A chat completion in lines of JSON. Durations are measured here, from the first byte we saw; the time that a
    model took to load is not known and 0."""

    def __init__(self, parsed: ParsedRequest, created: int) -> None:
        self._head = {"model": parsed.model, "created_at": _time(created)}
        self._wants_logprobs = parsed.wants_logprobs
        self._fold = ChatFold(parsed.tools)
        self._usage: Mapping[str, Any] = {}
        self._started = time.perf_counter_ns()
        self._first: int | None = None  # when the model began to answer

    def chunk(self, chunk: Mapping[str, Any]) -> list[bytes]:
        self._usage = token_counts(chunk) or self._usage
        out = []
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            delta = choice.get("delta") or {}
            text, thinking = words_of(delta), reasoning_of(delta)
            logprobs = self._logprobs(choice)
            calls, reason = delta.get("tool_calls"), choice.get("finish_reason")
            if calls or reason:  # nothing else of it is said at the end
                self._fold.add({"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": reason}]})
            if calls:
                self.backlog += PIECE * len(calls) + length(calls)
            if text or thinking or logprobs:
                self._first = self._first or time.perf_counter_ns()
                out.append(_line({**self._head, **self._answer_members(text, thinking, []), "done": False, **logprobs}))
        return out

    def end(self) -> tuple[list[bytes], bytes]:
        """Tool calls come as a whole in this format, so they wait for their last piece."""
        reply = next((r for r in self._fold.replies() if r.index == 0), Reply(0))
        calls = _calls(reply.message)
        lines = [_line({**self._head, **self._answer_members("", "", calls), "done": False})] if calls else []
        return lines, _line(
            {**self._head, **self._answer_members("", "", []), **self._end_members(reply.finish_reason)}
        )

    def whole(self, body: Mapping[str, Any]) -> bytes:
        choice = body["choices"][0]
        message = choice["message"]
        self._usage = token_counts(body)
        line = self._answer_members(words_of(message), reasoning_of(message), _calls(message))
        return dumps({**self._head, **line, **self._end_members(choice.get("finish_reason")), **self._logprobs(choice)})

    def _answer_members(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thinking:
            message["thinking"] = thinking
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _logprobs(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """For those who asked. Chat completions wrap the list that Ollama has, which leaves out empty alternatives."""
        content = (choice.get("logprobs") or {}).get("content") if self._wants_logprobs else None
        entries = token_entries.published(content)
        for entry in entries:
            if not entry["top_logprobs"]:
                del entry["top_logprobs"]
        return {"logprobs": entries} if entries else {}

    def _end_members(self, reason: str | None) -> dict[str, Any]:
        now = time.perf_counter_ns()
        first = self._first or self._started
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": now - self._started,
            "load_duration": 0,
            "prompt_eval_count": self._usage.get("prompt_tokens") or 0,
            "prompt_eval_duration": first - self._started,
            "eval_count": self._usage.get("completion_tokens") or 0,
            "eval_duration": now - first,
        }


class GenerateRenderer(OllamaRenderer):
    def _answer_members(self, text: str, thinking: str, calls: list[dict[str, Any]]) -> dict[str, Any]:
        members: dict[str, Any] = {"response": text}
        if thinking:
            members["thinking"] = thinking
        if calls:
            members["tool_calls"] = calls
        return members


def _count(line: Mapping[str, Any], key: str) -> int:
    count = line.get(key)
    return count if isinstance(count, int) else 0


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = []
    for i, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        arguments = arguments_of(function.get("arguments") or "")
        id = {"id": call["id"]} if call.get("id") else {}
        calls.append({**id, "function": {"index": i, "name": function["name"], "arguments": arguments}})
    return calls


def _time(created: int) -> str:
    return datetime.fromtimestamp(created, UTC).isoformat().replace("+00:00", "Z")


def _is_zero(keep_alive: Any) -> bool:
    """Tell if the model is to be unloaded at once: 0, or a duration of Go's without another digit, as `0s`."""
    if isinstance(keep_alive, str):
        return "0" in keep_alive and not any(digit in keep_alive for digit in "123456789")
    return keep_alive is not None and keep_alive is not False and keep_alive == 0


def _line(body: Mapping[str, Any]) -> bytes:
    return dumps(body) + b"\n"
