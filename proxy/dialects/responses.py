"""OpenAI Responses: `POST /v1/responses`, streamed and whole.

Owns the request and the native answer of this format, with vLLM's `input_messages` and `output_messages`. Its items
as messages: responses_items, and back: responses_history; as a chat request: responses_chat; said from a chat answer:
responses_renderer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import orjson

from proxy.core.errors import BadRequest, NoPrompt, ProxyError, Unreadable
from proxy.core.json_edit import EACH, HIDDEN, Rules, loads
from proxy.core.sse import Event
from proxy.core.upstream import error_in
from proxy.dialects import token_entries
from proxy.dialects.base import Dialect, Fold, ParsedRequest, PreviousCompletion, Renderer, Reply, join_pieces
from proxy.dialects.chat import SAMPLING
from proxy.dialects.chat_form import a_text, is_for_words
from proxy.dialects.chat_turns import in_turns
from proxy.dialects.fields import an_object, flag, kinds, member, numbers, objects
from proxy.dialects.responses_chat import LOGPROBS, to_chat
from proxy.dialects.responses_history import to_items
from proxy.dialects.responses_items import (
    CALLS,
    is_reference,
    kind_of,
    plain,
    to_call,
    to_messages,
    unread_types,
)
from proxy.dialects.responses_object import (
    call_item,
    completions_of,
    from_usage,
    incomplete_reason,
    message_item,
    reply_items,
)
from proxy.dialects.responses_renderer import ResponsesRenderer
from proxy.dialects.responses_tools import added_tools, left_out_tools, tools_of
from store.records import Item

MESSAGE, CALL, OTHER_KIND = "message", "call", "other"  # what an item may be
LONGEST_ID: Final = 200
_ENDS: Final = ("response.completed", "response.incomplete", "response.failed")
_BEGINNINGS: Final = ("response.created", "response.queued", "response.in_progress")
OPEN: Final = ("queued", "in_progress")  # statuses of a response that the backend still works on
# Events that bring a piece of an item, and the type of that.
_DELTAS: Final = {
    "response.output_text.delta": "message",
    "response.refusal.delta": "message",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.function_call_arguments.delta": "function_call",
    "response.custom_tool_call_input.delta": "custom_tool_call",
}
# The second word of the types of all other events that this format has: the last event says what they said.
_FAMILIES: Final = tuple([family] for family in (
    "output_item", "content_part", "output_text", "refusal", "reasoning_text",
    "reasoning_summary_text", "reasoning_summary_part", "reasoning_part", "function_call_arguments",
    "custom_tool_call_input", "audio", "file_search_call", "web_search_call", "image_generation_call", "mcp_call",
    "mcp_call_arguments", "mcp_list_tools", "code_interpreter_call", "code_interpreter_call_code",
))  # fmt: skip


class Responses(Dialect):
    name: ClassVar[str] = "responses"
    marks: ClassVar[tuple[bytes, ...]] = tuple(end.encode() for end in _ENDS)
    paths: ClassVar[tuple[str, ...]] = ("/v1/responses",)
    carriers: ClassVar[tuple[str, ...]] = ("input",)
    goes_on: ClassVar[bool] = True
    may_be_empty: ClassVar[bool] = True

    def parse(self, body: Any) -> ParsedRequest:
        return self.read(body, {})

    def read(self, body: Any, referred: Mapping[str, dict[str, Any]]) -> ParsedRequest:
        body = an_object(body)
        items = [referred.get(str(item.get("id")), item) if is_reference(item) else item for item in _items(body)]
        messages, origins = to_messages(items)
        if instructions := member(body, "instructions", str, ""):
            messages, origins = [{"role": "system", "content": instructions}, *messages], [None, *origins]
        objects(body, "tools")  # which are walked below
        include, text = body.get("include"), body.get("text")
        sampling, unclear = numbers(body, SAMPLING)
        return ParsedRequest(
            model=member(body, "model", str, ""),
            messages=messages,
            stream=flag(body, "stream", False),
            n=1,
            sampling=sampling,
            wants_logprobs=isinstance(include, list) and LOGPROBS in include,
            wants_token_ids=body.get("enable_response_messages") is True,
            wants_usage=True,
            origins=tuple(origins),
            tools=self.tools(body),
            previous=member(body, "previous_response_id", str, "") or None,
            body=body,
            typed=is_for_words(body, text.get("format") if isinstance(text, dict) else None),
            referred=referred,
            unclear=unclear,
        )

    def tools(self, body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        return [tool.chat for tool in tools_of(body).values()] or None

    def turns(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return in_turns(messages)

    def keep(self, body: Any, parsed: ParsedRequest, indices: Sequence[int]) -> dict[str, bytes]:
        """A message is all items from its first one up to the next message's. Settings between them are of none."""
        items, dropped = _items(body), set(range(len(parsed.messages))) - set(indices)
        starts = {origin: n for n, origin in enumerate(parsed.origins) if origin is not None}
        stays, out = True, []
        for i, item in enumerate(items):
            if i in starts:
                stays = starts[i] not in dropped
            if stays or kind_of(item) == "settings":
                out.append(item)
        return {"input": orjson.dumps(out)}

    def to_chat(self, body: Any, parsed: ParsedRequest) -> dict[str, Any]:
        for key in ("text", "reasoning"):
            member(body, key, dict, {})
        member(body, "include", list, [])
        return to_chat({**body, "stream": parsed.stream} if "stream" in body else body, parsed.messages)

    def left_out(self, body: Any) -> list[str]:
        return kinds([*left_out_tools(body), *unread_types(_items(body) if body.get("input") else ())])

    def without_messages(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A template shows the tools that stand between the messages, too."""
        added = added_tools(body)
        return {**super().without_messages(body), **({"tools": [*(body.get("tools") or ()), *added]} if added else {})}

    def names(self, body: Any) -> list[str]:
        return list(dict.fromkeys(id for item in _items(body) for id in _referred(item)))

    def refers_to(self, body: Any) -> list[str]:
        return list(dict.fromkeys(str(item["id"]) for item in _items(body) if is_reference(item)))

    def item(self, id: str, reply: Mapping[str, Any], kind: str, position: int) -> dict[str, Any]:
        """The tree has the reply's text under its first message, and no reasoning."""
        calls, text = reply.get("tool_calls") or [], reply.get("content")
        if kind == CALL and position < len(calls):
            return {**call_item("", position, calls[position], {}), "id": id}
        if kind == MESSAGE and position == 0 and isinstance(text, str):
            return message_item(id, text)
        return {"type": "reasoning", "id": id, "summary": []}

    def spell_out(self, body: Any, completions: Mapping[str, PreviousCompletion]) -> dict[str, bytes]:
        items = _resolved(_items(body), completions)
        changed: dict[str, bytes] = {}
        if (previous := completions.get(body.get("previous_response_id") or "")) is not None:
            items = [*_history(previous), *items]
            changed["previous_response_id"] = b"null"
        return {"input": orjson.dumps(items), **changed}

    def renderer(self, *, id: str, parsed: ParsedRequest, created: int) -> Renderer:
        return ResponsesRenderer(id, parsed, created)

    def fold(self, tools: Sequence[Mapping[str, Any]] | None = None, n: int | None = None) -> Fold:
        return ResponsesFold()

    def is_event(self, body: Mapping[str, Any]) -> bool:
        return body.get("object") != "response"

    def terminal(self, event: Event) -> bool:
        raw = event.raw
        if not any(mark in raw for mark in self.marks):
            return False
        try:
            return event.begins_object and event.json().get("type") in _ENDS
        except ValueError:
            return False

    def rules(self, *, id: str, model: str | None, parsed: ParsedRequest, ours: bool = True) -> Rules:
        response: dict[str, Any] = {"id": orjson.dumps(id)}
        event: dict[str, Any] = {"response": response}
        if model is not None:
            response["model"] = orjson.dumps(model)
        if parsed.previous is not None:
            response["previous_response_id"] = orjson.dumps(parsed.previous)
        if ours and not parsed.wants_token_ids:
            response["input_messages"] = response["output_messages"] = b"null"
        if ours and not parsed.wants_logprobs:
            parts = {"content": {EACH: {"logprobs": HIDDEN}}}
            response["output"] = {EACH: parts}
            if parsed.body.get("top_logprobs") is None:
                response["top_logprobs"] = b"null"
            event |= {"item": parts, "part": {"logprobs": HIDDEN}, "logprobs": b"[]"}
        return {**response, **event}

    def error_event(self, error: ProxyError, last: bytes | None = None) -> bytes:
        details = {"code": error.code, "message": error.message, "param": error.param}
        data = orjson.dumps({"type": "error", "sequence_number": _next_number(last), **details})
        return b"event: error\ndata: " + data + b"\n\n"


class ResponsesFold(Fold):
    """The events as they come; the last one has all of it once more."""

    def __init__(self) -> None:
        self.failed: str | None = None
        self._items: dict[int, dict[str, Any]] = {}
        self._pieces: dict[int, list[str]] = {}  # of each item's text or arguments, since it was last sent whole
        self._tokens = Reply(0)  # the log-probs of the pieces
        self._final: dict[str, Any] | None = None

    def add(self, chunk: Any) -> None:
        kind, position = str(chunk.get("type")), chunk.get("output_index", 0)
        position = position if isinstance(position, int) else 0
        if (failed := error_in(chunk)) is not None:  # OpenAI's own has its members beside the type
            self.failed = failed
        elif kind in _ENDS:
            response = chunk.get("response")
            self._end(response if response and isinstance(response, dict) else {"status": kind.partition(".")[2]})
            if kind == "response.failed":
                self.failed = self.failed or "the backend gave up"
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._items[position] = {**chunk["item"]}
            self._pieces.pop(position, None)
        elif (item := _DELTAS.get(kind)) is not None:
            self._items.setdefault(position, {"type": item})
            if kind == "response.output_text.delta" and chunk.get("logprobs"):
                token_entries.take(self._tokens, chunk["logprobs"])
            self._pieces.setdefault(position, []).append(a_text(chunk["delta"]))
        elif kind in _BEGINNINGS:
            response = chunk.get("response")
            self._note_id(response if isinstance(response, dict) else {})
        elif kind.split(".")[1:2] not in _FAMILIES:
            self.skip(f"an event of the type `{kind}`")

    def take_whole(self, body: Any) -> None:
        """Raises KeyError where it is not a response."""
        self.failed = error_in(body)
        if self.failed is None or "output" in body:
            self._end({**body, "output": body["output"]})
        if self.failed is None and body.get("status") in OPEN and self.open_id is None:
            self.failed = "the backend goes on with it in the background, and gave no id to ask for it by"

    def _end(self, response: dict[str, Any]) -> None:
        self._final = response
        self._note_id(response)
        self.failed = error_in(response) or self.failed

    def _note_id(self, response: Mapping[str, Any]) -> None:
        """Keep the id of a response in the background: its client asks for it again."""
        id, is_open = response.get("id"), response.get("status") in OPEN
        self.open_id = id if is_open and isinstance(id, str) and 0 < len(id) <= LONGEST_ID else None

    def _so_far(self, position: int) -> dict[str, Any]:
        item, text = self._items[position], join_pieces(self._pieces.get(position, []))
        if not text:
            return item
        if item.get("type") in CALLS:
            member = "input" if item["type"] == "custom_tool_call" else "arguments"
            return {**item, member: _text_in(item, member) + text}
        content = item.get("content")
        *parts, last = content if content and isinstance(content, list) else [{}]
        last = last if isinstance(last, Mapping) else {}
        return {**item, "content": [*parts, {**last, "text": _text_in(last, "text") + text}]}

    def replies(self) -> list[Reply]:
        if self._final is None and not self._items:
            return []
        so_far = [self._so_far(position) for position in sorted(self._items)]
        reply = self._reply({"output": so_far, **(self._final or {})})
        if not reply.message["content"] and not reply.message.get("tool_calls"):
            reply.message = self._reply({"output": so_far}).message  # an end without its output
        if reply.logprobs is None and reply.broken_logprobs is None:
            reply.logprobs, reply.broken_logprobs = self._tokens.logprobs, self._tokens.broken_logprobs
        return [reply]

    def _reply(self, response: Mapping[str, Any]) -> Reply:
        """A `response` object as one reply, in chat form."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        texts: list[str] = []
        thoughts: list[str] = []
        output = [item for item in response.get("output") or () if isinstance(item, Mapping)]
        for item in output:
            if item.get("type") == "message":
                texts.append(plain(item.get("content")))
            elif kind_of(item) == "call":
                message.setdefault("tool_calls", []).append(to_call(item))
            elif item.get("type") == "reasoning":
                thoughts.append(plain(item.get("content")) or plain(item.get("summary")))
            else:
                self.skip(f"an item of the type `{item.get('type')}`")
        message["content"] = "".join(texts)
        if thoughts:
            message["reasoning_content"] = "".join(thoughts)
        usage = response.get("usage")
        reply = Reply(
            index=0,
            message=message,
            finish_reason=_finish_reason(response, message),
            usage=from_usage(usage) if isinstance(usage, dict) else None,
            prompt_token_ids=_tokens(response.get("input_messages")),
            token_ids=_tokens(response.get("output_messages")),
            items=_reply_items(output),
        )
        for logprobs in _logprobs(output):
            token_entries.take(reply, logprobs)
        reply.pieces = None
        return reply


def _text_in(holder: Mapping[str, Any], member: str) -> str:
    """The text that an item or a part was opened with; nothing where that is something else."""
    text = holder.get(member)
    return text if isinstance(text, str) else ""


def _logprobs(output: Sequence[Mapping[str, Any]]) -> Iterator[Any]:
    """Those of each part that has some."""
    for item in output:
        content = item.get("content") if item.get("type") == "message" else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("logprobs"):
                yield part["logprobs"]


def _reply_items(items: Sequence[Mapping[str, Any]]) -> tuple[Item, ...]:
    item_kinds = {"message": MESSAGE, "call": CALL}
    ids = ((item.get("id"), item_kinds.get(kind_of(item), OTHER_KIND)) for item in items)
    return tuple(Item(id, kind) for id, kind in ids if isinstance(id, str) and 0 < len(id) <= LONGEST_ID)


def _finish_reason(body: Mapping[str, Any], message: Mapping[str, Any]) -> str | None:
    match body.get("status"):
        case "completed":
            return "tool_calls" if message.get("tool_calls") else "stop"
        case "incomplete":
            details = body.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else None
            return next((r for r in ("length", "content_filter") if incomplete_reason(r) == reason), reason)
        case "failed" | "cancelled":
            return "error"
        case _:
            return None


def _tokens(messages: Any) -> list[int] | None:
    """vLLM's; of several messages (its own tool loop) nobody says what stood between them."""
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        tokens = messages[0].get("tokens")
        return tokens if isinstance(tokens, list) else None
    return None


def _next_number(last: bytes | None) -> int:
    """Events are counted through the whole stream."""
    try:
        return int(loads(last or b"")["sequence_number"]) + 1
    except (ValueError, KeyError, TypeError):
        return 0


def _items(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    value = body.get("input")
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        kind = NoPrompt if value is None or value == [] else Unreadable
        raise kind("`input` must be a string or a list with at least one item.", param="input")
    for i, item in enumerate(value):
        message = isinstance(item, dict) and item.get("type", "message") in (None, "message")
        if not isinstance(item, dict) or (message and not isinstance(item.get("role"), str) and not item.get("id")):
            raise Unreadable(f"`input[{i}]` must be an item with a `type`, or a message with a `role`.", param="input")
    return value


def _referred(item: Mapping[str, Any]) -> list[str]:
    return completions_of(str(item.get("id"))) if is_reference(item) else []


def _resolved(items: list[dict[str, Any]], answers: Mapping[str, PreviousCompletion]) -> list[dict[str, Any]]:
    """The items, with those that are named spelled out. Raises BadRequest for one that is named twice, as OpenAI does:
    a small request could make a very large one."""
    items_by_id: dict[str, dict[str, Any]] = {}  # the items of each completion, by their ids
    used_ids: set[str] = set()
    out = []
    for item in items:
        answer = next((answers[id] for id in _referred(item) if id in answers and answers[id].reply is not None), None)
        if answer is None or answer.reply is None:
            out.append(item)
            continue
        id = item["id"]
        if id in used_ids:
            raise BadRequest(f"Duplicate item found with id {id}; name it once.", param="input")
        used_ids.add(id)
        if answer.id not in items_by_id:
            items_by_id[answer.id] = {
                item["id"]: item for item in reply_items(answer.id, answer.reply, tools_of(answer.request))
            }
        # Reasoning, or a second piece of text: the tree has the reply's text under its first item.
        out.append(items_by_id[answer.id].get(id) or {"type": "reasoning", "id": id, "summary": []})
    return out


def _history(previous: PreviousCompletion) -> list[dict[str, Any]]:
    """Instructions are those of one request: the next one brings its own."""
    messages = previous.messages
    if previous.request.get("instructions") and messages and messages[0].get("role") == "system":
        messages = messages[1:]
    return to_items([*messages, *([previous.reply] if previous.reply else [])], tools_of(previous.request))
