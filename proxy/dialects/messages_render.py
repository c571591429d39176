"""A chat completion said as an Anthropic message, streamed and whole.

Owns the order of events: one content block open at a time, and usage at the end, where chat completions have it. The
length of the prompt is said at the start where it is known.
Thinking carries an empty signature: no server of ours signs it, and on its way back nothing looks at it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from proxy.core.errors import BackendBroke
from proxy.core.json_edit import dumps
from proxy.core.offload import length
from proxy.dialects.base import PIECE, Renderer
from proxy.dialects.chat_form import (
    Calls,
    a_text,
    arguments_of,
    arguments_piece,
    call_name,
    reasoning_of,
    token_counts,
    words_of,
)

CALL: Final = 512  # bytes of a call beside its arguments
_STOPPED: Final = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}


def event(body: Mapping[str, Any]) -> bytes:
    """Named after its type: clients go by the name."""
    return b"event: " + str(body["type"]).encode() + b"\ndata: " + dumps(body) + b"\n\n"


@dataclass(slots=True)
class _Call:
    id: str = ""
    names: list[str] = field(default_factory=list)  # pieces of its name, until its block is open
    unsent: list[str] = field(default_factory=list)  # of its arguments
    is_open: bool = False


class MessagesRenderer(Renderer):
    def __init__(self, *, id: str, model: str, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        """`tools`: those of the request, in chat form."""
        self._tools = tools
        self._head = {"id": id, "type": "message", "role": "assistant", "model": model}
        self._started = False
        self._open: str | int | None = None  # text, thinking, or the place of a tool call
        self._blocks = 0
        self._places = Calls()
        self._calls: dict[int, _Call] = {}  # by their place
        self._unopened: dict[int, _Call] = {}  # those with a name whose block has not begun
        self._reason: str | None = None
        self._stop_sequence: str | None = None
        self._usage: Mapping[str, Any] = {}

    def chunk(self, chunk: Mapping[str, Any]) -> list[bytes]:
        out: list[bytes] = []
        self._usage = token_counts(chunk) or self._usage
        if not self._started:
            self._started = True
            self._usage = self._usage or _read(chunk)
            out.append(event({"type": "message_start", "message": self._message([], None, None)}))
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                out += self._delta(choice.get("delta") or {})
                self._reason = choice.get("finish_reason") or self._reason
                self._stop_sequence = _stop_sequence(choice) or self._stop_sequence
        return out

    def end(self) -> tuple[list[bytes], bytes]:
        out = [] if self._started else self.chunk({})
        out += self._opened_all()
        out += self._close()
        reason = _stop_reason(self._reason, called=bool(self._calls), sequence=self._stop_sequence)
        delta = {"stop_reason": reason, "stop_sequence": self._stop_sequence}
        out.append(event({"type": "message_delta", "delta": delta, "usage": _usage(self._usage)}))
        return out, event({"type": "message_stop"})

    def whole(self, body: Mapping[str, Any]) -> bytes:
        choice = body["choices"][0]
        message = choice["message"]
        content: list[dict[str, Any]] = []
        if thinking := reasoning_of(message):
            content.append({"type": "thinking", "thinking": thinking, "signature": ""})
        if text := words_of(message):
            content.append({"type": "text", "text": text})
        calls = message.get("tool_calls") or []
        for i, call in enumerate(calls):
            name, arguments = call["function"]["name"], call["function"].get("arguments") or ""
            id = call.get("id") or self._call_id(i)
            content.append({"type": "tool_use", "id": id, "name": name, "input": arguments_of(arguments)})
        self._usage = token_counts(body)
        sequence = _stop_sequence(choice)
        reason = _stop_reason(choice.get("finish_reason"), called=bool(calls), sequence=sequence)
        return dumps(self._message(content, reason, sequence))

    # Pieces

    def _message(self, content: list[Any], reason: str | None, sequence: str | None) -> dict[str, Any]:
        stopped = {"stop_reason": reason, "stop_sequence": sequence}
        return {**self._head, "content": content, **stopped, "usage": _usage(self._usage)}

    def _delta(self, delta: Mapping[str, Any]) -> list[bytes]:
        out: list[bytes] = []
        if thinking := reasoning_of(delta):
            out += self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            out.append(self._piece({"type": "thinking_delta", "thinking": thinking}))
        if text := words_of(delta):
            out += self._switch("text", {"type": "text", "text": ""})
            out.append(self._piece({"type": "text_delta", "text": text}))
        for piece in delta.get("tool_calls") or ():
            out += self._call(piece)
        return out

    def _call(self, piece: Mapping[str, Any]) -> list[bytes]:
        """A piece of a call. Its block begins with its name, which is whole when the arguments begin. Some servers send
        it in fragments, some again with each piece, and some after the id."""
        position, function = self._places.place(piece), piece.get("function") or {}
        is_new = position not in self._calls
        out = self._opened_all() if is_new else []
        call = self._calls.setdefault(position, _Call())
        call.id = piece.get("id") or call.id
        if not call.is_open and (name := a_text(function.get("name"))):
            call.names.append(name)
            self._unopened[position] = call
        if arguments := arguments_piece(function.get("arguments")):
            call.unsent.append(arguments)
        self.backlog += PIECE + CALL * is_new + length(piece)
        if not call.names or not (arguments := "".join(call.unsent)):
            return out
        call.unsent.clear()
        out += self._opened(position, call)
        if self._open != position:
            raise BackendBroke("The backend went back to a tool call that it had ended; what came is kept. Ask again.")
        out.append(self._piece({"type": "input_json_delta", "partial_json": arguments}))
        return out

    def _opened(self, position: int, call: _Call) -> list[bytes]:
        """The beginning of its block, unless that is open or its name has not come."""
        if call.is_open or not call.names:
            return []
        call.is_open = True
        del self._unopened[position]
        name = call_name(call.names, self._tools)
        head = {"type": "tool_use", "id": call.id or self._call_id(position), "name": name}
        return self._switch(position, {**head, "input": {}})

    def _opened_all(self) -> list[bytes]:
        """The blocks of calls without arguments, which nothing else has opened."""
        return [piece for position, call in sorted(self._unopened.items()) for piece in self._opened(position, call)]

    def _call_id(self, position: int) -> str:
        return f"toolu_{self._head['id']}_{position}"

    def _switch(self, to: str | int, block: Mapping[str, Any]) -> list[bytes]:
        if self._open == to:
            return []
        out = self._close()
        self._open = to
        out.append(event({"type": "content_block_start", "index": self._blocks, "content_block": block}))
        return out

    def _piece(self, delta: Mapping[str, Any]) -> bytes:
        return event({"type": "content_block_delta", "index": self._blocks, "delta": delta})

    def _close(self) -> list[bytes]:
        if self._open is None:
            return []
        out = [self._piece({"type": "signature_delta", "signature": ""})] if self._open == "thinking" else []
        out.append(event({"type": "content_block_stop", "index": self._blocks}))
        self._open = None
        self._blocks += 1
        return out


def _stop_sequence(choice: Mapping[str, Any]) -> str | None:
    """vLLM and SGLang tell which stop string ended the answer; a token id is not one."""
    sequence = choice.get("stop_reason") or choice.get("matched_stop")
    return sequence if isinstance(sequence, str) else None


def _stop_reason(reason: str | None, *, called: bool, sequence: str | None) -> str:
    """Some servers say `stop` after a call that was asked for by name."""
    if reason in (None, "stop"):
        return "tool_use" if called else "stop_sequence" if sequence else "end_turn"
    return _STOPPED.get(str(reason), "end_turn")


def _read(chunk: Mapping[str, Any]) -> dict[str, int]:
    """The length of the prompt, which servers that tell its tokens tell first."""
    ids = chunk.get("prompt_token_ids")
    return {"prompt_tokens": len(ids)} if isinstance(ids, list) else {}


def _usage(usage: Mapping[str, Any]) -> dict[str, int]:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    counts = {
        "input_tokens": max(0, (usage.get("prompt_tokens") or 0) - cached),
        "output_tokens": usage.get("completion_tokens") or 0,
    }
    return {**counts, "cache_read_input_tokens": cached} if cached else counts
