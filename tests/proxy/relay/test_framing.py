"""How an answer is framed, by its first bytes. What becomes of it is in test_odd_streams."""

from __future__ import annotations

import pytest

from proxy.dialects import CHAT, MESSAGES, OLLAMA, Dialect
from proxy.relay.framing import Framing, _begins_with_broken_line, framing_of

LINE = b'{"model": "m", "message": {"content": "a"}, "done": false}\n'


@pytest.mark.parametrize(
    ("dialect", "head", "framing"),
    [
        (CHAT, b'data: {"a": 1}\n\n', Framing.EVENTS),
        (CHAT, b"da", Framing.OPEN),
        (CHAT, b'{"choices": []', Framing.OPEN),
        (CHAT, b'{\n "choices": []\n}', Framing.WHOLE),
        (CHAT, b"<html>", Framing.WHOLE),
        (OLLAMA, LINE + LINE, Framing.LINES),
        (OLLAMA, LINE + b"data: \n\n", Framing.LINES),
        (MESSAGES, b'{"done": true}\nevent: message_start\ndata: {}\n\n', Framing.EVENTS),
    ],
)
def test_a_stream_that_was_asked_for(dialect: Dialect, head: bytes, framing: Framing) -> None:
    assert framing_of(head, dialect, is_streaming=True, has_ended=False) is framing


@pytest.mark.parametrize(
    ("head", "framing"),
    [(b'{"choices": []}\n', Framing.WHOLE), (LINE + LINE, Framing.LINES), (b"data: {}\n\n", Framing.EVENTS)],
)
def test_a_whole_answer_that_was_asked_for(head: bytes, framing: Framing) -> None:
    assert framing_of(head, CHAT, is_streaming=False, has_ended=True) is framing


@pytest.mark.parametrize(
    ("head", "is_broken"),
    [
        (b'{"a": 1}\n{"a": 2}\n', False),
        (b'{"a": 1 "b"}\n{"a": 2}\n', True),
        (b'{"a": 1 "b"}\n', True),
        (b'{\n "a": 1\n}', False),
        (b'{"a": [\n{"b": 1}\n]}', False),
        (b'{"a": {}\n,"b": 1}', False),
    ],
)
def test_a_broken_line_is_told_from_an_object_of_several(head: bytes, is_broken: bool) -> None:
    assert _begins_with_broken_line(head) is is_broken
