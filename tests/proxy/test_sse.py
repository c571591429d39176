"""Streams cut at every boundary come out whole."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from proxy.sse import Event, Splitter

END = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINE = st.sampled_from(
    [b"data: {}", b"data:x", b"data: ", b"data", b": note", b"event: message", b"id: 7", b"\xff\xfe", b"y"]
)


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream and its events."""
    end = draw(END)
    events = [
        b"".join(line + end for line in draw(st.lists(LINE, min_size=1, max_size=3))) + end
        for _ in range(draw(st.integers(0, 5)))
    ]
    return b"".join(events), events


@given(streams(), st.lists(st.integers(0, 200), max_size=12))
def test_any_cut_gives_the_same_events(stream: tuple[bytes, list[bytes]], cuts: list[int]) -> None:
    raw, expected = stream
    at = sorted({min(c, len(raw)) for c in cuts} | {0, len(raw)})
    splitter = Splitter()
    got = [e.raw for a, b in pairwise(at) for e in splitter.feed(raw[a:b])]
    rest = splitter.rest()
    assert b"".join(got) + rest == raw
    assert [*got, rest] == expected or got == expected  # a lone CR at the end waits for one byte more
    assert splitter.rest() == b""


@given(st.lists(st.binary(max_size=20), max_size=20))
def test_no_byte_is_lost_or_made_up(chunks: list[bytes]) -> None:
    splitter = Splitter()
    out = b"".join(e.raw for chunk in chunks for e in splitter.feed(chunk))
    assert out + splitter.rest() == b"".join(chunks)


def test_data_as_the_standard_reads_it() -> None:
    assert Event(b"data: a\ndata:b\nid: 1\n\n").data == b"a\nb"
    assert Event(b"data:  a\r\n\r\n").data == b" a"
    assert Event(b": note\n\n").data is None


def test_with_data_keeps_the_rest() -> None:
    assert Event(b"event: x\r\ndata: a\r\nid: 1\r\n\r\n").with_data(b"{}") == b"event: x\r\ndata: {}\r\nid: 1\r\n\r\n"
    assert Event(b"data: a\ndata: b\n\n").with_data(b"{}") == b"data: {}\n\n"
    assert Event(b"data: a\n\n").with_data(b"{}") == b"data: {}\n\n"


@given(st.binary(max_size=12))
def test_the_short_way_reads_as_the_long_one(data: bytes) -> None:
    """An event of one data line is read without being split; a second line end before it forces the long way."""
    raw = b"data: " + data + b"\n\n"
    plain, other = Event(raw).data, Event(b": x\n" + raw).data
    assert plain == other
