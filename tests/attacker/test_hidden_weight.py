"""A backend whose stream is kept in a form that no reply shows: it is weighed, and measured in linear time.

Before, 40 MB of Responses items of an unknown type took 45 s of the event loop, and hundreds of megabytes that no bound
counted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from config.sections import ServerSection
from proxy.core.sharing.shares import Room
from proxy.core.sse import EventSplitter
from proxy.dialects import CHAT, DIALECTS, MESSAGES, RESPONSES, Dialect
from proxy.dialects.base import Fold
from proxy.relay.capture.answer_reader import AnswerReader

MB = 1 << 20
THINGS: dict[str, Any] = {name: {} for name in "abcdefgh"}


def chat(delta: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}], **members}


def call(piece: dict[str, Any]) -> dict[str, Any]:
    return chat({"tool_calls": [{"index": 0, **piece}]})


def block(number: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": number, "content_block": block}


EVENTS: dict[str, tuple[Dialect, Callable[[int], dict[str, Any]]]] = {
    "responses-items": (
        RESPONSES,
        lambda n: {"type": "response.output_item.added", "output_index": n, "item": {"type": "odd", **THINGS}},
    ),
    "responses-pieces": (
        RESPONSES,
        lambda n: {"type": "response.output_text.delta", "output_index": n, "delta": "a"},
    ),
    "messages-blocks": (MESSAGES, lambda n: block(n, {"type": "odd", **THINGS})),
    "messages-usage": (MESSAGES, lambda n: {"type": "message_delta", "delta": {}, "usage": {f"{n}{'k' * 900}": 1}}),
    "chat-call-ids": (CHAT, lambda n: call({"id": f"c{n}", "function": {"arguments": "a"}})),
    "chat-call-names": (CHAT, lambda n: call({"function": {"name": "f", "arguments": ""}})),
}


def stream(make: Callable[[int], dict[str, Any]], events: int) -> Iterator[bytes]:
    for start in range(0, events, 100):
        lines = (b"data: %s\n\n" % json.dumps(make(n)).encode() for n in range(start, min(events, start + 100)))
        yield b"".join(lines)


def read(name: str, events: int, most: int) -> AnswerReader:
    dialect, make = EVENTS[name]
    reader, splitter = AnswerReader(dialect, room=Room(most)), EventSplitter()
    for piece in stream(make, events):
        reader.keep(piece, splitter)
    reader.replies()
    return reader


@pytest.mark.parametrize("name", EVENTS)
def test_what_no_reply_has_is_weighed(name: str) -> None:
    assert not read(name, 100, MB).has_let_go
    assert read(name, 20_000, MB).has_let_go


def walks(name: str, events: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Replies that were made of so many events while they came."""
    count, fold = 0, EVENTS[name][0].fold()
    replies = type(fold).replies

    def counted(fold: Fold) -> Any:
        nonlocal count
        count += 1
        return replies(fold)

    with monkeypatch.context() as patch:
        patch.setattr(type(fold), "replies", counted)
        read(name, events, 1 << 40)
    return count


@pytest.mark.parametrize("name", EVENTS)
def test_it_is_measured_in_linear_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that it has doubled: so four times as much is measured only a few times more."""
    few, many = walks(name, 5_000, monkeypatch), walks(name, 20_000, monkeypatch)
    assert many <= few + 4


def test_a_long_text_in_short_pieces_is_one_text() -> None:
    """Its pieces are joined when it is measured, so that an honest answer is not let go for them."""
    pieces = [b"data: %s\n\n" % json.dumps(chat({"content": "ab"})).encode()] * 400
    reader, splitter = AnswerReader(CHAT, room=Room(2 * MB)), EventSplitter()
    began = time.process_time()
    for _ in range(250):  # 100,000 pieces: 6 MB by themselves
        reader.keep(b"".join(pieces), splitter)
    assert not reader.has_let_go and len(reader.replies()[0].text) == 200_000
    assert time.process_time() - began < 10


@pytest.mark.parametrize("name", ["responses", "messages", "ollama"])
def test_a_long_call_in_short_pieces_is_translated(name: str) -> None:
    """A model that writes a file of 300 KB: its pieces are not weighed as if each were a call."""
    dialect = next(dialect for dialect in DIALECTS if dialect.name == name)
    request = {"model": "m", "max_tokens": 9, "input": "x", "messages": [{"role": "user", "content": "x"}]}
    renderer = dialect.renderer(id="x", parsed=dialect.parse(request), created=1)
    renderer.chunk(call({"id": "c", "function": {"name": "write", "arguments": '{"text":"'}}))
    for _ in range(100_000):
        renderer.chunk(call({"function": {"arguments": "abc"}}))
    assert 300_000 < renderer.backlog < ServerSection().max_body_bytes
