"""A chat completion said as a Responses stream or body.

Owns the order of events: one item after the other, each opened, grown and closed. Calls, whose pieces may come mixed,
are closed together at the end.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from proxy.core.errors import ProxyError
from proxy.core.offload import length
from proxy.dialects import token_entries
from proxy.dialects.base import PIECE, ParsedRequest, Renderer
from proxy.dialects.chat_form import Calls, a_text, arguments_piece, call_name, token_counts
from proxy.dialects.responses_object import call_item, incomplete_reason, item_id, response, text_part
from proxy.dialects.responses_tools import tools_of

REPEATED: Final = 4  # times that a text is said again in the last events
ENTRY: Final = 1024  # bytes of the log-probs of a token
ITEM: Final = 2048  # bytes of an item beside its text
# kind of text -> (kind of item, its id, a part with no text in it yet, where the text is, name of the events)
_KINDS: Final = {
    "reasoning": ("reasoning", "rs", {"type": "reasoning_text", "text": ""}, "text", "reasoning_text"),
    "text": ("message", "msg", text_part(""), "text", "output_text"),
    "refusal": ("message", "msg", {"type": "refusal", "refusal": ""}, "refusal", "refusal"),
}


@dataclass(slots=True)
class _Call:
    """A tool call on its way, its texts in pieces: what a piece costs must not grow with those before it."""

    id: Any = None
    names: list[str] = field(default_factory=list)  # pieces of its name, until it has an item
    arguments: list[str] = field(default_factory=list)
    position: int | None = None  # its place as an item


class ResponsesRenderer(Renderer):
    def __init__(self, id: str, parsed: ParsedRequest, created: int, completed_at: float | None = None) -> None:
        """`completed_at`: when it was whole, of an answer that is said again."""
        self._id, self._parsed, self._created = id, parsed, created
        self.completed_at = completed_at
        self._tools = tools_of(parsed.body)
        self._chat_tools = [tool.chat for tool in self._tools.values()]
        self._output: list[dict[str, Any]] = []
        self._open: tuple[int, str] | None = None  # the item that grows, and the kind of its last part
        self._pieces: list[str] = []  # the text of that part, which gets it when it is closed
        self._places = Calls()
        self._calls: dict[int, _Call] = {}  # by their place
        self._without_item: list[int] = []  # places of calls that may have none yet
        self._open_calls: list[int] = []  # places of calls that may not be closed
        self._last_numbers: dict[str, int] = {}  # ids given, by kind
        self._usage: Mapping[str, Any] | None = None
        self._finish: str | None = None
        self._events: list[bytes] = []
        self._number = 0

    def chunk(self, chunk: Mapping[str, Any]) -> list[bytes]:
        self._start()
        self._usage = token_counts(chunk) or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                self._delta(choice)
        return self._take_events()

    def end(self) -> tuple[list[bytes], bytes]:
        self._start()
        self._close_all()
        events = self._take_events()
        response = self._ended()
        self._event(f"response.{response['status']}", response=response)
        return events, b"".join(self._take_events())

    def whole(self, body: Mapping[str, Any]) -> bytes:
        choice = body["choices"][0]
        message = dict(choice["message"])
        if message.get("tool_calls"):
            message["tool_calls"] = [{**call, "index": n} for n, call in enumerate(message["tool_calls"])]
        self._usage, self._finish = token_counts(body) or None, choice.get("finish_reason")
        self._delta({**choice, "delta": message})
        self._close_all()
        return orjson.dumps(self._ended())

    def failed(self, error: ProxyError) -> bytes:
        self._start()
        if self._open is not None:
            self._join()
        details = {"code": "server_error", "message": error.message}
        self._event("response.failed", response=self._response("failed", error=details))
        return b"".join(self._take_events())

    # Pieces of chat

    def _start(self) -> None:
        if self._number == 0:
            self._event("response.created", response=self._response("in_progress"))
            self._event("response.in_progress", response=self._response("in_progress"))

    def _delta(self, choice: Mapping[str, Any]) -> None:
        delta = choice.get("delta") or {}
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self._text("reasoning", thought, None)
        if text := delta.get("content"):
            self._text("text", text, choice.get("logprobs"))
        if refusal := delta.get("refusal"):
            self._text("refusal", refusal, None)
        for call in delta.get("tool_calls") or ():
            self._call(call)
        if choice.get("finish_reason"):
            self._finish = choice["finish_reason"]
            self._close_all()

    def _text(self, kind: str, text: str, logprobs: Mapping[str, Any] | None) -> None:
        position, part = self._part(kind)
        name = _KINDS[kind][4]
        self._pieces.append(a_text(text))
        self.backlog += REPEATED * len(text)
        members: dict[str, Any] = {}
        if kind == "text":
            entries = (logprobs or {}).get("content") or [] if self._parsed.wants_logprobs else []
            members["logprobs"] = token_entries.published(entries)
            part["logprobs"] += members["logprobs"]
            self.backlog += ENTRY * len(entries)
        self._item_event(f"response.{name}.delta", position, delta=text, content_index=self._last(position), **members)

    def _part(self, kind: str) -> tuple[int, dict[str, Any]]:
        """The part that this text belongs to; opened where the last one was of another kind."""
        of, prefix, empty, _, _ = _KINDS[kind]
        if self._open is not None and self._open[1] != kind:
            if self._output[self._open[0]]["type"] == of:
                self._close_part()
            else:
                self._close_item()
        if self._open is None or self._open[1] != kind:
            self._add_calls()
            position = self._open[0] if self._open is not None else self._add(self._new(of, prefix))
            self._open, self._pieces = (position, kind), []
            self.backlog += PIECE
            self._output[position]["content"].append(_copy(empty))
            self._item_event(
                "response.content_part.added", position, content_index=self._last(position), part=_copy(empty)
            )
        position = self._open[0]
        return position, self._output[position]["content"][-1]

    def _new(self, of: str, prefix: str) -> dict[str, Any]:
        n = self._last_numbers[prefix] = self._last_numbers.get(prefix, -1) + 1
        head = {"id": item_id(prefix, self._id, n), "type": of, "status": "in_progress", "content": []}
        return {**head, "summary": []} if of == "reasoning" else {**head, "role": "assistant"}

    def _call(self, delta: Mapping[str, Any]) -> None:
        """A piece of a call. Its item begins with its name, which is whole when the arguments begin: some servers send
        it in fragments, and some again with each piece."""
        index, function = self._places.place(delta), delta.get("function") or {}
        self.backlog += PIECE + length(delta)
        if index not in self._calls:
            if self._open is not None:
                self._close_item()
            self._add_calls()
            self._calls[index] = _Call()
            self._without_item.append(index)
            self._open_calls.append(index)
        call = self._calls[index]
        call.id = call.id or delta.get("id")
        if call.position is None and (name := a_text(function.get("name"))):
            call.names.append(name)
        piece = arguments_piece(function.get("arguments"))
        if not piece:
            return
        call.arguments.append(piece)
        self.backlog += REPEATED * len(piece)
        if call.position is not None:
            self._arguments(call.position, piece)
        elif call.names:
            self._add_call(index, call)

    def _add_call(self, index: int, call: _Call) -> int:
        """The item of a call, with the arguments that have come."""
        call.position = self._add(call_item(self._id, index, self._full_call(call, ""), self._tools, "in_progress"))
        if call.arguments:
            self._arguments(call.position, "".join(call.arguments))
        return call.position

    def _add_calls(self) -> None:
        """Items of the calls that have none yet, as no arguments have come."""
        places, self._without_item = self._without_item, []
        for index in places:
            if self._calls[index].position is None:
                self._add_call(index, self._calls[index])

    def _full_call(self, call: _Call, arguments: str) -> dict[str, Any]:
        name = call_name(call.names, self._chat_tools)
        return {"id": call.id, "function": {"name": name, "arguments": arguments}}

    def _arguments(self, position: int, piece: str) -> None:
        if self._output[position]["type"] == "function_call":
            self._item_event("response.function_call_arguments.delta", position, delta=piece)

    def _say_none(self, position: int, call: _Call) -> None:
        """A function that is called without arguments has an empty object: its client reads JSON. What was cut off
        says nothing."""
        is_whole = incomplete_reason(self._finish) is None
        if is_whole and not call.arguments and self._output[position]["type"] == "function_call":
            call.arguments.append("{}")
            self._arguments(position, "{}")

    # Closing

    def _close_all(self) -> None:
        if self._open is not None:
            self._close_item()
        self._add_calls()
        places, self._open_calls = self._open_calls, []
        for index in places:
            call = self._calls[index]
            if call.position is not None:
                self._say_none(call.position, call)
                self._close_call(index, call.position, self._full_call(call, "".join(call.arguments)))

    def _close_part(self) -> None:
        assert self._open is not None
        position, kind = self._open
        part = self._join()
        _, _, _, member, name = _KINDS[kind]
        members = {"logprobs": part["logprobs"]} if kind == "text" else {}
        self._item_event(
            f"response.{name}.done", position, content_index=self._last(position), **{member: part[member]}, **members
        )
        self._item_event("response.content_part.done", position, content_index=self._last(position), part=part)

    def _join(self) -> dict[str, Any]:
        """The part that is open, with its text so far."""
        assert self._open is not None
        position, kind = self._open
        part: dict[str, Any] = self._output[position]["content"][-1]
        part[_KINDS[kind][3]] = "".join(self._pieces)
        return part

    def _close_item(self) -> None:
        assert self._open is not None
        self._close_part()
        position = self._open[0]
        self._open = None
        self._output[position]["status"] = "incomplete" if incomplete_reason(self._finish) else "completed"
        self._event("response.output_item.done", output_index=position, item=self._output[position])

    def _close_call(self, index: int, position: int, call: Mapping[str, Any]) -> None:
        item = self._output[position] = call_item(self._id, index, call, self._tools)
        if item["type"] == "custom_tool_call":
            # Its arguments were JSON until now: the input is known only here.
            self._item_event("response.custom_tool_call_input.delta", position, delta=item["input"])
            self._item_event("response.custom_tool_call_input.done", position, input=item["input"])
        elif item["type"] == "function_call":
            self._item_event(
                "response.function_call_arguments.done", position, name=item["name"], arguments=item["arguments"]
            )
        self._event("response.output_item.done", output_index=position, item=item)

    # Writing

    def _add(self, item: dict[str, Any]) -> int:
        self._output.append(item)
        self.backlog += ITEM
        position = len(self._output) - 1
        self._event("response.output_item.added", output_index=position, item=item)
        return position

    def _last(self, position: int) -> int:
        return len(self._output[position]["content"]) - 1

    def _item_event(self, type: str, position: int, **members: Any) -> None:
        self._event(type, item_id=self._output[position]["id"], output_index=position, **members)

    def _event(self, type: str, **members: Any) -> None:
        data = orjson.dumps({"type": type, "sequence_number": self._number, **members})
        self._number += 1
        self._events.append(b"event: " + type.encode() + b"\ndata: " + data + b"\n\n")

    def _take_events(self) -> list[bytes]:
        events, self._events = self._events, []
        return events

    def _ended(self) -> dict[str, Any]:
        """The whole response, and the moment at which it was whole."""
        self.completed_at = self.completed_at or time.time()
        reason = incomplete_reason(self._finish)
        return self._response("incomplete" if reason else "completed", incomplete=reason, completed=self.completed_at)

    def _response(self, status: str, **members: Any) -> dict[str, Any]:
        started = status == "in_progress"
        return response(
            self._parsed.body,
            id=self._id,
            model=self._parsed.model,
            created=self._created,
            status=status,
            output=[] if started else self._output,
            previous=self._parsed.previous,
            usage=None if started else self._usage,
            **members,
        )


def _copy(part: Mapping[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, list) else value for key, value in part.items()}
